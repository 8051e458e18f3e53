//! Releases with real instances: a rollback restores the version before, versions and aliases have addresses, and no
//! request fails while what serves changes. All of it outlives a kill of the platform.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use rekindle_e2e::load::Load;
use rekindle_e2e::{Folder, Platform};
use rekindle_wire::api::{Rollback, VersionSummary};

const NAME: &str = "released";
const LIMIT: Duration = Duration::from_secs(30);

/// Answers the number of its version.
fn function(version: u32) -> Folder {
    let code = format!("import time\ndef handler(event, context):\n    time.sleep(0.01)\n    return {version}\n");
    Folder::python(NAME, "concurrency = 4\nmax_instances = 2", &code)
}

/// The version that answers at this path, which its header names too.
fn serves(platform: &Platform, path: &str) -> String {
    let answer = platform.get(path, "/").ok();
    assert_eq!(answer.header("x-fn-version"), answer.text().trim(), "{path}");
    answer.text().trim().to_owned()
}

fn run(platform: &Platform, args: &[&str]) -> String {
    let output = platform.cli(args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {told}\n{}", platform.log_tail(30));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(platform: &Platform, args: &[&str]) -> String {
    let output = platform.cli(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_serves_changes_at_once_without_a_failed_request_and_outlives_a_kill() {
    let mut platform = Platform::start();
    for version in 1..=2 {
        platform.deploy(&function(version));
    }
    let url = format!("{}/function/{NAME}", platform.url());
    assert_eq!(serves(&platform, NAME), "2");
    let load = Load::start(vec![url], 3);
    load.until_answered(20, LIMIT);

    let began = Instant::now();
    let told: Rollback = platform.cli_json(&["rollback", NAME, "--json"]).unwrap();
    assert_eq!((told.to.0, told.restored), (1, true));
    assert_eq!(serves(&platform, NAME), "1", "in force when it returns");
    println!("rolled back and answered after {:?}", began.elapsed());
    assert_eq!(serves(&platform, &format!("{NAME}@2")), "2", "its address stays");
    load.until_answered(20, LIMIT);

    for shares in ["1=90,2=10", "1=50,2=50", "1=1,2=99"] {
        run(&platform, &["alias", "set", NAME, "live", shares]);
        load.until_answered(20, LIMIT);
    }
    run(&platform, &["alias", "set", NAME, "canary", "1"]);
    let ready = folder_without_traffic(&platform);
    assert_eq!(ready, 3);
    assert_eq!(load.end(), [] as [String; 0]);

    let is_refused = |args: &[&str], what: &str| {
        let told = refused(&platform, args);
        assert!(told.contains(what), "{args:?}: {told}");
    };
    is_refused(&["rollback", NAME, "70"], "fn versions released");
    is_refused(&["alias", "rm", NAME, "live"], "stays");

    platform.kill9();
    platform.restart();
    let versions: Vec<VersionSummary> = platform.cli_json(&["versions", NAME, "--json"]).unwrap();
    let shown: Vec<_> = (versions.iter())
        .map(|v| {
            (
                v.version.0,
                v.traffic_percent.round(),
                v.aliases.iter().map(|a| a.as_str()).collect::<Vec<_>>(),
            )
        })
        .collect();
    let expected = [
        (3, 0.0, vec![]),
        (2, 99.0, vec!["live"]),
        (1, 1.0, vec!["canary", "live"]),
    ];
    assert_eq!(shown, expected);
    assert!(versions.iter().all(|v| v.snapshot.is_some()), "{versions:?}");
    for (path, version) in [("@canary", "1"), ("@2", "2"), ("@3", "3")] {
        assert_eq!(serves(&platform, &format!("{NAME}{path}")), version, "{path}");
    }
    assert_eq!(run(&platform, &["invoke", &format!("{NAME}@3"), "-q"]).trim(), "3");
    run(&platform, &["rollback", NAME, "3"]);
    assert_eq!(serves(&platform, NAME), "3");
    assert_eq!(serves(&platform, &format!("{NAME}@canary")), "1");
}

/// Deploys a third version that does not serve, and returns its number.
fn folder_without_traffic(platform: &Platform) -> u32 {
    let folder = function(3);
    let path = folder.path().to_str().unwrap().to_owned();
    let version: rekindle_wire::api::VersionInfo =
        platform.cli_json(&["deploy", &path, "--no-traffic", "--json"]).unwrap();
    version.version.0
}

#[test]
fn a_version_whose_secret_is_gone_is_not_made_live_again() {
    let platform = Platform::start();
    let value = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(value.path(), "value").unwrap();
    let set = ["secret", "set", "DB_URL", "--file", value.path().to_str().unwrap()];
    run(&platform, &set);
    let code = |version: u32| format!("def handler(event, context):\n    return {version}\n");
    platform.deploy(&Folder::python(NAME, "secrets = [\"DB_URL\"]", &code(1)));
    platform.deploy(&Folder::python(NAME, "", &code(2)));
    run(&platform, &["secret", "rm", "DB_URL"]);
    for back in [
        &["rollback", NAME][..],
        &["rollback", NAME, "1"],
        &["alias", "set", NAME, "live", "1"],
        &["alias", "set", NAME, "live", "1=10,2=90"],
        &["alias", "set", NAME, "older", "1"],
    ] {
        let told = refused(&platform, back);
        assert!(
            told.starts_with("error[conflict]: version 1 cannot serve"),
            "{back:?}: {told}"
        );
        assert!(told.contains("the secret DB_URL, which is not set"), "{back:?}: {told}");
        assert_eq!(serves(&platform, NAME), "2");
    }
    run(&platform, &set);
    run(&platform, &["rollback", NAME]);
    assert_eq!(serves(&platform, NAME), "1");
}
