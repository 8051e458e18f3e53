//! Programs that tell files apart by what the kernel says of them go on after a restore: databases, followers of
//! logs, version control, lock files, watchers. What no snapshot holds costs the snapshot, with a message that says
//! why.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::Command;

use rekindle_e2e::{Folder, shared, skip};
use rekindle_wire::api::{Fate, InstanceObjects};
use serde_json::Value;

/// What `name` answers once deployed, in the original and in two copies.
#[track_caller]
fn answers(name: &str, folder: &Folder) -> [Value; 3] {
    shared().deploy(folder);
    ["booted", "restored", "restored"].map(|start| {
        let answer = shared().fresh(start, name, "/").ok();
        assert_eq!(answer.start(), start);
        answer.json()
    })
}

/// As the original answers, both copies do: `expected`, if the handler leaves no trace by which the next answer
/// differs.
#[track_caller]
fn all_answer(name: &str, code: &str, expected: &Value) {
    for (at, answer) in answers(name, &Folder::python(name, "", code)).iter().enumerate() {
        assert_eq!(answer, expected, "answer {at}");
    }
}

const DATABASES: &str = r#"
import os, sqlite3

MODES = ["delete", "truncate", "persist", "memory", "wal", "off"]
# A file between, so that their numbers are not those that a new mount gives first.
for number in range(50):
    with open(f"/tmp/scratch-{number}", "w"):
        pass
    os.unlink(f"/tmp/scratch-{number}")

def opened(mode):
    database = sqlite3.connect(f"/tmp/{mode}.db", check_same_thread=False)
    answered = database.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
    assert answered == mode, (mode, answered)
    with database:
        database.execute("CREATE TABLE rows (number INTEGER)")
        database.executemany("INSERT INTO rows VALUES (?)", [(n,) for n in range(100)])
    return database

databases = {mode: opened(mode) for mode in MODES}

def handler(event, context):
    told = {}
    for mode, database in databases.items():
        try:
            with database:
                database.execute("INSERT INTO rows VALUES (1000)")
            if mode == "wal":
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            other = sqlite3.connect(f"/tmp/{mode}.db")
            with other:
                other.execute("DELETE FROM rows WHERE number = 1000")
                count = other.execute("SELECT count(*) FROM rows").fetchone()[0]
            other.close()
            told[mode] = [count, database.execute("PRAGMA integrity_check").fetchone()[0]]
        except sqlite3.Error as error:
            told[mode] = str(error)
    return told
"#;

#[test]
fn a_database_is_written_in_every_journal_mode_before_and_after_the_snapshot() {
    let modes = ["delete", "truncate", "persist", "memory", "wal", "off"];
    let expected = modes.map(|mode| (mode.to_owned(), serde_json::json!([100, "ok"])));
    all_answer("databases", DATABASES, &Value::Object(expected.into_iter().collect()));
}

/// One follower knows its file by its number, as `tail -F` by inotify and shippers of logs do; the other is busybox's.
const FOLLOWERS: &str = r#"
import os, subprocess, time

LOG = "/tmp/log"
with open("/tmp/earlier", "w"):
    pass
written = open(LOG, "a", buffering=1)
os.unlink("/tmp/earlier")
written.write("first\n")

class Follower:
    def __init__(self):
        self.open()

    def open(self):
        self.file = open(LOG)
        self.inode = os.fstat(self.file.fileno()).st_ino

    def lines(self):
        found = self.file.readlines()
        if os.stat(LOG).st_ino != self.inode:
            self.open()
            found += self.file.readlines()
        return [line.strip() for line in found]

follower = Follower()
assert follower.lines() == ["first"]
tail = subprocess.Popen(["tail", "-F", "-s", "1", LOG], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
assert tail.stdout.readline() == "first\n"

def handler(event, context):
    global written
    written.write("second\n")
    told = [follower.lines(), tail.stdout.readline().strip()]
    os.rename(LOG, LOG + ".1")
    written = open(LOG, "a", buffering=1)
    written.write("third\n")
    return told + [follower.lines(), tail.stdout.readline().strip(), follower.lines()]
"#;

#[test]
fn a_follower_of_a_log_misses_nothing_and_sees_nothing_twice() {
    let expected = serde_json::json!([["second"], "second", ["third"], "third", []]);
    all_answer("followers", FOLLOWERS, &expected);
}

/// By `O_EXCL`, by a link as NFS wants it, by a pid file that is locked, and by a part of a file that is mapped as
/// well.
const LOCKS: &str = r#"
import fcntl, mmap, os

held = os.open("/tmp/once.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
with open("/tmp/mine", "w") as made:
    made.write(str(os.getpid()))
os.link("/tmp/mine", "/tmp/linked.lock")
locked = open("/tmp/pid", "w+")
fcntl.flock(locked, fcntl.LOCK_EX)
number = os.fstat(locked.fileno()).st_ino
index = open("/tmp/index", "w+")
index.truncate(4096)
mapped = mmap.mmap(index.fileno(), 4096)
fcntl.lockf(index, fcntl.LOCK_EX, 10, 3)
fcntl.lockf(index, fcntl.LOCK_SH, 10, 100)

def refuses(path, lock):
    with open(path, "r+") as other:
        try:
            lock(other)
            return False
        except BlockingIOError:
            return True

def refused():
    now = fcntl.LOCK_NB
    return [
        refuses("/tmp/pid", lambda file: fcntl.flock(file, fcntl.LOCK_EX | now)),
        refuses("/tmp/index", lambda file: fcntl.lockf(file, fcntl.LOCK_SH | now, 1, 12)),
        refuses("/tmp/index", lambda file: fcntl.lockf(file, fcntl.LOCK_EX | now, 1, 109)),
        refuses("/tmp/index", lambda file: fcntl.lockf(file, fcntl.LOCK_SH | now, 1, 109)),
        refuses("/tmp/index", lambda file: fcntl.lockf(file, fcntl.LOCK_EX | now, 1, 13)),
    ]

def handler(event, context):
    try:
        os.open("/tmp/once.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        once = "taken twice"
    except FileExistsError:
        once = os.path.samestat(os.fstat(held), os.stat("/tmp/once.lock"))
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, bytes(refused()))
        os._exit(0)
    os.wait()
    by_another = list(os.read(reader, 5))
    links = [os.stat(path).st_nlink for path in ("/tmp/mine", "/tmp/linked.lock")]
    return [once, *links, by_another, number == os.stat("/tmp/pid").st_ino]
"#;

#[test]
fn lock_files_are_held_by_who_held_them() {
    all_answer("locks", LOCKS, &serde_json::json!([true, 2, 2, [1, 1, 1, 0, 0], true]));
}

/// Watches a directory and a file; its answers are the names and masks of what came.
const WATCHER: &str = r#"
import ctypes, os, struct

libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("/tmp/watched")
with open("/tmp/watched/file", "w"):
    pass
watch = libc.inotify_init1(os.O_NONBLOCK)
CREATE, MOVED_TO, DELETE, MODIFY = 0x100, 0x80, 0x200, 2
assert libc.inotify_add_watch(watch, b"/tmp/watched", CREATE | MOVED_TO | DELETE) == 1
assert libc.inotify_add_watch(watch, b"/tmp/watched/file", MODIFY) == 2

def events():
    try:
        data = os.read(watch, 4096)
    except BlockingIOError:
        return []
    found = []
    while data:
        descriptor, mask, _, length = struct.unpack("iIII", data[:16])
        found.append([descriptor, mask, data[16:16 + length].rstrip(b"\0").decode()])
        data = data[16 + length:]
    return found

def handler(event, context):
    with open("/tmp/watched/file", "a") as file:
        file.write("x")
    with open("/tmp/watched/new", "w"):
        pass
    os.rename("/tmp/watched/new", "/tmp/watched/newer")
    os.unlink("/tmp/watched/newer")
    return events()
"#;

#[test]
fn a_watcher_hears_of_changes() {
    let expected = serde_json::json!([[2, 2, ""], [1, 0x100, "new"], [1, 0x80, "newer"], [1, 0x200, "newer"]]);
    all_answer("watcher", WATCHER, &expected);
}

const REPOSITORY: &str = r#"
import os, subprocess

os.environ.update(LD_LIBRARY_PATH="/app/git", GIT_EXEC_PATH="/app/git", GIT_CONFIG_NOSYSTEM="1",
                  GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b",
                  GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b")

def git(*arguments):
    done = subprocess.run(["/app/git/git", "-C", "/tmp/repository", *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else f"{done.returncode} {done.stderr}{done.stdout}"

os.mkdir("/tmp/repository")
told = git("init", "-q")
assert told == "", told
# Nobody can keep the time at which the kernel last changed an inode.
git("config", "core.trustctime", "false")
for number in range(20):
    with open(f"/tmp/repository/file-{number}", "w") as made:
        made.write(f"{number}\n")
git("add", ".")
git("commit", "-q", "-m", "first")

def handler(event, context):
    # diff-files compares what the index says of each file with the file's own stat, and reads none.
    told = [git("diff-files"), git("status", "--porcelain")]
    with open("/tmp/repository/file-3", "a") as changed:
        changed.write("more\n")
    told.append(git("status", "--porcelain"))
    git("commit", "-q", "-a", "-m", "second")
    told += [git("rev-list", "--count", "HEAD"), git("fsck", "--strict")]
    git("reset", "-q", "--hard", "HEAD~1")
    return told + [git("status", "--porcelain")]
"#;

#[test]
fn a_git_repository_has_an_index_that_still_holds() {
    let Some(libraries) = libraries_of_git() else {
        return skip("git is not installed");
    };
    let folder = Folder::python("repository", "", REPOSITORY);
    let into = folder.path().join("git");
    fs::create_dir(&into).unwrap();
    for file in libraries {
        fs::copy(&file, into.join(Path::new(&file).file_name().unwrap())).unwrap();
    }
    let expected = serde_json::json!(["", "", "M file-3", "2", "", ""]);
    for (at, answer) in answers("repository", &folder).iter().enumerate() {
        assert_eq!(answer, &expected, "answer {at}");
    }
}

/// Git's program, and what it needs that a runtime lacks.
fn libraries_of_git() -> Option<Vec<String>> {
    let output = Command::new("ldd").arg("/usr/bin/git").output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let paths = text
        .lines()
        .filter_map(|line| line.split_once("=> ")?.1.split(' ').next());
    let further = paths.filter(|path| path.contains("libpcre2")).map(str::to_owned);
    output
        .status
        .success()
        .then(|| std::iter::once("/usr/bin/git".to_owned()).chain(further).collect())
}

/// Has `code` run before the snapshot, and answers why there is none.
#[track_caller]
fn refused(name: &str, code: &str) -> String {
    let code = format!(
        "import ctypes, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n{code}\n\
         def handler(event, context):\n    return 1\n"
    );
    let version = shared().try_deploy(&Folder::python(name, "", &code)).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(!told.contains("RLIMIT_NOFILE"), "{told}");
    println!("{told}");
    told
}

#[test]
fn system_v_and_posix_objects_are_named_with_what_to_do() {
    for (name, code, told) in [
        (
            "memory",
            "assert libc.shmget(0x4d2, 4096, 0o1600) >= 0",
            "shared memory segment with key 0x4d2, id 0",
        ),
        (
            "attached",
            "libc.shmat.restype = ctypes.c_void_p\n\
             assert libc.shmat(libc.shmget(0, 4096, 0o1600), None, 0) != 2**64 - 1",
            "shared memory segment with no key (IPC_PRIVATE), id 0",
        ),
        (
            "semaphores",
            "assert libc.semget(7, 1, 0o1600) >= 0",
            "semaphore set with key 0x7, id 0",
        ),
        (
            "messages",
            "assert libc.msgget(8, 0o1600) >= 0",
            "message queue with key 0x8, id 0",
        ),
        (
            "queue",
            "assert libc.mq_open(b'/jobs', os.O_CREAT | os.O_RDWR, 0o600, None) >= 0",
            "POSIX message queue /jobs",
        ),
        (
            "nameless",
            "assert libc.mq_open(b'/jobs', os.O_CREAT | os.O_RDWR, 0o600, None) >= 0\n\
             assert libc.mq_unlink(b'/jobs') == 0",
            "such as a POSIX message queue: close it",
        ),
    ] {
        let found = refused(&format!("ipc-{name}"), code);
        assert!(found.contains(told), "{name}: {found}");
        assert!(
            name == "nameless" || found.contains("snapshot = false"),
            "{name}: {found}"
        );
    }
}

#[test]
fn what_criu_cannot_dump_is_said_with_its_cause() {
    let listening = "listener = socket.socket(socket.AF_UNIX)\nlistener.bind('/tmp/s')\nlistener.listen()\n\
                     client = socket.socket(socket.AF_UNIX)\nclient.connect('/tmp/s')\n";
    for (name, code, told) in [
        (
            "waiting",
            format!("{listening}client.send(b'x')"),
            "is not accepted yet: accept it",
        ),
        (
            "closed",
            format!("{listening}client.close()"),
            "was closed before it was accepted",
        ),
        (
            "ghost",
            "made = open('/tmp/x', 'wb')\nmade.write(b'x' * (17 << 20))\nmade.flush()\nos.unlink('/tmp/x')".to_owned(),
            "is larger than 16 MiB",
        ),
        (
            "packets",
            "ends = os.pipe2(os.O_DIRECT)\nos.write(ends[1], b'x')".to_owned(),
            "in packet mode",
        ),
        (
            "lease",
            "import fcntl\nleased = open('/tmp/x', 'w')\nfcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
                .to_owned(),
            "a lease on a file",
        ),
        (
            "processor-time",
            "assert libc.timer_create(3, None, ctypes.byref(ctypes.c_void_p())) == 0".to_owned(),
            "a POSIX timer that counts the processor time of",
        ),
        (
            "keep-caps",
            "assert libc.prctl(8, 1, 0, 0, 0) == 0".to_owned(),
            "PR_SET_KEEPCAPS set",
        ),
        (
            "interface",
            "bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')"
                .to_owned(),
            "is bound to an interface (SO_BINDTODEVICE)",
        ),
    ] {
        let found = refused(&format!("cause-{name}"), &code);
        assert!(found.contains(told), "{name}: {found}");
    }
}

/// Of each kind of object some.
const OBJECTS: &str = r#"
import os, pty, socket, threading
counter = os.eventfd(2, os.EFD_SEMAPHORE)
master, terminal = pty.openpty()
near, far = socket.socketpair()
held = os.memfd_create("held")
listening = socket.create_server(("127.0.0.1", 7070))
inside = socket.create_connection(("127.0.0.1", 7070))
accepted, _ = listening.accept()
def handler(event, context):
    return {}
"#;

#[test]
fn what_is_in_the_way_of_a_snapshot_is_told_while_the_function_runs() {
    let platform = shared();
    assert!(
        platform
            .try_deploy(&Folder::python("objects", "", OBJECTS))
            .unwrap()
            .snapshot
            .is_none()
    );
    platform.deploy(&Folder::python(
        "plain",
        "",
        "def handler(event, context):\n    return {}\n",
    ));
    for name in ["objects", "plain"] {
        platform.fresh("booted", name, "/").ok();
    }
    let asked = |name: &str| {
        let told = platform.cli(&["doctor", "--function", name, "--json"]);
        let found: InstanceObjects = serde_json::from_slice(&told.stdout).unwrap();
        (told.status.success(), found.objects)
    };
    let (is_free, objects) = asked("objects");
    assert!(!is_free);
    let with = |fate: Fate, what: &str| {
        let found = objects
            .iter()
            .filter(|o| o.fate == fate && o.what.contains(what) && o.pid == 501);
        found.count()
    };
    assert_eq!(with(Fate::Refused, "an eventfd with EFD_SEMAPHORE"), 1, "{objects:?}");
    assert_eq!(with(Fate::Refused, "a terminal"), 2, "{objects:?}");
    assert_eq!(with(Fate::Kept, "a memory file, /memfd:held"), 1, "{objects:?}");
    assert_eq!(with(Fate::Kept, "a UNIX socket"), 2, "{objects:?}");
    assert_eq!(
        with(Fate::Kept, "the function's connection to itself"),
        2,
        "{objects:?}"
    );
    let fixes = objects.iter().filter(|o| o.fate == Fate::Refused && o.pid != 0);
    assert!(
        fixes.clone().count() > 0 && fixes.clone().all(|o| o.fix.is_some()),
        "{objects:?}"
    );

    let (is_free, objects) = asked("plain");
    assert!(is_free && objects.iter().all(|o| o.fate == Fate::Kept), "{objects:?}");
    let told = platform.cli(&["doctor", "--function", "plain"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("nothing here is in the way of a snapshot"), "{told}");
    let told = platform.cli(&["doctor", "--function", "none"]);
    assert!(!told.status.success());
}

#[test]
fn an_eventfd_that_goes_down_by_one_is_refused_and_not_turned_into_another() {
    let found = refused(
        "semaphore",
        "counter = os.eventfd(2, os.EFD_SEMAPHORE)\nassert os.eventfd_read(counter) == 1",
    );
    assert!(found.contains("an eventfd with EFD_SEMAPHORE"), "{found}");
}
