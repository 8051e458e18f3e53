//! Metrics reach a collector by gRPC and by HTTP, with the traces that they belong to; an absent collector causes no
//! delay. Telemetry is set up once per process and by its environment, so each case runs this program again as a child.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Stdio;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use prost::Message as _;
use rekindle_telemetry::TraceRef;
use rekindle_telemetry::metrics::{Counter, Desc, Histogram, Kind, Registry};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(30);
const COUNTED: Desc = Desc::new("test.counted", "{thing}", &["faas.invoked_name"], "Things.");
const TOOK: Desc = Desc::new("test.duration", "s", &[], "How long.");
const LEVEL: Desc = Desc::new("test.level", "By", &[], "How full.");

type Sink = mpsc::UnboundedSender<ExportMetricsServiceRequest>;

/// The child: it measures, and its last metrics are sent when its guard is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the other tests run it in processes of its own"]
async fn child() {
    let guard = rekindle_telemetry::init("child-service").unwrap();
    let registry = Registry::new("gateway");
    registry.family::<Counter, 1>(&COUNTED).with(["hello"]).add(3);
    registry.observe_one(Kind::Gauge, &LEVEL, || 7.0);
    // Spans are exported nowhere here: an exemplar is from the sender of the request.
    let span = tracing::info_span!(target: "rekindle_test", "measured");
    assert_eq!(TraceRef::of(&span), None);
    let sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        .parse()
        .unwrap();
    let trace = TraceRef::sent(&http::HeaderMap::from_iter([(
        http::HeaderName::from_static("traceparent"),
        sent,
    )]));
    let took = registry.family::<Histogram, 0>(&TOOK).with([]);
    took.record_in(Duration::from_millis(5), trace);
    println!("trace {}", trace.unwrap().trace_id());
    drop(guard);
}

async fn run_child(endpoint: &str, protocol: &str) -> String {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        .env("RUST_LOG", "error")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
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
    let line = text.lines().find_map(|l| l.split_once("trace "));
    line.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes
        .iter()
        .find(|a| a.key == key)
        .unwrap_or_else(|| panic!("{key} in {attributes:?}"));
    match found.value.clone().unwrap().value {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

async fn check(mut received: mpsc::UnboundedReceiver<ExportMetricsServiceRequest>, trace: &str) {
    let export = tokio::time::timeout(LIMIT, received.recv())
        .await
        .expect("no metrics came")
        .unwrap();
    let [all] = export.resource_metrics.as_slice() else {
        panic!("{export:?}")
    };
    let resource = &all.resource.as_ref().unwrap().attributes;
    assert_eq!(text(resource, "service.name"), "child-service");
    assert_eq!(text(resource, "rekindle.role"), "gateway");
    assert_eq!(text(resource, "deployment.environment"), "test");
    let metrics = &all.scope_metrics[0].metrics;
    let named = |name: &str| metrics.iter().find(|m| m.name == name).unwrap();
    let (counted, took, level) = (named("test.counted"), named("test.duration"), named("test.level"));
    let Some(Data::Sum(sum)) = &counted.data else {
        panic!("{counted:?}")
    };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{sum:?}");
    assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(3.0)));
    assert_eq!(text(&sum.data_points[0].attributes, "faas.invoked_name"), "hello");
    let Some(Data::Gauge(gauge)) = &level.data else {
        panic!("{level:?}")
    };
    assert_eq!(
        gauge.data_points[0].value,
        Some(number_data_point::Value::AsDouble(7.0))
    );
    let Some(Data::Histogram(histogram)) = &took.data else {
        panic!("{took:?}")
    };
    let point = &histogram.data_points[0];
    assert_eq!((took.unit.as_str(), point.count, point.sum), ("s", 1, Some(0.005)));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    let hex: String = point.exemplars[0].trace_id.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, trace, "the value's trace");
}

struct Collector(Sink);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        assert_eq!(request.metadata().get("x-tenant").unwrap(), "ours");
        drop(self.0.send(request.into_inner()));
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metrics_are_sent_by_grpc_with_the_traces_they_belong_to() {
    let (sink, received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let service = MetricsServiceServer::new(Collector(sink));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let trace = run_child(&endpoint, "grpc").await;
    check(received, &trace).await;
}

async fn take(State(sink): State<Sink>, body: Bytes) -> Vec<u8> {
    drop(sink.send(ExportMetricsServiceRequest::decode(body).unwrap()));
    ExportMetricsServiceResponse::default().encode_to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metrics_are_sent_by_http_when_the_protocol_says_so() {
    let (sink, received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A signal's own endpoint is used as it is.
    let endpoint = format!("http://{}/mine", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/mine", axum::routing::post(take))
        .with_state(sink);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let trace = run_child(&endpoint, "http/protobuf").await;
    check(received, &trace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_collector_that_is_away_holds_nobody_up() {
    // Bound and never accepting: worse than a refused connection.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for protocol in ["grpc", "http/protobuf"] {
        run_child(&endpoint, protocol).await;
    }
}
