//! How a trace travels: W3C trace context between spans and HTTP headers. Nothing here fails: unreadable headers begin
//! a new trace, and without [`crate::init`] headers pass unchanged.
//!
//! If spans are exported nowhere, none are recorded for traces. A request's context then stays in its headers, and each
//! hop gives it a new parent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::tail;

/// Whether spans are set up, but exported nowhere.
static HEADERS_ALONE: AtomicBool = AtomicBool::new(false);

/// Keeps contexts in headers from now on, since no spans are recorded.
pub(crate) fn keep_in_headers() {
    HEADERS_ALONE.store(true, Ordering::Relaxed);
}

fn in_headers() -> bool {
    HEADERS_ALONE.load(Ordering::Relaxed)
}

/// The context that a client sent, if it is valid.
fn sent(headers: &HeaderMap) -> Option<SpanContext> {
    let context = received(headers)?;
    Some(context.span().span_context().clone())
}

/// The context that a client sent, as a parent for new spans.
fn received(headers: &HeaderMap) -> Option<Context> {
    headers.get("traceparent")?;
    let context = TraceContextPropagator::new().extract(&Headers(headers));
    let valid = context.span().span_context().is_valid();
    valid.then_some(context)
}

/// Gives the context in `headers` a new parent, or begins a trace.
fn pass_on(headers: &mut HeaderMap) {
    let ids = RandomIdGenerator::default();
    let (trace, flags) = match sent(headers) {
        Some(sent) => (sent.trace_id(), sent.trace_flags()),
        None => (ids.new_trace_id(), TraceFlags::SAMPLED),
    };
    let text = format!("00-{trace}-{}-{:02x}", ids.new_span_id(), flags.to_u8());
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert("traceparent", value);
    }
}

/// Makes the context in `headers` the parent of `span`. Call it before the span is entered.
pub fn set_parent(span: &Span, headers: &HeaderMap) {
    if in_headers() {
        return;
    }
    if let Some(context) = received(headers) {
        // It fails if tracing is not set up or the span was already entered: then the span begins a trace of its own.
        drop(span.set_parent(context));
    }
}

/// Writes the current span's context into `headers`.
pub fn inject(headers: &mut HeaderMap) {
    inject_span(&Span::current(), headers);
}

/// Writes the context of `span` into `headers`, replacing what was there.
pub fn inject_span(span: &Span, headers: &mut HeaderMap) {
    if in_headers() {
        return pass_on(headers);
    }
    let mut context = span.context();
    let own = context.span().span_context().clone();
    // Other processes should keep their part of a trace that is known to be kept.
    if own.is_valid() && !own.is_sampled() && tail::is_kept(own.trace_id()) {
        let flags = own.trace_flags() | TraceFlags::SAMPLED;
        let kept = SpanContext::new(own.trace_id(), own.span_id(), flags, false, own.trace_state().clone());
        context = context.with_remote_span_context(kept);
    }
    TraceContextPropagator::new().inject_context(&context, &mut HeadersMut(headers));
}

/// Keeps the trace of `span` if `took` is already long for what it measures.
pub fn keep_if_slow(span: &Span, took: Duration) {
    if tail::slow().is_some_and(|slow| took >= slow) {
        keep(span);
    }
}

/// Keeps the trace of `span` whatever its sampler decided: here, and in processes that are called from now on. For a
/// trace that is known to be interesting before it is over.
pub fn keep(span: &Span) {
    if in_headers() {
        return;
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    if own.is_valid() && !own.is_sampled() {
        // Without an exporter there is nothing to keep.
        tail::keep(own.trace_id());
    }
}

/// The current trace's id, 32 hexadecimal digits, if there is one.
pub fn trace_id() -> Option<String> {
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| span.trace_id().to_string())
}

/// The trace and the span in which something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRef {
    /// The trace's id.
    pub trace_id: [u8; 16],
    /// The span's id.
    pub span_id: [u8; 8],
}

impl TraceRef {
    /// The reference to a span, if its trace is sampled or known to be kept: others cannot be found anywhere.
    pub fn of(span: &Span) -> Option<Self> {
        if in_headers() {
            return None;
        }
        let context = span.context();
        let span = context.span();
        let span = span.span_context();
        let is_kept = || span.is_sampled() || tail::is_kept(span.trace_id());
        (span.is_valid() && is_kept()).then(|| span.into())
    }

    /// The reference to a request's sender, if it samples its trace. Measurements of the request belong to it, whether
    /// or not spans are recorded here.
    pub fn sent(headers: &HeaderMap) -> Option<Self> {
        let sent = sent(headers).filter(SpanContext::is_sampled)?;
        Some((&sent).into())
    }

    /// The trace's id as 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        opentelemetry::TraceId::from_bytes(self.trace_id).to_string()
    }

    /// The span's id as 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        opentelemetry::SpanId::from_bytes(self.span_id).to_string()
    }
}

impl From<&SpanContext> for TraceRef {
    fn from(span: &SpanContext) -> Self {
        Self {
            trace_id: span.trace_id().to_bytes(),
            span_id: span.span_id().to_bytes(),
        }
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        let Ok(name) = HeaderName::from_bytes(key.as_bytes()) else {
            return;
        };
        // An empty `tracestate` means nothing; leaving it out saves the bytes.
        match HeaderValue::from_maybe_shared(value) {
            Ok(value) if !value.is_empty() => drop(self.0.insert(name, value)),
            _ => drop(self.0.remove(name)),
        }
    }
}
