//! Spans recorded afterwards: for work on a thread that telemetry must not delay, and that recorded only times.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, TraceContextExt as _, Tracer as _};
use opentelemetry_sdk::trace::SdkTracer;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

pub(crate) fn set_tracer(tracer: SdkTracer) {
    // There is one for each process; a second would also be refused as a subscriber.
    let _ = TRACER.set(tracer);
}

/// Records a span below `parent` that began at `began` and took `took`. Does nothing without [`crate::init`].
pub fn record_past(parent: &Span, name: &'static str, began: Instant, took: Duration, numbers: &[(&'static str, u64)]) {
    let context = parent.context();
    let Some(tracer) = TRACER.get().filter(|_| context.span().span_context().is_valid()) else {
        return;
    };
    let start = SystemTime::now() - began.elapsed();
    let attribute = |(key, n): &(&'static str, u64)| KeyValue::new(*key, i64::try_from(*n).unwrap_or(i64::MAX));
    let mut span = tracer
        .span_builder(name)
        .with_start_time(start)
        .with_attributes(numbers.iter().map(attribute))
        .start_with_context(tracer, &context);
    span.end_with_timestamp(start + took);
}
