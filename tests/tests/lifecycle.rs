//! The whole loop, and what a user meets on the way: deploy, invoke, scale to zero, restore; runtimes; errors; logs.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::{Folder, Reply, shared, until};
use rekindle_wire::api::LogStream;

const SOON: Duration = Duration::from_secs(15);

const HELLO: &str =
    "def handler(event, context):\n    return {'statusCode': 200, 'body': 'hello from ' + context.function_name}\n";

/// A server that can do what handlers cannot: stream both ways, be left in the middle, answer slowly.
const SERVER: &str = r#"
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

left = 0

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def pieces(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            remaining = int(self.headers.get("content-length", 0))
            while remaining:
                piece = self.rfile.read1(min(remaining, 65536))
                remaining -= len(piece)
                yield piece

    def answer(self, body, **headers):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, piece):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()

    def do_POST(self):
        if self.path == "/echo":
            return self.answer(b"".join(self.pieces()))
        if self.path == "/stream":  # each piece comes back before the next is there
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in self.pieces():
                self.chunk(piece)
            return self.chunk(b"")
        self.answer(b"posted")

    def do_GET(self):
        global left
        if self.path.startswith("/sleep/"):
            time.sleep(float(self.path.split("/")[2]))
            return self.answer(b"slept")
        if self.path == "/left":
            return self.answer(str(left).encode())
        if self.path == "/drip":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for _ in range(600):
                    self.chunk(b"drop")
                    time.sleep(0.05)
            except OSError:
                left += 1
            self.close_connection = True
            return
        self.answer(self.path.encode(), x_pid=str(os.getpid()))

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[track_caller]
fn has_all_headers(answer: &Reply) {
    for name in ["x-request-id", "x-fn-instance", "x-fn-start", "server-timing"] {
        assert_ne!(answer.header(name), "", "{name} is missing: {:?}", answer.headers);
    }
    assert!(answer.header("x-request-id").starts_with("r-"), "{:?}", answer.headers);
    assert!(answer.header("x-fn-instance").starts_with("i-"), "{:?}", answer.headers);
}

/// The durations of a Server-Timing header by name.
fn phases(answer: &Reply) -> Vec<(String, f64)> {
    let parts = answer.header("server-timing").split(", ").map(|part| {
        let (name, rest) = part.split_once(";dur=").unwrap();
        (name.to_owned(), rest.parse().unwrap())
    });
    parts.collect()
}

/// The phases that have a meaning for users.
const PHASES: [&str; 5] = ["route", "place", "boot", "restore", "function"];

#[track_caller]
fn timed(answer: &Reply, expected: &[&str]) {
    let phases = phases(answer);
    let names: Vec<&str> = phases.iter().map(|(name, _)| name.as_str()).collect();
    // The worker may tell parts of its phases as well.
    let told: Vec<&str> = names.into_iter().filter(|n| PHASES.contains(n)).collect();
    assert_eq!(told, expected, "{}", answer.header("server-timing"));
    assert!(phases.iter().all(|(_, ms)| (0.0..30_000.0).contains(ms)), "{phases:?}");
}

#[test]
fn a_function_is_booted_then_warm_then_gone_and_then_restored() {
    let folder = Folder::sample("hello-python", |t| {
        t.replace("\"hello\"", "\"loop\"").replace("60s", "1s")
    });
    let version = shared().deploy(&folder);
    let snapshot = version.snapshot.expect("a snapshot");
    assert!(
        snapshot.memory_bytes > 5 << 20 && snapshot.stored_bytes > 0,
        "{snapshot:?}"
    );
    assert!(snapshot.stored_bytes < snapshot.memory_bytes, "{snapshot:?}");

    let booted = shared().fresh("booted", "loop", "/?name=Ada").ok();
    assert_eq!((booted.start(), booted.text().as_str()), ("booted", "Hello, Ada!\n"));
    has_all_headers(&booted);
    timed(&booted, &["route", "place", "boot", "function"]);

    let warm = until("a warm answer", SOON, || {
        Some(shared().get("loop", "/")).filter(|a| a.start() == "warm")
    });
    assert_eq!(warm.text(), "Hello, world!\n");
    has_all_headers(&warm);
    timed(&warm, &["route", "place", "function"]);

    shared().until_gone("loop", SOON);
    let restored = shared().get("loop", "/?name=Grace").ok();
    assert_eq!(
        (restored.start(), restored.text().as_str()),
        ("restored", "Hello, Grace!\n")
    );
    has_all_headers(&restored);
    timed(&restored, &["route", "place", "restore", "function"]);
    assert_ne!(restored.instance(), booted.instance());
    let after = shared().get("loop", "/").ok();
    assert_eq!((after.start(), after.instance()), ("warm", restored.instance()));
}

#[test]
fn a_client_s_own_request_id_is_kept_and_told_to_the_function() {
    let code = "def handler(event, context):\n    return {'id': context.aws_request_id, 'headers': event['headers']}\n";
    shared().deploy(&Folder::python("request-id", "", code));
    let answer = shared()
        .request("GET", "/function/request-id/")
        .header("x-request-id", "my-own-1")
        .send()
        .ok();
    assert_eq!(answer.header("x-request-id"), "my-own-1");
    let body = answer.json();
    assert_eq!(body["id"], "my-own-1");
    // What is between the parts of the platform stays there.
    let headers = body["headers"].as_object().unwrap();
    assert!(
        headers.keys().all(|name| !name.starts_with("x-rekindle")),
        "{headers:?}"
    );
    assert!(headers.contains_key("x-forwarded-for"), "{headers:?}");
}

#[test]
fn a_function_has_its_own_host_name() {
    shared().deploy(&Folder::python("by-host", "", HELLO));
    let host = format!("by-host.localhost:{}", shared().port());
    let answer = shared().request("GET", "/any/path").header("host", &host).send().ok();
    assert_eq!(answer.text(), "hello from by-host");
}

#[test]
fn a_node_function_is_restored() {
    let folder = Folder::sample("hello-node", |t| t);
    shared().deploy(&folder);
    let booted = shared().fresh("booted", "hello-node", "/").ok().json();
    assert_eq!(booted["restores"], 0, "{booted}");
    let answer = shared().fresh("restored", "hello-node", "/?name=Ada").ok();
    assert_eq!(answer.start(), "restored");
    let body = answer.json();
    assert_eq!(body["greeting"], "Hello, Ada!");
    assert_eq!(body["restores"], 1, "its after-restore hook ran once: {body}");
}

#[test]
fn a_static_binary_is_restored_and_its_hooks_run() {
    let folder = Folder::sample("http-rust", |t| t);
    shared().deploy(&folder);
    let restored = shared().fresh("restored", "http-rust", "/").ok();
    assert_eq!(restored.start(), "restored");
    assert_eq!(restored.text(), "Hello from a static binary; snapshots 1, restores 1\n");
    let echoed = shared()
        .request("POST", "/function/http-rust/x")
        .body("as it was")
        .send()
        .ok();
    assert_eq!(echoed.text(), "as it was");
}

#[test]
fn an_event_goes_to_the_handler_as_it_is() {
    let code = "def handler(event, context):\n    return {'got': event, 'sum': sum(event.get('numbers', []))}\n";
    shared().deploy(&Folder::python("event", "", code));
    let path = "/v1/functions/event/invocations";
    let answer = shared().admin("POST", path).body(r#"{"numbers":[1,2,39]}"#).send().ok();
    assert_eq!(answer.json()["sum"], 42);
    shared()
        .request("POST", path)
        .body("{}")
        .send()
        .error(401, "unauthorized");
    shared().admin("POST", path).body("no json").send();
}

#[test]
fn bodies_of_eight_megabytes_pass_both_ways_unchanged() {
    shared().deploy(&Folder::server("large", "concurrency = 8", SERVER));
    let body: Vec<u8> = (0..8_u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let answer = shared()
        .request("POST", "/function/large/echo")
        .body(body.clone())
        .send()
        .ok();
    assert!(
        answer.body == body,
        "{} bytes came back, not the ones sent",
        answer.body.len()
    );
}

#[test]
fn a_body_that_breaks_off_or_is_too_much_is_the_client_s_fault_and_its_instance_goes_on() {
    let settings = "concurrency = 8\nmax_instances = 1\nidle = \"60s\"";
    shared().deploy(&Folder::server("broken-off", settings, SERVER));
    let first = shared().get("broken-off", "/").ok();
    let head = b"POST /function/broken-off/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for round in 0..3 {
        let mut line = TcpStream::connect(("127.0.0.1", shared().port())).unwrap();
        line.write_all(head).unwrap();
        line.write_all(b"5\r\nbegun\r\n").unwrap();
        if round == 2 {
            // More than the gateway's limit, of which it is not told before.
            let piece = vec![b'x'; 1 << 20];
            // It may be closed before all is written.
            let _ = (0..40).try_for_each(|_| {
                line.write_all(b"100000\r\n")?;
                line.write_all(&piece)?;
                line.write_all(b"\r\n")
            });
        }
        drop(line);
        std::thread::sleep(Duration::from_millis(700));
        let after = shared().get("broken-off", "/").ok();
        assert_eq!(after.instance(), first.instance(), "round {round}");
    }
}

/// Reads until the last byte of `end`, for at most some seconds.
#[track_caller]
fn read_past(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(end) {
        match stream.read(&mut byte) {
            Ok(1) => got.push(byte[0]),
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&got)),
        }
    }
    got
}

#[test]
fn bodies_stream_both_ways_at_once() {
    shared().deploy(&Folder::server("stream", "concurrency = 8", SERVER));
    let mut line = TcpStream::connect(("127.0.0.1", shared().port())).unwrap();
    line.write_all(b"POST /function/stream/stream HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    for number in 0..5 {
        let piece = format!("piece-{number}");
        line.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes())
            .unwrap();
        // It is back before the next is sent, so neither direction waits for the other's end.
        read_past(&mut line, piece.as_bytes());
    }
    line.write_all(b"0\r\n\r\n").unwrap();
    read_past(&mut line, b"0\r\n\r\n");
}

#[test]
fn a_client_that_leaves_ends_its_request_in_the_function() {
    shared().deploy(&Folder::server("left", "concurrency = 8", SERVER));
    let mut line = TcpStream::connect(("127.0.0.1", shared().port())).unwrap();
    line.write_all(b"GET /function/left/drip HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    read_past(&mut line, b"dropdrop".split_at(4).0);
    drop(line);
    until("the function notices", SOON, || {
        (shared().get("left", "/left").text() == "1").then_some(())
    });
    until("no request in flight", SOON, || {
        shared()
            .instances_of("left")
            .iter()
            .all(|i| i.in_flight == 0)
            .then_some(())
    });
}

#[test]
fn one_instance_serves_as_many_requests_at_once_as_it_says() {
    shared().deploy(&Folder::server(
        "together",
        "concurrency = 6\nmax_instances = 1",
        SERVER,
    ));
    shared().get("together", "/").ok();
    let started = Instant::now();
    let answers: Vec<Reply> = thread::scope(|s| {
        let calls: Vec<_> = (0..6)
            .map(|_| s.spawn(|| shared().get("together", "/sleep/2").ok()))
            .collect();
        calls.into_iter().map(|c| c.join().unwrap()).collect()
    });
    // One after the other they would take twelve seconds.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert!(answers.iter().all(|a| a.instance() == answers[0].instance()));
}

#[test]
fn a_function_with_all_its_instances_busy_says_429_and_when_to_come_back() {
    shared().deploy(&Folder::server(
        "busy",
        "concurrency = 1\nmax_instances = 1\ntimeout = \"60s\"",
        SERVER,
    ));
    thread::scope(|s| {
        let long = s.spawn(|| shared().get("busy", "/sleep/14").ok());
        until("the first is in it", SOON, || {
            shared()
                .instances_of("busy")
                .iter()
                .any(|i| i.in_flight == 1)
                .then_some(())
        });
        let refused = shared().get("busy", "/").error(429, "throttled");
        assert_ne!(refused.header("retry-after"), "", "{:?}", refused.headers);
        assert!(refused.message().contains("max_instances"), "{}", refused.message());
        long.join().unwrap();
    });
}

#[test]
fn a_deploy_that_fits_on_no_worker_is_refused() {
    let message = shared()
        .try_deploy(&Folder::python("giant", "memory = \"60GiB\"", HELLO))
        .unwrap_err();
    assert!(message.contains("60GiB") && message.contains("memory"), "{message}");
}

#[test]
fn an_unknown_function_is_404() {
    let answer = shared().get("nobody", "/").error(404, "function_not_found");
    assert!(answer.message().contains("nobody"), "{}", answer.message());
}

#[test]
fn what_a_function_writes_is_in_its_log() {
    let code = "import sys\nprint('while it loads')\ndef handler(event, context):\n    print('to stdout')\n    \
        print('to stderr', file=sys.stderr)\n    return 1\n";
    shared().deploy(&Folder::python("talks", "rehearse = false", code));
    let answer = shared().fresh("restored", "talks", "/").ok();
    shared().until_logged("talks", "while it loads");
    assert_eq!(shared().until_logged("talks", "to stderr").stream, LogStream::Stderr);
    let line = shared().until_logged("talks", "to stdout");
    assert_eq!(
        (line.stream, line.instance.as_str()),
        (LogStream::Stdout, answer.instance()),
        "of the restored instance"
    );
    let human = shared().cli(&["logs", "talks", "--tail", "1000"]);
    assert!(String::from_utf8_lossy(&human.stdout).contains("to stdout"));
}

#[test]
fn a_deleted_function_is_gone_with_its_instances() {
    shared().deploy(&Folder::python("short-lived", "", HELLO));
    shared().get("short-lived", "/").ok();
    let deleted = shared().cli(&["delete", "short-lived", "--yes"]);
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    shared().get("short-lived", "/").error(404, "function_not_found");
    shared().until_gone("short-lived", SOON);
    assert!(shared().functions().iter().all(|f| f.name.as_str() != "short-lived"));
}

#[test]
fn a_new_version_takes_over_and_versions_never_change() {
    let code =
        |n: u32| format!("def handler(event, context):\n    return {{'statusCode': 200, 'body': 'version {n}'}}\n");
    let first = shared().deploy(&Folder::python("versions", "", &code(1)));
    assert_eq!(shared().get("versions", "/").ok().text(), "version 1");
    let second = shared().deploy(&Folder::python("versions", "", &code(2)));
    assert_eq!((first.version.0, second.version.0), (1, 2));
    assert_eq!(shared().get("versions", "/").ok().text(), "version 2");
    assert_eq!(shared().fresh("restored", "versions", "/").ok().text(), "version 2");
    // One that fails changes nothing.
    let broken = Folder::python("versions", "", "raise RuntimeError('no such luck')\n");
    let message = shared().try_deploy(&broken).unwrap_err();
    assert!(message.contains("no such luck"), "{message}");
    assert_eq!(shared().fresh("restored", "versions", "/").ok().text(), "version 2");
}

#[test]
fn a_bad_fn_toml_is_refused_with_the_line_by_fn_and_by_the_platform() {
    let text = "name = \"slip\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemmory = \"1GiB\"\n";
    let folder = Folder::with_config(text).file("main.py", HELLO);
    let message = shared().try_deploy(&folder).unwrap_err();
    assert!(message.contains("line 4") && message.contains("memmory"), "{message}");
    // Who goes around `fn` meets the same check.
    let tar = std::process::Command::new("tar")
        .args(["czf", "-", "-C"])
        .arg(folder.path())
        .arg(".")
        .output()
        .unwrap();
    let answer = shared()
        .admin("POST", "/v1/functions")
        .header("content-type", "application/gzip")
        .body(tar.stdout)
        .send();
    let answer = answer.error(400, "invalid_config");
    assert!(answer.message().contains("line 4"), "{}", answer.message());
}

#[test]
fn without_the_key_nothing_is_told_deployed_deleted_or_forced() {
    shared().deploy(&Folder::python("guarded", "", HELLO));
    for (method, path) in [
        ("GET", "/v1/functions"),
        ("GET", "/v1/functions/guarded"),
        ("GET", "/v1/functions/guarded/logs"),
        ("POST", "/v1/functions"),
        ("DELETE", "/v1/functions/guarded"),
        ("GET", "/v1/status"),
    ] {
        shared().request(method, path).send().error(401, "unauthorized");
        let wrong = shared()
            .request(method, path)
            .header("authorization", "Bearer rk_0123456789abcdef");
        wrong.send().error(401, "unauthorized");
    }
    let forced = shared()
        .request("GET", "/function/guarded/")
        .header("x-fn-force-start", "booted");
    forced.send().error(401, "unauthorized");
    shared().get("guarded", "/").ok();
}

#[test]
fn hook_paths_cannot_be_called_from_outside() {
    shared().deploy(&Folder::python("hooked", "", HELLO));
    for path in [
        "/.rekindle/after-restore",
        "/%2erekindle/before-snapshot",
        "/x/../.rekindle/after-restore",
    ] {
        let answer = shared().request("POST", &format!("/function/hooked{path}")).send();
        assert!(
            answer.status == 404 || answer.text().contains("hello from"),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
    }
    // The client library normalises paths; a socket does not.
    let mut line = TcpStream::connect(("127.0.0.1", shared().port())).unwrap();
    line.write_all(
        b"POST /function/hooked/x/../.rekindle/after-restore HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\
        connection: close\r\n\r\n",
    )
    .unwrap();
    let mut answer = String::new();
    line.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[test]
fn the_admin_api_describes_itself() {
    let document = shared().request("GET", "/v1/openapi.json").send().ok().json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    assert!(document["paths"]["/v1/functions"]["post"].is_object());
}

#[test]
fn a_request_in_an_instance_that_is_stopped_does_not_run_again_unless_it_may() {
    let platform = shared();
    let code = "import time\n\
        def handler(event, context):\n    print('it runs')\n    time.sleep(3)\n    return 'done'\n";
    for (name, settings) in [("once", ""), ("again", "idempotent = true")] {
        platform.deploy(&Folder::python(name, &format!("max_instances = 3\n{settings}"), code));
        let runs = || {
            let lines = platform.logs(name);
            lines.iter().filter(|line| line.text == "it runs").count()
        };
        // Warm-ups.
        let before = runs();
        thread::scope(|scope| {
            let call = scope.spawn(|| platform.request("POST", &format!("/function/{name}/")).body("x").send());
            until("it runs", SOON, || (runs() == before + 1).then_some(()));
            let running = platform.instances_of(name);
            let stop = |id: &str| platform.admin("DELETE", &format!("/v1/instances/{id}")).send();
            for instance in &running {
                assert_eq!(stop(instance.id.as_str()).status, 204);
            }
            let reply = call.join().unwrap();
            match name {
                "once" => drop(reply.error(502, "function_crashed")),
                _ => assert_eq!(reply.ok().json(), "done"),
            }
        });
        assert_eq!(runs() - before, if name == "once" { 1 } else { 2 }, "{name}");
        platform.delete(name).unwrap();
    }
}
