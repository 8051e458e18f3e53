//! A function finds nothing of another one whose sandbox was used before: of the parts that are used again (the control
//! group) and of those that are not. The one that leaves things looks for them too, where it left them: so it is known
//! that they can be found.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::{Folder, host, shared};
use serde_json::Value;

/// Leaves all there is to leave, at `/leave`; looks around, at `/look`.
const CODE: &str = r#"
import ctypes, errno, glob, mmap, os, socket, subprocess, threading, time
libc = ctypes.CDLL(None, use_errno=True)
kept = []

def trying(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

def call(*arguments):
    result = libc.syscall(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result

def leave():
    # Processes: two that nobody is the parent of any more.
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(1000)
            os._exit(0)
        os.wait()
    for path in ("/tmp/left", "/dev/shm/left", "/tmp/.hidden/left"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write("left")
    os.mkfifo("/tmp/left-pipe")
    # System V: memory, semaphores, a queue; a queue of POSIX.
    memory = libc.shmget(0x4C454654, 1 << 16, 0o1666)
    libc.shmat.restype = ctypes.c_void_p
    ctypes.memmove(libc.shmat(memory, None, 0), b"left", 4)
    libc.semget(0x4C454654, 1, 0o1666)
    libc.msgget(0x4C454654, 0o1666)
    kept.append(libc.mq_open(b"/left", 0o102, 0o666, None))
    quiet = socket.socket(socket.AF_UNIX)
    quiet.bind("\0left")
    quiet.listen()
    named = socket.socket(socket.AF_UNIX)
    named.bind("/tmp/left-socket")
    named.listen()
    loud = socket.create_server(("0.0.0.0", 9123))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", 9124))
    kept.extend([quiet, named, loud, datagrams])
    # Thirty megabytes through the loopback, and connections that end later than their processes.
    client = socket.create_connection(("127.0.0.1", 9123))
    server, _ = loud.accept()
    threading.Thread(target=client.sendall, args=(bytes(30 << 20),), daemon=True).start()
    got = 0
    while got < 30 << 20:
        got += len(server.recv(1 << 20))
    client.close()
    os.environ["LEFT"] = "left"
    # Memory, and more processes than there may be.
    page = mmap.mmap(-1, 40 << 20)
    page.write(b"x" * (40 << 20))
    kept.append(page)
    # A second of a processor.
    end = time.process_time() + 1
    while time.process_time() < end:
        pass
    mounted = trying(lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
    key = trying(lambda: call(248, b"user", b"left", b"left", 4, -3))
    return [mounted, key]

def there(process):
    """The name of a process, unless it is init's or the CRIU's that has restored this one (which its loader names), or
    has ended and is about to be reaped."""
    try:
        name, rest = open(f"/proc/{process}/stat").read().split("(", 1)[1].rsplit(") ", 1)
    except OSError:
        return None
    return None if name in ("ld.so", "rekindle-init") or rest[0] in "ZX" else name

def connects(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(1)
        return sock.connect_ex(address) == 0

def look():
    ipc = {kind: len(open(f"/proc/sysvipc/{kind}").readlines()) - 1 for kind in ("shm", "sem", "msg")}
    queue = libc.mq_open(b"/left", 2)
    own = {os.getpid()}
    others = [there(p) for p in os.listdir("/proc") if p.isdigit() and p != "1" and int(p) not in own]
    others = [name for name in others if name]
    received = [line.split()[1] for line in open("/proc/net/dev") if line.strip().startswith("lo:")]
    listening = [line.split()[1][-4:] for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"]
    return others, {
        "processes": others != [],
        "files": sorted(glob.glob("/tmp/**", recursive=True, include_hidden=True) + glob.glob("/dev/shm/*"))
                 not in ([], ["/tmp/"]),
        "shm": ipc["shm"] > 0, "sem": ipc["sem"] > 0, "msg": ipc["msg"] > 0, "mqueue": queue != -1,
        "abstract": connects(socket.AF_UNIX, "\0left"), "tcp": connects(socket.AF_INET, ("127.0.0.1", 9123)),
        "listening": "23A3" in listening,
        "udp": any(line.split()[1].endswith(":23A4") for line in open("/proc/net/udp").readlines()[1:]),
        "unix": "left" in open("/proc/net/unix").read(), "loopback": int(received[0]) > 10 << 20,
        "environment": "LEFT" in os.environ,
    }

def see():
    return {"mounts": sorted(line.split()[4] for line in open("/proc/self/mountinfo")),
            "cgroup": open("/proc/self/cgroup").read(), "environment": sorted(os.environ),
            "key": trying(lambda: call(249, b"user", b"left", 0, 0)), "host": socket.gethostname()}

def handler(event, context):
    path = event["rawPath"]
    left = leave() if path == "/leave" else None
    others, found = look()
    return {"left": left, "others": others, "found": found, "seen": see()}
"#;

/// The kernel's numbers of the directories of an instance's control group, which a rename does not change.
fn groups(instance: &str) -> (Vec<PathBuf>, BTreeSet<(u64, u64)>) {
    let directories = host::groups_below(shared(), &shared().directory("run"), instance);
    let number = |d: &PathBuf| fs::metadata(d).map(|m| (m.dev(), m.ino())).unwrap();
    let numbers = directories.iter().map(number).collect();
    (directories, numbers)
}

/// What is read of a group's memory, in whichever hierarchy it is.
fn counter(directories: &[PathBuf], name: &str) -> Option<u64> {
    let text = directories.iter().find_map(|d| fs::read_to_string(d.join(name)).ok())?;
    text.trim().parse().ok()
}

fn all(found: &Value, expected: bool) -> bool {
    found.as_object().unwrap().values().all(|v| v == expected)
}

#[test]
fn the_next_function_in_a_used_sandbox_s_place_finds_nothing_of_the_last() {
    let settings = "memory = \"128MiB\"\nidle = \"300s\"";
    shared().deploy(&Folder::python("leaver", settings, CODE));
    shared().deploy(&Folder::python("finder", settings, CODE));
    let first = shared().fresh("booted", "finder", "/look").ok();
    assert!(all(&first.json()["found"], false), "{}", first.text());
    shared().end_instance(first.instance());

    let mut left_in = BTreeSet::new();
    let mut found_again = 0;
    for round in 0..30 {
        let start = ["booted", "restored"][round % 2];
        let leaver = shared().fresh(start, "leaver", "/leave").ok();
        let told = leaver.json();
        // Where it was left, it is found, each of them; and what is not to be left cannot be.
        assert!(all(&told["found"], true), "{told}");
        assert_eq!(told["left"], serde_json::json!(["EPERM", "EPERM"]));
        left_in.extend(groups(leaver.instance()).1);
        shared().end_instance(leaver.instance());
        for _ in 0..3 {
            let finder = shared().fresh(start, "finder", "/look").ok();
            let (directories, numbers) = groups(finder.instance());
            let told = finder.json();
            assert!(all(&told["found"], false), "{told}");
            assert_eq!(told["seen"], first.json()["seen"], "{start}");
            if !numbers.is_disjoint(&left_in) {
                found_again += 1;
                // The last one used more than 40 MiB and its peak is v1's to reset; on v2 nobody reads it.
                if let Some(peak) = counter(&directories, "memory.max_usage_in_bytes") {
                    let now = counter(&directories, "memory.usage_in_bytes").unwrap();
                    assert!(
                        peak < 40 << 20,
                        "{peak} bytes at the most, {now} now: of the one before"
                    );
                }
                // It went round for a second of a processor's time; a start takes a fraction of that.
                if let Some(used) = counter(&directories, "cpuacct.usage") {
                    assert!(used < 900_000_000, "{used} ns of processor time: of the one before");
                }
            }
            shared().end_instance(finder.instance());
        }
        if found_again >= 4 {
            return;
        }
    }
    // The kernel may take its time with what was charged to a group; then it is removed rather than used again, and
    // others are.
    let of = |outcome| shared().worker_metric(&format!("rekindle_sandboxes_groups_total{{outcome=\"{outcome}\"}}"));
    let (again, refused) = (of("again"), of("refused"));
    println!("{found_again} of the leaver's groups met again; {again} used again in all, {refused} refused");
    assert!(
        again + refused > 0.0,
        "no group was looked at in 30 rounds: {left_in:?}"
    );
}

/// More than the pool keeps ready.
const STARTS: usize = 12;

#[test]
fn sandboxes_are_made_again_when_what_forks_their_inits_was_killed() {
    shared().deploy(&Folder::python(
        "survivor",
        "",
        "def handler(event, context):\n    return 1\n",
    ));
    let before = host::zygote(shared().pid());
    kill(Pid::from_raw(before), Signal::SIGKILL).unwrap();
    for _ in 0..STARTS {
        let answer = shared().fresh("restored", "survivor", "/").ok();
        shared().end_instance(answer.instance());
    }
    assert_ne!(host::zygote(shared().pid()), before);
}
