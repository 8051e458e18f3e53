//! Logs, traces and metrics of every role: what [`init`] sets up once per process, how a trace travels between hops,
//! and the instruments with which roles measure.
//!
//! - [`init`]: logs to standard error; spans and metrics to an OTLP endpoint if one is configured.
//! - [`metrics`]: instruments and their registry, of which each role has one.
//! - [`set_parent`], [`inject`], [`inject_span`]: W3C trace context (`traceparent`, `tracestate`) out of and into HTTP
//!   headers. It works without an OTLP endpoint too, so that a client's trace id always reaches the function; spans are
//!   then made only for logs.
//!
//! Several roles may share a process (`fn up`), so a span names the role that made it in attribute `rekindle.role`.

mod context;
mod environment;
mod export;
pub mod metrics;
mod past;
mod sampling;
mod tail;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub use context::{TraceRef, inject, inject_span, keep, keep_if_slow, set_parent, trace_id};
pub use past::record_past;

/// How long the last spans may take to be exported when the process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// The default filter without `RUST_LOG`: our own information, others' warnings.
const DEFAULT_FILTER: &str = "warn,h2=error,rekindle=info";

/// Why logs and traces could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// `RUST_LOG` cannot be parsed.
    #[error("RUST_LOG is not a filter: write for example RUST_LOG=info or RUST_LOG=rekindle_gateway=debug")]
    Filter(#[source] tracing_subscriber::filter::FromEnvError),
    /// `init` was called outside a tokio runtime.
    #[error("telemetry needs a tokio runtime: call init inside one")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The protocol is not supported.
    #[error("OTLP protocol \"{0}\" is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf")]
    Protocol(String),
    /// The exporter refused its configuration.
    #[error("the OTLP exporter cannot be set up: check OTEL_EXPORTER_OTLP_ENDPOINT")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
    /// The endpoint for metrics is no valid address.
    #[error(
        "metrics cannot be sent to \"{0}\": check OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT"
    )]
    Metrics(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// Something else in this process already collects logs.
    #[error("telemetry was set up already in this process: call init once")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Keeps telemetry running. Dropping it sends the spans still queued and the last metrics (at most five seconds,
/// blocking).
#[must_use = "telemetry ends when the guard is dropped"]
#[derive(Debug)]
pub struct Guard {
    /// Dropped after the last spans are in flight.
    _metrics: Option<metrics::push::Push>,
    provider: Option<SdkTracerProvider>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(provider) = &self.provider else { return };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_LIMIT) {
            tracing::debug!(%error, "the last spans may be lost");
        }
    }
}

/// Whether a span or event belongs to traces. This is independent of `RUST_LOG`: a quiet log must not cut the trace
/// that a client began. Spans of every invocation have the level DEBUG, so that logs, which would record each, omit
/// them.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    let level = if metadata.is_span() { Level::DEBUG } else { Level::INFO };
    metadata.target().starts_with("rekindle") && *metadata.level() <= level
}

/// Sets up logs, traces and the export of metrics for this process. Call it once, inside a tokio runtime, and keep the
/// guard until the end.
///
/// - Logs go to standard error, filtered by `RUST_LOG` (default `warn,rekindle=info`), as JSON lines if
///   `REKINDLE_LOG=json`.
/// - Spans are exported if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set: by gRPC, or as
///   `http/protobuf` if `OTEL_EXPORTER_OTLP_PROTOCOL` says so. The queue is bounded (`OTEL_BSP_MAX_QUEUE_SIZE`, default
///   2048 spans). If the collector is slower, spans are dropped and requests are not delayed. The sampler is
///   `OTEL_TRACES_SAMPLER` (default: every trace, or what the client's `traceparent` says). An unsampled trace is kept
///   all the same if one of its spans fails, or if this process's work for it is slow. Slow means longer than
///   `REKINDLE_TRACES_SLOW` milliseconds (default 1000; `off` keeps none).
/// - Metrics of all [`metrics::Registry`]s go to the same endpoint or to `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`, every
///   `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (default 60,000).
/// - `service_name` is `service.name` unless `OTEL_SERVICE_NAME` is set.
///
/// # Errors
/// If a variable cannot be parsed, or telemetry was set up before.
pub fn init(service_name: &str) -> Result<Guard, InitError> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .try_from_env()
        .or_else(|error| match std::env::var_os("RUST_LOG") {
            None => Ok(EnvFilter::new(DEFAULT_FILTER)),
            Some(_) => Err(InitError::Filter(error)),
        })?;
    let runtime = Handle::try_current().map_err(InitError::NoRuntime)?;
    let provider = export::tracer_provider(service_name, runtime.clone())?;
    let spans = provider.as_ref().map(|provider| {
        let tracer = provider.tracer("rekindle");
        past::set_tracer(tracer.clone());
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_traced).with_max_level_hint(LevelFilter::DEBUG))
    });
    if provider.is_none() {
        context::keep_in_headers();
    }
    let plain = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = if std::env::var("REKINDLE_LOG").is_ok_and(|v| v.eq_ignore_ascii_case("json")) {
        plain.json().flatten_event(true).boxed()
    } else {
        plain
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed()
    };
    tracing_subscriber::registry()
        .with(spans)
        .with(log.with_filter(filter))
        .try_init()
        .map_err(InitError::Twice)?;
    // After the subscriber is set, which reports an endpoint that accepts none.
    let pushing = metrics::push::start(service_name, &runtime)?;
    Ok(Guard {
        _metrics: pushing,
        provider,
    })
}
