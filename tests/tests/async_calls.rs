//! Asynchronous invocations on real roles: every part is killed, at random, while calls come in, wait and run.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_e2e::cluster::Role;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, hub, until};
use rekindle_wire::asynchronous::{AsyncCall, CallState};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const CODE: &str = r#"
import base64, json, time

def handler(event, context):
    body = event["body"]
    if event.get("isBase64Encoded"):
        body = base64.b64decode(body)
    time.sleep(0.2)
    return json.loads(body) ** 2
"#;
const CALLS: usize = 60;
/// Answers what it is told of a call: its id, the request and the answer.
const TOLD: &str = r#"
def handler(event, context):
    data = event["data"]
    return [event["type"], data["async_id"], data["request"]["body"], data["answer"]["body"]]
"#;

/// Which calls the ledger was told of, by their ids.
fn told(cluster: &Cluster) -> BTreeMap<String, Value> {
    let listed = cluster.cli_json(&["async", "list", "ledger", "--limit", "1000", "--json"]);
    let all: Vec<AsyncCall> = listed.unwrap_or_default();
    let mut told = BTreeMap::new();
    for call in all.into_iter().filter(|call| call.state == CallState::Done) {
        let answer: Value = cluster
            .request("GET", &format!("/async-results/{}", call.id))
            .send()
            .ok()
            .json();
        assert_eq!(answer[0], "rekindle.function.succeeded");
        let id = answer[1].as_str().unwrap().to_owned();
        assert_eq!(told.insert(id, answer), None, "an end is told once");
    }
    told
}

/// Sends one until it is accepted; answers its result's path.
fn send(url: &str, n: usize) -> Option<String> {
    let output = std::process::Command::new("curl")
        .args([
            "-s",
            "-m",
            "20",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %header{location}",
        ])
        .args(["-H", &format!("idempotency-key: call-{n}"), "-d", &n.to_string()])
        .arg(format!("{url}/async-function/squares/"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    said.strip_prefix("202 ").map(str::to_owned)
}

#[test]
fn every_call_that_was_accepted_is_run_whatever_is_killed_meanwhile() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = Cluster::start(store.endpoint(), store.environment());
    cluster.deploy(&Folder::python("ledger", "max_instances = 2", TOLD));
    let settings = "max_instances = 3\nidle = \"2s\"\n[async]\non_success = \"ledger\"";
    cluster.deploy(&Folder::python("squares", settings, CODE));
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    eprintln!("seed {seed}");
    let accepted: Mutex<Vec<(usize, String)>> = Mutex::default();
    let all_sent = AtomicBool::new(false);
    let url = cluster.url();
    thread::scope(|s| {
        s.spawn(|| {
            for n in 0..CALLS {
                until("a call is accepted", LIMIT, || {
                    let path = send(&url, n)?;
                    accepted.lock().unwrap().push((n, path));
                    Some(())
                });
            }
            all_sent.store(true, Ordering::SeqCst);
        });
        // Each role twice, in an order that no run has twice.
        let mut order = [
            Role::Scheduler,
            Role::Gateway,
            Role::Worker,
            Role::Scheduler,
            Role::Gateway,
            Role::Worker,
        ];
        let mut random = seed;
        for at in (1..order.len()).rev() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            order.swap(at, usize::try_from((random >> 33) % (at as u128 + 1)).unwrap());
        }
        for role in order {
            let before = accepted.lock().unwrap().len();
            until("some more are accepted", LIMIT, || {
                let now = accepted.lock().unwrap().len();
                (now >= before + 5 || all_sent.load(Ordering::SeqCst)).then_some(())
            });
            cluster.kill9(role);
            cluster.restart(role);
        }
    });
    for (n, path) in accepted.into_inner().unwrap() {
        let answer = until(&format!("the result of call {n}"), LIMIT, || {
            let answer = cluster.request("GET", &format!("{path}?wait=20")).try_send().ok()?;
            (answer.header("x-fn-async-state") == "done").then_some(answer)
        });
        assert_eq!((answer.status, answer.text()), (200, (n * n).to_string()));
    }
    // The command line sees the same.
    let listed = cluster.cli(&[
        "async", "list", "squares", "--state", "done", "--limit", "1000", "--json",
    ]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), CALLS);
    let ids: BTreeSet<String> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect();
    // So is every end, though those who tell of it were killed as well.
    let told = until("the ledger is told of each call", LIMIT, || {
        let told = told(&cluster);
        told.keys().eq(&ids).then_some(told)
    });
    for told in told.values() {
        let part = |n: usize| told[n].to_string().trim_matches('"').parse::<usize>().unwrap();
        assert_eq!(part(3), part(2) * part(2), "{told}");
    }
    let sent = cluster.cli(&["invoke", "squares", "--async", "-d", "12"]);
    let id = String::from_utf8(sent.stdout).unwrap();
    let result = cluster.cli(&["async", "result", id.trim(), "--wait", "60"]);
    assert_eq!(
        String::from_utf8_lossy(&result.stdout),
        "144",
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    let shown = cluster.cli(&["async", "show", id.trim()]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("done"));
    for role in Role::ALL.into_iter().rev() {
        cluster.stop(role);
    }
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}
