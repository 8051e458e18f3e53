//! What a process has besides its memory comes back by a restore program as by stock CRIU: registers, threads, signals,
//! descriptors, mappings. The process is made at random, by a seed.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::differ::{self, Picture};
use rekindle_e2e::eager::Eager;
use rekindle_e2e::memory::{Comparison, compare};
use rekindle_e2e::restorer::programs_restore;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, host, registers, shared, until};
use rekindle_snapshotter::Snapshot;
use rekindle_snapshotter::interchange::export;

const LIMIT: Duration = Duration::from_secs(30);
/// The function's first process, inside.
const FIRST: i32 = 501;
/// The kernel writes to restartable sequences at its own times.
const HELD: &str = "HOLD = \"1\"\nGLIBC_TUNABLES = \"glibc.pthread.rseq=0\"\n";

fn made(name: &str, seed: u64, variables: &str) -> Folder {
    let folder = Folder::with_config(&format!(
        "name = \"{name}\"\nruntime = \"http\"\ncommand = [\"./state\"]\nmemory = \"128MiB\"\ntimeout = \"15s\"\n\
         hooks = {{ before_snapshot = \"/arm\" }}\n[env]\nSEED = \"{seed}\"\n{variables}"
    ));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("functions/state/state.c");
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-mavx", "-pthread", "-o"]);
    let compiled = compile.arg(folder.path().join("state")).arg(source).output().unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    folder
}

/// Restores by who is to make them.
fn completed(platform: &Platform) -> f64 {
    let by = if programs_restore() { "program" } else { "criu" };
    platform.worker_metric(&format!("rekindle_restores_completed_total{{by=\"{by}\"}}"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_program_restores_what_stock_criu_restores_to_the_last_register() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    for (number, seed) in [7, now()].into_iter().enumerate() {
        let name = format!("state-{number}");
        let version = platform.deploy(&made(&name, seed, HELD));
        let (client, id) = (store.client(), version.snapshot.unwrap().id);
        let manifest = RUNTIME.block_on(Snapshot::open(&client, &id)).unwrap().manifest;
        let place = tempfile::tempdir().unwrap();
        let images = place.path().join("exported");
        RUNTIME.block_on(export(&client, &id, &images)).unwrap();
        let eager = Eager::restore(&platform, &manifest, &images);
        let others: Vec<_> = platform.instances_of(&name).into_iter().map(|i| i.id).collect();
        let before = completed(&platform);
        thread::scope(|s| {
            let asked = s.spawn(|| eager.get("/"));
            let call = s.spawn(|| platform.fresh("restored", &name, "/").ok());
            let lazy = until("the copy, stopped", LIMIT, || {
                let new = platform
                    .instances_of(&name)
                    .into_iter()
                    .find(|i| !others.contains(&i.id))?;
                let processes = host::processes(&platform, new.id.as_str());
                processes
                    .get(&FIRST)
                    .is_some_and(|first| host::is_stopped(*first))
                    .then_some(processes)
            });
            let eager = until("stock CRIU's, stopped", LIMIT, || {
                let processes = eager.processes();
                host::is_stopped(processes[&FIRST]).then_some(processes)
            });
            let told = differences(&eager, &lazy);
            for processes in [&eager, &lazy] {
                kill(Pid::from_raw(processes[&FIRST]), Signal::SIGCONT).unwrap();
            }
            let answers =
                [asked.join().unwrap(), call.join().unwrap().body.to_vec()].map(|b| String::from_utf8(b).unwrap());
            assert!(told.is_empty(), "seed {seed}: {told:#?}");
            assert_eq!(answers, ["as it was\n"; 2], "seed {seed}");
        });
        assert!((completed(&platform) - before - 1.0).abs() < 0.1, "another restored it");
    }
}

/// Whatever two restores have not in common.
fn differences(one: &BTreeMap<i32, i32>, other: &BTreeMap<i32, i32>) -> Vec<String> {
    assert!(one.keys().eq(other.keys()), "{one:?} {other:?}");
    let mut told = Vec::new();
    for (inner, pid) in one {
        let Comparison {
            filled, differences, ..
        } = compare(*pid, other[inner]);
        assert!(filled > 500, "only {filled} pages have anything in them");
        told.extend(differences);
        let [ours, theirs] = [*pid, other[inner]].map(registers::of);
        for (thread, registers) in &ours {
            let others = &theirs[thread];
            for (what, a, b) in [
                ("general", &registers.general, &others.general),
                ("extended", &registers.extended, &others.extended),
            ] {
                if a != b {
                    told.push(format!("thread {thread}, {what}: {:?}", host::difference(a, b)));
                }
            }
        }
    }
    let [ours, theirs] = [one, other].map(|p| Picture::of_namespace(p[&FIRST]).unwrap());
    // What is mounted is the sandbox's matter: stock CRIU has restored into another one.
    let differences = differ::compare(&ours, &theirs).differences.into_iter();
    told.extend(differences.filter(|line| !line.contains("/mount ")));
    told
}

#[test]
fn a_copy_finds_itself_as_it_was_and_no_thread_of_it_ever_has_rights() {
    let seed = now();
    shared().deploy(&made("state-watch", seed, "WATCH = \"1\"\n"));
    let before = completed(shared());
    for _ in 0..3 {
        let answer = shared().fresh("restored", "state-watch", "/").ok();
        assert_eq!(
            (answer.start(), answer.text().as_str()),
            ("restored", "as it was\n"),
            "seed {seed}"
        );
    }
    assert!(completed(shared()) - before > 2.9, "another restored it");
}
