//! A backup of a platform that runs, put back onto a machine that has lost everything.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::{Command, Output};

use rekindle_e2e::{Folder, Platform, binaries};

const CODE: &str = "def handler(event, context):\n    return 'here'\n";

/// Runs `fn` on the platform's directories.
fn on(platform: &Platform, args: &[&str]) -> Output {
    Command::new(binaries::directory().join("fn"))
        .args(args)
        .env("FN_DATA", platform.directory("data"))
        .env("FN_CACHE", platform.directory("cache"))
        .env("FN_RUN", platform.directory("run"))
        .output()
        .unwrap()
}

#[track_caller]
fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{said}");
}

#[track_caller]
fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_backup_of_a_running_platform_brings_its_functions_and_snapshots_back() {
    let mut platform = Platform::start();
    platform.deploy(&Folder::python("kept", "", CODE));
    let key = platform.key();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup.tar");
    let path = file.to_str().unwrap();
    done(&on(&platform, &["backup", path]));
    refused(&on(&platform, &["backup", path]), "there already");
    refused(&on(&platform, &["restore-backup", path]), "runs there");
    platform.deploy(&Folder::python("later", "", CODE));
    platform.stop();
    refused(&on(&platform, &["restore-backup", path]), "--overwrite");
    done(&on(&platform, &["restore-backup", path, "--overwrite"]));
    platform.restart();
    let names: Vec<String> = platform.functions().iter().map(|f| f.name.to_string()).collect();
    assert_eq!(names, ["kept"], "what came after the backup is gone");
    platform.stop();

    // Another machine, with nothing.
    fs::remove_dir_all(platform.directory("data")).unwrap();
    platform.empty_cache();
    done(&on(&platform, &["restore-backup", path]));
    platform.restart();
    assert_eq!(platform.key(), key);
    let answer = platform.get("kept", "/").ok();
    assert_eq!((answer.start(), answer.text().as_str()), ("restored", "\"here\""));
    platform.stop();
    let nonsense = dir.path().join("nonsense");
    fs::write(&nonsense, "no archive").unwrap();
    refused(
        &on(&platform, &["restore-backup", nonsense.to_str().unwrap()]),
        "is no backup",
    );
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}
