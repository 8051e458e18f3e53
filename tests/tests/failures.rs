//! When things break: functions that throw, crash, hang or eat memory; a store whose bytes are wrong, gone or do not
//! come. Each gives a clear error in time, and nothing hangs afterwards.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Folder, Options, Platform, RUNTIME, Reply, binaries, host, shared, until};
use rekindle_snapshotter::pagemap::ChunkRef;
use rekindle_snapshotter::{Digest, Snapshot, keys, load_working_set};
use rekindle_wire::SnapshotId;
use rekindle_worker::host::sandbox::{Sandbox, Zygote};

const SOON: Duration = Duration::from_secs(15);
/// For a page that cannot be had: the store's own limit is 10 seconds, the fault's 12.
const LOST_LIMIT: Duration = Duration::from_secs(25);

const TROUBLE: &str = r#"
import ctypes, os, time

class Refused(Exception):
    pass

def handler(event, context):
    path = event.get("rawPath", "/")
    if path == "/raise":
        raise Refused("as I was told to")
    if path == "/segfault":
        ctypes.string_at(0)
    if path == "/exit":
        print("good bye", flush=True)
        os._exit(3)
    if path == "/hang":
        time.sleep(3600)
    if path == "/eat":
        kept = []
        while True:
            kept.append(b"\x01" * (1 << 20))
    return "well"
"#;

/// Asks until the function answers well: the platform may still be taking the broken instance away.
#[track_caller]
fn recovers(platform: &Platform, function: &str) {
    until(&format!("{function} serves again"), SOON, || {
        (platform.get(function, "/").status == 200).then_some(())
    });
}

#[test]
fn a_function_that_ends_once_it_has_listened_is_not_deployed() {
    const LISTENS: &str =
        "import os, socket\nserver = socket.create_server((\"127.0.0.1\", int(os.environ[\"PORT\"])))\n";
    let serves = "while True:\n    caller, _ = server.accept()\n    caller.recv(1024)\n    \
                  caller.sendall(b\"HTTP/1.1 204 No Content\\r\\nConnection: close\\r\\n\\r\\n\")\n    \
                  caller.close()\n";
    let ends = "server.accept()\nprint(\"no pid file\", flush=True)\nos._exit(1)\n";
    shared().deploy(&Folder::server("ends", "", &[LISTENS, serves].concat()));
    for settings in ["", "snapshot = false"] {
        let folder = Folder::server("ends", settings, &[LISTENS, ends].concat());
        let told = shared().try_deploy(&folder).unwrap_err();
        assert!(told.contains("exited with code 1 before"), "{told}");
        assert!(told.contains("no pid file"), "{told}");
        assert_eq!(shared().get("ends", "/").status, 204, "the version before serves");
    }
}

#[test]
fn a_function_that_starts_with_too_much_memory_is_told_so() {
    let (settings, code) = ("memory = \"64MiB\"", "much = bytearray(500 << 20)\n");
    let python = Folder::python("starts-large", settings, code);
    let server = Folder::server("serves-large", settings, code);
    for folder in [python, server] {
        let told = shared().try_deploy(&folder).unwrap_err();
        let limit = "used more than its memory limit of 64MiB and was killed before it served HTTP";
        assert!(told.contains(limit), "{told}");
    }
}

#[test]
fn an_exception_is_502_function_error_with_its_type_and_text_for_readers() {
    shared().deploy(&Folder::python("raises", "", TROUBLE));
    let answer = shared().get("raises", "/raise").error(502, "function_error");
    assert!(!answer.message().contains("Refused"), "{}", answer.message());
    let answer = shared().admin("GET", "/function/raises/raise").send();
    let answer = answer.error(502, "function_error");
    assert!(
        answer.message().contains("Refused") && answer.message().contains("as I was told to"),
        "{}",
        answer.message()
    );
    shared().until_logged("raises", "as I was told to");
    shared().get("raises", "/").ok();
}

/// Answers what it is asked for, over connections of its own; `/slow` is answered when `/go` was asked for.
const ODD: &str = r#"
import os, socket, threading, time
go = threading.Event()

def serve(sock):
    head = b""
    while b"\r\n\r\n" not in head:
        read = sock.recv(65536)
        if not read:
            return
        head += read
    path = head.split(b" ")[1].decode()
    ok, end = b"HTTP/1.1 200 OK\r\nconnection: close\r\n", b"content-length: 2\r\n\r\nok"
    answers = {
        "/many": ok + b"".join(b"x-%d: 1\r\n" % n for n in range(300)) + end,
        "/long": ok + b"x-long: " + b"v" * (1 << 20) + b"\r\n" + end,
        "/fits": ok + b"".join(b"x-%d: %s\r\n" % (n, b"v" * 700) for n in range(80)) + end,
        "/other": b"+OK another protocol\r\n",
        "/counts": ok + b"x-lines: %d\r\n" % head.count(b"x-own-") + end,
        "/closes": b"",
        "/short": ok + b"content-length: 1000\r\n\r\nonly this",
        "/chunks": ok + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\nnot a length\r\n",
        "/later": ok + b"content-length: 1000\r\n\r\n",
    }
    if path == "/slow":
        go.wait(30)
    if path == "/go":
        go.set()
    try:
        # It comes together with the connection's end.
        sock.sendall(answers.get(path, ok + end), 0 if path == "/later" else socket.MSG_MORE)
        if path == "/later":
            time.sleep(0.5)
    except OSError:
        pass
    sock.close()

listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

#[test]
fn an_odd_answer_ends_its_own_request_and_nobody_else_s() {
    shared().deploy(&Folder::server("odd", "concurrency = 20\nmax_instances = 1", ODD));
    let instance = shared().get("odd", "/").ok().instance().to_owned();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| shared().get("odd", "/slow"));
        for (path, told) in [
            ("/many", "above 64 KiB or 256 lines"),
            ("/long", "above 64 KiB or 256 lines"),
            ("/other", "no HTTP/1.1"),
            ("/closes", "closed a connection before it had answered"),
            ("/short", "ended after 9 bytes, and its content-length is 1000"),
            ("/chunks", "chunks are broken after 2 bytes"),
        ] {
            let answer = shared().get("odd", path).error(502, "invalid_response");
            assert!(answer.text().contains(told), "{path}: {}", answer.text());
        }
        assert_eq!(shared().get("odd", "/fits").ok().text(), "ok");
        // Its head was an answer: the client sees that the rest is not whole.
        let cut = shared().request("GET", "/function/odd/later").try_send();
        assert!(cut.is_err(), "{cut:?}");
        shared().until_logged("odd", "ended after 0 bytes");
        shared().get("odd", "/go").ok();
        assert_eq!(waiting.join().unwrap().ok().instance(), instance);
    });
    assert_eq!(shared().get("odd", "/").ok().instance(), instance, "it goes on");
}

/// Takes no connections any more once it was asked for `/leaves`, and ends a little later.
const LEAVING: &str = r#"
import os, socket, time
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64)
while True:
    connection = listener.accept()[0]
    leaves = b" /leaves " in connection.recv(65536)
    if leaves:
        listener.close()
    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
    connection.close()
    if leaves:
        time.sleep(0.3)
        os._exit(4)
"#;

#[test]
fn a_request_that_a_function_never_got_goes_to_another_instance() {
    shared().deploy(&Folder::server("leaving", "", LEAVING));
    let leaving = shared().get("leaving", "/leaves").ok().instance().to_owned();
    assert_ne!(shared().get("leaving", "/").ok().instance(), leaving);
}

#[test]
fn a_request_s_headers_have_the_limits_of_an_answer_s() {
    shared().deploy(&Folder::server("crowded", "", ODD));
    let call = |lines| {
        let call = shared().request("GET", "/function/crowded/counts");
        (0..lines)
            .fold(call, |call, n| call.header(&format!("x-own-{n}"), "1"))
            .send()
    };
    assert_eq!(call(200).ok().header("x-lines"), "200");
    assert!(
        call(300)
            .error(431, "headers_too_large")
            .message()
            .contains("more than 256")
    );
    assert_eq!(call(1).ok().header("x-lines"), "1");
}

#[test]
fn a_full_dev_shm_is_named_where_it_killed_the_function() {
    let code = "import mmap, os\ndef handler(event, context):\n    size = int(event['rawPath'].strip('/')) << 20\n\
        \x20   file = os.open('/dev/shm/filled', os.O_CREAT | os.O_RDWR | os.O_TRUNC)\n    os.ftruncate(file, size)\n\
        \x20   filled = mmap.mmap(file, size)\n    for at in range(0, size, mmap.PAGESIZE):\n        filled[at] = 1\n\
        \x20   return size\n";
    shared().deploy(&Folder::python("fills-shm", "memory = \"128MiB\"", code));
    assert_eq!(shared().get("fills-shm", "/31").ok().text(), (31 << 20).to_string());
    let killed = shared().admin("GET", "/function/fills-shm/33").send();
    let killed = killed.error(502, "function_crashed");
    for told in ["SIGBUS", "/dev/shm is full: that has 32MiB"] {
        assert!(killed.message().contains(told), "{}", killed.message());
    }
}

#[test]
fn a_crash_is_502_function_crashed_with_the_reason() {
    shared().deploy(&Folder::python("crashes", "", TROUBLE));
    for start in ["booted", "restored"] {
        let answer = shared()
            .fresh(start, "crashes", "/segfault")
            .error(502, "function_crashed");
        assert!(answer.message().contains("SIGSEGV"), "{start}: {}", answer.message());
        let answer = shared().fresh(start, "crashes", "/exit").error(502, "function_crashed");
        assert!(
            answer.message().contains("exited with code 3"),
            "{start}: {}",
            answer.message()
        );
    }
    recovers(shared(), "crashes");
}

#[test]
fn too_much_memory_is_502_function_out_of_memory_with_the_limit() {
    shared().deploy(&Folder::python("eats", "memory = \"64MiB\"", TROUBLE));
    for start in ["booted", "restored"] {
        let answer = shared()
            .fresh(start, "eats", "/eat")
            .error(502, "function_out_of_memory");
        assert!(answer.message().contains("64MiB"), "{start}: {}", answer.message());
    }
    recovers(shared(), "eats");
}

#[test]
fn a_function_that_does_not_answer_is_504_and_does_not_keep_its_instance() {
    shared().deploy(&Folder::python("hangs", "timeout = \"1s\"\nmax_instances = 1", TROUBLE));
    let started = Instant::now();
    let answer = shared().get("hangs", "/hang").error(504, "function_timeout");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(answer.message().contains("timeout"), "{}", answer.message());
    // It was the only instance there may be: the next request needs it gone.
    recovers(shared(), "hangs");
}

#[test]
fn a_function_has_the_time_to_boot_that_it_asks_for() {
    let slow = "import time; time.sleep(3)\n".to_owned() + ODD;
    let late = Folder::server("late", "boot_timeout = \"1s\"", &slow);
    let message = shared().try_deploy(&late).unwrap_err();
    assert!(message.contains("within boot_timeout, 1 s"), "{message}");
    shared().deploy(&Folder::server("late", "boot_timeout = \"40s\"", &slow));
    shared().fresh("booted", "late", "/").ok();
}

#[test]
fn a_command_has_the_function_s_environment() {
    const ECHO: &str = r#"
import sys, http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(sys.argv[1:]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"#;
    let config = r#"
name = "echo-argv"
runtime = "http"
base = "python"
memory = "128MiB"
command = ["python3", "echo.py", "$PORT", "${MODEL}-$FN_MEMORY_MIB", "$$MODEL", "$1"]
env = { MODEL = "small" }
"#;
    shared().deploy(&Folder::with_config(config).file("echo.py", ECHO));
    for start in ["booted", "restored"] {
        let said = shared().fresh(start, "echo-argv", "/").ok().text();
        assert!(said.ends_with(" small-128 $MODEL $1"), "{said}");
    }
}

#[test]
fn a_function_that_does_not_start_fails_its_deploy_with_its_last_words() {
    let dies = Folder::server("stillborn", "", "import sys\nsys.exit('cannot find my glasses')\n");
    let message = shared().try_deploy(&dies).unwrap_err();
    assert!(message.contains("cannot find my glasses"), "{message}");
    let missing = Folder::python("no-handler", "", "def another(event, context):\n    pass\n");
    let message = shared().try_deploy(&missing).unwrap_err();
    assert!(message.contains("handler"), "{message}");
    let fails = Folder::python("cold-feet", "[[warmup]]\npath = \"/raise\"", TROUBLE);
    let message = shared().try_deploy(&fails).unwrap_err();
    assert!(
        message.contains("/raise") && message.contains("as I was told to"),
        "{message}"
    );
    until("no instance of them", SOON, || {
        let left = ["stillborn", "no-handler", "cold-feet"].map(|f| shared().instances_of(f).len());
        (left == [0; 3]).then_some(())
    });
    shared().get("stillborn", "/").error(404, "function_not_found");
}

#[test]
fn a_hook_that_fails_costs_the_snapshot_or_the_instance_but_not_the_answer() {
    let code = "import rekindle\n@rekindle.before_snapshot\ndef refuse():\n    raise ValueError('not now')\n\
        def handler(event, context):\n    return 1\n";
    let version = shared().try_deploy(&Folder::python("no-snapshot", "", code)).unwrap();
    assert!(version.snapshot.is_none());
    assert!(
        version
            .snapshot_error
            .as_deref()
            .unwrap_or_default()
            .contains("not now"),
        "{version:?}"
    );
    assert_eq!(shared().fresh("booted", "no-snapshot", "/").ok().text(), "1");
    shared()
        .admin("GET", "/function/no-snapshot/")
        .header("x-fn-force-start", "restored")
        .send()
        .error(400, "bad_request");

    let code = code.replace("before_snapshot", "after_restore");
    shared().deploy(&Folder::python("no-restore", "rehearse = false", &code));
    // The instance of the deploy is ended by its hook, as each copy is.
    shared().until_logged("no-restore", "it cannot go on after its snapshot");
    assert_eq!(shared().get("no-restore", "/").ok().start(), "booted");
    let answer = shared().fresh("restored", "no-restore", "/").ok();
    assert_eq!(answer.start(), "booted", "it says what it did instead");
    shared().until_logged("no-restore", "not now");
}

#[test]
fn a_hook_that_begins_its_answer_and_never_ends_it_costs_the_snapshot_only() {
    let code = r#"
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b"well")

    def do_POST(self):
        self.answer(b"half of it", 10)
        time.sleep(3600)

    def answer(self, body, missing=0):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;
    let folder = Folder::server("endless-hook", "[hooks]\nbefore_snapshot = \"/hook\"", code);
    let version = shared().try_deploy(&folder).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(told.contains("did not answer within"), "{told}");
    assert_eq!(shared().get("endless-hook", "/").ok().text(), "well");
}

#[test]
fn an_after_restore_hook_that_hangs_costs_that_restore_and_the_function_boots() {
    let code = "import time, rekindle\n@rekindle.after_restore\ndef hang():\n    time.sleep(3600)\n\
        def handler(event, context):\n    return 1\n";
    shared().deploy(&Folder::python("hanging-hook", "rehearse = false", code));
    let answer = shared().fresh("restored", "hanging-hook", "/").ok();
    assert_eq!(answer.start(), "booted", "it says what it did instead");
    shared().until_logged("hanging-hook", "did not answer within 10 s");
}

#[test]
fn an_instance_that_is_stopped_while_it_starts_is_gone_before_it_would_have_been_ready() {
    let slow = "import os, time\ntime.sleep(8)\nfrom http.server import *\n\
        HTTPServer(('127.0.0.1', int(os.environ['PORT'])), BaseHTTPRequestHandler).serve_forever()\n";
    let folder = Folder::server("slow-to-start", "snapshot = false", slow);
    shared().deploy(&folder);
    let processes = || host::with_variable("FN_NAME=slow-to-start");
    let deployed = processes();
    assert!(!deployed.is_empty());
    thread::scope(|s| {
        s.spawn(|| shared().fresh("booted", "slow-to-start", "/"));
        until("a second instance starts", SOON, || {
            (processes().len() > deployed.len()).then_some(())
        });
        let deleted = shared().admin("DELETE", "/v1/functions/slow-to-start").send();
        assert_eq!(deleted.status, 204, "{}", deleted.text());
        until("its processes are gone", Duration::from_secs(4), || {
            processes().is_empty().then_some(())
        });
    });
    assert!(shared().instances_of("slow-to-start").is_empty());
}

#[test]
fn no_worker_with_room_is_503_and_when_to_come_back() {
    let options = Options {
        args: vec!["--memory".into(), "300MiB".into()],
        ..Options::default()
    };
    let platform = Platform::start_with(options);
    let code = "import time\ndef handler(event, context):\n    time.sleep(13)\n";
    platform.deploy(&Folder::python("wide", "memory = \"200MiB\"\ntimeout = \"60s\"", code));
    thread::scope(|s| {
        let long = s.spawn(|| platform.get("wide", "/").ok());
        until("the first is in it", SOON, || {
            platform
                .instances_of("wide")
                .iter()
                .any(|i| i.in_flight == 1)
                .then_some(())
        });
        let refused = platform.get("wide", "/").error(503, "no_capacity");
        assert_ne!(refused.header("retry-after"), "", "{:?}", refused.headers);
        assert!(refused.message().contains("200MiB"), "{}", refused.message());
        long.join().unwrap();
    });
}

// --- a store that fails ---

/// Fills memory that no other function has, so that its chunks are its own; `/sum` reads all of it.
fn bulky(name: &str) -> Folder {
    let code = format!(
        "import hashlib, zlib\nparts = [hashlib.shake_256(b'{name}:%d' % n).digest(1 << 20) for n in range(12)]\n\
         def handler(event, context):\n    if event.get('rawPath') == '/sum':\n        \
         return [zlib.crc32(p) for p in parts]\n    return 'well'\n"
    );
    Folder::python(name, "timeout = \"40s\"", &code)
}

/// A page of the snapshot was lost and the answer says so, in these words.
#[track_caller]
fn is_lost(platform: &Platform, function: &str, words: &str) {
    let started = Instant::now();
    let answer = platform.fresh("restored", function, "/sum");
    if answer.status == 200 {
        panic!(
            "{function} was {}: {}",
            answer.start(),
            platform.until_logged(function, "booting instead").text
        );
    }
    let answer = answer.error(502, "snapshot_lost");
    assert!(started.elapsed() < LOST_LIMIT, "{function}: {:?}", started.elapsed());
    assert!(answer.message().contains(words), "{function}: {}", answer.message());
    // The log tells the same.
    platform.until_logged(function, "cannot be read, so");
}

/// Restores a function until what its start touches is stored, so that a later restore asks for no chunk before `/sum`.
fn record_working_set(platform: &Platform, store: &ObjectStore, function: &str, snapshot: &SnapshotId) {
    let client = store.client();
    platform.fresh("restored", function, "/").ok();
    let key = keys::working_set(snapshot);
    until(&format!("the working set of {function}"), SOON, || {
        RUNTIME.block_on(client.get(&key)).ok()
    });
}

/// The chunks of each snapshot that no other of them needs, and whose pages are not in its working set.
fn own_chunks(store: &ObjectStore, snapshots: &BTreeMap<&str, SnapshotId>) -> BTreeMap<String, Vec<Digest>> {
    let client = store.client();
    let (mut of_each, mut all) = (BTreeMap::new(), BTreeMap::new());
    for (name, id) in snapshots {
        let snapshot = RUNTIME.block_on(Snapshot::open(&client, id)).unwrap();
        let set = RUNTIME.block_on(load_working_set(&client, id)).unwrap();
        let set = set.map(|set| set.check(&snapshot.processes).unwrap());
        let first: HashSet<ChunkRef> = set
            .iter()
            .flat_map(|pack| &pack.pages)
            .filter_map(|page| {
                let map = &snapshot.process(page.pid)?.page_map;
                Some(map.lookup(page.page)?.payload?.chunk)
            })
            .collect();
        let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions().to_vec());
        let chunks: HashSet<ChunkRef> = regions.filter_map(|r| Some(r.payload?.chunk)).collect();
        let ids = |chunks: &HashSet<ChunkRef>| chunks.iter().map(|c| c.id.to_string()).collect::<BTreeSet<_>>();
        all.insert((*name).to_owned(), ids(&chunks));
        of_each.insert(
            (*name).to_owned(),
            chunks
                .difference(&first)
                .map(|c| c.id.to_string())
                .collect::<BTreeSet<_>>(),
        );
    }
    let parse = |text: &String| text.parse::<Digest>().unwrap();
    let own = |name: &String| {
        let others: BTreeSet<&String> = all.iter().filter(|(n, _)| *n != name).flat_map(|(_, c)| c).collect();
        of_each[name]
            .iter()
            .filter(|c| !others.contains(c))
            .map(parse)
            .collect::<Vec<_>>()
    };
    of_each.keys().map(|name| (name.clone(), own(name))).collect()
}

/// A page was lost, and the answer says so; or the platform booted instead, and says that.
#[track_caller]
fn fails_clearly(platform: &Platform, function: &str, words: &[&str]) {
    let started = Instant::now();
    let answer = platform.fresh("restored", function, "/sum");
    assert!(started.elapsed() < LOST_LIMIT, "{function}: {:?}", started.elapsed());
    let told = if answer.status == 200 {
        assert_eq!(answer.start(), "booted", "{function}: {}", answer.text());
        platform.until_logged(function, "booting instead").text
    } else {
        let answer = answer.error(502, "snapshot_lost");
        // The log tells the same.
        platform.until_logged(function, "cannot be read, so");
        answer.message()
    };
    assert!(words.iter().any(|w| told.contains(w)), "{function}: {told}");
}

/// No instance, process or thread of these functions is left hanging.
#[track_caller]
fn nothing_hangs(platform: &Platform, functions: &[&str]) {
    for function in functions {
        for instance in platform.instances_of(function) {
            let deleted = platform
                .admin("DELETE", &format!("/v1/instances/{}", instance.id))
                .send();
            assert!(
                deleted.status < 300 || deleted.status == 404,
                "{} {}",
                deleted.status,
                deleted.text()
            );
        }
        platform.until_gone(function, SOON);
    }
}

#[track_caller]
fn no_pager_is_left(platform: &Platform) {
    until("all pagers have ended", SOON, || {
        (platform.threads("pager-") == 0).then_some(())
    });
}

#[test]
fn corrupt_and_missing_chunks_are_clear_errors_and_harm_nobody_else() {
    let store = ObjectStore::start();
    let mut options = store.options();
    // Working sets that restores by programs record may have a page of each chunk. Then there is none to damage.
    options.env.push(("FN_RESTORER".to_owned(), "criu".to_owned()));
    let mut platform = Platform::start_with(options);
    let names = ["flipped", "missing", "cut", "bad-bundle", "healthy"];
    let snapshots: BTreeMap<&str, SnapshotId> = names
        .map(|name| (name, platform.deploy(&bulky(name)).snapshot.unwrap().id))
        .into();
    let sums: BTreeMap<&str, Reply> = names.map(|name| (name, platform.get(name, "/sum").ok())).into();
    for name in &names[..3] {
        record_working_set(&platform, &store, name, &snapshots[name]);
    }
    platform.stop();
    platform.set_env("FN_RESTORER", "auto");
    // What the worker has of the snapshots goes, so that it must ask the store.
    platform.empty_cache();

    let own = own_chunks(&store, &snapshots);
    let client = store.client();
    for name in &names[..3] {
        assert!(!own[*name].is_empty(), "{name} shares all its chunks");
        for chunk in &own[*name] {
            let key = keys::chunk(chunk);
            RUNTIME.block_on(async {
                let mut bytes = client.get(&key).await.unwrap().to_vec();
                let middle = bytes.len() / 2;
                match *name {
                    "flipped" => bytes[middle] ^= 0x10,
                    "cut" => bytes.truncate(middle),
                    _ => return client.delete(&key).await.unwrap(),
                }
                client.put(&key, bytes.into()).await.unwrap();
            });
        }
    }
    let bundle = keys::bundle(&snapshots["bad-bundle"]);
    RUNTIME.block_on(async {
        let mut bytes = client.get(&bundle).await.unwrap().to_vec();
        for at in (0..bytes.len()).step_by(1000) {
            bytes[at] ^= 1;
        }
        client.put(&bundle, bytes.into()).await.unwrap();
    });

    platform.restart();
    is_lost(&platform, "flipped", "in the store is corrupt");
    is_lost(&platform, "missing", "could not fetch chunk");
    is_lost(&platform, "cut", "in the store is corrupt");
    // Found out before anything of it ran: it is booted instead, and says so.
    let answer = platform.fresh("restored", "bad-bundle", "/sum").ok();
    assert_eq!((answer.start(), answer.text()), ("booted", sums["bad-bundle"].text()));
    platform.until_logged("bad-bundle", "booting instead");
    let answer = platform.fresh("restored", "healthy", "/sum").ok();
    assert_eq!((answer.start(), answer.text()), ("restored", sums["healthy"].text()));
    nothing_hangs(&platform, &names);
    no_pager_is_left(&platform);
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn bytes_that_rot_on_the_platform_s_own_disk_are_never_served() {
    let mut platform = Platform::start();
    let names = ["rots", "sound"];
    let sums = names.map(|name| {
        platform.deploy(&bulky(name));
        platform.get(name, "/sum").ok().text()
    });
    platform.stop();
    platform.empty_cache();
    // Every chunk rots that came after the other function's, and one byte of each is enough.
    let objects = platform.directory("data").join("s3/objects");
    let mut rotted = 0;
    for entry in fs::read_dir(&objects).unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("chunks%2F") {
            continue;
        }
        let mut bytes = fs::read(entry.path()).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(entry.path(), bytes).unwrap();
        rotted += 1;
    }
    assert!(rotted > 0, "no chunks in {}", objects.display());
    platform.restart();
    for (name, sum) in names.iter().zip(&sums) {
        let started = Instant::now();
        let answer = platform.fresh("restored", name, "/sum");
        assert!(started.elapsed() < LOST_LIMIT, "{:?}", started.elapsed());
        match answer.status {
            200 => assert_eq!((answer.start(), &answer.text()), ("booted", sum)),
            _ => drop(answer.error(502, "snapshot_lost")),
        }
    }
    nothing_hangs(&platform, &names);
    no_pager_is_left(&platform);
}

#[test]
fn a_store_that_hangs_or_dies_in_the_middle_of_a_restore_gives_an_error_in_time_and_recovers() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let names = ["while-hanging", "while-dying"];
    let sums = names.map(|name| {
        platform.deploy(&bulky(name));
        platform.get(name, "/sum").ok().text()
    });
    platform.stop();
    platform.empty_cache();
    platform.restart();

    // The manifest comes, the layers come, the chunks do not.
    store.set(Line::ChunksHang);
    fails_clearly(&platform, names[0], &["could not fetch", "did not arrive", "time"]);
    store.set(Line::DiesAtChunks);
    fails_clearly(
        &platform,
        names[1],
        &["could not fetch", "did not arrive", "connect", "open snapshot"],
    );
    assert_eq!(store.line(), Line::Dead, "the restore never asked for a chunk");
    nothing_hangs(&platform, &names);
    no_pager_is_left(&platform);

    // When it is back, so are the functions, without any restart. A restore that joins a fetch begun before may still
    // fail with it, and boots.
    store.set(Line::Good);
    for (name, sum) in names.iter().zip(&sums) {
        until("a restore after the store is back", LOST_LIMIT, || {
            let answer = platform.fresh("restored", name, "/sum").ok();
            assert_eq!(&answer.text(), sum);
            (answer.start() == "restored").then_some(())
        });
    }
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

/// Its root is the host's until then, and the worker asks for the next thing before it knows that the furnishing
/// failed.
#[test]
fn a_sandbox_that_is_not_furnished_touches_no_files() {
    let probe = tempfile::NamedTempFile::new().unwrap();
    fs::write(probe.path(), "a probe of nobody's").unwrap();
    let probe = OwnedFd::from(File::open(probe.path()).unwrap());
    let init = binaries::directory().join("rekindle-init");
    let stage = tempfile::tempdir().unwrap();
    // It has no CRIU that runs.
    let criu = tempfile::tempdir().unwrap();
    let zygote = Arc::new(Zygote::new(init, stage.path().to_owned(), criu.path().to_owned()));
    let answers = RUNTIME.block_on(async {
        let sandbox = Sandbox::create(&zygote, Vec::new()).await.unwrap();
        [
            sandbox.write_probe(&probe).await.err(),
            sandbox.load_files(&probe).await.err(),
            sandbox.save_files(&probe).await.err(),
            sandbox.hold(&[&probe], None, false).await.err(),
            sandbox.read_probe().await.err(),
        ]
    });
    for error in answers {
        let causes = error.map(|e| rekindle_init::causes::chain(&e)).unwrap_or_default();
        assert!(causes.contains("the sandbox is not furnished"), "{causes}");
    }
}
