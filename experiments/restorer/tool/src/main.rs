//! Compiles snapshots into restore programs, runs them in sandboxes, and compares what came out with the images.
#![allow(unsafe_code, reason = "namespaces, ptrace and shared pages have no safe wrappers")]

mod builder;
mod check;
mod compile;
mod descriptors;
mod frame;
mod images;
mod memory;
mod pager;
mod print;
mod residue;
mod rights;
mod run;
mod sandbox;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::memory::Pages;
use crate::run::Job;
use crate::sandbox::Layers;

const USAGE: &str = "usage: restorer print|check|hold|run IMAGES ROOTFS APP [eager|template|paged] [RUNS] [PATH]
  print  the program
  check  restores once, and compares memory, mappings and registers with the images before the first instruction
  hold   restores once, removes the residue, prints the process's id, and waits for the end of its input
  run    restores RUNS times, requests PATH of each, and prints the times of all stages
       restorer rights
  tries each step of a restore with different rights";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().eq(["rights"]) {
        return rights::print();
    }
    let [command, images, rootfs, app, rest @ ..] = arguments.as_slice() else {
        bail!("{USAGE}");
    };
    let pages = match rest.first().map(String::as_str) {
        None | Some("template") => Pages::Template,
        Some("eager") => Pages::Eager,
        Some("paged") => Pages::Paged,
        Some(_) => bail!("{USAGE}"),
    };
    let hollow = std::env::current_exe()?.with_file_name("hollow");
    let hollow = hollow.to_str().context("path")?.to_owned();
    let layers = Layers {
        rootfs: rootfs.clone(),
        app: app.clone(),
        hollow,
    };
    let job = Job::prepare(&PathBuf::from(images), layers, pages)?;
    match command.as_str() {
        "print" => print::program(&job.compiled.program),
        "check" => check::once(&job),
        "hold" => run::hold(&job),
        "run" => {
            let runs = rest.get(1).map_or(Ok(50), |runs| runs.parse())?;
            run::measure(&job, runs, rest.get(2).map(String::as_str))
        }
        _ => bail!("{USAGE}"),
    }
}
