//! Deploys that change settings only, with real instances: nothing is built, and for most nothing is booted. A snapshot
//! that two versions share outlives either of them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform};
use rekindle_snapshotter::keys;
use rekindle_wire::api::{VersionInfo, VersionState, VersionSummary};

const NAME: &str = "settings";
const CODE: &str = "import os, time\nstarted = time.time_ns()\ndef handler(event, context):\n    \
                    return [started, os.environ.get('MODE'), context.get_remaining_time_in_millis() // 1000]\n";

fn deploy(platform: &Platform, settings: &str) -> VersionInfo {
    let folder = Folder::python(NAME, settings, CODE);
    let dry = platform.cli(&["deploy", "--dry-run", folder.path().to_str().unwrap()]);
    assert_eq!(dry.status.code(), Some(3), "{}", String::from_utf8_lossy(&dry.stderr));
    let version = platform.deploy(&folder);
    let dry = platform.cli(&["deploy", "--dry-run", folder.path().to_str().unwrap()]);
    assert_eq!(dry.status.code(), Some(0), "{}", String::from_utf8_lossy(&dry.stdout));
    version
}

#[test]
fn settings_alone_take_no_build_and_a_shared_snapshot_stays_until_its_last_version_goes() {
    let store = ObjectStore::start();
    let mut options = store.options();
    options.args.extend(["--keep-versions".to_owned(), "1".to_owned()]);
    let platform = Platform::start_with(options);
    let first = deploy(&platform, "timeout = \"20s\"");
    let snapshot = first.snapshot.unwrap().id;
    let answer = |platform: &Platform| {
        let reply = platform.fresh("restored", NAME, "/").ok();
        assert_eq!(reply.start(), "restored");
        reply.json()
    };
    let before = answer(&platform);

    let second = deploy(
        &platform,
        "timeout = \"50s\"\nconcurrency = 5\nmax_instances = 3\nidle = \"1s\"",
    );
    let reused = second.reused.unwrap();
    assert_eq!((reused.version, reused.snapshot), (first.version, true));
    assert!(second.phases.is_empty(), "{:?}", second.phases);
    assert_eq!(second.snapshot.unwrap().id, snapshot);
    let then = answer(&platform);
    assert_eq!(then[0], before[0], "a copy of the same process");
    assert!(then[2].as_u64().unwrap() > 20, "with the new timeout: {then}");

    let third = deploy(&platform, "timeout = \"50s\"\nenv = { MODE = \"new\" }\nidle = \"1s\"");
    let reused = third.reused.unwrap();
    assert_eq!((reused.version, reused.snapshot), (second.version, false));
    let phases: Vec<_> = third.phases.iter().map(|p| p.phase).collect();
    assert!(!phases.contains(&VersionState::Building), "{phases:?}");
    assert!(phases.contains(&VersionState::Booting), "{phases:?}");
    assert_ne!(third.snapshot.as_ref().unwrap().id, snapshot);
    let after = answer(&platform);
    assert_ne!(after[0], before[0], "it was booted");
    assert_eq!(after[1], "new");

    let told = platform.cli(&["diff", NAME, "2", "3", "--json"]);
    assert_eq!(told.status.code(), Some(3));
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["work"], "boot");
    let settings: Vec<_> = told["settings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["setting"])
        .collect();
    assert_eq!(settings, ["concurrency", "env.MODE", "max_instances"]);

    // The first version goes; the second, which shares its snapshot, is restored from it.
    let gc = || assert!(platform.cli(&["snapshot", "gc"]).status.success());
    gc();
    let versions: Vec<VersionSummary> = platform.cli_json(&["versions", NAME, "--json"]).unwrap();
    let kept: Vec<_> = versions.iter().map(|v| v.version.0).collect();
    assert_eq!(kept, [3, 2]);
    assert!(platform.cli(&["rollback", NAME]).status.success());
    assert_eq!(answer(&platform)[0], before[0]);

    assert!(platform.cli(&["delete", NAME, "--yes"]).status.success());
    let left = rekindle_e2e::RUNTIME.block_on(store.client().list(&keys::snapshot_prefix(&snapshot)));
    assert!(left.unwrap().is_empty());
}

#[test]
fn a_dry_run_names_what_the_deploy_would_fail_for() {
    let platform = Platform::start();
    let dry = |folder: &Folder| {
        let done = platform.cli(&["deploy", "--dry-run", folder.path().to_str().unwrap()]);
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let good = Folder::python("dry", "[env]\ntimeout = \"9s\"", CODE);
    let (code, said) = dry(&good);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("[env] has `timeout`"), "{said}");
    let config = "name = \"dry\"\nruntime = \"node20\"\nentry = \"none.handler\"\nsecrets = [\"NONE\"]\n";
    let bad = Folder::with_config(config);
    let (code, said) = dry(&bad);
    assert_eq!(code, Some(1), "{said}");
    for part in ["needs none.js", "`fn secret set NONE`", "fn runtimes add node20"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The deploy says the first of it, and uploads nothing.
    let refused = platform.try_deploy(&bad).unwrap_err();
    assert!(
        refused.contains("needs none.js") && !refused.contains("packed"),
        "{refused}"
    );
}
