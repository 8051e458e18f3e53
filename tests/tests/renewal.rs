//! Snapshots that an earlier system call filter is in are made anew while they serve.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_e2e::load::Load;
use rekindle_e2e::platform::Options;
use rekindle_e2e::{Folder, Platform, until};
use rekindle_init::seccomp::EARLIER;
use rekindle_wire::api::{FunctionDetail, VersionInfo};
use rekindle_wire::renewal::RenewalReason;

/// A scheduler waits for all workers first, and for others on this machine.
const LIMIT: Duration = Duration::from_secs(120);
const FILTER: &str = "FN_FUNCTION_FILTER";
/// The kernel's own word for a pair that its family does not have, which the earlier filter lets through to it.
const EOPNOTSUPP: &str = "95";
/// Which filter it is under.
const TELLS: &str = "import socket\ndef handler(event, context):\n    try:\n        \
    socket.socketpair(socket.AF_NETLINK, socket.SOCK_DGRAM)\n    \
    except OSError as error:\n        return error.errno\n";

/// A platform whose functions get the earlier filter.
fn earlier() -> Platform {
    Platform::start_with(Options {
        env: vec![(FILTER.to_owned(), EARLIER[0][..8].to_owned())],
        ..Options::default()
    })
}

fn upgrade(platform: &mut Platform) {
    platform.set_env(FILTER, "current");
    platform.restart();
}

fn serving(platform: &Platform, function: &str) -> VersionInfo {
    let detail = platform.admin("GET", &format!("/v1/functions/{function}")).send().ok();
    let detail: FunctionDetail = serde_json::from_value(detail.json()).unwrap();
    let live = detail.summary.live;
    let mut versions = detail.versions.into_iter();
    versions.find(|version| Some(version.version) == live).unwrap()
}

/// Waits until the function has another snapshot than this; answers its version then.
#[track_caller]
fn until_renewed(platform: &Platform, old: &VersionInfo) -> VersionInfo {
    let id = |version: &VersionInfo| version.snapshot.as_ref().unwrap().id.clone();
    until("another snapshot", LIMIT, || {
        let now = serving(platform, old.function.as_str());
        (id(&now) != id(old)).then_some(now)
    })
}

#[test]
fn snapshots_of_an_earlier_filter_are_made_anew_while_they_serve() {
    let mut platform = earlier();
    let deploy = |name| platform.deploy(&Folder::python(name, "concurrency = 4\nidle = \"60s\"", TELLS));
    let old = ["busy", "calm"].map(deploy);
    for version in &old {
        let made = version.snapshot.as_ref().unwrap().made_with.as_ref().unwrap();
        assert_eq!(made.filter, EARLIER[0]);
        let answer = platform.fresh("restored", version.function.as_str(), "/").ok();
        assert_eq!((answer.start(), answer.text().as_str()), ("restored", EOPNOTSUPP));
    }
    platform.stop();
    upgrade(&mut platform);
    // What is outdated serves, before and meanwhile.
    let first = platform.get("busy", "/").ok();
    assert_eq!((first.start(), first.text().as_str()), ("restored", EOPNOTSUPP));
    let load = Load::start(vec![format!("{}/function/busy/", platform.url())], 2);
    for old in &old {
        let new = until_renewed(&platform, old);
        assert_eq!((new.version, new.renewal), (old.version, None));
        let made = new.snapshot.unwrap().made_with.unwrap();
        assert_ne!(made.filter, EARLIER[0]);
    }
    load.until_answered(20, LIMIT);
    assert_eq!(load.end(), Vec::<String>::new());
    // An instance that runs goes on; the next one begins as the new snapshot.
    let warm = platform.get("busy", "/").ok();
    assert_eq!((warm.instance(), warm.text().as_str()), (first.instance(), EOPNOTSUPP));
    for function in ["busy", "calm"] {
        let answer = platform.fresh("restored", function, "/").ok();
        assert_eq!(answer.start(), "restored");
        assert_ne!(
            answer.text(),
            EOPNOTSUPP,
            "{function} is under the earlier filter still"
        );
    }
    let metrics = platform.admin("GET", "/v1/metrics").send().ok().text();
    assert!(
        metrics.contains("rekindle_snapshot_renewals_total{outcome=\"done\",reason=\"filter\"} 2"),
        "{metrics}"
    );
    // The old snapshot is the running instance's memory.
    let id = &old[0].snapshot.as_ref().unwrap().id;
    platform.cli(&["snapshot", "gc"]);
    let run = platform.directory("run");
    let listed = platform.cli(&["snapshot", "list", "--run", run.to_str().unwrap()]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(id.as_str()), "{id} is gone: {listed}");
}

#[test]
fn a_renewal_goes_on_after_a_kill() {
    let mut platform = earlier();
    // The warm-up is long enough to be killed in.
    let settings = "warmup = [{ path = \"/\" }]";
    let code = "import time\ndef handler(event, context):\n    time.sleep(3)\n    return 1\n";
    let old = platform.deploy(&Folder::python("slow", settings, code));
    platform.stop();
    upgrade(&mut platform);
    until("an attempt", LIMIT, || {
        platform.log().contains("a snapshot is being made anew").then_some(())
    });
    let waiting = serving(&platform, "slow").renewal.unwrap();
    assert_eq!((waiting.reason, waiting.attempts), (RenewalReason::Filter, 0));
    let told = platform.cli(&["describe", "slow"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("renewal    filter: it was made in form"), "{told}");
    platform.kill9();
    platform.restart();
    let new = until_renewed(&platform, &old);
    assert_eq!(new.renewal, None);
    assert_eq!(platform.fresh("restored", "slow", "/").ok().start(), "restored");
    // Nothing of either attempt runs on.
    platform.until_gone("slow", LIMIT);
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn one_that_fails_says_why_and_the_old_one_serves() {
    let platform = Platform::start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let until_then = now + 25;
    // From then on it boots no more.
    let code = format!(
        "import time\nassert time.time() < {until_then}, 'too late'\ndef handler(event, context):\n    return 1\n"
    );
    let old = platform.deploy(&Folder::python("perishable", "", &code));
    let asked = platform.cli(&["snapshot", "renew", "perishable"]);
    assert!(asked.status.success(), "{asked:?}");
    let new = until_renewed(&platform, &old);
    while SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() <= until_then {
        std::thread::sleep(Duration::from_millis(200));
    }
    platform.cli(&["snapshot", "renew", "perishable"]);
    let failed = until("a failure", LIMIT, || {
        serving(&platform, "perishable")
            .renewal
            .filter(|renewal| renewal.attempts > 0)
    });
    assert_eq!(
        (failed.reason, failed.attempts, failed.given_up),
        (RenewalReason::Asked, 1, false)
    );
    let error = failed.error.unwrap();
    assert!(error.contains("too late"), "{error}");
    let now = serving(&platform, "perishable");
    assert_eq!(now.snapshot.unwrap().id, new.snapshot.unwrap().id);
    assert_eq!(platform.fresh("restored", "perishable", "/").ok().start(), "restored");
    let unknown = platform.cli(&["snapshot", "renew", "nobody"]);
    assert!(!unknown.status.success());
}
