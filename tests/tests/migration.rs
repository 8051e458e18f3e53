//! Instances that move between hosts while they are used.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Reply, SetOnDrop, hub, skip, until};
use rekindle_wire::api::InstanceState;
use rekindle_worker::idle::zram::{self, ZramPaths};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// The platform looks for tens of seconds before it moves anything by itself.
const LATE: Duration = Duration::from_secs(180);
/// Counts, and has memory: some written before the snapshot, some after. Nothing of it may change by moving.
const CODE: &str = r#"
import hashlib, mmap, os, socket, threading, time
BORN = time.time_ns()
count = 0
old = bytearray(b"snapshot" * (1 << 21))
new = None
given_up = mmap.mmap(-1, 1 << 20)
given_up[:] = b"x" * (1 << 20)
renamed = os.open("/tmp/first", os.O_CREAT | os.O_RDWR)
os.link("/tmp/first", "/tmp/second")
os.unlink("/tmp/first")
listening = socket.create_server(("127.0.0.1", 7071))
asks, answers = socket.create_connection(listening.getsockname()), listening.accept()[0]
threading.Thread(target=lambda: [answers.send(answers.recv(9)) for _ in iter(int, 1)], daemon=True).start()

def digest():
    whole = hashlib.sha256()
    asks.send(b"itself")
    for part in (old, new or b"", given_up[:], asks.recv(9)):
        whole.update(part)
    return whole.hexdigest()

def handler(event, context):
    global count, new
    count += 1
    path = event.get("rawPath", "/")
    if path == "/write":
        new = bytearray(os.urandom(24 << 20))
        old[5 << 20:6 << 20] = os.urandom(1 << 20)
        given_up.madvise(mmap.MADV_DONTNEED)
        with open("/tmp/kept", "w") as file:
            file.write("kept")
    if path == "/slow":
        time.sleep(1.5)
    kept = open("/tmp/kept").read() if os.path.exists("/tmp/kept") else None
    return {"born": BORN, "count": count, "digest": digest() if path != "/tick" else None, "kept": kept,
            "pid": os.getpid()}
"#;

fn cluster(store: &ObjectStore) -> Cluster {
    Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers())
}

fn migrate(cluster: &Cluster, instance: &str, request: Value) -> Reply {
    let path = format!("/v1/instances/{instance}/migrate");
    cluster
        .admin("POST", &path)
        .header("content-type", "application/json")
        .body(request.to_string())
        .send()
}

/// Stops the function's other instances: the one that its deploy has booted.
fn alone(cluster: &Cluster, function: &str, instance: &str) {
    for other in cluster.instances_of(function) {
        if other.id.as_str() != instance {
            let stopped = cluster.admin("DELETE", &format!("/v1/instances/{}", other.id)).send();
            assert!([204, 404].contains(&stopped.status), "{stopped:?}");
        }
    }
}

/// The same, once nothing of an earlier move is under way.
fn settled(cluster: &Cluster, instance: &str, request: &Value) -> Reply {
    until("its memory is settled", SOON, || {
        let answer = migrate(cluster, instance, request.clone());
        (answer.status != 409).then_some(answer)
    })
}

#[test]
fn an_instance_moves_there_and_back_with_all_its_memory() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = cluster(&store);
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    let settings = "memory = \"192MiB\"\nidle = \"120s\"\nmax_instances = 1\nconcurrency = 4";
    cluster.deploy(&Folder::python("mover", settings, CODE));
    for start in ["restored", "booted"] {
        let first = cluster.fresh(start, "mover", "/write").ok();
        let before = first.json();
        assert_eq!(before["kept"], "kept");
        let mut count = 1;
        let mut at = cluster.instances_of("mover")[0].worker.clone();
        for round in 0..4 {
            let to = ids.iter().find(|id| **id != at).unwrap().clone();
            let moved = settled(&cluster, first.instance(), &json!({ "to": to })).ok().json();
            println!("{start} {round}: {moved}");
            let after = cluster.get("mover", "/").ok();
            count += 1;
            assert_eq!(after.instance(), first.instance());
            assert_eq!(after.start(), "warm");
            let now = after.json();
            assert_eq!(
                (&now["born"], &now["digest"], &now["kept"], &now["pid"], &now["count"]),
                (
                    &before["born"],
                    &before["digest"],
                    &before["kept"],
                    &before["pid"],
                    &json!(count)
                ),
                "{start} {round}"
            );
            let here = cluster.instances_of("mover");
            assert_eq!((here.len(), &here[0].worker), (1, &to));
            at = to;
        }
        let stopped = cluster
            .admin("DELETE", &format!("/v1/instances/{}", first.instance()))
            .send();
        assert_eq!(stopped.status, 204);
    }
}

/// A server that takes a look at itself every 50 ms, with a file of `/proc` open for half of the time. It never closes
/// its end of a connection.
const STARER: &str = r#"
import os, socket, threading, time

def look():
    while True:
        with open("/proc/self/maps"):
            time.sleep(0.025)
        time.sleep(0.025)

def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    time.sleep(3600)

listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])))
threading.Thread(target=look, daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

#[test]
fn an_instance_that_looks_at_itself_and_closes_no_connection_moves_and_is_not_waited_for() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = cluster(&store);
    let settings = "memory = \"192MiB\"\nidle = \"120s\"\nmax_instances = 1\nsnapshot = false";
    cluster.deploy(&Folder::server("starer", settings, STARER));
    let first = cluster.fresh("booted", "starer", "/").ok();
    for round in 0..4 {
        let moved = settled(&cluster, first.instance(), &json!({})).ok().json();
        println!("{round}: {moved}");
        // What is waited for before a snapshot is 500 ms.
        assert!(moved["phases"]["settle_ms"].as_f64().unwrap() < 400.0, "{moved}");
        let after = cluster.get("starer", "/").ok();
        assert_eq!((after.instance(), after.text()), (first.instance(), "ok".to_owned()));
    }
}

#[test]
fn an_instance_whose_memory_is_evicted_moves_with_it() {
    hub::enter();
    if !zram::is_there(&ZramPaths::default()) {
        skip("this kernel has no zram, so nothing that was written can go");
        return;
    }
    let store = ObjectStore::start_at(hub::ADDRESS);
    let args = ["--memory", "1GiB", "--idle-swap", "zram:128MiB", "--idle-after", "2s"];
    let size = Size {
        workers: 2,
        args: args.map(|a| (Role::Worker, a.into())).to_vec(),
        guarded: true,
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    if cluster.gateway(0).worker_metric("rekindle_idle_swap{kind=\"none\"}") > 0.0 {
        skip("this host has a swap that is not compressed");
        return;
    }
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    let settings = "memory = \"192MiB\"\nidle = \"600s\"\nmax_instances = 1\nconcurrency = 4";
    cluster.deploy(&Folder::python("sleeper", settings, CODE));
    let first = cluster.fresh("restored", "sleeper", "/write").ok();
    let before = first.json();
    for count in [2, 3] {
        let from = until("what it wrote is evicted", LATE, || {
            let all = cluster.instances_of("sleeper");
            let here = all.into_iter().find(|i| i.id.as_str() == first.instance())?;
            (here.evicted_bytes >= 16 << 20).then_some(here.worker)
        });
        let to = ids.iter().find(|id| **id != from).unwrap();
        println!(
            "{}",
            settled(&cluster, first.instance(), &json!({ "to": to })).ok().json()
        );
        let after = cluster.get("sleeper", "/").ok();
        assert_eq!((after.instance(), after.start()), (first.instance(), "warm"));
        let now = after.json();
        assert_eq!(
            (&now["born"], &now["digest"], &now["kept"], &now["count"]),
            (&before["born"], &before["digest"], &before["kept"], &json!(count))
        );
    }
}

/// Counts exactly, and takes a moment for it.
const COUNTER: &str = "import threading, time\ncount = 0\nlock = threading.Lock()\n\
    def handler(event, context):\n    global count\n    time.sleep(0.002)\n    with lock:\n        count += 1\n        \
    return count\n";

#[test]
fn under_load_no_request_fails_or_is_done_twice_and_a_drained_host_is_left() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = cluster(&store);
    let settings = "memory = \"128MiB\"\nidle = \"120s\"\nmax_instances = 1\nconcurrency = 4";
    cluster.deploy(&Folder::python("count", settings, COUNTER));
    let first = cluster.fresh("restored", "count", "/").ok();
    let (instance, mut answered) = (first.instance().to_owned(), 1);
    alone(&cluster, "count", &instance);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = || {
            let mut counts = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                counts.push(cluster.get("count", "/").ok().json().as_u64().unwrap());
            }
            counts
        };
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(load)).collect();
        let end = SetOnDrop(&stop);
        // By hand, there and back.
        for _ in 0..4 {
            println!("{}", settled(&cluster, &instance, &json!({})).ok().json());
            std::thread::sleep(Duration::from_millis(300));
        }
        // And because its host is to be emptied.
        let host = cluster.instances_of("count")[0].worker.clone();
        let drained = cluster.admin("PUT", &format!("/v1/workers/{host}/drain")).send();
        assert_eq!(drained.status, 200);
        until("it is elsewhere", SOON, || {
            let here = cluster.instances_of("count");
            here.iter().all(|i| i.worker != host).then_some(())
        });
        std::thread::sleep(Duration::from_millis(300));
        drop(end);
        let mut counts: Vec<u64> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
        counts.sort_unstable();
        answered += counts.len() as u64;
        // Each was served once, by the one instance there ever was.
        assert_eq!(counts, (2..=answered).collect::<Vec<_>>());
    });
    let left = cluster.instances_of("count");
    let left: Vec<&str> = left.iter().map(|i| i.id.as_str()).collect();
    assert_eq!(left, [instance.as_str()]);
    // Four by hand and one for the drained host, on both hosts' accounts.
    let all = |name: &str| cluster.metric_of_each(name).into_iter().sum::<f64>();
    assert_eq!(
        all("rekindle_migrations_total{kind=\"move\",outcome=\"left\",way=\"move\"}"),
        5.0
    );
    assert_eq!(
        all("rekindle_migration_pause_duration_seconds_count{phase=\"whole\"}"),
        5.0
    );
    let paused = all("rekindle_migration_pause_duration_seconds_sum{phase=\"whole\"}");
    assert!(paused > 0.005 && paused < 60.0, "{paused}");
    until("its memory has followed each time", SOON, || {
        (all("rekindle_migration_behind_duration_seconds_count") >= 5.0).then_some(())
    });
}

/// Keeps a processor busy for a while.
const BURNER: &str = "import time\ndef handler(event, context):\n    end = time.process_time() + 0.05\n    \
    while time.process_time() < end:\n        pass\n    return 1\n";

#[test]
fn what_is_in_use_on_a_hot_host_moves_to_a_cool_one_by_itself_and_no_request_fails() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        workers: 2,
        // However little of the processors other work on this machine leaves them.
        args: vec![
            (Role::Scheduler, "--rebalance-at".into()),
            (Role::Scheduler, "5".into()),
        ],
        ..Size::default()
    };
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let settings = "memory = \"128MiB\"\nidle = \"120s\"\nmax_instances = 2\nconcurrency = 1";
    cluster.deploy(&Folder::python("burner", settings, BURNER));
    let began = Instant::now();
    let moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = || {
            let mut answered = 0_u64;
            while !moved.load(Ordering::Relaxed) && began.elapsed() < LATE {
                cluster.get("burner", "/").ok();
                answered += 1;
            }
            answered
        };
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(load)).collect();
        let here = until("two are in use", SOON, || {
            let here = cluster.instances_of("burner");
            (here.len() == 2 && here.iter().all(|i| i.in_flight > 0)).then_some(here)
        });
        if here[0].worker != here[1].worker {
            let to = json!({ "to": here[1].worker });
            println!("{}", settled(&cluster, here[0].id.as_str(), &to).ok().json());
        }
        until("one has moved by itself", LATE, || {
            let now = cluster.instances_of("burner");
            let same = now.iter().all(|i| here.iter().any(|h| h.id == i.id));
            (now.len() == 2 && same && now[0].worker != now[1].worker).then_some(())
        });
        moved.store(true, Ordering::Relaxed);
        assert!(clients.into_iter().all(|c| c.join().unwrap() > 0));
    });
}

#[test]
fn a_copy_is_another_and_a_lost_source_is_told() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = cluster(&store);
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    let settings = "memory = \"256MiB\"\nidle = \"120s\"\nmax_instances = 3\nconcurrency = 1";
    cluster.deploy(&Folder::python("mover", settings, CODE));
    let first = cluster.fresh("restored", "mover", "/write").ok();
    alone(&cluster, "mover", first.instance());
    let at = cluster
        .instances_of("mover")
        .into_iter()
        .find(|i| i.id.as_str() == first.instance())
        .unwrap();
    let source = u8::from(at.worker == ids[1]);
    let target = 1 - source;
    let to = json!({ "to": ids[usize::from(target)] });

    // A second one with the same memory; the first goes on.
    let copied = || {
        let order = json!({ "to": ids[usize::from(target)], "clone": true });
        migrate(&cluster, first.instance(), order).ok().json()
    };
    let stop = |copy: &Value| {
        let path = format!("/v1/instances/{}", copy["instance"].as_str().unwrap());
        assert_eq!(cluster.admin("DELETE", &path).send().status, 204);
    };
    let copy = copied();
    // Another at once waits until there is room for its images.
    stop(&copied());
    assert_ne!(copy["instance"], first.instance());
    let both = cluster.instances_of("mover");
    assert!(
        both.iter()
            .any(|i| i.id.as_str() == copy["instance"] && i.worker == ids[usize::from(target)]),
        "{both:?}"
    );
    let answers = std::thread::scope(|scope| {
        let one = scope.spawn(|| cluster.get("mover", "/slow").ok());
        until("one is busy", SOON, || {
            let all = cluster.instances_of("mover");
            all.iter().any(|i| i.in_flight > 0).then_some(())
        });
        [cluster.get("mover", "/").ok(), one.join().unwrap()]
    });
    assert_ne!(answers[0].instance(), answers[1].instance());
    for answer in answers {
        assert_eq!(answer.json()["digest"], first.json()["digest"], "{}", answer.instance());
    }
    stop(&copy);

    // No room, no such worker, no such instance: said, and nothing has changed.
    let unknown = migrate(&cluster, first.instance(), json!({ "to": "nowhere" }));
    assert!(unknown.error(404, "not_found").message().contains("fn workers"));
    let same = migrate(&cluster, first.instance(), json!({ "to": ids[usize::from(source)] }));
    assert!(same.error(409, "conflict").message().contains("already"));
    migrate(&cluster, "i-00000000000000000000000000000000", to.clone()).error(404, "not_found");

    // While a request is in it for longer than is allowed, it stays.
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| cluster.get("mover", "/slow").ok());
        until("the request is in it", SOON, || {
            cluster
                .instances_of("mover")
                .iter()
                .any(|i| i.in_flight > 0)
                .then_some(())
        });
        let busy = migrate(
            &cluster,
            first.instance(),
            json!({ "to": ids[usize::from(target)], "settle_ms": 50 }),
        );
        let busy = busy.error(409, "conflict").message();
        assert!(busy.contains("still serves"), "{busy}");
        assert_eq!(slow.join().unwrap().instance(), first.instance());
    });
    // Another may have been started while the slot of the first was on its way back.
    let again = until("the first answers again", SOON, || {
        let answer = cluster.get("mover", "/").ok();
        (answer.instance() == first.instance()).then_some(answer)
    });
    assert_eq!(again.json()["digest"], first.json()["digest"]);
    alone(&cluster, "mover", first.instance());

    // A target that cannot be reached: it goes on where it was.
    cluster.host(Role::Worker.nth(target)).cut();
    let unreachable = migrate(&cluster, first.instance(), to.clone());
    assert!(unreachable.status >= 409, "{unreachable:?}");
    assert_eq!(cluster.get("mover", "/").ok().json()["digest"], first.json()["digest"]);
    cluster.host(Role::Worker.nth(target)).mend();
    cluster.until_ready();

    // A target that dies while the instance stands still for it: the same.
    cluster.host(Role::Worker.nth(source)).slow(1);
    let doomed = Pid::from_raw(cluster.pid(Role::Worker.nth(target)));
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| migrate(&cluster, first.instance(), to.clone()));
        until("it stands still", SOON, || {
            let all = cluster.instances_of("mover");
            all.iter().any(|i| i.state == InstanceState::Moving).then_some(())
        });
        kill(doomed, Signal::SIGKILL).unwrap();
        let failed = moving.join().unwrap();
        assert!(failed.status >= 409, "{failed:?}");
    });
    let stays = until("it goes on where it was", SOON, || {
        let answer = cluster.get("mover", "/").ok();
        (answer.instance() == first.instance()).then_some(answer)
    });
    assert_eq!(stays.json()["digest"], first.json()["digest"]);
    alone(&cluster, "mover", first.instance());
    cluster.kill9(Role::Worker.nth(target));
    // At once to the one that is started anew: whoever still takes it for the one before must not give up what it has.
    cluster.launch(Role::Worker.nth(target));

    // Its memory follows slowly; a request is served all the same, by what it asks for.
    cluster.host(Role::Worker.nth(source)).slow(40);
    settled(&cluster, first.instance(), &to).ok();
    let ticked = cluster.get("mover", "/tick").ok();
    assert_eq!(
        (ticked.instance(), &ticked.json()["born"]),
        (first.instance(), &first.json()["born"])
    );
    // The source goes before the rest has come, which takes seconds: that is the end of it, and the next request is
    // another's.
    settled(&cluster, first.instance(), &json!({ "to": ids[usize::from(source)] })).ok();
    settled(&cluster, first.instance(), &to).ok();
    cluster.kill9(Role::Worker.nth(source));
    let lost = cluster.get("mover", "/");
    assert!(lost.error(502, "migration_lost").message().contains("came from worker"));
    let next = until("another answers", SOON, || {
        let answer = cluster.get("mover", "/");
        (answer.status == 200).then_some(answer)
    });
    assert_ne!(next.instance(), first.instance());
}
