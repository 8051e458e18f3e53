//! Traces that the head did not sample, but that prove worth keeping: one of their spans failed, or the work of this
//! process took long. Until that is known their spans wait here.
//!
//! ```text
//!                   sampled at the head ──> on
//! span ends ──┬───> its trace is kept ────> on
//!             └───> else it waits with its trace's others ──> one failed, or the root is slow: all go on
//!                                                        └──> nothing open for a while, or no room: all dropped
//! ```
//!
//! A process knows only its own spans, and decides for these alone. If it is known before others are called ([`keep`]:
//! a slot took long to find), the request to them says "sampled", and they keep their part from then on. For whole
//! traces, sample all at the head and let a collector decide.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, Status, TraceFlags, TraceId};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use parking_lot::{Mutex, RwLock};

use crate::environment::set;

/// Duration from which an invocation is slow, unless `REKINDLE_TRACES_SLOW` says otherwise.
const SLOW: Duration = Duration::from_secs(1);
/// How long an undecided trace waits after its last span of this process, beyond the limit for slow: a request and its
/// instance's start follow one another.
const WAIT: Duration = Duration::from_secs(4);
/// Maximum number of spans of undecided traces, about 1 KiB each.
const SPANS_MAX: usize = 32_768;
/// Maximum number of spans of one trace.
const SPANS_OF_ONE_MAX: usize = 1_024;

/// Duration from which the work of a process for a trace is slow; `None` if nothing is kept by the tail.
pub(crate) fn slow_from_environment() -> Option<Duration> {
    let said = set("REKINDLE_TRACES_SLOW");
    match said.as_deref() {
        None => Some(SLOW),
        Some("off") => None,
        Some(text) => Some(milliseconds(text).unwrap_or_else(|| {
            tracing::warn!("REKINDLE_TRACES_SLOW={text} is no number of milliseconds, and not \"off\": 1000 is taken");
            SLOW
        })),
    }
}

fn milliseconds(text: &str) -> Option<Duration> {
    text.trim_end_matches("ms")
        .trim()
        .parse()
        .ok()
        .map(Duration::from_millis)
}

/// This process's undecided traces.
static UNDECIDED: OnceLock<UndecidedTraces> = OnceLock::new();

/// Keeps this process's part of a trace from now on, whatever happens.
pub(crate) fn keep(trace: TraceId) {
    let Some(undecided) = UNDECIDED.get() else { return };
    let waiting = undecided.state.lock().keep(trace);
    undecided.send(waiting);
}

/// Duration from which an invocation is slow here, if anything is kept by the tail.
pub(crate) fn slow() -> Option<Duration> {
    UNDECIDED.get().map(|u| u.slow)
}

/// Whether the trace is kept although the head did not sample it.
pub(crate) fn is_kept(trace: TraceId) -> bool {
    let kept = |u: &UndecidedTraces| u.state.lock().traces.get(&trace).is_some_and(|t| t.kept);
    UNDECIDED.get().is_some_and(kept)
}

struct UndecidedTraces {
    slow: Duration,
    state: Mutex<State>,
    /// Sends a span to the exporter.
    sink: Box<dyn Fn(SpanData) + Send + Sync>,
}

impl UndecidedTraces {
    fn send(&self, spans: Vec<SpanData>) {
        spans.into_iter().for_each(|span| (self.sink)(sampled(span)));
    }
}

impl fmt::Debug for UndecidedTraces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UndecidedTraces")
            .field("slow", &self.slow)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    traces: HashMap<TraceId, Trace>,
    /// In the order in which they were first seen.
    order: VecDeque<TraceId>,
    waiting: usize,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Trace {
    spans: Vec<SpanData>,
    open: usize,
    kept: bool,
    changed: Instant,
}

impl State {
    fn trace(&mut self, id: TraceId) -> &mut Trace {
        let order = &mut self.order;
        self.traces.entry(id).or_insert_with(|| {
            order.push_back(id);
            Trace {
                spans: Vec::new(),
                open: 0,
                kept: false,
                changed: Instant::now(),
            }
        })
    }

    fn forget(&mut self, id: TraceId) {
        if let Some(trace) = self.traces.remove(&id) {
            self.waiting -= trace.spans.len();
        }
    }

    /// Records that a span of an unsampled trace has begun.
    fn begun(&mut self, id: TraceId) {
        self.trace(id).open += 1;
    }

    /// Keeps a trace. Returns its waiting spans, to be sent.
    fn keep(&mut self, id: TraceId) -> Vec<SpanData> {
        let trace = self.trace(id);
        trace.kept = true;
        let spans = std::mem::take(&mut trace.spans);
        self.waiting -= spans.len();
        spans
    }

    /// Records that a span of an unsampled trace has ended. Returns the spans to send.
    fn ended(&mut self, span: SpanData, slow: Duration, now: Instant) -> Vec<SpanData> {
        let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
        let is_local_root = span.parent_span_id == SpanId::INVALID || span.parent_span_is_remote;
        let matters = matches!(span.status, Status::Error { .. }) || (is_local_root && took >= slow);
        let trace = self.trace(span.span_context.trace_id());
        trace.open = trace.open.saturating_sub(1);
        trace.changed = now;
        trace.kept |= matters;
        if !trace.kept {
            if trace.spans.len() < SPANS_OF_ONE_MAX {
                trace.spans.push(span);
                self.waiting += 1;
            }
            self.make_room(slow, now);
            return Vec::new();
        }
        let mut all = std::mem::take(&mut trace.spans);
        self.waiting -= all.len();
        all.push(span);
        // Also if everything fails and nothing waits.
        self.make_room(slow, now);
        all
    }

    /// Drops the oldest undecided traces until an eighth of the room is free.
    fn forget_oldest(&mut self) {
        let mut kept = VecDeque::new();
        while self.waiting > SPANS_MAX / 8 * 7 {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.traces.get(&oldest).is_some_and(|t| t.kept) {
                kept.push_back(oldest);
            } else {
                self.forget(oldest);
            }
        }
        kept.append(&mut self.order);
        self.order = kept;
    }

    /// Drops traces that have waited long enough, and the oldest if there is no room.
    fn make_room(&mut self, slow: Duration, now: Instant) {
        if self.waiting > SPANS_MAX {
            self.forget_oldest();
        }
        if self
            .swept
            .is_some_and(|at| now.saturating_duration_since(at) < WAIT / 4)
        {
            return;
        }
        self.swept = Some(now);
        let is_over = |t: &Trace| t.open == 0 && now.saturating_duration_since(t.changed) >= slow + WAIT;
        let over: Vec<TraceId> = self
            .traces
            .iter()
            .filter(|(_, t)| is_over(t))
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.forget(id);
        }
        let traces = &self.traces;
        self.order.retain(|id| traces.contains_key(id));
    }
}

/// Passes on spans that are sampled or kept.
#[derive(Debug)]
pub(crate) struct Tail<P> {
    next: Arc<RwLock<P>>,
    undecided: &'static UndecidedTraces,
}

impl<P: SpanProcessor + 'static> Tail<P> {
    /// A filter in front of `next`; a trace whose work here takes `slow` or longer is kept. The first of a process is
    /// its only one.
    pub(crate) fn new(next: P, slow: Duration) -> Self {
        let next = Arc::new(RwLock::new(next));
        let sink = Arc::clone(&next);
        let undecided = UNDECIDED.get_or_init(|| UndecidedTraces {
            slow,
            state: Mutex::default(),
            sink: Box::new(move |span| sink.read().on_end(span)),
        });
        Self { next, undecided }
    }
}

impl<P: SpanProcessor + 'static> SpanProcessor for Tail<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        use opentelemetry::trace::Span as _;
        let own = span.span_context();
        if own.is_sampled() {
            return self.next.read().on_start(span, context);
        }
        self.undecided.state.lock().begun(own.trace_id());
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            return self.next.read().on_end(span);
        }
        let all = self
            .undecided
            .state
            .lock()
            .ended(span, self.undecided.slow, Instant::now());
        self.undecided.send(all);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.next.read().force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.read().shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.write().set_resource(resource);
    }
}

/// The span with the flag that exporters require.
fn sampled(mut span: SpanData) -> SpanData {
    let context = &span.span_context;
    span.span_context = SpanContext::new(
        context.trace_id(),
        context.span_id(),
        context.trace_flags() | TraceFlags::SAMPLED,
        context.is_remote(),
        context.trace_state().clone(),
    );
    span
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::UNIX_EPOCH;

    use opentelemetry::InstrumentationScope;
    use opentelemetry::trace::{SpanKind, TraceState};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn span(trace: u128, id: u64, parent: u64, took: Duration, failed: bool) -> SpanData {
        let flags = TraceFlags::default();
        SpanData {
            span_context: SpanContext::new(trace.into(), id.into(), flags, false, TraceState::default()),
            parent_span_id: parent.into(),
            parent_span_is_remote: parent == 99,
            span_kind: SpanKind::Internal,
            name: Cow::Owned(id.to_string()),
            start_time: UNIX_EPOCH,
            end_time: UNIX_EPOCH + took,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: if failed { Status::error("no") } else { Status::Unset },
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    fn names(spans: &[SpanData]) -> Vec<&str> {
        spans.iter().map(|s| &*s.name).collect()
    }

    #[test]
    fn a_failure_brings_what_ended_before_and_what_ends_after() {
        let (mut state, now) = (State::default(), Instant::now());
        let mut end = |span| state.ended(span, 100 * MS, now);
        assert!(end(span(1, 1, 2, MS, false)).is_empty());
        assert!(end(span(7, 1, 99, MS, false)).is_empty(), "another trace");
        assert_eq!(names(&end(span(1, 2, 3, MS, true))), ["1", "2"]);
        assert_eq!(names(&end(span(1, 3, 99, MS, false))), ["3"]);
        assert_eq!(state.waiting, 1);
    }

    #[test]
    fn only_the_root_of_this_process_is_slow() {
        let (mut state, now) = (State::default(), Instant::now());
        let mut end = |span| state.ended(span, 100 * MS, now);
        assert!(
            end(span(1, 1, 2, 500 * MS, false)).is_empty(),
            "a part may be meant to be long"
        );
        assert!(end(span(1, 2, 99, 99 * MS, false)).is_empty());
        assert_eq!(names(&end(span(1, 3, 0, 100 * MS, false))), ["1", "2", "3"]);
    }

    #[test]
    fn where_there_is_no_room_what_is_kept_stays_known() {
        let (mut state, now) = (State::default(), Instant::now());
        state.begun(1.into());
        state.keep(1.into());
        for n in 0..2 * SPANS_MAX {
            state.ended(span(n as u128 + 2, 1, 5, MS, false), 100 * MS, now);
        }
        assert!(state.waiting <= SPANS_MAX && state.traces[&TraceId::from(1)].kept);
        assert_eq!(state.order.front(), Some(&TraceId::from(1)));
    }

    #[test]
    fn what_is_not_worth_keeping_goes_when_nothing_of_it_is_open_any_more() {
        let (mut state, start) = (State::default(), Instant::now());
        state.trace(1.into()).open = 2;
        state.ended(span(1, 1, 2, MS, false), 100 * MS, start);
        let wait = WAIT + 100 * MS;
        let later = start + 2 * wait;
        state.ended(span(2, 1, 99, MS, false), 100 * MS, later);
        assert!(state.traces.contains_key(&TraceId::from(1)), "its root is open still");
        state.ended(span(1, 2, 99, MS, false), 100 * MS, later);
        state.ended(span(3, 1, 99, MS, false), 100 * MS, later + 2 * wait);
        assert_eq!(state.traces.len(), 1, "{:?}", state.traces.keys());
        assert_eq!((state.waiting, state.order.len()), (1, 1));
    }

    #[test]
    fn kept_traces_are_forgotten_too() {
        let (mut state, start) = (State::default(), Instant::now());
        for n in 1..=100 {
            let now = start + u32::try_from(n).unwrap() * (WAIT + 100 * MS);
            assert_eq!(state.ended(span(n, 1, 99, MS, true), 100 * MS, now).len(), 1);
        }
        assert!(state.traces.len() <= 2, "{}", state.traces.len());
    }

    #[test]
    fn undecided_spans_are_bounded() {
        let (mut state, now) = (State::default(), Instant::now());
        for n in 0..SPANS_OF_ONE_MAX + 10 {
            state.ended(span(1, n as u64 + 1, 5, MS, false), 100 * MS, now);
        }
        assert_eq!(state.waiting, SPANS_OF_ONE_MAX);
        for n in 0..SPANS_MAX {
            state.ended(span(n as u128 + 2, 1, 5, MS, false), 100 * MS, now);
        }
        assert!(state.waiting <= SPANS_MAX, "{}", state.waiting);
        assert!(!state.traces.contains_key(&TraceId::from(1)), "the oldest went");
    }

    #[test]
    fn a_kept_span_looks_sampled_to_exporters() {
        assert!(sampled(span(1, 1, 2, MS, false)).span_context.is_sampled());
    }

    #[test]
    fn a_threshold_is_a_number_of_milliseconds() {
        assert_eq!(milliseconds("250"), Some(250 * MS));
        assert_eq!(milliseconds("250ms"), Some(250 * MS));
        assert_eq!(milliseconds("soon"), None);
    }
}
