//! Spans reach a collector by gRPC and by HTTP; an absent collector causes no delay. Telemetry is set up once per
//! process and by its environment, so each case runs this program again as a child.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::{Output, Stdio};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use http::{HeaderMap, HeaderValue};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const LIMIT: Duration = Duration::from_secs(30);

type Sink = mpsc::UnboundedSender<ExportTraceServiceRequest>;

/// The child: two spans of a trace that a caller began, the inner one injecting its context.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the other tests run it in processes of its own"]
async fn child() {
    let guard = rekindle_telemetry::init("child-service").unwrap();
    let mut caller = HeaderMap::new();
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    caller.insert("traceparent", HeaderValue::from_str(&traceparent).unwrap());
    let outer = tracing::info_span!(target: "rekindle_test", "outer", rekindle.role = "gateway");
    rekindle_telemetry::set_parent(&outer, &caller);
    async {
        let inner = tracing::info_span!(target: "rekindle_test", "inner");
        let mut onward = HeaderMap::new();
        async { rekindle_telemetry::inject(&mut onward) }
            .instrument(inner)
            .await;
        println!("onward {}", onward["traceparent"].to_str().unwrap());
    }
    .instrument(outer)
    .await;
    drop(guard);
}

/// Another child: one trace that succeeds, and one of which a part fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the other tests run it in processes of its own"]
async fn child_that_fails() {
    let guard = rekindle_telemetry::init("child-service").unwrap();
    for failed in [false, true] {
        let root = tracing::info_span!(target: "rekindle_test", "root", rekindle.role = "gateway", failed);
        let mut onward = HeaderMap::new();
        async {
            let part = tracing::info_span!(target: "rekindle_test", "part", otel.status_code = tracing::field::Empty);
            let current = tracing::Span::current();
            async {
                tokio::task::yield_now().await;
                if failed {
                    tracing::Span::current().record("otel.status_code", "ERROR");
                }
            }
            .instrument(part)
            .await;
            rekindle_telemetry::inject_span(&current, &mut onward);
        }
        .instrument(root)
        .await;
        println!("onward {failed} {}", onward["traceparent"].to_str().unwrap());
    }
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_trace_that_was_not_sampled_is_sent_whole_if_a_part_of_it_fails() {
    let (sink, mut received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/v1/traces", axum::routing::post(take))
        .with_state(sink);
    tokio::spawn(async move { axum::serve(listener, router).await });
    for (slow, wanted) in [("60000", 2), ("off", 0), ("0", 4)] {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["child_that_fails", "--exact", "--ignored", "--nocapture"])
            .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{endpoint}/v1/traces"))
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            .env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
            .env("OTEL_TRACES_SAMPLER_ARG", "0")
            .env("REKINDLE_TRACES_SLOW", slow)
            .kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output())
            .await
            .expect("it hangs")
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // The child sends everything before it ends.
        let mut spans: Vec<Span> = Vec::new();
        while let Ok(export) = received.try_recv() {
            let resources = export.resource_spans.into_iter();
            spans.extend(resources.flat_map(|r| r.scope_spans).flat_map(|s| s.spans));
        }
        assert_eq!(spans.len(), wanted, "{slow}: {spans:#?}");
        if wanted == 2 {
            assert_eq!(spans[0].trace_id, spans[1].trace_id);
            // A process that is called after the failure keeps its part.
            let flags = |failed: bool| {
                text.lines()
                    .find_map(|l| l.split_once(&format!("onward {failed} ")))
                    .unwrap()
                    .1
            };
            assert!(flags(false).ends_with("-00") && flags(true).ends_with("-01"), "{text}");
        }
    }
}

async fn run_child(endpoint: &str, protocol: Option<&str>) -> Output {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("RUST_LOG", "error")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    match protocol {
        Some(protocol) => command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        None => command.env_remove("OTEL_EXPORTER_OTLP_PROTOCOL"),
    };
    tokio::time::timeout(LIMIT, command.output())
        .await
        .expect("it hangs")
        .unwrap()
}

fn onward(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let line = text
        .lines()
        .find_map(|l| l.split_once("onward "))
        .unwrap_or_else(|| panic!("{text}"));
    line.1.to_owned()
}

/// Both spans, with the parents they must have.
async fn check(mut received: mpsc::UnboundedReceiver<ExportTraceServiceRequest>, onward: &str) {
    let mut spans: Vec<Span> = Vec::new();
    while spans.len() < 2 {
        let export = tokio::time::timeout(LIMIT, received.recv())
            .await
            .expect("no spans came")
            .unwrap();
        for resource in export.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let service = attributes.iter().find(|a| a.key == "service.name").unwrap();
            assert!(format!("{:?}", service.value).contains("child-service"));
            spans.extend(resource.scope_spans.into_iter().flat_map(|s| s.spans));
        }
    }
    let named = |name: &str| spans.iter().find(|s| s.name == name).unwrap();
    let (outer, inner) = (named("outer"), named("inner"));
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&outer.trace_id), TRACE);
    assert_eq!(hex(&outer.parent_span_id), "b7ad6b7169203331");
    assert_eq!(inner.parent_span_id, outer.span_id);
    assert_eq!(onward, format!("00-{TRACE}-{}-01", hex(&inner.span_id)));
    assert!(outer.attributes.iter().any(|a| a.key == "rekindle.role"));
}

struct Collector(Sink);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        drop(self.0.send(request.into_inner()));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn spans_are_sent_by_grpc_when_nothing_else_is_said() {
    let (sink, received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let service = TraceServiceServer::new(Collector(sink));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let output = run_child(&endpoint, None).await;
    check(received, &onward(&output)).await;
}

async fn take(State(sink): State<Sink>, body: Bytes) -> Vec<u8> {
    drop(sink.send(ExportTraceServiceRequest::decode(body).unwrap()));
    ExportTraceServiceResponse::default().encode_to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn spans_are_sent_by_http_when_the_protocol_says_so() {
    let (sink, received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/v1/traces", axum::routing::post(take))
        .with_state(sink);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let output = run_child(&endpoint, Some("http/protobuf")).await;
    check(received, &onward(&output)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_collector_that_is_away_holds_nobody_up() {
    // Bound and never accepting: worse than a refused connection.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for protocol in ["grpc", "http/protobuf"] {
        let output = run_child(&endpoint, Some(protocol)).await;
        assert!(onward(&output).contains(TRACE));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unknown_protocol_is_refused_with_the_fix() {
    let output = run_child("http://127.0.0.1:1", Some("carrier-pigeon")).await;
    assert!(!output.status.success());
    // The error as `unwrap` shows it.
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("carrier-pigeon"), "{text}");
}
