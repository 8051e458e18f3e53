//! What is done with a batch, from when it is complete until each of its messages is settled. It is invoked with, and
//! held for as long as that takes. Then it is removed, given back, or put among the dead letters. One that is too large
//! to be passed on is invoked with in parts, one after the other.
//!
//! ```text
//! received ──> invoked ── succeeded ──> removed
//!    ▲            │ ├──── failed ──> given back, with a pause
//!    │            │ └──── failed, deliveries used up ──> dead letter ──> removed
//!    └─ refused ──┘ (not counted; after ten minutes, or at a stop, given back)
//! ```
//!
//! Every arrow but the first is told to the queue only when what lies before it is over. A reader that is killed
//! anywhere leaves messages that the queue delivers again.

mod parts;
mod settle;
mod tell;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use rekindle_wire::api::{SourceInfo, SourceState};
use rekindle_wire::error::chain;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::event;
use crate::gateway::{Gateway, Invocation, Notice, TellError};
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::queue::{Message, Queue, QueueError};
use crate::verdict::Verdict;

/// How long a batch that is refused is held. Then others may try.
const REFUSED_MAX: Duration = Duration::from_secs(600);
/// Pauses between refused attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What batches are invoked by: the gateway.
#[async_trait]
pub(crate) trait Target: Send + Sync {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict;

    /// Has a destination told later.
    async fn tell(&self, notice: Notice<'_>) -> Result<(), TellError>;
}

#[async_trait]
impl Target for Gateway {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        Self::invoke(self, invocation).await
    }

    async fn tell(&self, notice: Notice<'_>) -> Result<(), TellError> {
        Self::tell(self, notice).await
    }
}

/// What batches of a source need.
pub(crate) struct Batches {
    pub(crate) info: SourceInfo,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) pace: Arc<Mutex<Pace>>,
    /// Places for batches of all sources.
    pub(crate) places: Arc<Semaphore>,
    /// Nothing new is begun.
    pub(crate) stop: CancellationToken,
    /// What goes on is given back.
    pub(crate) cut: CancellationToken,
}

impl Batches {
    pub(crate) async fn process(&self, queue: &dyn Queue, messages: Vec<Message>) {
        let began = Instant::now();
        let held = HeldDeliveries::of(&messages);
        let hold = async {
            loop {
                tokio::time::sleep(queue.extend_every()).await;
                let _alone = held.changing.lock().await;
                let receipts = held.all();
                if !receipts.is_empty()
                    && let Err(error) = queue.extend(&receipts).await
                {
                    self.queue_failed(&error);
                }
            }
        };
        tokio::select! {
            () = self.process_parts(queue, &held, parts::of(messages)) => {}
            () = hold => {}
        }
        self.metrics.took(&self.info.function, began.elapsed());
    }

    /// Settles one part after the other. Once one is to be given back, so are those that follow.
    async fn process_parts(&self, queue: &dyn Queue, held: &HeldDeliveries, mut left: VecDeque<Vec<Message>>) {
        let mut goes_on = true;
        while let Some(mut part) = left.pop_front() {
            let verdict = match goes_on {
                true => tokio::select! {
                    verdict = self.invoked(&part) => verdict,
                    () = self.cut.cancelled() => None,
                },
                false => None,
            };
            goes_on = verdict.is_some();
            if matches!(verdict, Some(Verdict::TooLarge { .. })) && part.len() > 1 {
                let second = part.split_off(part.len() / 2);
                left.push_front(second);
                left.push_front(part);
                continue;
            }
            self.settle(queue, held, part, verdict).await;
        }
    }

    /// The verdict on a batch. `None` if it is to be given back.
    async fn invoked(&self, messages: &[Message]) -> Option<Verdict> {
        let (started, mut pause) = (tokio::time::Instant::now(), PAUSE_FIRST);
        loop {
            let verdict = {
                let place = tokio::select! {
                    place = self.places.acquire() => place,
                    () = self.stop.cancelled() => return None,
                };
                // The semaphore is never closed.
                let _place = place.ok()?;
                self.invoked_once(messages).await
            };
            let (reason, after, is_busy) = match verdict {
                Verdict::Refused { reason, after, is_busy } => (reason, after, is_busy),
                Verdict::Failed {
                    is_overloaded: true, ..
                } => {
                    self.pace.lock().refused(Instant::now());
                    return Some(verdict);
                }
                verdict => return Some(verdict),
            };
            self.refused(reason, is_busy);
            // Not all at once.
            let wait = after.unwrap_or(pause).mul_f64(rand::random_range(1.0..1.25));
            pause = (pause * 2).min(PAUSE_MAX);
            if started.elapsed() + wait > REFUSED_MAX {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => return None,
            }
        }
    }

    async fn invoked_once(&self, messages: &[Message]) -> Verdict {
        let source = &self.info.source;
        let span = tracing::info_span!(
            "process",
            otel.name = format!("process {}", source.queue),
            otel.kind = "consumer",
            otel.status_code = tracing::field::Empty,
            rekindle.role = "events",
            messaging.system = source.kind.as_str(),
            messaging.destination.name = source.queue,
            messaging.batch.message_count = messages.len(),
            faas.invoked_name = self.info.function.as_str(),
        );
        let mut headers = HeaderMap::new();
        let parent = messages.first().and_then(|message| message.traceparent.as_deref());
        if let Some(Ok(parent)) = parent.map(HeaderValue::from_str) {
            headers.insert("traceparent", parent);
        }
        rekindle_telemetry::set_parent(&span, &headers);
        rekindle_telemetry::inject_span(&span, &mut headers);
        let is_batch = source.batch > 1;
        let ids: Vec<&str> = messages
            .iter()
            .filter(|_| is_batch)
            .map(|message| message.id.as_str())
            .collect();
        let (content_type, body) = match messages {
            [message] if !is_batch => (event::ONE, event::one(source, message)),
            messages => (event::BATCH, event::batch(source, messages)),
        };
        let invocation = Invocation {
            function: &self.info.function,
            timeout: Duration::from_millis(self.info.timeout_ms),
            boot_timeout: Duration::from_millis(self.info.boot_timeout_ms),
            content_type,
            body,
            headers,
            ids: &ids,
        };
        let verdict = self.target.invoke(invocation).instrument(span.clone()).await;
        if !matches!(verdict, Verdict::Succeeded) {
            span.record("otel.status_code", "ERROR");
        }
        verdict
    }

    fn refused(&self, reason: String, is_busy: bool) {
        self.metrics
            .refused(&self.info.function, &self.info.source.name, is_busy);
        self.pace.lock().refused(Instant::now());
        let state = if is_busy {
            SourceState::Throttled
        } else {
            SourceState::Failing
        };
        if self.progress.stumbles(state, reason.clone()) && !is_busy {
            let (function, source) = (&self.info.function, &self.info.source.name);
            tracing::warn!(%function, %source, reason, "a function cannot be invoked; trying again");
        }
    }

    fn queue_failed(&self, error: &QueueError) {
        let (function, source) = (&self.info.function, &self.info.source.name);
        self.metrics.queue_failed(function, source);
        if self.progress.stumbles(SourceState::Failing, chain(error)) {
            tracing::warn!(%function, %source, error = error as &dyn std::error::Error, "a queue refuses something");
        }
    }
}

/// The deliveries of a batch that are neither removed nor given back.
struct HeldDeliveries {
    receipts: Mutex<HashSet<String>>,
    /// Held while the queue is told how long to hold a delivery: of two requests under way the later one counts, and
    /// nobody knows which that is.
    changing: tokio::sync::Mutex<()>,
}

impl HeldDeliveries {
    fn of(messages: &[Message]) -> Self {
        let receipts = messages.iter().map(|message| message.receipt.clone());
        Self {
            receipts: Mutex::new(receipts.collect()),
            changing: tokio::sync::Mutex::default(),
        }
    }

    fn all(&self) -> Vec<String> {
        self.receipts.lock().iter().cloned().collect()
    }

    fn let_go(&self, receipt: &str) {
        self.receipts.lock().remove(receipt);
    }
}

#[cfg(test)]
mod tests;
