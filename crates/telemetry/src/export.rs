//! Where spans go: an OTLP exporter behind a bounded queue and the tail's decision (`tail`), or nowhere.

use std::future::{Future, poll_fn};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol as HttpEncoding, SpanExporter as OtlpExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter};
use tokio::runtime::Handle;

use crate::InitError;
use crate::environment::{Protocol, is_disabled, set};
use crate::sampling::{self, RecordAll};
use crate::tail::{self, Tail};

/// The provider of tracers, if the environment names an endpoint.
pub(crate) fn tracer_provider(service_name: &str, runtime: Handle) -> Result<Option<SdkTracerProvider>, InitError> {
    let Some(inner) = exporter()? else { return Ok(None) };
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let resource = match set("OTEL_SERVICE_NAME") {
        Some(_) => resource,
        None => resource.with_service_name(service_name.to_owned()),
    };
    let (builder, head) = (
        SdkTracerProvider::builder().with_resource(resource.build()),
        sampling::head(),
    );
    let batches = BatchSpanProcessor::builder(InRuntime { inner, runtime }).build();
    let builder = match tail::slow_from_environment() {
        Some(slow) => builder
            .with_sampler(RecordAll(head))
            .with_span_processor(Tail::new(batches, slow)),
        None => builder.with_sampler(head).with_span_processor(batches),
    };
    Ok(Some(builder.build()))
}

fn exporter() -> Result<Option<OtlpExporter>, InitError> {
    let wanted = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let off = set("OTEL_TRACES_EXPORTER").is_some_and(|e| e == "none") || is_disabled();
    if wanted.is_none() || off {
        return Ok(None);
    }
    let built = match Protocol::of("TRACES")? {
        Protocol::Grpc => OtlpExporter::builder().with_tonic().build(),
        Protocol::Http => OtlpExporter::builder()
            .with_http()
            .with_protocol(HttpEncoding::HttpBinary)
            .build(),
    };
    built.map(Some).map_err(InitError::Exporter)
}

/// Polls an exporter inside the runtime. The batch processor calls it from a thread of its own, where the async HTTP
/// and gRPC clients would find neither timer nor reactor.
#[derive(Debug)]
struct InRuntime<E> {
    inner: E,
    runtime: Handle,
}

impl<E: SpanExporter> SpanExporter for InRuntime<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let mut export = Box::pin(self.inner.export(batch));
        poll_fn(move |context| {
            let _inside = self.runtime.enter();
            export.as_mut().poll(context)
        })
    }

    fn shutdown_with_timeout(&self, timeout: std::time::Duration) -> OTelSdkResult {
        let _inside = self.runtime.enter();
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
