//! What the roles of a platform measure, and what `fn stats` and `fn top` make of it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rekindle_e2e::{Folder, binaries, shared, until};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);
const CODE: &str = "\
import rekindle
rekindle.after_restore(lambda: None)
def handler(event, context):
    if event['rawPath'] == '/raise':
        raise ValueError('no')
    return 'well'
";

/// Series by name with labels.
fn metrics(path: &str) -> BTreeMap<String, f64> {
    let text = shared().admin("GET", path).send().ok().text();
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let series = lines.map(|l| {
        let (name, value) = l.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    series.collect()
}

fn worker_path() -> String {
    let status = shared().admin("GET", "/v1/status").send().ok().json();
    format!("/v1/workers/{}/metrics", status["workers"][0]["id"].as_str().unwrap())
}

/// Of all series of this name, those whose labels hold these words, together.
fn sum(series: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> f64 {
    let of_name = |key: &str| key.split('{').next() == Some(name);
    let wanted = series
        .iter()
        .filter(|(key, _)| of_name(key) && labels.iter().all(|l| key.contains(l)));
    wanted.map(|(_, value)| value).sum()
}

fn json(args: &[&str]) -> Value {
    let output = shared().cli(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_worker_measures_starts_restores_faults_and_requests_to_the_store() {
    let path = worker_path();
    let before = metrics(&path);
    shared().deploy(&Folder::python("measured", "", CODE));
    for start in ["restored", "restored", "booted"] {
        assert_eq!(shared().fresh(start, "measured", "/").ok().start(), start);
    }
    shared().get("measured", "/").ok();
    let after = metrics(&path);
    let more = |name: &str, labels: &[&str]| sum(&after, name, labels) - sum(&before, name, labels);
    let own = "faas_invoked_name=\"measured\"";
    assert_eq!(more("faas_init_duration_seconds_count", &[own, "restored"]), 2.0);
    // The deploy's own, and the one asked for.
    assert_eq!(more("faas_init_duration_seconds_count", &[own, "booted"]), 2.0);
    assert_eq!(more("faas_invoke_duration_seconds_count", &[own, "restored"]), 2.0);
    assert_eq!(more("faas_invoke_duration_seconds_count", &[own, "warm"]), 1.0);
    // Other tests of this platform start instances too.
    assert!(more("rekindle_starts_total", &["restored", "ready"]) >= 2.0);
    for phase in [
        "open",
        "sandbox",
        "restorer",
        "mappings",
        "working-set",
        "resume",
        "after-restore",
    ] {
        let labels = ["restored", &format!("phase=\"{phase}\"")];
        assert!(
            more("rekindle_start_phase_duration_seconds_count", &labels) >= 2.0,
            "{phase}"
        );
    }
    // The second found the template that the first one made.
    assert!(more("rekindle_restores_total", &["template"]) >= 1.0);
    assert!(more("rekindle_restores_total", &[]) >= 2.0);
    assert!(more("rekindle_pager_faults_total", &[]) > 0.0);
    assert!(more("rekindle_pager_fault_duration_seconds_count", &[]) > 0.0);
    assert!(more("rekindle_pager_pages_total", &[]) > more("rekindle_pager_faults_total", &[]));
    assert!(more("rekindle_regions_read_total", &[]) > 0.0);
    assert!(more("rekindle_s3_requests_total", &["put", "ok"]) > 0.0);
    assert!(more("rekindle_s3_requests_total", &["get"]) > 0.0);
    assert!(more("rekindle_s3_transferred_bytes_total", &["sent"]) > 0.0);
    assert!(more("rekindle_captures_total", &["published"]) >= 1.0);
    assert!(more("rekindle_capture_bytes_total", &["memory"]) > more("rekindle_capture_bytes_total", &["stored"]));
    assert!(more("rekindle_capture_phase_duration_seconds_count", &["freeze"]) >= 1.0);
    assert!(more("rekindle_sandboxes_taken_total", &[]) >= 4.0);
    assert!(sum(&after, "rekindle_templates", &[]) >= 1.0);
    assert!(sum(&after, "rekindle_worker_instances_memory_bytes", &[]) > 0.0);
    assert!(sum(&after, "rekindle_sandboxes_wanted", &[]) > 0.0);

    shared().cli(&["delete", "measured", "--yes"]);
    until("the function's series are gone", SOON, || {
        let left = metrics(&path);
        (!left.keys().any(|key| key.contains(own))).then_some(())
    });
}

#[test]
fn fn_stats_tells_invocations_by_start_kind_and_the_snapshot() {
    let version = shared().deploy(&Folder::python("counted", "", CODE));
    shared().fresh("restored", "counted", "/").ok();
    for _ in 0..3 {
        assert_eq!(shared().get("counted", "/").ok().start(), "warm");
    }
    assert_eq!(shared().get("counted", "/raise").status, 502);
    // The gateway tells what it counts once a second.
    let stats = until("all is counted", SOON, || {
        let stats = json(&["stats", "counted", "--json"]);
        (stats["starts"]["warm"]["errors"]["function_error"] == 1).then_some(stats)
    });
    assert_eq!(stats["starts"]["warm"]["answered"], 3, "{stats:#}");
    assert_eq!(stats["starts"]["restored"]["answered"], 1);
    let p50 = |start: &str| stats["starts"][start]["p50_ms"].as_f64().unwrap();
    assert!(p50("restored") > 0.0 && p50("warm") > 0.0);
    assert_eq!(
        stats["snapshot"]["id"].as_str(),
        version.snapshot.as_ref().map(|s| s.id.as_str())
    );
    assert!(!stats["instances"].as_array().unwrap().is_empty());

    let shown = shared().cli(&["stats", "counted"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    for part in [
        "counted: ",
        "START",
        "restored",
        "warm",
        "all",
        "failed: function_error 1",
        "snapshot s-",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let unknown = shared().cli(&["stats", "nosuch"]);
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).starts_with("error[function_not_found]:"));
}

#[test]
fn fn_top_shows_one_frame_where_nobody_watches() {
    shared().deploy(&Folder::python("busy", "", CODE));
    let frame = until("its invocations are in a frame", SOON, || {
        for _ in 0..20 {
            shared().get("busy", "/").ok();
        }
        let frame = json(&["top", "--json"]);
        let rows = frame["functions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == "busy").cloned()?;
        (row["invocations"].as_u64()? >= 20).then_some((frame, row))
    });
    let (frame, row) = frame;
    assert_eq!(row["instances"], 1, "{row:#}");
    assert_eq!(frame["gateways"], 1);
    let worker = &frame["workers"][0];
    assert_eq!(worker["worker"]["alive"], true);
    assert!(worker["levels"]["sandboxes_wanted"].as_u64().unwrap() > 0);
    assert!(worker["levels"]["booted"].as_u64().unwrap() > 0, "{worker:#}");
    // Standard output is no terminal here.
    let text = String::from_utf8(shared().cli(&["top"]).stdout).unwrap();
    for part in [
        "rekindle: 1 gateway, 1 worker",
        "invocations/s",
        "SANDBOXES",
        "FUNCTION",
        "busy",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn fn_top_is_live_on_a_terminal_and_leaves_it_as_it_was() {
    shared().deploy(&Folder::python("watched", "", CODE));
    shared().get("watched", "/").ok();
    let mut top = shared().on_terminal("top");
    let (shown, mut output) = (Arc::new(Mutex::new(Vec::new())), top.stdout.take().unwrap());
    let sink = Arc::clone(&shown);
    let reader = std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut some) {
            sink.lock().unwrap().extend_from_slice(&some[..count]);
        }
    });
    let seen = |text: &str| {
        until(text, SOON, || {
            String::from_utf8_lossy(&shown.lock().unwrap())
                .contains(text)
                .then_some(())
        });
    };
    // To the other screen, and all of it drawn.
    ["\x1b[?1049h", "watched", "q ends", "by rate"]
        .into_iter()
        .for_each(seen);
    let mut keys = top.stdin.take().unwrap();
    // Nothing else on the screen says it in small letters.
    keys.write_all(b"sssss").unwrap();
    seen("memory");
    keys.write_all(b"q").unwrap();
    let ended = until("it ends", SOON, || top.try_wait().unwrap());
    reader.join().unwrap();
    let shown = String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
    assert!(ended.success() && shown.contains("\x1b[?1049l"), "{shown}");
    // Lines and echo are the terminal's again.
    assert!(shown.contains("as before"), "{shown}");
}

#[test]
fn a_reader_that_stops_early_ends_a_command_quietly() {
    shared().deploy(&Folder::python("listed", "", CODE));
    let listings: [&[&str]; 5] = [
        &["list"],
        &["status"],
        &["describe", "listed"],
        &["completions", "bash"],
        &["stats", "listed"],
    ];
    for args in listings {
        let mut command = Command::new(binaries::directory().join("fn"));
        command
            .args(args)
            .env("FN_URL", shared().url())
            .env("FN_KEY", shared().key());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Nobody will read: its first write finds the pipe closed.
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && said.is_empty(), "{args:?}: {status} {said}");
    }
}
