//! `rekindle-bench first`: the first restore after a deploy, compared with the tenth. A deploy rehearses a restore, so
//! the two should be alike.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rekindle_testkit::binaries::checkout;
use rekindle_testkit::{Folder, Platform};

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};

/// Restores after each deploy. The last five are what the first is compared with.
const RESTORES: usize = 12;
const LATER: usize = 5;
/// What these are called.
const THE_LATER: &str = "the last five of twelve";
/// Samples that nobody restores for their speed.
const LEFT_OUT: [&str; 1] = ["hostile-python"];

/// `rekindle-bench first`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FirstArgs {
    /// Folders of functions; by default all of functions/samples and load-tests/zoo.
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Deploys of each.
    #[arg(long, value_name = "N", default_value_t = 5)]
    deploys: usize,
}

/// Measures.
pub(crate) async fn run(args: &Args, first: &FirstArgs) -> Result<Record> {
    let mut record = Record::begin("first");
    record.fact("deploys of each", first.deploys);
    record.baseline("restore after its deploy", THE_LATER);
    let folders = if first.folders.is_empty() {
        every_folder()?
    } else {
        first.folders.clone()
    };
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    for folder in &folders {
        let function = folder.file_name().context("a folder has a name")?.to_string_lossy();
        eprintln!("{function}");
        for n in 0..first.deploys.max(1) {
            let name = format!("first-{n}-{function}");
            after_a_deploy(&mut record, &platform, folder, &function, &name).await?;
            record.cpu_loop();
        }
    }
    Ok(record)
}

/// The folders with an `fn.toml` of the samples and the applications, by name.
fn every_folder() -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for group in ["functions/samples", "load-tests/zoo"] {
        let group = checkout().join(group);
        let entries = std::fs::read_dir(&group).with_context(|| format!("{}: cannot be read", group.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("{}: cannot be read", group.display()))?
                .path();
            let left_out = path
                .file_name()
                .is_some_and(|name| LEFT_OUT.iter().any(|out| name == *out));
            if !left_out && path.join("fn.toml").exists() {
                folders.push(path);
            }
        }
    }
    folders.sort();
    Ok(folders)
}

/// The path of the function's first warm-up request with `GET`, or `/`.
fn first_path(folder: &Path) -> Result<String> {
    let text = std::fs::read_to_string(folder.join("fn.toml")).context("fn.toml cannot be read")?;
    let config = rekindle_wire::function_config::parse(&text).context("fn.toml is not valid")?;
    let first = config.rehearsed().into_iter().find(|request| request.method == "GET");
    Ok(first.map_or_else(|| "/".to_owned(), |request| request.path))
}

/// Measures each restore after a deploy of this folder under this name. It is deleted afterwards.
async fn after_a_deploy(
    record: &mut Record,
    platform: &Platform,
    folder: &Path,
    function: &str,
    name: &str,
) -> Result<()> {
    let copy = Folder::copy(folder)?;
    copy.set(name, &[])?;
    platform.deployed(&copy)?;
    platform.remove_instances()?;
    let ours = Ours::of(platform, name);
    let path = first_path(copy.path())?;
    for n in 0..RESTORES {
        let started = ours.start("restored", name, &path).await;
        let started = started.with_context(|| format!("{name} after its deploy"))?;
        platform.remove_instance(started.instance())?;
        let which = match n {
            0 => "the first",
            n if n >= RESTORES - LATER => THE_LATER,
            _ => "between",
        };
        let labels: [(&str, &dyn std::fmt::Display); 2] =
            [("function", &function), ("restore after its deploy", &which)];
        let row = Row::of("Restores after a deploy", &labels);
        record.push(&row, "first response", "ms", started.sample.ms);
        if which == THE_LATER {
            record.in_blocks(&row, LATER);
        }
    }
    platform.delete(name)
}
