//! Restores without CRIU: who makes the processes, what CRIU makes instead, and what is said of it. Other tests of
//! restores run either way: `FN_RESTORER=auto`, or `criu` (`make test-criu`).

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_e2e::restorer::restore_until_one_has_begun;
use rekindle_e2e::{Folder, Options, Platform, host, kinds, until};
use serde_json::{Value, json};

/// Restores that were made by a program, and by CRIU.
fn completed(platform: &Platform) -> [f64; 2] {
    let by = |by| platform.worker_metric(&format!("rekindle_restores_completed_total{{by=\"{by}\"}}"));
    ["program", "criu"].map(by)
}

/// Deploys a function and restores it twice, after its rehearsal. Returns its last response, and how many more restores
/// each has made.
fn restored(platform: &Platform, name: &str, code: &str) -> (Value, [f64; 2]) {
    restored_with(platform, name, "", code)
}

/// The same with settings.
fn restored_with(platform: &Platform, name: &str, settings: &str, code: &str) -> (Value, [f64; 2]) {
    let before = completed(platform);
    platform.deploy(&Folder::python(name, settings, code));
    let mut last = Value::Null;
    for _ in 0..2 {
        let answer = platform.fresh("restored", name, "/").ok();
        assert_eq!(answer.start(), "restored");
        last = answer.json();
    }
    let after = completed(platform);
    (last, [after[0] - before[0], after[1] - before[1]])
}

/// Two dozen children, each of which answers.
pub(crate) const MANY: &str = r#"
import os, socket
def child(number):
    near, far = socket.socketpair()
    if os.fork() == 0:
        near.close()
        while far.recv(9):
            far.send(b"%d" % number)
        os._exit(0)
    far.close()
    return near
children = [child(number) for number in range(24)]

def handler(event, context):
    for each in children:
        each.send(b"?")
    return [int(each.recv(9)) for each in children]
"#;

/// Files that are open and were replaced: once, twice, one that has another name, one that a child has mapped, and one
/// whose place a socket has.
pub(crate) const REPLACED: &str = r#"
import mmap, os, socket

def replaced(name, content, directory="/tmp"):
    """A file of this name that another replaces."""
    path = f"{directory}/{name}"
    if not os.path.exists(path):
        open(path, "w").write("first")
    old = open(path, "r+")
    with open(path + ".new", "w") as new:
        new.write(content)
    os.rename(path + ".new", path)
    return old

once = replaced("once", "second")
twice = [replaced("twice", "second"), replaced("twice", "third")]
os.link("/tmp/once", "/tmp/other")
linked = replaced("once", "third")
shared = replaced("shared", "second", "/dev/shm")
mapped = mmap.mmap(shared.fileno(), 0)
gone = open("/tmp/gone", "w+")
gone.write("gone")
gone.flush()
os.remove("/tmp/gone")
listening = socket.socket(socket.AF_UNIX)
listening.bind("/tmp/gone")
listening.listen()
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(down[0], 1):
        os.write(up[1], mapped[:] + once.read().encode())
before = sorted(os.listdir("/tmp") + os.listdir("/dev/shm"))

def handler(event, context):
    os.write(down[1], b"?")
    gone.seek(0)
    return {
        "child": os.read(up[0], 99).decode(), "twice": [file.read() for file in twice], "gone": gone.read(),
        "linked": [linked.read(), open("/tmp/other").read(), os.fstat(linked.fileno()).st_nlink],
        "now": [open(f"/tmp/{name}").read() for name in ("once", "twice")] + [open("/dev/shm/shared").read()],
        "same": before == sorted(os.listdir("/tmp") + os.listdir("/dev/shm")),
    }
"#;

/// Files whose modes keep their owner from opening them as they are open: written, read, without a name, mapped, and a
/// directory. A child has them too.
pub(crate) const SHUT: &str = r#"
import mmap, os

def made(name, flags, mode):
    number = os.open(name, flags | os.O_CREAT, 0o600)
    os.write(number, b"early") if flags & os.O_ACCMODE else None
    os.chmod(name, mode)
    return number

with open("/tmp/read", "w") as file:
    file.write("to read")
log = made("/tmp/log", os.O_WRONLY | os.O_APPEND, 0o400)
lock = made("/tmp/lock", os.O_RDWR, 0)
read = made("/tmp/read", os.O_RDONLY, 0o2200)
gone = made("/tmp/gone", os.O_RDWR, 0o400)
os.remove("/tmp/gone")
shared = made("/dev/shm/shared", os.O_RDWR, 0o400)
mapped = mmap.mmap(shared, 5)
os.close(shared)
os.mkdir("/tmp/shut")
open("/tmp/shut/inside", "w").close()
directory = os.open("/tmp/shut", os.O_RDONLY | os.O_DIRECTORY)
os.chmod("/tmp/shut", 0o300)
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(down[0], 1):
        os.write(log, b"!")
        os.write(up[1], os.pread(lock, 9, 0) + mapped[:])

def handler(event, context):
    os.write(down[1], b"?")
    child = os.read(up[0], 99).decode()
    names = ["/tmp/log", "/tmp/lock", "/tmp/read", "/dev/shm/shared", "/tmp/shut"]
    mapped[0:1] = b"E"
    return {
        "child": child, "log": os.fstat(log).st_size, "read": os.pread(read, 9, 0).decode(),
        "gone": os.pread(gone, 9, 0).decode(), "mapped": mapped[:].decode(), "inside": os.listdir(directory),
        "modes": [oct(os.stat(name).st_mode & 0o7777) for name in names],
    }
"#;

/// A child that allows itself neither processes nor queued signals any more, as HAProxy's workers do, and has a second
/// thread and a timer of the first one's processor time.
const LIMITED: &str = r#"
import ctypes, os, queue, resource, signal, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
LIMITS = [resource.RLIMIT_NPROC, resource.RLIMIT_SIGPENDING]

def serve():
    ticks, asked, told = [], queue.Queue(), queue.Queue()
    signal.signal(signal.SIGRTMIN, lambda *_: ticks.append(1))
    clock, made = ctypes.c_int(), ctypes.c_void_p()
    assert libc.pthread_getcpuclockid(ctypes.c_ulong(threading.main_thread().ident), ctypes.byref(clock)) == 0
    event = ctypes.create_string_buffer(struct.pack("Qii", 0, signal.SIGRTMIN, 0), 64)
    assert libc.timer_create(clock, event, ctypes.byref(made)) == 0
    assert libc.timer_settime(made, 0, (ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000), None) == 0
    threading.Thread(target=lambda: [told.put(asked.get()) for _ in iter(int, 1)], daemon=True).start()
    for limit in LIMITS:
        resource.setrlimit(limit, (0, 0))
    os.write(up[1], b"ready")
    while os.read(down[0], 1):
        ticks.clear()
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        asked.put("thread")
        says = [told.get(), len(ticks) > 0, *(resource.getrlimit(limit) for limit in LIMITS)]
        os.write(up[1], str(says).encode())

down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    serve()
assert os.read(up[0], 9) == b"ready"

def handler(event, context):
    os.write(down[1], b"?")
    return os.read(up[0], 99).decode()
"#;

#[test]
fn what_a_program_fails_at_criu_restores_and_the_program_is_tried_again() {
    let platform = Platform::start_with(Options {
        args: ["--restorer", "auto"].map(str::to_owned).to_vec(),
        ..Options::default()
    });
    let (last, by) = restored(&platform, "fails", "def handler(event, context):\n    return 7\n");
    assert_eq!((last, by[0]), (json!(7), 3.0));

    // What had begun is lost, and the program restores anew.
    restore_until_one_has_begun(&platform, "fails", "/");
    let begun = platform.worker_metric("rekindle_restores_begun_total");
    let before = completed(&platform);
    for pid in host::begun(platform.pid()) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    let answer = platform.fresh("restored", "fails", "/").ok();
    assert_eq!((answer.start(), answer.json()), ("restored", json!(7)));
    let after = completed(&platform);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1.0, 0.0]);
    assert_eq!(platform.worker_metric("rekindle_restores_begun_total"), begun);

    let before = completed(&platform);
    // None is made any more while they are looked for.
    until("all sandboxes that are kept ready", Duration::from_secs(30), || {
        let level = |name: &str| platform.worker_metric(&format!("rekindle_sandboxes_{name}"));
        (level("ready") >= level("wanted") && level("furnished") > 1.9).then_some(())
    });
    let hollows = host::hollows(platform.pid());
    assert!(!hollows.is_empty());
    for pid in hollows {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    let answer = platform.fresh("restored", "fails", "/").ok();
    assert_eq!((answer.start(), answer.json()), ("restored", json!(7)));
    let after = completed(&platform);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [0.0, 1.0]);
    // After a pause of half a minute.
    until("a program again", Duration::from_secs(90), || {
        let answer = platform.fresh("restored", "fails", "/").ok();
        assert_eq!((answer.start(), answer.json()), ("restored", json!(7)));
        (completed(&platform)[0] > before[0]).then_some(())
    });
}

#[test]
fn programs_restore_what_they_can_and_criu_what_is_named() {
    let options = ["--memory", "12GiB", "--restorer", "auto"];
    let platform = Platform::start_with(Options {
        args: options.map(str::to_owned).to_vec(),
        ..Options::default()
    });

    for kind in kinds::known() {
        let (body, made) = restored(&platform, kind.name, kind.code);
        assert_eq!(body, kind.says, "{}", kind.name);
        assert_eq!(made, [3.0, 0.0], "{}: {}", kind.name, platform.log_tail(30));
    }

    // Images have what the processes share once for each.
    let (body, made) = restored_with(&platform, "many", "memory = \"1GiB\"", MANY);
    assert_eq!(body, json!((0..24).collect::<Vec<_>>()));
    assert_eq!(made, [3.0, 0.0], "{}", platform.log_tail(30));

    let (body, made) = restored(&platform, "replaced", REPLACED);
    let says = json!({
        "child": "firstfirst", "twice": ["first", "second"], "gone": "gone", "linked": ["second", "second", 1],
        "now": ["third", "third", "second"], "same": true,
    });
    assert_eq!(body, says);
    assert_eq!(made, [3.0, 0.0], "{}", platform.log_tail(30));

    let (body, made) = restored(&platform, "shut", SHUT);
    let says = json!({
        "child": "earlyearly", "log": 6, "read": "to read", "gone": "early", "mapped": "Early", "inside": ["inside"],
        "modes": ["0o400", "0o0", "0o2200", "0o400", "0o300"],
    });
    assert_eq!(body, says);
    assert_eq!(made, [3.0, 0.0], "{}", platform.log_tail(30));

    let (body, made) = restored(&platform, "limited", LIMITED);
    assert_eq!(body, "['thread', True, (0, 0), (0, 0)]");
    assert_eq!(made, [3.0, 0.0], "{}", platform.log_tail(30));

    let sockets = kinds::sockets();
    let (body, made) = restored(
        &platform,
        "sockets-alone",
        &sockets.code.replace("FORKS = True", "FORKS = False"),
    );
    assert_eq!(body, sockets.says);
    assert_eq!(made, [3.0, 0.0], "{}", platform.log_tail(30));

    let connected = kinds::connected();
    // Its parent is CRIU until CRIU ends, whose end must not end it.
    let kept = r#"KEPT = [os.pidfd_open(os.getpid()), __import__("ctypes").CDLL(None).prctl(1, 9)]"#;
    let by_criu = connected.code.replace("KEPT = None", kept);
    let (of_criu, relative) = (kinds::of_criu(), kinds::relative_of_criu());
    for (name, code, says) in [
        ("connected-criu", by_criu.as_str(), connected.says),
        (of_criu.name, of_criu.code, of_criu.says),
        (relative.name, relative.code, relative.says),
    ] {
        let (body, made) = restored(&platform, name, code);
        assert_eq!(body, says, "{name}");
        assert_eq!(made, [0.0, 3.0], "{name}: {}", platform.log_tail(30));
    }
    assert!(platform.log().contains("is a pidfd"));

    let described = |name: &str| String::from_utf8(platform.cli(&["describe", name]).stdout).unwrap();
    assert!(
        described("kinds").contains("a restore program"),
        "{}",
        described("kinds")
    );
    let told = described(of_criu.name);
    assert!(
        told.contains("CRIU: descriptor") && told.contains("is a pidfd"),
        "{told}"
    );

    let code = "def handler(event, context):\n    return {}\n";
    let version = platform.deploy(&Folder::python("printed", "", code));
    let snapshot = version.snapshot.unwrap().id.to_string();
    let run = platform.directory("run");
    let told = platform.cli(&[
        "snapshot",
        "inspect",
        &snapshot,
        "--program",
        "--run",
        run.to_str().unwrap(),
    ]);
    let text = String::from_utf8(told.stdout).unwrap();
    let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word}: {text}"));
    assert!([" Clear", " Tell", " Memory", " Wait"].map(at).is_sorted(), "{text}");
    assert!(text.contains("python3") && text.contains("thread 501"), "{text}");
}
