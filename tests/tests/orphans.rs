//! Processes that outlive their parents, as daemons do on purpose: they are in snapshots, copies and moves, restored by
//! a program or by CRIU.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::restorer::programs_restore;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, hub, shared, until};
use rekindle_wire::api::InstanceState;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// A daemon by a double fork, with a session that a process leads which is gone. Another leads its own session, and a
/// third is in that of the program. Two children of a shell are in one session and group. Each daemon counts and
/// answers at a UNIX socket. Answers with their answers, and with the tree: parent, group, session and name by process
/// id.
const CODE: &str = r#"
import os, signal, socket, subprocess, sys, time, uuid

def daemon(name, twice):
    """Returns once it answers."""
    if os.fork():
        os.wait()
        while True:
            try:
                return ask(name)
            except OSError:
                time.sleep(0.005)
    os.setsid() if twice is True else None
    if os.fork():
        os._exit(0)
    os.setsid() if twice is False else None
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"/tmp/{name}.sock")
    listening.listen()
    born, count = uuid.uuid4().hex, 0
    while True:
        connection = listening.accept()[0]
        count += 1
        connection.send(f"{count} {born}".encode())
        connection.close()

def ask(name):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"/tmp/{name}.sock")
        return connection.recv(99).decode().split()

def tree():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            head, rest = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)
        except OSError:
            continue
        if int(pid) > 500:
            found[pid] = [int(word) for word in rest.split()[1:4]] + [head.split("(", 1)[1]]
    return found

def orphans():
    daemon("twice", True)
    daemon("leader", False)
    daemon("inside", None)
    # The shell leads their session, and ends.
    subprocess.run(["sh", "-c", "sleep 4000 & sleep 4000 &"], start_new_session=True)
    # Its children are shells until they call exec.
    while sum(of[3] == "sleep" for of in tree().values()) < 2:
        time.sleep(0.005)

KEPT = None
EARLY and orphans()
counts = 0

def handler(event, context):
    global counts
    counts += 1
    path = event.get("rawPath", "/")
    if path == "/orphans":
        orphans()
    if path == "/more":
        daemon("more", True)
    names = [name for name in ("twice", "leader", "inside", "more") if os.path.exists(f"/tmp/{name}.sock")]
    return {"counts": counts, "daemons": {name: ask(name) for name in names}, "tree": tree()}
"#;

fn code(is_early: bool) -> String {
    CODE.replace("EARLY", if is_early { "True" } else { "False" })
}

/// What a daemon has counted, and which one it is.
fn daemon(answer: &Value, name: &str) -> (u64, String) {
    let said = &answer["daemons"][name];
    let text = |at: usize| {
        said[at]
            .as_str()
            .unwrap_or_else(|| panic!("{name}: {answer}"))
            .to_owned()
    };
    (text(0).parse().unwrap(), text(1))
}

/// Parent, group, session and name of a process.
type Relations = (u64, u64, u64, String);

fn tree(answer: &Value) -> BTreeMap<u64, Relations> {
    let all: BTreeMap<String, Relations> = serde_json::from_value(answer["tree"].clone()).unwrap();
    all.into_iter().map(|(pid, of)| (pid.parse().unwrap(), of)).collect()
}

/// All have a parent among themselves: the first process, which waits for them, or the program.
#[track_caller]
fn assert_is_whole(answer: &Value) {
    let tree = tree(answer);
    let reaper = tree.get(&501).unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((reaper.0, reaper.3.as_str()), (1, "reaper"), "{answer}");
    assert_eq!(tree.values().filter(|of| of.3 == "sleep").count(), 2, "{answer}");
    for (pid, (parent, ..)) in tree.iter().filter(|(pid, _)| **pid != 501) {
        assert!(tree.contains_key(parent), "{pid}: {answer}");
    }
    let gone = tree.values().filter(|of| !tree.contains_key(&of.2)).count();
    assert!(gone >= 3, "sessions whose leader is gone: {answer}");
}

/// The same function, restored by a program and by CRIU.
fn functions() -> [(&'static str, String); 2] {
    [
        ("orphans", code(true)),
        (
            "orphans-criu",
            code(true).replace("KEPT = None", "KEPT = os.pidfd_open(os.getpid())"),
        ),
    ]
}

#[test]
fn copies_have_the_processes_that_have_outlived_their_parents_with_all_they_had() {
    hub::enter();
    let platform = shared();
    for (name, code) in functions() {
        let settings = "memory = \"192MiB\"\nidle = \"1s\"\npark = \"120s\"\nmax_instances = 4";
        let version = platform.deploy(&Folder::python(name, settings, &code));
        assert_eq!(version.snapshot_error, None, "{name}");
        let described = String::from_utf8(platform.cli(&["describe", name]).stdout).unwrap();
        let by = if name == "orphans" {
            "a restore program"
        } else {
            "is a pidfd"
        };
        assert!(described.contains(by) || !programs_restore(), "{name}: {described}");
        let mut earlier: Option<Value> = None;
        for _ in 0..3 {
            let answer = platform.fresh("restored", name, "/").ok();
            assert_eq!(answer.start(), "restored", "{name}");
            let answer = answer.json();
            assert_is_whole(&answer);
            // Once when it was made, and once now.
            assert_eq!(
                (daemon(&answer, "twice").0, daemon(&answer, "leader").0),
                (2, 2),
                "{name}"
            );
            if let Some(earlier) = earlier {
                assert_eq!(tree(&earlier), tree(&answer), "{name}");
                assert_eq!(daemon(&earlier, "twice"), daemon(&answer, "twice"), "{name}");
            }
            earlier = Some(answer);
        }
        // It goes on to adopt.
        let more = platform.fresh("restored", name, "/more").ok();
        let (instance, more) = (more.instance().to_owned(), more.json());
        assert_is_whole(&more);
        assert_eq!(daemon(&more, "more").0, 2, "{name}: {more}");
        until("it is parked", SOON, || {
            let all = platform.instances_of(name);
            let it = all.iter().find(|i| i.id.as_str() == instance)?;
            (it.state == InstanceState::Parked).then_some(())
        });
        assert_is_whole(&platform.get(name, "/").ok().json());
    }
}

fn migrate(cluster: &Cluster, instance: &str) -> Value {
    let path = format!("/v1/instances/{instance}/migrate");
    let moved = until("its memory is settled", SOON, || {
        let ask = cluster.admin("POST", &path).header("content-type", "application/json");
        let answer = ask.body("{}").send();
        (answer.status != 409).then_some(answer)
    });
    moved.ok().json()
}

/// Moves an instance that `begun` describes, and asks it after each move.
fn moves(cluster: &Cluster, name: &str, instance: &str, begun: &Value) {
    let (mut count, first) = daemon(begun, "twice");
    for round in 0..3 {
        println!("{name} {round}: {}", migrate(cluster, instance));
        let after = cluster.get(name, "/").ok();
        assert_eq!(after.instance(), instance, "{name} {round}");
        let after = after.json();
        assert_is_whole(&after);
        count += 1;
        assert_eq!(daemon(&after, "twice"), (count, first.clone()), "{name} {round}");
        assert_eq!(tree(&after), tree(begun), "{name} {round}");
    }
}

#[test]
fn instances_move_with_the_processes_that_have_outlived_their_parents() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let settings = "memory = \"192MiB\"\nidle = \"120s\"\nmax_instances = 1";
    for (name, code) in functions() {
        cluster.deploy(&Folder::python(name, settings, &code));
        let first = cluster.fresh("restored", name, "/").ok();
        moves(&cluster, name, first.instance(), &first.json());
        assert!(cluster.delete(name).is_ok());
    }

    // Without a snapshot the deploy looks too.
    let booted = Folder::python("booted", &format!("snapshot = false\n{settings}"), &code(true));
    cluster.deploy(&booted);
    let first = cluster.get("booted", "/").ok();
    moves(&cluster, "booted", first.instance(), &first.json());
    assert!(cluster.delete("booted").is_ok());

    // What comes after the deploy has no reaper, and stays.
    let late = Folder::python("late", settings, &code(false));
    assert_eq!(cluster.deploy(&late).snapshot_error, None);
    let first = cluster.fresh("restored", "late", "/orphans").ok();
    let refused = late_refusal(&cluster, first.instance());
    assert!(
        refused.starts_with(&format!("instance {} cannot move: process ", first.instance())),
        "{refused}"
    );
    assert!(
        refused.contains("has outlived its parent") && refused.contains("warm-up"),
        "{refused}"
    );
    let after = cluster.get("late", "/").ok();
    assert_eq!(after.instance(), first.instance());
    assert_eq!(daemon(&after.json(), "twice").0, daemon(&first.json(), "twice").0 + 1);
}

fn late_refusal(client: &Client, instance: &str) -> String {
    let path = format!("/v1/instances/{instance}/migrate");
    let ask = client.admin("POST", &path).header("content-type", "application/json");
    ask.body(json!({}).to_string()).send().error(409, "conflict").message()
}
