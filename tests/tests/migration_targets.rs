//! What makes the processes of an instance that arrives: a restore program, or CRIU. Either way it is what it was. All
//! other tests of migrations run either way: `FN_RESTORER=auto`, or `criu`.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::differ::{Picture, compare};
use rekindle_e2e::kinds::{self, Kind};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Reply, host, hub, until};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// For an instance that has moved to be as idle as it was.
const SETTLED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

fn cluster(store: &ObjectStore) -> Cluster {
    let args = ["--memory", "2GiB", "--restorer", "auto"];
    let size = Size {
        workers: 2,
        args: args.map(|arg| (Role::Worker, arg.into())).to_vec(),
        ..Size::default()
    };
    Cluster::start_sized(store.endpoint(), store.environment(), size)
}

/// Deploys a function whose handler is asked by `/ask`. Other requests change nothing.
fn deploy(cluster: &Cluster, name: &str, code: &str) {
    let settings = "memory = \"192MiB\"\nidle = \"120s\"\nmax_instances = 1";
    let code = format!(
        "{code}\nsaid = handler\n\ndef handler(event, context):\n    \
         return said(event, context) if event[\"rawPath\"] == \"/ask\" else {{}}\n"
    );
    cluster.deploy(&Folder::python(name, settings, &code));
}

/// Moves an instance to the other worker. Returns what has restored it there.
fn moved(cluster: &Cluster, instance: &str) -> Value {
    let path = format!("/v1/instances/{instance}/migrate");
    // Nothing of an earlier move is under way.
    let answer: Reply = until("its memory is settled", SOON, || {
        let request = cluster.admin("POST", &path).header("content-type", "application/json");
        let answer = request.body("{}").send();
        (answer.status != 409).then_some(answer)
    });
    let answer = answer.ok().json();
    println!("{answer}");
    answer["phases"]["restored_by"].clone()
}

/// How many instances have arrived on all workers, by a program and by CRIU.
fn arrived(cluster: &Cluster) -> [f64; 2] {
    let by = |by| format!("rekindle_migrations_restored_total{{by=\"{by}\"}}");
    ["program", "criu"].map(|name| cluster.metric_of_each(&by(name)).iter().sum())
}

/// The pid namespaces of a function's instances, each with one of its processes.
fn namespaces(name: &str) -> Vec<(PathBuf, i32)> {
    let all = host::with_variable(&format!("FN_NAME={name}")).into_iter();
    let mut found: Vec<_> = all
        .filter_map(|pid| Some((std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?, pid)))
        .collect();
    found.sort();
    found.dedup_by(|one, other| one.0 == other.0);
    found
}

/// Waits until the function has one instance, and that is not `before`. Returns its namespace and a picture of it.
fn picture(name: &str, before: Option<&PathBuf>) -> (PathBuf, Picture) {
    until("one instance", SOON, || match &namespaces(name)[..] {
        [(namespace, pid)] if before != Some(namespace) => {
            let one = Picture::of_namespace(*pid).ok()?;
            std::thread::sleep(PAUSE);
            let other = Picture::of_namespace(*pid).ok()?;
            // A signal is blocked while its handler runs. Threads that have just begun map memory of their own, later
            // on a busy machine.
            let changes = compare(&one, &other).differences;
            let is_at_rest = changes.iter().all(|d| d.contains(" armed: ") || d.contains(" ticks: "));
            is_at_rest.then(|| (namespace.clone(), other))
        }
        _ => None,
    })
}

/// Whether the one instance of the function is what it was, once it is idle again.
#[track_caller]
fn same(name: &str, namespace: &PathBuf, before: &Picture) -> (PathBuf, Picture) {
    let end = Instant::now() + SETTLED;
    loop {
        let (now, after) = picture(name, Some(namespace));
        let mut told = compare(before, &after);
        // Each worker has the function's layers in a directory of its own. A timer of a second expires meanwhile. A
        // file that was made without a name (`O_TMPFILE`) is opened as any other.
        let nameless = " flags: 022700002 became 02500002";
        // A pidfd has its process's id on the host, too.
        let passes = [
            "/mount /: ",
            "/mount /app: ",
            " armed: ",
            " ticks: ",
            " NSpid: ",
            nameless,
        ];
        told.differences
            .retain(|difference| !passes.iter().any(|part| difference.contains(part)));
        if told.differences.is_empty() {
            return (now, after);
        }
        assert!(Instant::now() < end, "{name}: {told}");
        std::thread::sleep(PAUSE);
    }
}

/// Moves a restored and a booted instance there and back.
#[track_caller]
fn there_and_back(cluster: &Cluster, kind: &Kind, by: &str) {
    // Functions of other tests are found by their names too.
    let name = format!("arriving-{}", kind.name);
    deploy(cluster, &name, kind.code);
    for start in ["restored", "booted"] {
        println!("{name} {start}");
        let first = cluster.fresh(start, &name, "/").ok();
        let (mut namespace, mut before) = picture(&name, None);
        for _ in 0..2 {
            let restored_by = moved(cluster, first.instance());
            assert_eq!(
                restored_by["by"],
                by,
                "{name} {start}: {restored_by} {}",
                cluster.log_tail(30)
            );
            let because = restored_by["because"].as_str().unwrap_or_default();
            assert_eq!(because.ends_with("is a pidfd"), by == "criu", "{because}");
            (namespace, before) = same(&name, &namespace, &before);
        }
        let answer = cluster.get(&name, "/ask").ok();
        assert_eq!(answer.json(), kind.says, "{name} {start}");
        assert_eq!((answer.instance(), answer.start()), (first.instance(), "warm"));
        let path = format!("/v1/instances/{}", first.instance());
        assert_eq!(cluster.admin("DELETE", &path).send().status, 204);
    }
}

#[test]
fn programs_restore_what_arrives_and_criu_what_is_named() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = cluster(&store);
    // Its copies have a socket that is connected to nothing and was shut down, which programs do not know.
    let known = kinds::known();
    for kind in known.iter().filter(|kind| kind.name != kinds::connected().name) {
        let before = arrived(&cluster);
        there_and_back(&cluster, kind, "program");
        let after = arrived(&cluster);
        assert_eq!(
            [after[0] - before[0], after[1] - before[1]],
            [4.0, 0.0],
            "{}",
            kind.name
        );
    }
    let before = arrived(&cluster);
    there_and_back(&cluster, &kinds::of_criu(), "criu");
    let after = arrived(&cluster);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [0.0, 4.0]);
}
