//! Requests and responses as builds of each version of the interfaces write them. Old talks to new: a recorded request
//! is understood, and its answer has all that was recorded. New talks to old: what is sent has all of that too.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use http::Request;
use http_body_util::BodyExt as _;
use rekindle_wire::interface::scheduler::*;
use rekindle_wire::interface::worker::*;
use rekindle_wire::interface::{Call, Endpoint, Operation, Routes};
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt as _;

/// A request and its response.
#[derive(Debug, Clone, Deserialize)]
struct Exchange {
    method: String,
    uri: String,
    body: Value,
    status: u16,
    answer: Value,
}

/// Those of every version. What a version has recorded is never changed: it is what other builds write.
fn recorded() -> Vec<Exchange> {
    let versions = [
        include_str!("recorded/version-0.json"),
        include_str!("recorded/version-1.json"),
    ];
    let exchanges = versions.map(|text| serde_json::from_str::<Vec<Exchange>>(text).unwrap());
    exchanges.into_iter().flatten().collect()
}

/// The path and query under which the next release sends the request, if that is not as recorded.
fn renamed(exchange: &Exchange, operation: &Operation) -> Option<String> {
    let former = operation.former?;
    let (path, query) = exchange.uri.split_once('?').unwrap_or((&exchange.uri, ""));
    assert_eq!(path.matches('/').count(), former.matches('/').count(), "{path}");
    let segments = operation.path.split('/').zip(path.split('/'));
    let segments: Vec<_> = segments
        .map(|(named, sent)| if named.starts_with('{') { sent } else { named })
        .collect();
    Some(segments.join("/") + "?" + query)
}

/// Whether a path and query are of the operation with this path.
fn matches(template: &str, uri: &str) -> bool {
    let path = uri.split('?').next().unwrap();
    let mut segments = template.split('/').zip(path.split('/'));
    template.matches('/').count() == path.matches('/').count()
        && segments.all(|(named, sent)| named.starts_with('{') || named == sent)
}

/// Whether all of `old` is in `new`, which may have more fields.
fn contains(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => old
            .iter()
            .all(|(name, value)| new.get(name).is_some_and(|new| contains(new, value))),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| contains(new, old))
        }
        _ => new == old,
    }
}

fn json(bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(bytes).unwrap()
}

/// Serves the operation with the recorded answer, and returns what a client of this build would have sent.
fn answering<E: Endpoint>(exchange: &Exchange) -> (Router, Arc<Mutex<(String, Value)>>) {
    let sent = Arc::new(Mutex::new((String::new(), Value::Null)));
    let (seen, answer) = (Arc::clone(&sent), exchange.answer.clone());
    let routes = Routes::<()>::default().on(move |(), call: Call<E>| {
        *seen.lock().unwrap() = (call.at.uri(), json(&E::encode(&call.body)));
        // As a client of this build reads it.
        let answer = E::decode(answer.to_string().as_bytes());
        async move { Ok(answer.unwrap()) }
    });
    (routes.into_router().layer(from_fn(is_found::<E>)), sent)
}

/// Checks that who calls can be told from what the router matched.
async fn is_found<E: Endpoint>(request: axum::extract::Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let is_method = *request.method() == E::OPERATION.method;
    if let Some(path) = &matched {
        let found = Operation::find(&[E::OPERATION], request.method(), path.as_str()).is_some();
        assert_eq!(found, is_method, "{path:?}");
    }
    let answer = next.run(request).await;
    assert!(matched.is_some() || answer.status() == 404);
    answer
}

/// The recorded exchanges of an operation, carried out. Returns how many there were.
async fn carry_out<E: Endpoint>(all: &[Exchange]) -> usize {
    let mut found = 0;
    for exchange in all {
        let (router, sent) = answering::<E>(exchange);
        let send = |uri: &str| {
            let body = match &exchange.body {
                Value::Null => Body::empty(),
                body => Body::from(body.to_string()),
            };
            let request = Request::builder()
                .method(exchange.method.as_str())
                .uri(uri)
                .header("content-type", "application/json")
                .body(body);
            router.clone().oneshot(request.unwrap())
        };
        let answer = send(&exchange.uri).await.unwrap();
        let status = answer.status();
        if status == 404 || status == 405 {
            continue;
        }
        found += 1;
        if let Some(uri) = renamed(exchange, &E::OPERATION) {
            assert_eq!(send(&uri).await.unwrap().status(), status, "{uri}");
        }
        let Operation { path, .. } = E::OPERATION;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, exchange.status, "{path}: {}", String::from_utf8_lossy(&body));
        let told = json(&body);
        assert!(
            contains(&told, &exchange.answer),
            "{path}: {told} lacks some of {}",
            exchange.answer
        );
        let (uri, body) = sent.lock().unwrap().clone();
        assert!(
            contains(&body, &exchange.body),
            "{path}: {body} lacks some of {}",
            exchange.body
        );
        let sorted = |uri: &str| {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let mut query: Vec<_> = query.split('&').map(str::to_owned).collect();
            query.sort();
            (path.to_owned(), query)
        };
        assert_eq!(sorted(&uri), sorted(&exchange.uri));
    }
    found
}

macro_rules! carry_out_all {
    ($all:expr; $($operation:ident)+) => {{
        let mut found = 0;
        $(
            let some = carry_out::<$operation>($all).await;
            assert_ne!(some, 0, "{} is not recorded", stringify!($operation));
            found += some;
        )+
        found
    }};
}

#[tokio::test]
async fn builds_of_earlier_versions_and_this_one_understand_each_other() {
    let all = recorded();
    let found = carry_out_all!(&all;
        Place ReportLeases AwaitRecalls AwaitRoutes AwaitKeys ReportTraffic ReportUsage AskHost Beat
        AcceptCall ClaimCalls RenewCalls EndCall EndCallback ReadResult
        Start Stop ReadObjects SetSecrets Park Prepare ReadLogs RemoveFunction ExpectTarget PrepareSource CancelSource
        PerformMigration PrepareTarget SendImages ResumeTarget ReadTarget CancelTarget ReadPages ReadPage EndSource
    );
    assert_eq!(found, all.len(), "some are of no operation");
    let is_recorded = |operation: &&Operation| {
        let method = operation.method.as_str();
        let path = operation.former.unwrap_or(operation.path);
        all.iter()
            .any(|exchange| exchange.method == method && matches(path, &exchange.uri))
    };
    let mut others = SCHEDULER
        .iter()
        .chain(WORKER)
        .filter(|operation| !is_recorded(operation));
    assert_eq!(others.next(), None, "record it");
}

#[test]
fn what_a_newer_build_adds_is_let_pass_and_what_it_drops_is_not() {
    let old: Value = serde_json::json!({"a": 1, "b": [{"c": null}]});
    assert!(contains(
        &serde_json::json!({"a": 1, "b": [{"c": null, "d": 2}], "e": 3}),
        &old
    ));
    for new in [
        serde_json::json!({"a": 1}),
        serde_json::json!({"a": 2, "b": [{"c": null}]}),
        serde_json::json!({"a": 1, "b": []}),
        serde_json::json!({"a": 1, "b": [{}]}),
    ] {
        assert!(!contains(&new, &old), "{new}");
    }
}
