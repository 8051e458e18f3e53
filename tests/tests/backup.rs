//! A backup of a platform that runs, put back onto a machine that has lost everything.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
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

fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    files
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

    // A scheduler's machine has more that must not be lost.
    done(&on(&platform, &["cluster", "init"]));
    done(&on(&platform, &["cluster", "token"]));
    let of_cluster = dir.path().join("cluster.tar");
    done(&on(&platform, &["backup", of_cluster.to_str().unwrap()]));
    let authority = platform.directory("data").join("cluster");
    let kept = files_below(&authority);
    assert!(kept.len() >= 3, "{kept:?}");
    fs::remove_dir_all(platform.directory("data")).unwrap();
    done(&on(&platform, &["restore-backup", of_cluster.to_str().unwrap()]));
    assert_eq!(files_below(&authority), kept);
    for (path, _) in kept {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    // One from before there was an authority leaves it.
    done(&on(&platform, &["restore-backup", path, "--overwrite"]));
    assert!(authority.join("authority.key").exists());

    let nonsense = dir.path().join("nonsense");
    fs::write(&nonsense, "no archive").unwrap();
    refused(
        &on(&platform, &["restore-backup", nonsense.to_str().unwrap()]),
        "is no backup",
    );
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}
