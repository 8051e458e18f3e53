//! One trace from the client's own span through every hop to the function.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use rekindle_e2e::collector::{Collector, attribute, hex};
use rekindle_e2e::{Answer, Folder, Options, Platform, until};

const PARENT: &str = "00f067aa0ba902b7";

fn traced(platform: &Platform, trace: &str, start: &str) -> Answer {
    let call = platform
        .admin("GET", "/function/traced/")
        .header("x-fn-force-start", start);
    call.header("traceparent", &format!("00-{trace}-{PARENT}-01"))
        .send()
        .ok()
}

/// Whether following parents from the span leads to the client's.
fn reaches_the_client(span: &Span, all: &[Span]) -> bool {
    let (mut at, mut steps) = (span, 0);
    loop {
        if hex(&at.parent_span_id) == PARENT {
            return true;
        }
        steps += 1;
        match all.iter().find(|s| s.span_id == at.parent_span_id) {
            Some(parent) if steps < 100 => at = parent,
            _ => return false,
        }
    }
}

#[test]
fn one_trace_leads_from_the_client_through_every_role_to_the_function() {
    let collector = Collector::start();
    let mut options = Options::default();
    options
        .env
        .push(("OTEL_EXPORTER_OTLP_ENDPOINT".into(), collector.endpoint()));
    options.env.push(("OTEL_BSP_SCHEDULE_DELAY".into(), "200".into()));
    let platform = Platform::start_with(options);
    let code = "def handler(event, context):\n    return event['headers']['traceparent']\n";
    platform.deploy(&Folder::python("traced", "", code));

    for (trace, start, inside) in [
        ("4bf92f3577b34da6a3ce929d0e0e4736", "restored", "criu"),
        ("0af7651916cd43dd8448eb211c80319c", "booted", "sandbox"),
    ] {
        let answer = traced(&platform, trace, start);
        assert_eq!(answer.start(), start);
        let wanted = [
            ("gateway", "invoke traced"),
            ("gateway", "place"),
            ("worker", "start_instance"),
            ("worker", "invoke"),
        ];
        let missing = |spans: &[Span]| -> Vec<String> {
            let has = |role: &str, name: &str| {
                spans
                    .iter()
                    .any(|s| s.name == name && attribute(s, "rekindle.role").as_deref() == Some(role))
            };
            let mut missing: Vec<String> = wanted
                .iter()
                .filter(|(r, n)| !has(r, n))
                .map(|(r, n)| format!("{r}: {n}"))
                .collect();
            if !spans
                .iter()
                .any(|s| attribute(s, "rekindle.role").as_deref() == Some("scheduler"))
            {
                missing.push("any of the scheduler".to_owned());
            }
            if !spans.iter().any(|s| s.name == inside) {
                missing.push(inside.to_owned());
            }
            missing
        };
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while !missing(&collector.trace(trace)).is_empty() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let spans = collector.trace(trace);
        let names: Vec<&str> = spans.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(
            missing(&spans),
            Vec::<String>::new(),
            "{start}: the trace has {names:?}"
        );

        let lost: Vec<&str> = spans
            .iter()
            .filter(|s| !reaches_the_client(s, &spans))
            .map(|s| s.name.as_str())
            .collect();
        assert!(lost.is_empty(), "{start}: these hang in the air: {lost:?} of {names:?}");
        let ids: BTreeSet<String> = spans.iter().map(|s| hex(&s.span_id)).collect();
        assert_eq!(ids.len(), spans.len(), "span ids are not unique");
        // The function was told the same trace, and the worker's span as its parent.
        let told = answer.json().as_str().unwrap().to_owned();
        let parts: Vec<&str> = told.split('-').collect();
        assert_eq!((parts[0], parts[1], parts[3]), ("00", trace, "01"), "{told}");
        let parent = spans.iter().find(|s| hex(&s.span_id) == parts[2]);
        let parent = parent.unwrap_or_else(|| panic!("{told} is none of {names:?}"));
        assert!(
            ["function", "invoke"].contains(&parent.name.as_str()),
            "{}",
            parent.name
        );
    }
}

#[test]
fn without_a_collector_the_client_s_trace_still_reaches_the_function() {
    let platform = Platform::start();
    let code = "def handler(event, context):\n    return event['headers']['traceparent']\n";
    platform.deploy(&Folder::python("traced", "", code));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let told = until("an answer", Duration::from_secs(10), || {
        Some(traced(&platform, trace, "restored").json())
    });
    assert!(told.as_str().unwrap().starts_with(&format!("00-{trace}-")), "{told}");
}
