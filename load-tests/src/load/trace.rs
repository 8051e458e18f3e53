//! One restored invocation's trace, read back from the store: its spans as a tree, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_wire::headers::{FORCE_START, START, TRACEPARENT};
use serde::Deserialize;

use super::jaeger::Jaeger;
use super::target::Target;
use crate::client::Connection;

/// Limit for the last span to arrive: exporters send in batches.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);
/// The client's own span, which no store has.
const CLIENT_SPAN: &str = "00f067aa0ba902b7";
/// Roles that must have a span in it.
const ROLES: [&str; 3] = ["gateway", "scheduler", "worker"];
/// Spans of a restore and of the function that each restored invocation has. (A first fault is missing if everything
/// touched is mapped ahead, and a hook if there is none.)
const SPANS: [&str; 3] = ["sandbox", "working set", "function"];
/// The restore itself, of which it has one: by a restore program, or by CRIU.
const RESTORERS: [&str; 2] = ["restorer", "criu"];

/// Number of traces among which the newest invocation is looked for.
const LOOKED_AT: u32 = 100;

/// The trace, as the report shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    pub(crate) id: String,
    /// A line for each span: depth, name, role, milliseconds since the first began, milliseconds it took.
    pub(crate) spans: Vec<Shown>,
    /// What a complete trace of a restored invocation has and this one lacks.
    pub(crate) lacks: Vec<String>,
}

/// A span with its position in the tree.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    depth: usize,
    name: String,
    role: String,
    began_ms: f64,
    took_ms: f64,
}

/// The parts of the query API's response that are read.
#[derive(Deserialize)]
struct JaegerResponse {
    data: Option<Vec<Found>>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(rename = "traceID")]
    id: String,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    #[serde(rename = "spanID")]
    id: String,
    operation_name: String,
    #[serde(default)]
    references: Vec<Reference>,
    /// Microseconds since 1970.
    start_time: u64,
    /// Microseconds.
    duration: u64,
    #[serde(default)]
    tags: Vec<Tag>,
}

#[derive(Debug, Clone, Deserialize)]
struct Reference {
    #[serde(rename = "spanID")]
    span: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Tag {
    key: String,
    value: serde_json::Value,
}

/// Invokes the function in a freshly restored instance, with a trace of the client's, and reads that trace back.
pub(super) async fn of_restored(jaeger: &Jaeger, target: &Target, function: &str) -> Result<Trace> {
    let id = format!(
        "{:032x}",
        std::time::UNIX_EPOCH
            .elapsed()
            .context("the clock is before 1970")?
            .as_nanos()
    );
    let authorization = format!("Bearer {}", target.client.key());
    let parent = format!("00-{id}-{CLIENT_SPAN}-01");
    let headers = [
        ("authorization", authorization.as_str()),
        (FORCE_START, "restored"),
        (TRACEPARENT, parent.as_str()),
    ];
    let mut connection = Connection::open_at(target.address()?).await?;
    let answer = connection
        .call(Method::GET, &format!("/function/{function}/"), &headers)
        .await?;
    if !answer.status.is_success() || answer.header(START) != "restored" {
        bail!("{function}: {}: {}", answer.status, answer.text());
    }
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    let mut last = Trace {
        id: id.clone(),
        spans: Vec::new(),
        lacks: vec!["any span".to_owned()],
    };
    // The store knows the trace as soon as its first span is there, so it is asked until nothing is missing.
    while !last.lacks.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // A trace that is not there yet is answered 404.
        if let Ok(body) = jaeger.ask(&format!("/api/traces/{id}")).await {
            last = read(&id, &body)?;
        }
    }
    Ok(last)
}

/// A trace of the store by its id, or the newest one of an invocation.
pub(super) async fn stored(jaeger: &Jaeger, id: Option<&str>) -> Result<Trace> {
    if let Some(id) = id {
        return read(id, &jaeger.ask(&format!("/api/traces/{id}")).await?);
    }
    let newest = newest(
        &jaeger
            .ask(&format!("/api/traces?service=rekindle&limit={LOOKED_AT}"))
            .await?,
    )?;
    newest.context(
        "the store has no invocation's trace yet: is the platform started with `fn up --traces`, and was a \
        function called?",
    )
}

fn newest(body: &[u8]) -> Result<Option<Trace>> {
    let answer: JaegerResponse = serde_json::from_slice(body).context("jaeger's answer is not what it was")?;
    let all = answer.data.unwrap_or_default().into_iter();
    let invocations = all.filter(|f| f.spans.iter().any(|s| s.operation_name.starts_with("invoke ")));
    let newest = invocations.max_by_key(|f| f.spans.iter().map(|s| s.start_time).min());
    Ok(newest.map(|f| tree(&f.id, &f.spans)))
}

fn read(id: &str, body: &[u8]) -> Result<Trace> {
    let answer: JaegerResponse = serde_json::from_slice(body).context("jaeger's answer is not what it was")?;
    let spans: Vec<Span> = answer
        .data
        .unwrap_or_default()
        .into_iter()
        .flat_map(|f| f.spans)
        .collect();
    Ok(tree(id, &spans))
}

/// Puts every span below its parent, in the order in which they began, and determines what is missing.
fn tree(id: &str, spans: &[Span]) -> Trace {
    let known: BTreeSet<&str> = spans.iter().map(|s| s.id.as_str()).collect();
    let mut children: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    let mut lacks = Vec::new();
    for span in spans {
        match span.references.first().map(|r| r.span.as_str()) {
            Some(CLIENT_SPAN) => children.entry(CLIENT_SPAN).or_default().push(span),
            Some(parent) if known.contains(parent) => children.entry(parent).or_default().push(span),
            parent => {
                let named = parent.unwrap_or("none named");
                lacks.push(format!("the parent of {} ({named})", span.operation_name));
                // It is shown all the same, beside those that lead to the client.
                children.entry(CLIENT_SPAN).or_default().push(span);
            }
        }
    }
    children.values_mut().for_each(|c| c.sort_by_key(|s| s.start_time));
    let first = spans.iter().map(|s| s.start_time).min().unwrap_or_default();
    let ms = |us: u64| f64::from(u32::try_from(us).unwrap_or(u32::MAX)) / 1_000.0;
    let mut shown = Vec::new();
    let mut left = below(&children, CLIENT_SPAN, 0);
    while let Some((depth, span)) = left.pop() {
        shown.push(Shown {
            depth,
            name: span.operation_name.clone(),
            role: span.role().to_owned(),
            began_ms: ms(span.start_time - first),
            took_ms: ms(span.duration),
        });
        left.extend(below(&children, &span.id, depth + 1));
    }
    lacks.extend(
        ROLES
            .iter()
            .filter(|r| spans.iter().all(|s| s.role() != **r))
            .map(|r| format!("a span of the {r}")),
    );
    let has = |name: &str| spans.iter().any(|s| s.operation_name == name);
    lacks.extend(
        SPANS
            .iter()
            .filter(|name| !has(name))
            .map(|name| format!("a span \"{name}\"")),
    );
    if !RESTORERS.iter().any(|name| has(name)) {
        lacks.push(format!("a span \"{}\" or \"{}\"", RESTORERS[0], RESTORERS[1]));
    }
    Trace {
        id: id.to_owned(),
        spans: shown,
        lacks,
    }
}

/// The spans below one, last first, as a stack requires.
fn below<'s>(children: &BTreeMap<&str, Vec<&'s Span>>, id: &str, depth: usize) -> Vec<(usize, &'s Span)> {
    let all = children.get(id).into_iter().flatten();
    all.rev().map(|span| (depth, *span)).collect()
}

impl Span {
    fn role(&self) -> &str {
        let tag = self.tags.iter().find(|t| t.key == "rekindle.role");
        tag.and_then(|t| t.value.as_str()).unwrap_or_default()
    }
}

impl Trace {
    /// The tree as text.
    pub(crate) fn text(&self) -> String {
        let lines = self.spans.iter().map(|s| {
            let name = format!("{}{}", "  ".repeat(s.depth), s.name);
            format!("{:>9.2} {:>9.2}  {name:<44} {}", s.began_ms, s.took_ms, s.role)
        });
        let head = format!("{:>9} {:>9}  span", "began ms", "took ms");
        [head].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a response of Jaeger v2.
    fn span(id: &str, name: &str, parent: &str, began: u64, role: &str) -> String {
        format!(
            r#"{{"traceID":"t","spanID":"{id}","operationName":"{name}",
            "references":[{{"refType":"CHILD_OF","traceID":"t","spanID":"{parent}"}}],
            "startTime":{began},"duration":1500,"tags":[{{"key":"rekindle.role","type":"string","value":"{role}"}}],
            "logs":[],"processID":"p1"}}"#
        )
    }

    fn answer(spans: &[String]) -> String {
        format!(
            r#"{{"data":[{{"traceID":"t","spans":[{}],"processes":{{}}}}],"total":0,"errors":null}}"#,
            spans.join(",")
        )
    }

    #[test]
    fn a_whole_trace_is_a_tree_in_the_order_of_time() {
        for restorer in RESTORERS {
            let names = [SPANS[0], restorer, SPANS[1], SPANS[2]];
            let phases = std::iter::zip(names, 1_400..).map(|(name, began)| span(name, name, "b", began, "worker"));
            let around = [
                span("a", "invoke", CLIENT_SPAN, 1_000, "gateway"),
                span("d", "place", "a", 1_050, "scheduler"),
                span("b", "start", "a", 1_100, "worker"),
            ];
            let body = answer(&phases.chain(around).collect::<Vec<_>>());
            let trace = read("t", body.as_bytes()).unwrap();
            assert_eq!(trace.lacks, Vec::<String>::new());
            let shown: Vec<(usize, &str)> = trace.spans.iter().map(|s| (s.depth, s.name.as_str())).collect();
            let expected = [(0, "invoke"), (1, "place"), (1, "start"), (2, "sandbox"), (2, restorer)];
            assert_eq!(shown[..5], expected);
            assert!(trace.text().contains("0.40      1.50      sandbox"), "{}", trace.text());
        }
    }

    #[test]
    fn the_newest_invocation_is_found_among_other_traces() {
        let trace = |id: &str, name: &str, began| {
            let spans = span("a", name, CLIENT_SPAN, began, "gateway");
            format!(r#"{{"traceID":"{id}","spans":[{spans}],"processes":{{}}}}"#)
        };
        let all = [
            trace("1", "invoke a", 5),
            trace("2", "invoke b", 9),
            trace("3", "GET /v1/status", 11),
        ];
        let body = format!(r#"{{"data":[{}]}}"#, all.join(","));
        assert_eq!(newest(body.as_bytes()).unwrap().unwrap().id, "2");
        assert_eq!(newest(br#"{"data":null}"#).unwrap(), None);
    }

    #[test]
    fn a_span_that_hangs_in_the_air_and_a_role_without_one_are_told() {
        let body = answer(&[
            span("a", "invoke", CLIENT_SPAN, 1_000, "gateway"),
            span("c", "sandbox", "gone", 1_400, "worker"),
        ]);
        let lacks = read("t", body.as_bytes()).unwrap().lacks;
        assert_eq!(lacks[..2], ["the parent of sandbox (gone)", "a span of the scheduler"]);
        for name in ["a span \"function\"", "a span \"restorer\" or \"criu\""] {
            assert!(lacks.contains(&name.to_owned()), "{lacks:?}");
        }
    }
}
