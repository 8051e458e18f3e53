//! Functions with `fresh`: each invocation runs in a copy of the snapshot that has served none.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::Duration;

use rekindle_e2e::{Client, Folder, shared};
use rekindle_testkit::Reply;

/// Leaves behind what a process can: in memory, in a file, as a thread, as a child, as a changed directory. Tells what
/// it found. Its warm-up request is no invocation, and is part of the snapshot.
const CODE: &str = "import os, secrets, subprocess, threading, time\n\
    calls = 0\n\
    def handler(event, context):\n    global calls\n    calls += 1\n    found = {\n\
    \x20       'calls': calls, 'directory': os.getcwd(), 'threads': threading.active_count(),\n\
    \x20       'left': sorted(os.listdir('/tmp')), 'key': secrets.token_hex(8),\n\
    \x20       'processes': [p for p in os.listdir('/proc') if p.isdigit()]}\n\
    \x20   open(f'/tmp/left-{calls}', 'w').close()\n    os.chdir('/tmp')\n\
    \x20   threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n\
    \x20   subprocess.Popen(['sleep', '600'])\n\
    \x20   if event.get('rawPath', '').startswith('/exit'):\n        os._exit(3)\n\
    \x20   if event.get('rawPath', '').startswith('/hang'):\n        time.sleep(30)\n\
    \x20   return found\n";

fn folder(name: &str, settings: &str) -> Folder {
    let settings = format!("fresh = true\n{settings}\n[[warmup]]\npath = \"/\"\n");
    Folder::python(name, &settings, CODE)
}

/// The answer without its key.
fn state(reply: &Reply) -> serde_json::Value {
    let mut found = reply.json();
    found.as_object_mut().unwrap().remove("key");
    found
}

/// Calls it, and returns the key that it made.
fn called(platform: &Client, name: &str, expected: &serde_json::Value) -> String {
    let reply = platform.get(name, "/").ok();
    assert_eq!(&state(&reply), expected);
    reply.json()["key"].to_string()
}

fn are_different(mut keys: Vec<String>) {
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

#[test]
fn each_invocation_finds_what_the_snapshot_has_and_a_key_of_its_own() {
    let platform = shared();
    platform.deploy(&folder("fresh-one", "max_instances = 1"));
    let first = platform.fresh("restored", "fresh-one", "/").ok();
    let expected = state(&first);
    // The warm-up's traces are the snapshot's.
    assert_eq!(expected["calls"], 2, "{expected}");
    assert_eq!(expected["left"], serde_json::json!(["left-1"]), "{expected}");
    let keys = (0..20).map(|_| called(platform, "fresh-one", &expected)).collect();
    are_different(keys);
    let last = platform.get("fresh-one", "/").ok();
    assert_eq!((last.start(), last.instance()), ("warm", first.instance()));
    assert!(
        last.header("server-timing").contains("renew;dur="),
        "{}",
        last.header("server-timing")
    );
    // However an invocation ends.
    platform.get("fresh-one", "/exit").error(502, "function_crashed");
    called(platform, "fresh-one", &expected);
    platform.delete("fresh-one").unwrap();
}

#[test]
fn many_at_once_get_copies_of_their_own() {
    let platform = shared();
    platform.deploy(&folder("fresh-many", "max_instances = 3"));
    let expected = state(&platform.fresh("restored", "fresh-many", "/").ok());
    let keys = thread::scope(|scope| {
        let callers = || {
            (0..15)
                .map(|_| called(platform, "fresh-many", &expected))
                .collect::<Vec<_>>()
        };
        let callers: Vec<_> = (0..6).map(|_| scope.spawn(callers)).collect();
        callers.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    are_different(keys);
    // One that is deleted leaves nothing, whatever is being renewed.
    platform.delete("fresh-many").unwrap();
    platform.until_gone("fresh-many", Duration::from_secs(10));
}

#[test]
fn who_ran_into_the_timeout_leaves_nothing_either() {
    let platform = shared();
    platform.deploy(&folder("fresh-hang", "max_instances = 1\ntimeout = \"1s\""));
    let expected = state(&platform.fresh("restored", "fresh-hang", "/").ok());
    platform.get("fresh-hang", "/hang").error(504, "function_timeout");
    called(platform, "fresh-hang", &expected);
    platform.delete("fresh-hang").unwrap();
}

/// A server whose hook takes longer than an invocation may.
const SLOW: &str = r#"
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        time.sleep(2)
        self.do_GET()

HTTPServer(("", 8080), Handler).serve_forever()
"#;

#[test]
fn a_copy_that_takes_longer_than_an_invocation_may_is_waited_for() {
    let platform = shared();
    let settings = "fresh = true\nmax_instances = 1\ntimeout = \"1s\"\n[hooks]\nafter_restore = \"/restored\"\n";
    platform.deploy(&Folder::server("fresh-slow", settings, SLOW));
    for _ in 0..3 {
        platform.get("fresh-slow", "/").ok();
    }
    platform.delete("fresh-slow").unwrap();
}

/// Counts in memory, and leaves nothing that a reset could not undo, unless it is asked to.
const COUNTS: &str = "import mmap, os, random, secrets\n\
    keys = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nkeys.madvise(18)\n\
    calls = 0\nheld = bytearray(1 << 20)\nspare = bytearray(b'x' * (8 << 20))\n\
    def handler(event, context):\n    global calls\n    calls += 1\n\
    \x20   path = event.get('rawPath', '')\n\
    \x20   held[:] = os.urandom(len(held))\n    kept = [bytearray(5000) for _ in range(500)]\n\
    \x20   found = {'calls': calls, 'directory': os.getcwd(), 'kept': 'kept' in globals(), \n\
    \x20       'spare': sum(spare[::4096]), 'wiped': keys[0], \n\
    \x20       'key': secrets.token_hex(8) + str(random.random())}\n\
    \x20   keys[0] = 7\n\
    \x20   if path.startswith('/keep'):\n        globals()['kept'] = kept\n\
    \x20   if path.startswith('/move'):\n        os.chdir('/tmp')\n\
    \x20   if path.startswith('/free'):\n        spare.clear()\n\
    \x20   return found\n";

/// How many copies were put back, and how many restored for that reason.
fn copies(platform: &Client, unfit: &str) -> (f64, f64) {
    let count = |labels: &str| platform.worker_metric(&format!("rekindle_fresh_copies_total{{{labels}}}"));
    (
        count("by=\"reset\",unfit=\"none\""),
        count(&format!("by=\"restore\",unfit=\"{unfit}\"")),
    )
}

#[test]
fn a_copy_that_has_done_nothing_else_is_put_back() {
    let platform = shared();
    let settings = "fresh = true\nmax_instances = 1\n[[warmup]]\npath = \"/\"\n";
    platform.deploy(&Folder::python("fresh-reset", settings, COUNTS));
    let expected = state(&platform.fresh("restored", "fresh-reset", "/").ok());
    assert_eq!(expected["calls"], 2, "{expected}");
    let (before, _) = copies(platform, "call");
    let call = |path: &str| {
        let reply = platform.get("fresh-reset", path).ok();
        assert_eq!(state(&reply), expected, "{path}");
        reply.json()["key"].to_string()
    };
    let paths = ["/", "/keep"].into_iter().cycle();
    are_different(paths.take(40).map(&call).collect());
    let (reset, unfit) = copies(platform, "call");
    // The first two copies have no point, or are replaced.
    assert!(reset - before >= 30.0, "{before} {reset}");
    // What cannot be undone is in no other copy.
    let (_, freed_before) = copies(platform, "memory");
    are_different((0..3).flat_map(|_| [call("/move"), call("/")]).collect());
    // Nor is what was freed of the snapshot's memory.
    are_different((0..3).flat_map(|_| [call("/free"), call("/")]).collect());
    let (_, freed) = copies(platform, "memory");
    assert!(freed > freed_before, "{freed_before} {freed}");
    let (_, now) = copies(platform, "call");
    assert!(now - unfit >= 2.0, "{unfit} {now}");
    platform.delete("fresh-reset").unwrap();
}

#[test]
fn a_copy_of_node_js_is_put_back() {
    let platform = shared();
    let code = "let calls = 0; const kept = [];\n\
        exports.handler = async () => {\n  calls += 1; kept.push('x'.repeat(1000));\n\
        \x20 return { calls, kept: kept.length, key: Math.random() + require('crypto').randomUUID() };\n};\n";
    let settings = "name = \"fresh-node\"\nruntime = \"node\"\nentry = \"index.handler\"\nfresh = true\n\
        max_instances = 1\n[[warmup]]\npath = \"/\"\n";
    let folder = Folder::with_config(settings).file("index.js", code);
    platform.deploy(&folder);
    let expected = state(&platform.fresh("restored", "fresh-node", "/").ok());
    let (before, _) = copies(platform, "call");
    let keys = (0..40).map(|_| called(platform, "fresh-node", &expected)).collect();
    are_different(keys);
    let (reset, _) = copies(platform, "call");
    assert!(reset > before, "{before} {reset}");
    platform.delete("fresh-node").unwrap();
}

/// A server that sends more than its answer: what would be the answer to the next request on the same connection.
const TOO_MUCH: &str = r#"
import socket
listener = socket.create_server(("", 8080))
calls = 0
while True:
    connection, _ = listener.accept()
    while head := connection.recv(65536):
        calls += 1
        body = b"of call %d" % calls
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        poison = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"
        connection.sendall(answer + poison if b"/poison" in head else answer)
"#;

#[test]
fn an_answer_too_many_and_a_request_left_unread_reach_nobody() {
    let platform = shared();
    platform.deploy(&Folder::server(
        "fresh-poison",
        "fresh = true\nmax_instances = 1\n",
        TOO_MUCH,
    ));
    let expected = platform.fresh("restored", "fresh-poison", "/").ok().text();
    // What is left over is seen on the connection, or has closed it.
    let restored = || copies(platform, "descriptors").1 + copies(platform, "no_point").1;
    let (before, _) = copies(platform, "no_point");
    let restored_before = restored();
    let post = |body: Vec<u8>| platform.request("POST", "/function/fresh-poison/").body(body).send();
    for path in ["/", "/", "/", "/poison", "/", "/long", "/", "/poison", "/long", "/"] {
        let reply = match path {
            // More than it reads at once.
            "/long" => post(vec![b'x'; 300 << 10]),
            _ => platform.get("fresh-poison", path),
        };
        assert_eq!(reply.ok().text(), expected, "{path}");
    }
    for _ in 0..10 {
        assert_eq!(post(b"short".to_vec()).ok().text(), expected);
    }
    let (reset, _) = copies(platform, "no_point");
    assert!(reset - before >= 5.0, "{before} {reset}");
    assert!(restored() - restored_before >= 4.0, "{restored_before}");
    platform.delete("fresh-poison").unwrap();
}
