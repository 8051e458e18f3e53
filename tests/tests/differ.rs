//! A copy is what its original was, as far as the host can see: processes, rights, descriptors, mappings, private
//! files.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use rekindle_e2e::differ::{Comparison, Picture, compare};
use rekindle_e2e::restorer::{programs_restore, restorer_of};
use rekindle_e2e::{Folder, host, shared};
use rekindle_wire::api::RestoredBy;

/// The first process of a function, inside.
const FUNCTION_PID: i32 = 501;
/// For a copy to be as idle as its original was.
const SETTLED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Compares copies of a function, which a restore program makes, with its original, which goes on after the checkpoint.
/// Neither has work meanwhile.
#[track_caller]
fn same(name: &str, folder: &Folder, path: &str) {
    same_by(name, folder, path, None);
}

/// The same of copies that CRIU makes, if something has no operation, `because` of that.
#[track_caller]
fn same_by(name: &str, folder: &Folder, path: &str, because: Option<&str>) {
    let version = shared().deploy(folder);
    match (because, restorer_of(&version)) {
        (None, RestoredBy::Program) => {}
        (Some(because), RestoredBy::Criu { because: why }) if programs_restore() => {
            assert!(why.contains(because), "{name}: {why}");
        }
        (_, by) => assert!(!programs_restore(), "{name}: {by:?}"),
    }
    let variable = format!("FN_NAME={name}");
    let original = host::with_variable(&variable)[0];
    let before = Picture::of_namespace(original).unwrap();
    assert!(before.all(" Seccomp").count() > 0, "{before:#?}");
    for _ in 0..2 {
        let answer = shared().fresh("restored", name, path).ok();
        assert_eq!(answer.start(), "restored");
        // A CRIU that waited in the sandbox has a lower id, and may be ending.
        let copy = host::processes(shared(), answer.instance())[&FUNCTION_PID];
        let told = settled(&before, copy);
        println!("{name}: {}", told.tolerated.len());
        assert!(told.differences.is_empty(), "{name}: {told}");
    }
}

fn settled(before: &Picture, copy: i32) -> Comparison {
    let end = Instant::now() + SETTLED;
    loop {
        let is_over = Instant::now() > end;
        let picture = Picture::of_namespace(copy);
        let is_ending = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
        if is_over || !picture.as_ref().is_err_and(is_ending) {
            let told = compare(before, &picture.unwrap());
            if told.differences.is_empty() || is_over {
                return told;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Has of each kind of what a checkpoint holds: descriptors, files, timers, processes of other sessions, memory.
pub(crate) const EVERYTHING: &str = r#"
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, threading, time

libc = ctypes.CDLL(None, use_errno=True)
kept = []

def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    assert result >= 0, (name, os.strerror(ctypes.get_errno()))
    return result

for folder in ("/tmp", "/dev/shm"):
    os.mkdir(f"{folder}/folder", 0o750)
    with open(f"{folder}/folder/file", "w") as made:
        made.write(folder * 3000)
    os.chmod(f"{folder}/folder/file", 0o4751)
    os.symlink("folder/file", f"{folder}/link")
    os.symlink("/proc/1/maps", f"{folder}/elsewhere")
    os.mkfifo(f"{folder}/fifo", 0o640)
    with open(f"{folder}/sparse", "w") as made:
        made.truncate(5 << 20)

opened = os.open("/tmp/folder/file", os.O_RDWR | os.O_APPEND)
os.lseek(opened, 17, 0)
other = os.open("/tmp/folder/file", os.O_RDONLY)
both = os.dup(opened)
fcntl.flock(other, fcntl.LOCK_SH)
locked = open("/tmp/locked", "w")
fcntl.lockf(locked, fcntl.LOCK_EX, 10, 3)
folder = os.open("/tmp/folder", os.O_RDONLY | os.O_DIRECTORY)
reader, writer = os.pipe()
os.write(writer, b"waits too")
near, far = socket.socketpair()
near.send(b"on its way")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/socket")
listener.listen()
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
datagrams.bind("\0abstract")
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 9124))
tcp = socket.create_server(("127.0.0.1", 9125))
counter = os.eventfd(7, os.EFD_CLOEXEC)
import select
poll = select.epoll()
poll.register(reader, select.EPOLLIN)
poll.register(counter, select.EPOLLOUT | select.EPOLLET)
timer = call("timerfd_create", 1, 0)
call("timerfd_settime", timer, 0, struct.pack("4q", 30, 0, 3600, 0), None)
mask = struct.pack("Q", 1 << (signal.SIGUSR2 - 1))
call("signalfd", -1, mask, 0)
watch = call("inotify_init1", 0)
call("inotify_add_watch", watch, b"/tmp/folder", 0x302)
call("memfd_create", b"named", 0)
armed = ctypes.c_void_p()
call("timer_create", 1, struct.pack("Q i i 48x", 5, signal.SIGUSR2, 0), ctypes.byref(armed))
call("timer_settime", armed, 0, struct.pack("4q", 600, 0, 3600, 0), None)
shared = mmap.mmap(-1, 1 << 20)
shared.write(b"of all")
of_file = mmap.mmap(opened, 4096, flags=mmap.MAP_SHARED)
private = mmap.mmap(other, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
private[0] = 1
unreadable = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGWINCH, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
os.umask(0o027)

def wait_for_ever(name):
    with open("/proc/thread-self/comm", "w") as comm:
        comm.write(name)
    started.release()
    threading.Event().wait()

started = threading.Semaphore(0)
for name in ("first", "second"):
    threading.Thread(target=wait_for_ever, args=(name,), daemon=True).start()
for _ in range(2):
    started.acquire()

def handler(event, context):
    return os.getpid()
"#;

#[test]
fn a_copy_of_a_python_function_has_what_its_original_had() {
    same("hello", &Folder::sample("hello-python", |t| t), "/");
    same("counter", &Folder::sample("counter-python", |t| t), "/peek");
}

#[test]
fn a_copy_of_a_node_function_has_what_its_original_had() {
    same("hello-node", &Folder::sample("hello-node", |t| t), "/");
}

#[test]
fn a_copy_of_a_static_server_has_what_its_original_had() {
    // The original has its after-restore hook after the checkpoint, over a connection for which it makes a thread.
    let hook = "after_restore = \"/hooks/after-restore\"\n";
    same("http-rust", &Folder::sample("http-rust", |t| t.replace(hook, "")), "/");
}

#[test]
fn a_copy_of_whatever_a_checkpoint_holds_has_what_its_original_had() {
    same("everything", &Folder::python("everything", "", EVERYTHING), "/");
}

#[test]
fn a_copy_of_what_only_criu_restores_has_what_its_original_had() {
    let fifo = "import os\nos.mkfifo('/tmp/fifo', 0o640)\nfifo = os.open('/tmp/fifo', os.O_RDWR | os.O_NONBLOCK)\n\
        os.chmod('/tmp/fifo', 0o440)\nos.write(fifo, b'waits')\ndef handler(event, context):\n    return os.getpid()\n";
    let because = Some("a named pipe that its owner may not read or write");
    same_by("fifo", &Folder::python("fifo", "", fifo), "/", because);
    let because = Some("a file that sends signals");
    let tells = "import fcntl\ntells = os.open('/tmp/tells', os.O_CREAT | os.O_RDWR)\n\
        fcntl.fcntl(tells, fcntl.F_SETOWN, os.getpid())\n";
    let all = EVERYTHING.replace("os.umask(0o027)", &format!("os.umask(0o027)\n{tells}"));
    same_by(
        "everything-tells",
        &Folder::python("everything-tells", "", &all),
        "/",
        because,
    );
    let children = CHILDREN.replace("import os, signal\n", &format!("import os, signal\n{tells}"));
    same_by(
        "children-tell",
        &Folder::python("children-tell", "", &children),
        "/",
        because,
    );
}

#[test]
fn a_copy_has_the_priorities_that_its_original_had() {
    let code = "import os, threading\nos.nice(3)\n\
        threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
        os.nice(4)\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n\
        with open('/proc/self/oom_score_adj', 'w') as adjusted:\n    adjusted.write('700')\n\
        def handler(event, context):\n    return open('/proc/self/oom_score_adj').read()\n";
    same("priorities", &Folder::python("priorities", "", code), "/");
}

#[test]
fn a_copy_of_a_file_without_a_name_has_what_its_original_had() {
    let code = "import os\nmade = os.open('/tmp/gone', os.O_RDWR | os.O_CREAT, 0o600)\n\
        os.write(made, b'unlinked')\nos.unlink('/tmp/gone')\n\
        def handler(event, context):\n    return os.pread(made, 9, 0).decode()\n";
    same("nameless", &Folder::python("nameless", "", code), "/");
}

/// Children of the same session, of a group of their own, of a session of their own with a child.
pub(crate) const CHILDREN: &str = r#"
import os, signal

ready, tell = os.pipe()
for kind in range(3):
    if os.fork() == 0:
        if kind == 1:
            os.setpgid(0, 0)
            os.chdir("/tmp")
        if kind == 2:
            os.setsid()
            if os.fork() == 0:
                os.write(tell, b"!")
                while True:
                    signal.pause()
        os.write(tell, b"!")
        while True:
            signal.pause()
for _ in range(4):
    os.read(ready, 1)

def handler(event, context):
    return os.getpid()
"#;

#[test]
fn copies_of_child_processes_have_what_their_originals_had() {
    same("children", &Folder::python("children", "", CHILDREN), "/");
}

/// A daemon whose session's leader is gone, with a child and a group of its own, and one that leads its session.
pub(crate) const ORPHANS: &str = r#"
import os, signal

ready, tell = os.pipe()

def stay():
    os.write(tell, b"!")
    while True:
        signal.pause()

for leads in (False, True):
    if os.fork() == 0:
        leads or os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid() if leads else os.setpgid(0, 0)
        if os.fork() == 0:
            stay()
        stay()
    os.wait()
for _ in range(4):
    os.read(ready, 1)

def handler(event, context):
    return os.getpid()
"#;

#[test]
fn copies_of_processes_that_have_outlived_their_parents_have_what_their_originals_had() {
    same("daemons", &Folder::python("daemons", "", ORPHANS), "/");
}

#[test]
fn a_copy_of_a_file_with_two_names_has_two_names() {
    let code = "import os\nfor folder in ('/tmp', '/dev/shm'):\n    with open(f'{folder}/one', 'w') as made:\n        \
        made.write(folder)\n    \
        os.link(f'{folder}/one', f'{folder}/other')\n\
        def handler(event, context):\n    return os.stat('/tmp/one').st_nlink\n";
    same("linked", &Folder::python("linked", "", code), "/");
}

#[test]
fn a_copy_of_a_lock_on_a_mapped_file_holds_it() {
    // As SQLite does with its write-ahead log.
    let code = "import fcntl, mmap\nmade = open('/tmp/index', 'w+')\nmade.truncate(4096)\n\
        mapped = mmap.mmap(made.fileno(), 4096)\n\
        fcntl.lockf(made, fcntl.LOCK_EX, 10, 3)\n\
        def handler(event, context):\n    return mapped[0]\n";
    same("locked", &Folder::python("locked", "", code), "/");
}
