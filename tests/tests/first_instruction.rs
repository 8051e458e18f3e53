//! The oracle of restore programs: before its first instruction, a copy is what stock CRIU restores eagerly from the
//! same images. Compared are all memory that a process may read, byte for byte, every register of every thread, and the
//! differ's facts. What each copy has of its own is made equal before.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::ClockId;
use nix::unistd::Pid;
use rekindle_e2e::adversary::seeds;
use rekindle_e2e::differ::{self, Picture};
use rekindle_e2e::eager::{Eager, Exported, clocks_of};
use rekindle_e2e::first_instruction::Followed;
use rekindle_e2e::memory::{Comparison, compare};
use rekindle_e2e::restorer::{by_program, programs_restore, restore_until_one_has_begun};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, Reply, host, kinds, lambda, registers, until};
use rekindle_init::protocol::FUNCTION_PID;
use rekindle_wire::InstanceId;
use rekindle_wire::api::{StartKind, VersionInfo};
use rekindle_worker::snapshots::CaptureNotes;

use crate::differ::{CHILDREN, EVERYTHING, ORPHANS};
use crate::restorer::{MANY, REPLACED, SHUT};

/// Bytes of one process that each copy has of its own, at most.
const OWN_MAX: usize = 64 << 10;
/// Follows the name of a file that has none.
const DELETED: &str = " (deleted)";
/// Longer than any of the functions' timers has left.
const SETTLED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// How long what was begun for a function may take to end.
const LIMIT: Duration = Duration::from_secs(90);

/// A platform over a store. `None` if no programs restore in this run.
pub(crate) fn started() -> Option<(ObjectStore, Platform)> {
    programs_restore().then(|| {
        let store = ObjectStore::start();
        let platform = Platform::start_with(store.options());
        (store, platform)
    })
}

/// Two copies that were the same, and go on.
pub(crate) struct Compared {
    /// What the program's answers.
    pub(crate) answer: Reply,
    /// Stock CRIU's.
    pub(crate) eager: Eager,
    /// How many pages of each process have anything in them.
    pub(crate) filled: Vec<usize>,
}

/// Deploys a function and compares a copy of it, which then answers a request for `path`.
pub(crate) fn same(platform: &Platform, store: &ObjectStore, name: &str, folder: &Folder, path: &str) -> Compared {
    let version = by_program(platform.deploy(folder));
    compared(platform, store, name, &version, path)
}

/// The same with a copy whose restore has begun before it is asked for, if it has a single process. The platform has no
/// other function.
fn same_begun_ahead(platform: &Platform, store: &ObjectStore, name: &str, folder: &Folder, path: &str) -> Compared {
    until("nothing has begun", LIMIT, || {
        (platform.worker_metric("rekindle_sandboxes_furnished") < 0.1).then_some(())
    });
    let version = by_program(platform.deploy(folder));
    let is_single = instance_processes(platform, name) == 1;
    if is_single {
        restore_until_one_has_begun(platform, name, path);
    }
    let begun = || platform.worker_metric("rekindle_restores_begun_total");
    let before = begun();
    let same = compared(platform, store, name, &version, path);
    assert_eq!(begun() - before, f64::from(u8::from(is_single)), "{name}");
    same
}

/// How many processes the instance has that the deploy has left.
fn instance_processes(platform: &Platform, name: &str) -> usize {
    host::processes(platform, deployed(platform, name).as_str()).len()
}

/// The instance that the deploy has left.
fn deployed(platform: &Platform, name: &str) -> InstanceId {
    let mut instances = platform.instances_of(name).into_iter();
    instances.find(|i| i.started == StartKind::Booted).unwrap().id
}

fn compared(platform: &Platform, store: &ObjectStore, name: &str, version: &VersionInfo, path: &str) -> Compared {
    let Exported { manifest, images, .. } = &Exported::of(store, version);
    let notes = CaptureNotes::read(images).unwrap();

    let original = host::processes(platform, deployed(platform, name).as_str())[&FUNCTION_PID];
    let before = host_clocks();
    let eager = Eager::restore_stopped(platform, manifest, images);
    let followed = Followed::hollows_of(platform);
    thread::scope(|s| {
        let call = s.spawn(|| platform.fresh("restored", name, path));
        let copy = followed.stopped();
        let processes_of_criu = eager.processes();
        for processes in [&processes_of_criu, &copy] {
            assert_clocks_go_on(images, before, processes[&FUNCTION_PID]);
        }
        let (told, filled) = differences(&notes, original, &processes_of_criu, &copy);
        assert!(told.is_empty(), "{name}: {told:#?}");
        for pid in processes_of_criu.values().chain(copy.values()) {
            kill(Pid::from_raw(*pid), Signal::SIGCONT).unwrap();
        }
        Compared {
            answer: call.join().unwrap(),
            eager,
            filled,
        }
    })
}

/// The host's clocks of which a time namespace has its own, in nanoseconds.
fn host_clocks() -> [i128; 2] {
    [ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_BOOTTIME].map(|clock| {
        let now = clock.now().unwrap();
        nanoseconds(now.tv_sec().into(), now.tv_nsec().into())
    })
}

fn nanoseconds(seconds: i128, nanoseconds: i128) -> i128 {
    seconds * 1_000_000_000 + nanoseconds
}

/// The clocks of a process's time namespace were set to what they were at the checkpoint, at some time since `before`.
#[track_caller]
fn assert_clocks_go_on(images: &Path, before: [i128; 2], pid: i32) {
    let times = clocks_of(images);
    let offsets = fs::read_to_string(format!("/proc/{pid}/timens_offsets")).unwrap();
    let wanted = [times.monotonic, times.boottime];
    let clocks = offsets.lines().zip(["monotonic", "boottime"]).zip(wanted);
    let mut now = before.into_iter().zip(host_clocks());
    for ((line, name), (seconds, rest)) in clocks {
        let words: Vec<&str> = line.split_whitespace().collect();
        let offset = nanoseconds(words[1].parse().unwrap(), words[2].parse().unwrap());
        let set_at = nanoseconds(seconds.into(), rest.into()) - offset;
        let (before, now) = now.next().unwrap();
        assert!(
            words[0] == name && (before..now).contains(&set_at),
            "{line}: {set_at}, {before} to {now}"
        );
    }
    assert_eq!(now.next(), None, "{offsets}");
}

/// Whatever a copy has not in common with what stock CRIU restored, or with the original where that restored less. Also
/// how many pages of each process have anything in them.
fn differences(
    notes: &CaptureNotes,
    original: i32,
    one: &BTreeMap<i32, i32>,
    other: &BTreeMap<i32, i32>,
) -> (Vec<String>, Vec<usize>) {
    assert!(one.keys().eq(other.keys()), "{one:?} {other:?}");
    let (mut told, mut all_filled) = (Vec::new(), Vec::new());
    for (inner, pid) in one {
        let [ours, theirs] = [*pid, other[inner]].map(registers::of);
        told.extend(registers::compare(&ours, &theirs));
        let threads = ours.values().map(|registers| registers.registered.rseq);
        give(*pid, other[inner], own(notes, inner.cast_unsigned(), threads));
        let Comparison {
            filled, differences, ..
        } = compare(*pid, other[inner]);
        println!("process {inner}: {filled} pages, {} threads", ours.len());
        all_filled.push(filled);
        told.extend(differences.into_iter().map(|line| format!("process {inner}: {line}")));
    }
    let in_all: usize = all_filled.iter().sum();
    assert!(in_all > 300, "only {in_all} pages have anything in them: {told:#?}");
    told.extend(facts_that_differ(original, one[&FUNCTION_PID], other[&FUNCTION_PID]));
    (told, all_filled)
}

/// The facts in which they differ, once the timers of both have had the time to expire. Stock CRIU connects UNIX
/// sockets without their names. So a copy may also be as the original is.
fn facts_that_differ(original: i32, one: i32, other: i32) -> Vec<String> {
    let end = Instant::now() + SETTLED;
    let original = Picture::of_namespace(original).unwrap();
    loop {
        let [ours, theirs] = [one, other].map(|first| without_stops(Picture::of_namespace(first).unwrap(), &original));
        let mut told = differ::compare(&ours, &theirs).differences;
        told.retain(|line| {
            let name = line.split(": ").next().unwrap();
            let is_as_original = theirs.facts.contains_key(name) && theirs.facts.get(name) == original.facts.get(name);
            !is_as_original && !is_of_another_kind(line)
        });
        if told.is_empty() || Instant::now() > end {
            let with_original = told.into_iter().map(|line| {
                let fact = original.facts.get(line.split(": ").next().unwrap());
                format!("{line}; {fact:?} of the original")
            });
            return with_original.collect();
        }
        thread::sleep(PAUSE);
    }
}

/// Whether a difference is not the restorer's. What is mounted is the sandbox's matter, and stock CRIU has restored
/// into another one. It closes connections, over which the original has gone on. Private files are made anew. Those
/// that were replaced have other names than CRIU's. A timer's expirations count the time since.
fn is_of_another_kind(line: &str) -> bool {
    let is_of_time = line.contains(" ticks: ") && of_both(line, |one, other| one != "0" && other != "0");
    let is_of_files = line.starts_with("file/") && (line.contains(" inode: ") || line.contains(" times: "));
    let is_connection = line.contains("/fd ") && line.contains(", tcp") && line.ends_with(" state 01");
    let is_of_names = of_both(line, |one, other| {
        one.contains(DELETED) && without_deleted_names(one) == without_deleted_names(other)
    });
    line.contains("/mount ") || is_connection || is_of_files || is_of_time || is_of_names
}

/// Whether a line's facts are so: what was, and what it became.
fn of_both(line: &str, holds: impl Fn(&str, &str) -> bool) -> bool {
    let said = line.split_once(": ").and_then(|(_, said)| said.split_once(" became "));
    said.is_some_and(|(one, other)| holds(one, other))
}

/// Files without a name have the last that they had, whoever gave them that.
fn without_deleted_names(text: &str) -> String {
    let (named, last) = text.rsplit_once(DELETED).unwrap_or(("", text));
    let unnamed = named
        .split(DELETED)
        .map(|part| part.trim_end_matches(|c| c != ' ' && c != '"'));
    unnamed.collect::<String>() + last
}

/// Leaves out the signal that stops each thread. It stays pending for those that stop with another. Also leaves out the
/// one by which a traced parent hears that its child was stopped, where the original had none.
fn without_stops(mut picture: Picture, original: &Picture) -> Picture {
    let bit = |signal: Signal| 1_u64 << (signal as u64 - 1);
    let parse = |signals: &String| u64::from_str_radix(signals, 16).unwrap();
    for (name, signals) in &mut picture.facts {
        let left_out = match name.rsplit(' ').next() {
            Some("SigPnd") => bit(Signal::SIGSTOP),
            Some("ShdPnd") => bit(Signal::SIGCHLD) & !original.facts.get(name).map_or(0, parse),
            _ => continue,
        };
        *signals = format!("{:016x}", parse(signals) & !left_out);
    }
    picture
}

/// Where a copy has what no other has, by address and length. Its random numbers, the numbers of files that are made
/// for it, and the processor that a thread is on, which the kernel writes.
fn own(notes: &CaptureNotes, pid: u32, sequences: impl Iterator<Item = u64>) -> Vec<(u64, usize)> {
    let processes = notes.generators.iter().filter(|process| process.pid == pid);
    let writes = processes.flat_map(|process| process.generators.iter().flat_map(|found| &found.writes));
    let generators = writes.map(|write| (write.address, write.len()));
    let devices = notes
        .file_numbers
        .device_numbers
        .iter()
        .filter(|numbers| numbers.pid == pid);
    let devices = devices.flat_map(|numbers| numbers.addresses.iter().map(|address| (*address, 8)));
    // `cpu_id_start` and `cpu_id`; `node_id` and `mm_cid`.
    let processors = sequences.filter(|address| *address != 0);
    let processors = processors.flat_map(|address| [(address, 8), (address + 20, 8)]);
    let own: Vec<_> = generators.chain(devices).chain(processors).collect();
    let bytes: usize = own.iter().map(|(_, length)| length).sum();
    assert!(bytes < OWN_MAX, "{bytes} bytes are said to be each copy's own");
    own
}

fn give(to: i32, from: i32, places: Vec<(u64, usize)>) {
    for (address, length) in places {
        let address = usize::try_from(address).unwrap();
        host::write(to, address, &host::read(from, address, length));
    }
}

#[test]
fn copies_of_functions_with_all_that_programs_restore_are_what_stock_criu_restores() {
    let Some((store, platform)) = started() else { return };
    for kind in kinds::known() {
        let folder = Folder::python(kind.name, "", kind.code);
        let answer = same_begun_ahead(&platform, &store, kind.name, &folder, "/").answer.ok();
        assert_eq!(
            (answer.start(), answer.json()),
            ("restored", kind.says),
            "{}",
            kind.name
        );
        platform.delete(kind.name).unwrap();
    }
}

#[test]
fn copies_of_trees_and_files_of_all_kinds_are_what_stock_criu_restores() {
    let Some((store, platform)) = started() else { return };
    for (name, settings, code) in [
        ("everything", "", EVERYTHING),
        ("executed", "", EXECUTED),
        ("children", "", CHILDREN),
        ("daemons", "", ORPHANS),
        ("replaced", "", REPLACED),
        ("shut", "", SHUT),
        ("many", "memory = \"1GiB\"", MANY),
    ] {
        let folder = Folder::python(name, settings, code);
        let answer = same(&platform, &store, name, &folder, "/").answer.ok();
        assert_eq!(answer.start(), "restored", "{name}");
    }
}

/// A function whose state a seed draws.
const AT_RANDOM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/functions/at-random/main.py");
/// How many of them, unless `REKINDLE_ADVERSARY_ROUNDS` says otherwise.
const ROUNDS: u64 = 2;

#[test]
fn copies_of_programs_made_at_random_are_what_stock_criu_restores() {
    let Some((store, platform)) = started() else { return };
    let code = fs::read_to_string(AT_RANDOM).unwrap();
    for seed in seeds(ROUNDS) {
        println!("seed {seed}");
        let name = format!("random-{seed}");
        let settings = format!("memory = \"256MiB\"\n[env]\nSEED = \"{seed}\"");
        let folder = Folder::python(&name, &settings, &code);
        let answer = same_begun_ahead(&platform, &store, &name, &folder, "/").answer.ok();
        assert_eq!((answer.start(), answer.json()), ("restored", seed.into()));
        platform.delete(&name).unwrap();
    }
}

/// A program that another has executed, with the signals that it is given; a stopped ticker; a lock on a memory file.
const EXECUTED: &str = r#"
import ctypes, fcntl, os, struct, subprocess
libc = ctypes.CDLL(None)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b"!")
child.stdin.flush()
child.stdout.read(1)
stopped = libc.timerfd_create(1, os.O_NONBLOCK)
assert libc.timerfd_settime(stopped, 0, struct.pack("4q", 1, 0, 0, 0), None) == 0
locked = os.memfd_create("locked")
os.ftruncate(locked, 4096)
fcntl.lockf(locked, fcntl.LOCK_EX, 10, 3)

def handler(event, context):
    return os.getpid()
"#;

#[test]
fn copies_of_the_samples_are_what_stock_criu_restores() {
    let Some((store, platform)) = started() else { return };
    for (sample, name, path) in [
        ("hello-python", "hello", "/"),
        ("counter-python", "counter", "/peek"),
        ("memory-python", "memory", "/digest"),
        ("touch-python", "touch", "/"),
        ("hello-node", "hello-node", "/"),
        ("http-rust", "http-rust", "/"),
        ("lambda-python", "lambda-python", "/"),
        ("flask-python", "flask", "/"),
        ("grpc-python", "grpc", "/"),
        ("numpy-python", "numpy", "/?n=50"),
    ] {
        let answer = same(&platform, &store, name, &Folder::sample(sample, |t| t), path).answer;
        // Its clients speak gRPC.
        if sample != "grpc-python" {
            assert_eq!(answer.ok().start(), "restored", "{sample}");
        }
    }
}

#[test]
fn copies_of_programs_of_lambda_s_clients_are_what_stock_criu_restores() {
    let has_node = *lambda::NODE_24;
    let Some((store, platform)) = started() else { return };
    for language in ["go", "node", "rust", "java"] {
        let folder = lambda::sample(language).filter(|_| language != "node" || has_node);
        let Some(folder) = folder else { continue };
        let name = format!("lambda-{language}");
        // The call lasts for as long as the comparison.
        folder.set(&name, &[("timeout", "\"120s\"")]).unwrap();
        let answer = same(&platform, &store, &name, &folder, "/").answer;
        assert_eq!(answer.ok().start(), "restored", "{language}");
    }
}
