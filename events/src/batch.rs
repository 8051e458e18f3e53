//! What is done with a batch, from when it is complete until each of its messages is settled: invoked with, held for
//! as long as that takes, and then removed, given back, or put among the dead letters.
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

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use rekindle_wire::api::{SourceInfo, SourceState};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::event;
use crate::gateway::{Gateway, Invocation};
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::queue::{DeadLetter, Message, Queue, QueueError, chain};
use crate::verdict::{RETRY_AFTER_MAX, Verdict};

/// How long a batch that is refused is held. Then others may try.
const REFUSED_MAX: Duration = Duration::from_secs(600);
/// Pauses between refused attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest reason of a stop.
const STOPPED: &str = "the program was stopped";

/// What batches are invoked by: the gateway.
#[async_trait]
pub(crate) trait Target: Send + Sync {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict;
}

#[async_trait]
impl Target for Gateway {
    async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        Self::invoke(self, invocation).await
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
    /// Processes a batch.
    pub(crate) async fn process(&self, queue: &dyn Queue, messages: Vec<Message>) {
        let began = Instant::now();
        let receipts: Vec<String> = messages.iter().map(|message| message.receipt.clone()).collect();
        let hold = async {
            loop {
                tokio::time::sleep(queue.extend_every()).await;
                if let Err(error) = queue.extend(&receipts).await {
                    self.queue_failed(&error);
                }
            }
        };
        let verdict = tokio::select! {
            verdict = self.invoked(&messages) => verdict,
            () = self.cut.cancelled() => None,
            () = hold => None,
        };
        self.settle(queue, messages, verdict).await;
        self.metrics.took(&self.info.function, began.elapsed());
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

    /// Tells the queue what became of each message.
    async fn settle(&self, queue: &dyn Queue, messages: Vec<Message>, verdict: Option<Verdict>) {
        let total = messages.len() as u64;
        let (mut remove, mut dead, mut failed) = (Vec::new(), 0, 0);
        match verdict {
            None => {
                let (function, source) = (&self.info.function, &self.info.source.name);
                tracing::debug!(%function, %source, messages = total, reason = STOPPED, "messages are given back");
                for message in &messages {
                    self.give_back(queue, message, Duration::ZERO).await;
                }
                self.metrics.settled(function, source, "given_back", total);
                return;
            }
            Some(Verdict::Succeeded) => remove.extend(messages.into_iter().map(|message| message.receipt)),
            Some(Verdict::SomeFailed(ids)) => {
                let reason = "the function's batchItemFailures names it";
                for message in messages {
                    match ids.contains(&message.id) {
                        true if self.fails(queue, &message, reason, None).await => {
                            dead += 1;
                            remove.push(message.receipt);
                        }
                        true => failed += 1,
                        false => remove.push(message.receipt),
                    }
                }
            }
            Some(Verdict::Failed { reason, after, .. } | Verdict::Refused { reason, after, .. }) => {
                for message in messages {
                    match self.fails(queue, &message, &reason, after).await {
                        true => {
                            dead += 1;
                            remove.push(message.receipt);
                        }
                        false => failed += 1,
                    }
                }
            }
        }
        let succeeded = remove.len() as u64 - dead;
        if !remove.is_empty()
            && let Err(error) = queue.remove(&remove).await
        {
            // They come again.
            self.queue_failed(&error);
        }
        self.count(succeeded, failed, dead);
    }

    fn count(&self, succeeded: u64, failed: u64, dead: u64) {
        let (function, source) = (&self.info.function, &self.info.source.name);
        for (outcome, count) in [("succeeded", succeeded), ("failed", failed), ("dead", dead)] {
            self.metrics.settled(function, source, outcome, count);
        }
        self.progress.change(|progress| {
            progress.succeeded += succeeded;
            progress.failed += failed + dead;
            progress.dead += dead;
            // The function was reached.
            if progress.state == SourceState::Throttled || succeeded > 0 {
                (progress.state, progress.problem) = (SourceState::Reading, None);
            }
        });
    }

    /// A message failed: it is given back, or becomes a dead letter. Returns whether it did.
    async fn fails(&self, queue: &dyn Queue, message: &Message, reason: &str, after: Option<Duration>) -> bool {
        let source = &self.info.source;
        let function = &self.info.function;
        let to = source
            .dead_letter
            .as_deref()
            .filter(|_| message.deliveries >= source.max_deliveries);
        if let Some(to) = to {
            let letter = DeadLetter {
                to,
                function: function.as_str(),
                source: source.name.as_str(),
                reason,
            };
            match queue.bury(message, &letter).await {
                Ok(()) => {
                    let (id, deliveries) = (&message.id, message.deliveries);
                    let source = &source.name;
                    tracing::warn!(%function, %source, id, deliveries, reason, "a message is a dead letter");
                    return true;
                }
                Err(error) => self.queue_failed(&error),
            }
        }
        let pause = pause_after(message.deliveries);
        self.give_back(queue, message, after.map_or(pause, |after| after.max(pause)))
            .await;
        false
    }

    async fn give_back(&self, queue: &dyn Queue, message: &Message, after: Duration) {
        if let Err(error) = queue.give_back(&message.receipt, after).await {
            // It comes again when its time is over.
            self.queue_failed(&error);
        }
    }
}

/// How long a message waits that failed in its nth delivery: 1, 2, 4, … seconds, up to five minutes.
fn pause_after(deliveries: u32) -> Duration {
    let seconds = 1_u64.checked_shl(deliveries.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(RETRY_AFTER_MAX)
}

#[cfg(test)]
mod tests;
