//! What a process has besides its memory comes back by a restore program as by stock CRIU: registers, threads, signals,
//! descriptors, mappings. The process is made at random, by a seed.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_e2e::restorer::programs_restore;
use rekindle_e2e::{Folder, Platform, shared};

use crate::first_instruction::{same, started};

fn made(name: &str, seed: u64, variables: &str) -> Folder {
    let folder = Folder::with_config(&format!(
        "name = \"{name}\"\nruntime = \"http\"\ncommand = [\"./state\"]\nmemory = \"128MiB\"\ntimeout = \"15s\"\n\
         [env]\nSEED = \"{seed}\"\n{variables}"
    ));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("functions/state/state.c");
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-mavx", "-pthread", "-o"]);
    let compiled = compile.arg(folder.path().join("state")).arg(source).output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    folder
}

/// Restores by who is to make them.
fn completed(platform: &Platform) -> f64 {
    let by = if programs_restore() { "program" } else { "criu" };
    platform.worker_metric(&format!("rekindle_restores_completed_total{{by=\"{by}\"}}"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_program_restores_what_stock_criu_restores_to_the_last_register() {
    let Some((store, platform)) = started() else { return };
    for (number, seed) in [7, now()].into_iter().enumerate() {
        let name = format!("state-{number}");
        let compared = same(&platform, &store, &name, &made(&name, seed, ""), "/");
        for filled in compared.filled {
            assert!(filled > 500, "seed {seed}: only {filled} pages have anything in them");
        }
        let answers = [compared.eager.get("/"), compared.answer.ok().body.to_vec()];
        let answers = answers.map(|body| String::from_utf8(body).unwrap());
        assert_eq!(answers, ["as it was\n"; 2], "seed {seed}");
    }
}

#[test]
fn a_copy_finds_itself_as_it_was_and_no_thread_of_it_ever_has_rights() {
    let seed = now();
    shared().deploy(&made("state-watch", seed, "WATCH = \"1\"\n"));
    let before = completed(shared());
    for _ in 0..3 {
        let answer = shared().fresh("restored", "state-watch", "/").ok();
        assert_eq!(
            (answer.start(), answer.text().as_str()),
            ("restored", "as it was\n"),
            "seed {seed}"
        );
    }
    assert!(completed(shared()) - before > 2.9, "another restored it");
}
