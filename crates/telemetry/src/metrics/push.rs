//! Pushes metrics to an OTLP endpoint at an interval. A failed push is made up for by the next, since counts are
//! cumulative.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use super::{otlp, registry};
use crate::InitError;
use crate::environment::{Protocol, set};

const INTERVAL: Duration = Duration::from_secs(60);
/// Limit for one push.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit for the last push, when the process ends.
const LAST_LIMIT: Duration = Duration::from_secs(2);

/// Pushes until it is dropped; then once more.
#[derive(Debug)]
pub(crate) struct Push {
    task: JoinHandle<()>,
    runtime: Handle,
    exporter: Exporter,
}

impl Drop for Push {
    fn drop(&mut self) {
        self.task.abort();
        // On a runtime whose single thread is this one, nothing would make progress any more.
        if self.runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread {
            return;
        }
        let (runtime, exporter) = (self.runtime.clone(), self.exporter.clone());
        let push = async move { tokio::time::timeout(LAST_LIMIT, exporter.push()).await };
        let last = std::thread::spawn(move || runtime.block_on(push));
        match last.join() {
            Ok(Ok(Ok(()))) => {}
            _ => tracing::debug!("the last metrics are lost"),
        }
    }
}

/// Starts to push, if the environment names an endpoint.
pub(crate) fn start(service_name: &str, runtime: &Handle) -> Result<Option<Push>, InitError> {
    let Some(exporter) = Exporter::from_environment(service_name)? else {
        return Ok(None);
    };
    let every = set("OTEL_METRIC_EXPORT_INTERVAL").and_then(|ms| ms.parse().ok());
    let every = every
        .map_or(INTERVAL, Duration::from_millis)
        .max(Duration::from_millis(10));
    let pushing = exporter.clone();
    let task = runtime.spawn(async move {
        let mut reached = true;
        loop {
            tokio::time::sleep(every).await;
            let pushed = tokio::time::timeout(LIMIT, pushing.push()).await;
            let failed = match pushed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(_) => Some(format!("it did not answer within {} s", LIMIT.as_secs())),
            };
            match &failed {
                Some(error) if reached => tracing::warn!(error, "the OTLP endpoint does not take metrics"),
                None if !reached => tracing::info!("the OTLP endpoint takes metrics again"),
                _ => {}
            }
            reached = failed.is_none();
        }
    });
    let runtime = runtime.clone();
    Ok(Some(Push {
        task,
        runtime,
        exporter,
    }))
}

#[derive(Debug, Clone)]
struct Exporter {
    transport: Transport,
    headers: HeaderMap,
    resource: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
enum Transport {
    Grpc(Channel),
    Http(reqwest::Client, String),
}

impl Exporter {
    fn from_environment(service_name: &str) -> Result<Option<Self>, InitError> {
        let off = set("OTEL_METRICS_EXPORTER").is_some_and(|e| e == "none");
        let own = set("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
        let Some(endpoint) = own.clone().or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT")) else {
            return Ok(None);
        };
        if off || crate::environment::is_disabled() {
            return Ok(None);
        }
        let bad = |e: Box<dyn std::error::Error + Send + Sync>| InitError::Metrics(endpoint.clone(), e);
        let transport = match Protocol::of("METRICS")? {
            Protocol::Grpc => {
                let endpoint = Endpoint::from_shared(endpoint.clone()).map_err(|e| bad(e.into()))?;
                Transport::Grpc(endpoint.connect_timeout(LIMIT).connect_lazy())
            }
            Protocol::Http => {
                let url = match own {
                    Some(url) => url,
                    None => format!("{}/v1/metrics", endpoint.trim_end_matches('/')),
                };
                let client = reqwest::Client::builder()
                    .timeout(LIMIT)
                    .build()
                    .map_err(|e| bad(e.into()))?;
                Transport::Http(client, url)
            }
        };
        let headers = set("OTEL_EXPORTER_OTLP_METRICS_HEADERS").or_else(|| set("OTEL_EXPORTER_OTLP_HEADERS"));
        Ok(Some(Self {
            transport,
            headers: headers.map(|text| headers_of(&text)).unwrap_or_default(),
            resource: crate::environment::resource(service_name),
        }))
    }

    async fn push(&self) -> Result<(), String> {
        let request = otlp::request(&registry::all(), &self.resource);
        match &self.transport {
            Transport::Grpc(channel) => {
                let mut request = tonic::Request::new(request);
                *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
                let exported = MetricsServiceClient::new(channel.clone()).export(request).await;
                exported.map(drop).map_err(|e| e.to_string())
            }
            Transport::Http(client, url) => {
                let sent = client
                    .post(url)
                    .headers(self.headers.clone())
                    .header(http::header::CONTENT_TYPE, "application/x-protobuf")
                    .body(request.encode_to_vec());
                let answer = sent.send().await.map_err(|e| e.to_string())?;
                answer.error_for_status().map(drop).map_err(|e| e.to_string())
            }
        }
    }
}

/// Parses `key=value` pairs separated by commas; a pair that is no valid header is left out.
fn headers_of(text: &str) -> HeaderMap {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let headers = pairs.filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value.trim()).ok()?))
    });
    headers.collect()
}
