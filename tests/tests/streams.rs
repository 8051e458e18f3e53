//! Bodies that pass while they come: events, large ones, parts of them, and those that wait to be asked for.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rekindle_e2e::{Client, Folder, Options, Platform, shared};

const SERVER: &str = include_str!("../functions/streams/server.py");
/// More than a function has memory, and than the platform keeps.
const LARGE: u64 = 200 << 20;

fn function(name: &str) -> Folder {
    Folder::server(name, "concurrency = 4\ntimeout = \"60s\"", SERVER)
}

fn curl(platform: &Client, args: &[&str], path: &str) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60"]).args(args);
    command.arg(format!("{}/function/{path}", platform.url()));
    command
}

/// What curl writes, of which its messages come last.
fn curled(platform: &Client, args: &[&str], path: &str) -> String {
    let output = curl(platform, args, path).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn each_event_is_there_before_the_next_is_sent() {
    let platform = shared();
    platform.deploy(&function("events"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let mut command = curl(platform, &["-N", version], "events/events");
        let mut curl = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines();
        for number in 0..5 {
            assert_eq!(lines.next().unwrap().unwrap(), format!("data: {number}"), "{version}");
            assert_eq!(lines.next().unwrap().unwrap(), "");
            platform.get("events", "/next").ok();
        }
        assert!(lines.next().is_none());
        assert!(curl.wait().unwrap().success());
    }
}

/// A process's memory in bytes, as its status names it.
fn memory(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().unwrap();
    kib << 10
}

#[test]
fn bodies_of_any_length_pass_to_servers_and_are_not_kept() {
    let mut options = Options::default();
    let args = ["--body-memory", "4MiB"];
    options.args.extend(args.map(str::to_owned));
    let platform = Platform::start_with(options);
    platform.deploy(&function("large"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large");
    File::create(&file).unwrap().set_len(LARGE).unwrap();
    let file = file.to_str().unwrap();
    let before = memory(platform.pid(), "VmRSS");
    // From here on the peak counts anew.
    fs::write(format!("/proc/{}/clear_refs", platform.pid()), "5").unwrap();
    for chunked in [&[][..], &["-H", "transfer-encoding: chunked"]] {
        let args = [&["-T", file][..], chunked].concat();
        assert_eq!(curled(&platform, &args, "large/sent"), LARGE.to_string());
    }
    let args = ["-o", "/dev/null", "-w", "%{size_download}"];
    assert_eq!(curled(&platform, &args, &format!("large/{LARGE}")), LARGE.to_string());
    assert_eq!(platform.instances_of("large").len(), 1);
    let grown = memory(platform.pid(), "VmHWM").saturating_sub(before);
    assert!(grown < LARGE / 4, "the platform grew by {grown} bytes");
}

#[test]
fn a_body_is_asked_for_unless_it_is_too_large_and_parts_are_passed_on() {
    let platform = shared();
    platform.deploy(&function("asked"));
    platform.deploy(&Folder::python(
        "kept",
        "",
        "def handler(event, context):\n    return ''\n",
    ));
    let dir = tempfile::tempdir().unwrap();
    let sent = |to: &str, length: u64| {
        let file = dir.path().join(length.to_string());
        File::create(&file).unwrap().set_len(length).unwrap();
        let args = [
            "-v",
            "--http1.1",
            "-H",
            "expect: 100-continue",
            "-T",
            file.to_str().unwrap(),
        ];
        curled(
            platform,
            &[&args[..], &["-w", " %{http_code} %{size_upload}"]].concat(),
            to,
        )
    };
    let asked = sent("asked/sent", 70_000);
    assert!(
        asked.starts_with("70000 200 70000") && asked.contains("HTTP/1.1 100 Continue"),
        "{asked}"
    );
    let refused = sent("kept", 33 << 20);
    assert!(refused.contains(" 413 0") && refused.contains("too_large"), "{refused}");
    assert!(refused.contains("32MiB (--max-body)"), "{refused}");
    let part = platform
        .request("GET", "/function/asked/range")
        .header("range", "bytes=2-5");
    let part = part.send();
    assert_eq!((part.status, part.header("content-range")), (206, "bytes 2-5/10"));
    assert_eq!(part.text(), "2345");
}

#[test]
fn a_client_that_sends_all_before_it_reads_is_told_why_its_body_was_refused() {
    let platform = shared();
    platform.deploy(&Folder::python(
        "keeping",
        "",
        "def handler(event, context):\n    return ''\n",
    ));
    let url = platform.url();
    let body = vec![7; 33 << 20];
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let head = format!("POST /function/keeping/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let is_refused = answer.starts_with("HTTP/1.1 413 ") && answer.contains("too_large");
    assert!(is_refused, "{answer}");
}

#[test]
fn answers_without_a_body_are_the_function_s_own() {
    let platform = shared();
    platform.deploy(&function("bodiless"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for (args, path, status, header) in [
            (&["-I"][..], "", "200", "content-length: 12345"),
            (&["-H", "if-none-match: \"x\""], "unchanged", "304", "etag: \"x\""),
            (
                &["-H", "range: bytes=50-"],
                "beyond",
                "416",
                "content-range: bytes */10",
            ),
        ] {
            let args = [&["-i", version], args].concat();
            let answer = curled(platform, &args, &format!("bodiless/{path}"));
            let first = answer.lines().next().unwrap();
            assert!(first.contains(status) && answer.contains(header), "{version}: {answer}");
        }
    }
}
