//! What one instance may use up, seen from inside and outside: open files, /dev/shm, log lines, processor time.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rekindle_e2e::{Folder, host, shared, until};

const GREEDY: &str = r#"
import errno, os

def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 256 << 20:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        return [errno.errorcode[error.errno], written >> 20]
    finally:
        os.unlink(path)
    return ["no limit", written >> 20]

def files():
    held = []
    try:
        while len(held) < 5000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return [errno.errorcode[error.errno], len(held)]
    finally:
        for descriptor in held:
            os.close(descriptor)
    return ["no limit", len(held)]

def handler(event, context):
    what = event["rawPath"].strip("/")
    if what == "files":
        return files()
    if what == "tmp":
        return fill("/tmp/filler")
    if what == "shm":
        return fill("/dev/shm/filler")
    os.write(1, b"a line of a flood\n" * 20000)
    return ["written", 20000]
"#;

#[test]
fn files_and_memory_filesystems_end_where_the_contract_says_booted_or_restored() {
    shared().deploy(&Folder::python("greedy", "tmp = \"8MiB\"", GREEDY));
    for start in ["booted", "restored"] {
        let ask = |what: &str| shared().fresh(start, "greedy", what).ok().json();
        let files = ask("/files");
        assert_eq!(files[0], "EMFILE", "{files}");
        assert!(files[1].as_u64().unwrap() < 1024, "{files}");
        for (path, mib) in [("/tmp", 8), ("/shm", 24)] {
            let filled = ask(path);
            assert_eq!(filled[0], "ENOSPC", "{start} {path}: {filled}");
            assert!(filled[1].as_u64().unwrap() <= mib, "{start} {path}: {filled}");
        }
    }
}

#[test]
fn a_flood_of_lines_is_cut_and_counted_and_the_function_goes_on() {
    shared().deploy(&Folder::python("flood", "", GREEDY));
    assert_eq!(shared().fresh("restored", "flood", "/log").ok().json()[1], 20_000);
    // Of 20,000 lines 2,000 pass at once, and 1,000 a second after.
    let told = shared().until_logged("flood", "lines were dropped").text;
    let dropped: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!((1..20_000).contains(&dropped), "{told}");
    shared().get("flood", "/files").ok();
}

/// Leaves answers of the kernel unread in as many netlink sockets as the path says.
const UNREAD: &str = r#"
import socket, struct

def handler(event, context):
    link = struct.pack("IHHII", 32, 18, 1, 1, 0) + struct.pack("BxHiII", 0, 0, 1, 0, 0)
    sockets = []
    for _ in range(int(event["rawPath"].strip("/") or 0)):
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
        one.bind((0, 0))
        sockets.append(one)
        # The kernel says nothing of answers for which there is no room any more.
        for _ in range(90):
            try:
                one.send(link * 64)
            except OSError:
                break
    return [len(sockets), socket.if_nameindex()[0][1]]
"#;

#[test]
fn a_function_that_leaves_netlink_messages_unread_is_killed_and_told_so() {
    shared().deploy(&Folder::python("unread", "", UNREAD));
    for start in ["booted", "restored"] {
        let few = shared().fresh(start, "unread", "/1").ok().json();
        assert_eq!(few[1], "lo", "{few}");
        let many = shared()
            .fresh(start, "unread", "/200")
            .error(502, "function_out_of_memory");
        assert!(many.message().contains("netlink"), "{}", many.text());
    }
}

/// Keeps as many processes busy as the path says, and answers at once.
const BUSY: &str = r#"
import os

def handler(event, context):
    for _ in range(int(event["rawPath"].strip("/"))):
        if os.fork() == 0:
            while True:
                pass
    return "busy"
"#;

/// Processor time that these processes have had, in ticks.
fn ticks(processes: &BTreeMap<i32, i32>) -> u64 {
    let of = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .map(|f| f.parse().unwrap_or(0))
            .collect();
        // utime and stime, of which the state is the first after the name.
        fields.get(11).copied().unwrap_or(0) + fields.get(12).copied().unwrap_or(0)
    };
    processes.values().map(of).sum()
}

#[test]
fn eight_busy_processes_get_no_more_processor_than_a_neighbour_s_two() {
    let instances = [("crowd", 8), ("couple", 2)].map(|(name, count)| {
        let settings = "cpu = 2\nidle = \"300s\"";
        shared().deploy(&Folder::python(name, settings, BUSY));
        let answer = shared().fresh("restored", name, &format!("/{count}")).ok();
        let processes = until("its processes", Duration::from_secs(30), || {
            let found = host::processes(shared(), answer.instance());
            (found.len() == count + 1).then_some(found)
        });
        (answer.instance().to_owned(), processes)
    });
    let spent = || instances.each_ref().map(|(_, processes)| ticks(processes));
    let before = spent();
    // Six seconds of processor time between them, however long that takes: the kernel evens out over time.
    let after = until("six seconds of processor time", Duration::from_secs(120), || {
        let now = spent();
        let all: u64 = now.iter().sum::<u64>() - before.iter().sum::<u64>();
        (all > 600).then_some(now)
    });
    for (id, _) in &instances {
        shared().end_instance(id);
    }
    let [crowd, couple] = [0, 1].map(|n| (after[n] - before[n]) as f64);
    // By processes it would be four to one.
    assert!((0.5..2.0).contains(&(crowd / couple)), "{crowd} to {couple} ticks");
}

/// Takes all inotify instances that it gets, which the kernel counts for each user, and keeps them.
const HOARDS: &str = r#"
import ctypes
libc = ctypes.CDLL(None)

def handler(event, context):
    held = 0
    while libc.inotify_init1(0) >= 0:
        held += 1
    return held
"#;

#[test]
fn what_the_kernel_counts_for_each_user_one_function_does_not_take_from_another() {
    let mut held = Vec::new();
    for name in ["hoards", "hoards-too"] {
        let settings = "max_instances = 1\nsnapshot = false\ntimeout = \"60s\"";
        shared().deploy(&Folder::python(name, settings, HOARDS));
        held.push(shared().get(name, "/").ok().json());
    }
    assert!(held[0].as_u64() > Some(0) && held[0] == held[1], "{held:?}");
}
