//! Canaries with real instances. A version takes over through a kill of the platform, and one that fails goes back by
//! itself. No request fails that the version itself does not fail.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::load::Load;
use rekindle_e2e::{Folder, Platform, until};
use rekindle_wire::api::{Canary, CanaryState, FunctionDetail, VersionSummary};

const NAME: &str = "canary";
const LIMIT: Duration = Duration::from_secs(90);

/// Answers its number. The last one fails.
fn function(version: u32) -> Folder {
    let body = match version {
        3 => "raise ValueError('no')".to_owned(),
        n => format!("return {n}"),
    };
    let code = format!("def handler(event, context):\n    {body}\n");
    Folder::python(NAME, "concurrency = 8\nmax_instances = 2", &code)
}

fn canary(platform: &Platform) -> Option<Canary> {
    let detail: FunctionDetail = platform.cli_json(&["describe", NAME, "--json"]).ok()?;
    detail.canary
}

fn serving(platform: &Platform) -> Vec<u32> {
    let versions: Vec<VersionSummary> = platform.cli_json(&["versions", NAME, "--json"]).unwrap();
    let serving = versions.into_iter().filter(|v| v.traffic_percent > 0.0);
    serving.map(|v| v.version.0).collect()
}

#[test]
fn a_canary_takes_over_through_a_kill_and_one_that_fails_goes_back() {
    let mut platform = Platform::start();
    platform.deploy(&function(1));
    let url = format!("{}/function/{NAME}", platform.url());
    let good = function(2);
    let path = good.path().to_str().unwrap();
    let load = Load::start(vec![url.clone()], 3);
    // It waits for seconds only: the canary goes on by itself.
    let args = ["deploy", path, "--canary", "30,70", "--step-time", "3s", "--wait", "1"];
    let left = platform.cli(&args);
    let told = String::from_utf8_lossy(&left.stderr).into_owned();
    assert!(!left.status.success() && told.contains("goes on by itself"), "{told}");
    until("the second step", LIMIT, || {
        (canary(&platform)?.step == 1).then_some(())
    });
    assert_eq!(load.end(), [] as [String; 0]);
    platform.kill9();
    platform.restart();
    let then = canary(&platform).unwrap();
    assert_eq!(
        (then.step, then.state, then.from.0, then.to.0),
        (1, CanaryState::Growing, 1, 2)
    );
    let load = Load::start(vec![url.clone()], 3);
    until("it has taken over", LIMIT, || {
        (canary(&platform)?.state == CanaryState::Live).then_some(())
    });
    assert_eq!(load.end(), [] as [String; 0]);
    assert_eq!(serving(&platform), [2]);

    let load = Load::start(vec![url], 3);
    let bad = function(3);
    let args = [
        "deploy",
        bad.path().to_str().unwrap(),
        "--canary",
        "20%",
        "--step-time",
        "20s",
    ];
    let failed = platform.cli(&args);
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        !failed.status.success() && told.contains("was rolled back to version 2"),
        "{told}"
    );
    load.take_failed();
    load.until_answered(50, LIMIT);
    assert_eq!(load.end(), [] as [String; 0], "the old version serves alone");
    assert_eq!(serving(&platform), [2]);
    let shown = platform.cli(&["describe", NAME]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("version 3 was rolled back to 2"), "{shown}");
    assert!(shown.contains("  failed: ") && shown.contains("limit"), "{shown}");
}
