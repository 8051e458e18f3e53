//! Calls of a function whose instance takes long to move: they wait for it, and find what it keeps in memory.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, SetOnDrop, hub, until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// The link over which 12 MiB of files are sent while the instance stands still: for some two seconds.
const MEGABITS: u32 = 60;

/// Counts calls, and writes a file that moves with it.
const COUNTER: &str = "import os, threading\ncount = 0\nlock = threading.Lock()\n\
    def handler(event, context):\n    global count\n    if event['rawPath'] == '/write':\n        \
    open('/tmp/file', 'wb').write(os.urandom(12 << 20))\n    with lock:\n        count += 1\n        return count\n";

/// Calls the function until `done`, and returns which instances answered, each with its count.
fn calls(cluster: &Cluster, done: &AtomicBool) -> Vec<(String, u64)> {
    let mut answers = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let answer = cluster.get("keeper", "/").ok();
        answers.push((answer.instance().to_owned(), answer.json().as_u64().unwrap()));
    }
    answers
}

#[test]
fn calls_wait_for_an_instance_whose_move_or_drain_takes_seconds_and_none_is_started_in_its_place() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let settings = "memory = \"128MiB\"\nidle = \"120s\"\nmax_instances = 4\nconcurrency = 8";
    cluster.deploy(&Folder::python("keeper", settings, COUNTER));
    let first = cluster.fresh("restored", "keeper", "/write").ok();
    let id = first.instance().to_owned();
    for other in cluster.instances_of("keeper") {
        if other.id.as_str() != id {
            let stopped = cluster.admin("DELETE", &format!("/v1/instances/{}", other.id)).send();
            assert!([204, 404].contains(&stopped.status), "{stopped:?}");
        }
    }
    let mut answered = 1;
    for what in ["move", "drain"] {
        let from = cluster.instances_of("keeper").remove(0).worker;
        let source = u8::from(cluster.worker(1).id == from);
        cluster.host(Role::Worker.nth(source)).slow(MEGABITS);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| calls(&cluster, &done))).collect();
            let end = SetOnDrop(&done);
            std::thread::sleep(Duration::from_millis(200));
            let path = match what {
                "move" => format!("/v1/instances/{id}/migrate"),
                _ => format!("/v1/workers/{from}/drain"),
            };
            if what == "move" {
                let moved = until("its memory is settled", SOON, || {
                    let order = cluster.admin("POST", &path).header("content-type", "application/json");
                    let answer = order.body(json!({}).to_string()).send();
                    (answer.status != 409).then_some(answer)
                });
                let moved: Value = moved.ok().json();
                println!("{moved}");
                let phases = &moved["phases"];
                let of = |phase| phases[phase].as_f64().unwrap();
                assert!(of("pause_ms") > 1_200.0, "too short for this test: {phases}");
            } else {
                assert_eq!(cluster.admin("PUT", &path).send().status, 200);
            }
            until("it is elsewhere", SOON, || {
                let all = cluster.instances_of("keeper");
                all.iter()
                    .any(|i| i.id.as_str() == id && i.worker != from)
                    .then_some(())
            });
            std::thread::sleep(Duration::from_millis(500));
            drop(end);
            let answers: Vec<_> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
            let strangers: Vec<_> = answers.iter().filter(|(instance, _)| *instance != id).collect();
            assert_eq!(strangers, Vec::<&(String, u64)>::new(), "{what}");
            let mut counts: Vec<u64> = answers.into_iter().map(|(_, count)| count).collect();
            counts.sort_unstable();
            let before = answered;
            answered += counts.len() as u64;
            assert_eq!(counts, (before + 1..=answered).collect::<Vec<_>>(), "{what}");
        });
        assert_eq!(cluster.instances_of("keeper").len(), 1, "{what}");
        cluster.host(Role::Worker.nth(source)).slow(10_000);
    }
}
