//! Stopped, killed and started again: nothing is lost and nothing is left.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rekindle_e2e::{Folder, Platform, SetOnDrop, host, until};

const SOON: Duration = Duration::from_secs(15);
const CODE: &str = "import time\ncount = 0\ndef handler(event, context):\n    global count\n    count += 1\n    \
    time.sleep(0.05)\n    return count\n";

fn names(platform: &Platform) -> BTreeSet<String> {
    platform.functions().iter().map(|f| f.name.to_string()).collect()
}

#[test]
fn a_platform_that_stops_leaves_nothing_and_loses_nothing() {
    let mut platform = Platform::start();
    platform.deploy(&Folder::python("stays", "", CODE));
    platform.fresh("restored", "stays", "/").ok();
    platform.fresh("booted", "stays", "/").ok();
    let invocations = |platform: &Platform| {
        let told = platform.cli(&["stats", "stays", "--json"]);
        let stats: rekindle_wire::stats::FunctionStats = serde_json::from_slice(&told.stdout).unwrap();
        stats.total().invocations()
    };
    until("both are counted", SOON, || (invocations(&platform) == 2).then_some(()));
    // What was counted in the last second is told as the gateway ends.
    platform.get("stays", "/").ok();
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
    platform.restart();
    assert_eq!(invocations(&platform), 3);
    let answer = platform.get("stays", "/").ok();
    assert_eq!((answer.start(), answer.text().as_str()), ("restored", "1"));
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn a_request_in_flight_is_answered_or_refused_when_the_platform_stops() {
    let mut platform = Platform::start();
    platform.deploy(&Folder::python(
        "slow",
        "timeout = \"60s\"",
        "import time\ndef handler(event, context):\n    time.sleep(2)\n    return 'done'\n",
    ));
    let call = platform.request("GET", "/function/slow/");
    let waiting = thread::spawn(move || call.try_send());
    until("it is in the function", SOON, || {
        platform
            .instances_of("slow")
            .iter()
            .any(|i| i.in_flight == 1)
            .then_some(())
    });
    platform.stop();
    let answer = waiting.join().unwrap().expect("an answer");
    assert!(
        answer.status == 200 && answer.text() == "\"done\"" || answer.status >= 500,
        "{} {}",
        answer.status,
        answer.text()
    );
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn a_kill_9_of_everything_under_load_loses_no_function_and_leaves_nothing() {
    let mut platform = Platform::start();
    for name in ["first", "second", "third"] {
        platform.deploy(&Folder::python(name, "max_instances = 4", CODE));
    }
    let before = names(&platform);
    for round in 0..2 {
        let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
        let url = platform.url();
        let mut accepted = Vec::new();
        let processes = thread::scope(|s| {
            let _end = SetOnDrop(&stop);
            for worker in 0..6 {
                let (stop, answered, url) = (&stop, &answered, &url);
                let name = ["first", "second", "third"][worker % 3];
                s.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let call = std::process::Command::new("curl")
                            .args(["-sf", "-m", "20", "-o", "/dev/null", &format!("{url}/function/{name}/")])
                            .status();
                        if call.is_ok_and(|s| s.success()) {
                            answered.fetch_add(1, Ordering::Relaxed);
                        } else {
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                });
            }
            until("load", Duration::from_secs(30), || {
                (answered.load(Ordering::Relaxed) > 30).then_some(())
            });
            let instances = platform.instances();
            let processes: Vec<i32> = instances
                .iter()
                .flat_map(|i| host::processes(&platform, i.id.as_str()).into_values())
                .collect();
            assert!(!processes.is_empty());
            // Some of these run, some wait.
            accepted = (0..12)
                .map(|_| {
                    let answer = platform.request("POST", "/async-function/first/").send();
                    assert_eq!(answer.status, 202, "{}", answer.text());
                    answer.header("location").to_owned()
                })
                .collect();
            platform.kill9();
            processes
        });
        platform.restart();
        let left: Vec<&i32> = processes.iter().filter(|p| host::runs(**p)).collect();
        assert!(
            left.is_empty(),
            "round {round}: functions' processes outlived the restart: {left:?}"
        );
        assert_eq!(names(&platform), before, "round {round}");
        for path in accepted {
            let answer = until(
                "the result of a call that was accepted",
                Duration::from_secs(60),
                || {
                    let answer = platform.request("GET", &format!("{path}?wait=5")).try_send().ok()?;
                    (answer.header("x-fn-async-state") == "done").then_some(answer)
                },
            );
            assert_eq!(answer.status, 200);
        }
        for name in &before {
            let answer = platform.get(name, "/").ok();
            // Calls that were accepted have woken the first one already.
            let starts: &[&str] = if name == "first" {
                &["restored", "warm"]
            } else {
                &["restored"]
            };
            assert!(
                starts.contains(&answer.start()),
                "round {round}: {name} {}",
                answer.start()
            );
        }
    }
    // What was left of the kills is gone too, not only what belongs to the last start.
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn a_kill_9_in_the_middle_of_a_deploy_leaves_a_platform_that_can_deploy() {
    let mut platform = Platform::start();
    let folder = Folder::python("interrupted", "", &format!("import time\ntime.sleep(2)\n{CODE}"));
    thread::scope(|s| {
        let path = folder.path().to_str().unwrap();
        let (url, key) = (platform.url(), platform.key());
        let deploying = s.spawn(move || {
            std::process::Command::new(rekindle_e2e::binaries::directory().join("fn"))
                .args(["deploy", path, "--wait", "20"])
                .env("FN_URL", url)
                .env("FN_KEY", key)
                .output()
        });
        until("it boots", SOON, || {
            (!platform.instances_of("interrupted").is_empty()).then_some(())
        });
        platform.kill9();
        let output = deploying.join().unwrap().unwrap();
        assert!(!output.status.success(), "the deploy ended well on a dead platform");
    });
    platform.restart();
    platform.deploy(&folder);
    assert_eq!(platform.get("interrupted", "/").ok().text(), "1");
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}
