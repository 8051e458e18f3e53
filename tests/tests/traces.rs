//! One trace from the client's own span through every hop to the function: whole where it is sampled, and where it is
//! not sampled but fails or is slow.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::collector::{Collector, attribute, hex};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Options, Platform, Reply, hub, until};
use rekindle_wire::api::InstanceState;

const PARENT: &str = "00f067aa0ba902b7";
const SOON: Duration = Duration::from_secs(20);
const CODE: &str = "\
import rekindle, time
rekindle.after_restore(lambda: None)
FAR = bytearray(b'far' * 1000000)
def handler(event, context):
    path = event['rawPath']
    if path == '/far':
        assert FAR[1500000]
    if path == '/raise':
        raise ValueError('no')
    if path == '/slow':
        time.sleep(0.8)
    return event['headers']['traceparent']
";

/// The way from the client to each span that must be there, by name and role.
const HOPS: &[&str] = &[
    "gateway:invoke traced",
    "gateway:call worker",
    "worker:invoke",
    "worker:function",
];
const START: &[&str] = &[
    "gateway:invoke traced",
    "gateway:place",
    "gateway:ask scheduler",
    "scheduler:placement",
    "scheduler:call worker",
    "worker:start_instance",
];
const RESTORE: &[&[&str]] = &[
    &["worker:restore", "worker:open"],
    &["worker:restore", "worker:open", ":s3 get"],
    &["worker:restore", "worker:open", ":s3 read"],
    &["worker:restore", "worker:sandbox"],
    &["worker:restore", "worker:restorer"],
    &["worker:restore", "worker:restorer", ":working set"],
    &["worker:restore", ":first fault"],
    &[
        "worker:restore",
        "worker:after-restore",
        "worker:hook /.rekindle/after-restore",
    ],
];
const BOOT: &[&[&str]] = &[&["worker:boot", "worker:sandbox"], &["worker:boot", "worker:listen"]];

/// Fails whenever it is restored, and boots then; takes longer than is slow where it is asked to.
const ODD: &str = "\
import time, rekindle
@rekindle.after_restore
def fail():
    raise ValueError('no')
def handler(event, context):
    if event['rawPath'] == '/slow':
        time.sleep(4)
    return 1
";

fn start(collector: &Collector, mut options: Options) -> Platform {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint().as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "200"),
        ("REKINDLE_TRACES_SLOW", "500"),
    ] {
        options.env.push((name.into(), value.into()));
    }
    Platform::start_with(options)
}

/// Serves HTTP itself, and tells what its hooks were told.
const HOOKED: &str = "\
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
told = {}
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        told[self.path] = self.headers['traceparent']
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
HTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()
";

/// Invokes with the client's trace, sampled or not, in a fresh instance if `start` says which.
fn traced(platform: &Platform, trace: &str, flags: &str, start: Option<&str>, path: &str) -> Reply {
    traced_of(platform, "traced", trace, flags, start, path)
}

fn traced_of(client: &Client, function: &str, trace: &str, flags: &str, start: Option<&str>, path: &str) -> Reply {
    let mut call = client.admin("GET", &format!("/function/{function}{path}"));
    if let Some(start) = start {
        call = call.header("x-fn-force-start", start);
    }
    call.header("traceparent", &format!("00-{trace}-{PARENT}-{flags}"))
        .send()
}

/// The way from the client to a span, or to where it breaks off.
fn way(span: &Span, all: &[Span]) -> Vec<String> {
    let role = attribute(span, "rekindle.role").unwrap_or_default();
    let own = format!("{role}:{}", span.name);
    if hex(&span.parent_span_id) == PARENT {
        return vec![own];
    }
    let parent = all.iter().find(|s| s.span_id == span.parent_span_id);
    let mut way = parent.map_or_else(|| vec!["in the air".to_owned()], |parent| way(parent, all));
    way.push(own);
    way
}

/// Waits until all these ways are there; answers the trace.
#[track_caller]
fn until_there(collector: &Collector, trace: &str, wanted: &[Vec<&str>]) -> Vec<Span> {
    let end = Instant::now() + SOON;
    loop {
        let spans = collector.trace(trace);
        let ways: BTreeSet<Vec<String>> = spans.iter().map(|s| way(s, &spans)).collect();
        let missing: Vec<_> = wanted.iter().filter(|w| !ways.iter().any(|way| way == *w)).collect();
        if missing.is_empty() {
            assert!(!ways.iter().any(|way| way[0] == "in the air"), "{ways:#?}");
            let ids: BTreeSet<_> = spans.iter().map(|s| &s.span_id).collect();
            assert_eq!(ids.len(), spans.len(), "span ids are not unique");
            return spans;
        }
        assert!(Instant::now() < end, "{missing:#?} are missing of {ways:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ways_of(start: &[&[&'static str]]) -> Vec<Vec<&'static str>> {
    let mut wanted = vec![HOPS.to_vec()];
    wanted.extend(start.iter().map(|inner| [START, inner].concat()));
    wanted
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans
        .iter()
        .find(|s| s.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn has_failed(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == 2)
}

#[test]
fn the_whole_tree_of_spans_is_told_of_each_kind_of_start() {
    hub::enter();
    let collector = Collector::start();
    let store = ObjectStore::start();
    let platform = start(&collector, store.options());
    platform.deploy(&Folder::python("traced", "rehearse = false", CODE));

    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    // Nobody has touched that before, so it comes by a fault.
    let restored = traced(&platform, trace, "01", Some("restored"), "/far").ok();
    assert_eq!(restored.start(), "restored");
    let spans = until_there(&collector, trace, &ways_of(RESTORE));
    is_told_the_function(&restored, trace, &spans);
    let root = named(&spans, "invoke traced");
    assert_eq!(attribute(root, "faas.start").as_deref(), Some("restored"));
    assert_eq!(attribute(root, "faas.coldstart").as_deref(), Some("true"));
    // Nothing of it was on this host: the deploy only stored it.
    assert!(["disk", "s3"].contains(&attribute(named(&spans, "restore"), "rekindle.tier").unwrap().as_str()));
    let s3 = named(&spans, "s3 read");
    assert_eq!(s3.kind(), SpanKind::Client);
    assert!(attribute(s3, "rekindle.s3.bytes").unwrap().parse::<u64>().unwrap() > 0);
    assert!(attribute(s3, "aws.s3.key").unwrap().starts_with("snapshots/"), "{s3:?}");
    let restorer = attribute(named(&spans, "restore"), "rekindle.restorer");
    assert_eq!(restorer.as_deref(), Some("program"));
    // The latency that was counted leads to this trace.
    let metrics = platform
        .admin("GET", "/metrics")
        .header("accept", "application/openmetrics-text; version=1.0.0")
        .send()
        .ok()
        .text();
    let leads = |line: &&str| {
        line.starts_with("rekindle_request_duration_seconds_bucket{")
            && line.contains("start=\"restored\"")
            && line.contains(&format!("# {{trace_id=\"{trace}\","))
    };
    assert_eq!(metrics.lines().filter(leads).count(), 1, "{metrics}");
    // What lasts inside another ends inside it.
    for (inner, outer) in [
        ("working set", "restorer"),
        ("restorer", "restore"),
        ("function", "invoke traced"),
    ] {
        let (inner, outer) = (named(&spans, inner), named(&spans, outer));
        assert!(
            inner.start_time_unix_nano >= outer.start_time_unix_nano
                && inner.end_time_unix_nano <= outer.end_time_unix_nano,
            "{} in {}",
            inner.name,
            outer.name
        );
    }
    assert!(!spans.iter().any(has_failed), "{spans:#?}");

    let trace = "0af7651916cd43dd8448eb211c80319c";
    let booted = traced(&platform, trace, "01", Some("booted"), "/").ok();
    assert_eq!(booted.start(), "booted");
    let spans = until_there(&collector, trace, &ways_of(BOOT));
    is_told_the_function(&booted, trace, &spans);

    let trace = "1af7651916cd43dd8448eb211c80319c";
    let warm = traced(&platform, trace, "01", None, "/").ok();
    assert_eq!(warm.start(), "warm");
    let spans = until_there(&collector, trace, &ways_of(&[]));
    is_told_the_function(&warm, trace, &spans);
    assert!(!spans.iter().any(|s| s.name == "start_instance"));

    let trace = "2af7651916cd43dd8448eb211c80319c";
    assert_eq!(traced(&platform, trace, "01", None, "/raise").status, 502);
    let spans = until_there(&collector, trace, &ways_of(&[]));
    for name in ["invoke traced", "function"] {
        assert!(has_failed(named(&spans, name)), "{name}");
    }
    assert_eq!(
        attribute(named(&spans, "invoke traced"), "error.type").as_deref(),
        Some("function_error")
    );

    // Not sampled, as the client says: what is well and quick is not told, the rest is, and whole.
    let quick = "3af7651916cd43dd8448eb211c80319c";
    let answer = traced(&platform, quick, "00", None, "/").ok();
    assert!(answer.text().contains(quick) && answer.json().as_str().unwrap().ends_with("-00"));
    let slow = "4af7651916cd43dd8448eb211c80319c";
    traced(&platform, slow, "00", None, "/slow").ok();
    until_there(&collector, slow, &ways_of(&[]));
    let failed = "5af7651916cd43dd8448eb211c80319c";
    assert_eq!(traced(&platform, failed, "00", Some("restored"), "/raise").status, 502);
    let restored: Vec<&[&str]> = RESTORE
        .iter()
        .copied()
        .filter(|w| !w.contains(&":s3 get") && !w.contains(&":s3 read"))
        // What it would touch first may be mapped ahead by now.
        .filter(|w| !w.contains(&":first fault"))
        .collect();
    until_there(&collector, failed, &ways_of(&restored));
    assert_eq!(collector.trace(quick).len(), 0);

    platform.deploy(&Folder::python("rests", "idle = \"1s\"\npark = \"600s\"", CODE));
    let state = || platform.instances_of("rests").into_iter().next().map(|i| i.state);
    let trace = "7af7651916cd43dd8448eb211c80319c";
    until("it is parked", SOON, || {
        (state()? == InstanceState::Parked).then_some(())
    });
    let parked = traced_of(&platform, "rests", trace, "01", None, "/").ok();
    assert_eq!(parked.start(), "parked");
    let ways = [
        "gateway:invoke rests",
        "gateway:call worker",
        "worker:invoke",
        "worker:thaw",
    ];
    let spans = until_there(&collector, trace, &[ways.to_vec()]);
    let root = named(&spans, "invoke rests");
    assert_eq!(attribute(root, "faas.start").as_deref(), Some("parked"));
    assert_eq!(attribute(root, "faas.coldstart").as_deref(), Some("false"));

    let settings = "[hooks]\nbefore_snapshot = \"/snapshot\"\nafter_restore = \"/restored\"";
    platform.deploy(&Folder::server("hooked", settings, HOOKED));
    let trace = "6af7651916cd43dd8448eb211c80319c";
    let told = traced_of(&platform, "hooked", trace, "01", Some("restored"), "/")
        .ok()
        .json();
    let end = Instant::now() + SOON;
    let (restored, snapshot) = loop {
        let spans = collector.trace(trace);
        let taken = told["/snapshot"].as_str().unwrap().to_owned();
        let others = collector.trace(&taken[3..35]);
        let of = |all: &[Span], name: &str| all.iter().find(|s| s.name == name).cloned();
        let is_built = ["unpack", "compile", "pack"]
            .iter()
            .all(|step| of(&others, step).is_some());
        if let (Some(restored), Some(snapshot)) = (of(&spans, "hook /restored"), of(&others, "hook /snapshot"))
            && is_built
        {
            break (restored, snapshot);
        }
        assert!(Instant::now() < end, "{told}: {spans:#?}, {others:#?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    for (path, span) in [("/restored", restored), ("/snapshot", snapshot)] {
        let sent = format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id));
        assert_eq!(told[path].as_str(), Some(sent.as_str()), "{path}");
        assert_eq!(attribute(&span, "http.response.status_code").as_deref(), Some("200"));
    }
}

#[test]
fn each_process_keeps_what_failed_or_was_slow_in_it() {
    hub::enter();
    let (collector, store) = (Collector::start_at(hub::ADDRESS), ObjectStore::start_at(hub::ADDRESS));
    let mut size = Size::default();
    for role in Role::ALL {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint().as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("REKINDLE_TRACES_SLOW", "2500"),
        ] {
            size.env.push((role.into(), name.into(), value.into()));
        }
    }
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    cluster.deploy(&Folder::python("traced", "", CODE));
    cluster.deploy(&Folder::python("odd", "rehearse = false", ODD));
    let quick = "3bf92f3577b34da6a3ce929d0e0e4736";
    traced_of(&cluster, "traced", quick, "00", Some("restored"), "/").ok();
    // The worker's part has the start of the instance that was slow.
    let slow = "4bf92f3577b34da6a3ce929d0e0e4736";
    traced_of(&cluster, "odd", slow, "00", Some("booted"), "/slow").ok();
    until("both parts are told", SOON, || {
        let spans = collector.trace(slow);
        let is_there = |name: &&str| spans.iter().any(|span| span.name == **name);
        ["invoke odd", "function", "boot"].iter().all(is_there).then_some(())
    });
    // Only the worker knows of the restore that failed: the gateway's part is not kept.
    let failed = "5bf92f3577b34da6a3ce929d0e0e4736";
    traced_of(&cluster, "odd", failed, "00", Some("restored"), "/").ok();
    until("the worker's part is told", SOON, || {
        let spans = collector.trace(failed);
        let restore = spans.iter().find(|s| s.name == "restore")?;
        has_failed(restore).then_some(())
    });
    assert!(!collector.trace(failed).iter().any(|s| s.name == "invoke odd"));
    assert_eq!(collector.trace(quick).len(), 0);
}

/// The function was told the same trace, and the worker's span as its parent.
fn is_told_the_function(answer: &Reply, trace: &str, spans: &[Span]) {
    let told = answer.json().as_str().unwrap().to_owned();
    let parts: Vec<&str> = told.split('-').collect();
    assert_eq!((parts[0], parts[1], parts[3]), ("00", trace, "01"), "{told}");
    assert_eq!(parts[2], hex(&named(spans, "function").span_id));
}

#[test]
fn without_a_collector_the_client_s_trace_still_reaches_the_function() {
    hub::enter();
    let platform = Platform::start();
    platform.deploy(&Folder::python("traced", "", CODE));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let told = until("an answer", Duration::from_secs(10), || {
        Some(traced(&platform, trace, "01", Some("restored"), "/").ok().json())
    });
    assert!(told.as_str().unwrap().starts_with(&format!("00-{trace}-")), "{told}");
}
