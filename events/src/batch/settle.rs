//! Tells the queue what became of each message. What succeeded is removed before all else: the rest may take long, as
//! each message that failed is told of alone.

use std::time::Duration;

use rekindle_wire::api::SourceState;
use tokio::time::Instant;

use super::tell::{LIMIT, NoticeOutcome};
use super::{Batches, HeldDeliveries};
use crate::queue::{DeadLetter, Message, Queue};
use crate::verdict::{RETRY_AFTER_MAX, Verdict};

impl Batches {
    /// Settles messages. Without a verdict they are given back.
    pub(super) async fn settle(
        &self,
        queue: &dyn Queue,
        held: &HeldDeliveries,
        messages: Vec<Message>,
        verdict: Option<Verdict>,
    ) {
        let until = Instant::now() + LIMIT;
        let Some(verdict) = verdict else {
            return self.give_all_back(queue, held, &messages).await;
        };
        let (reason, after, named) = match verdict {
            Verdict::Succeeded => (String::new(), None, Some(Vec::new())),
            Verdict::SomeFailed(ids) => ("the function's batchItemFailures names it".to_owned(), None, Some(ids)),
            Verdict::Failed { reason, after, .. } | Verdict::Refused { reason, after, .. } => (reason, after, None),
            Verdict::TooLarge { reason } => (reason, None, None),
        };
        let is_failed = |message: &Message| named.as_ref().is_none_or(|ids| ids.contains(&message.id));
        let (failed, succeeded): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_failed);
        let (succeeded, untold) = self.tell_of_success(succeeded, until).await;
        let (succeeded_count, failed_count) = (succeeded.len() as u64, failed.len() as u64);
        let receipts = |messages: Vec<Message>| messages.into_iter().map(|message| message.receipt).collect();
        self.remove(queue, held, receipts(succeeded)).await;
        if !untold.is_empty() {
            self.give_all_back(queue, held, &untold).await;
        }
        let mut dead = Vec::new();
        for message in failed {
            if self.fails(queue, held, &message, (&reason, after), until).await {
                dead.push(message);
            }
        }
        let dead_count = dead.len() as u64;
        self.remove(queue, held, receipts(dead)).await;
        self.count(succeeded_count, failed_count - dead_count, dead_count);
    }

    async fn give_all_back(&self, queue: &dyn Queue, held: &HeldDeliveries, messages: &[Message]) {
        let (function, source) = (&self.info.function, &self.info.source.name);
        let total = messages.len() as u64;
        tracing::debug!(%function, %source, messages = total, "messages are given back");
        for message in messages {
            self.give_back(queue, held, message, Duration::ZERO).await;
        }
        self.metrics.settled(function, source, "given_back", total);
    }

    async fn remove(&self, queue: &dyn Queue, held: &HeldDeliveries, receipts: Vec<String>) {
        if receipts.is_empty() {
            return;
        }
        if let Err(error) = queue.remove(&receipts).await {
            // They come again.
            self.queue_failed(&error);
        }
        receipts.iter().for_each(|receipt| held.let_go(receipt));
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
    async fn fails(
        &self,
        queue: &dyn Queue,
        held: &HeldDeliveries,
        message: &Message,
        (reason, after): (&str, Option<Duration>),
        until: Instant,
    ) -> bool {
        let source = &self.info.source;
        let has_end = source.dead_letter.is_some() || source.on_failure.is_some();
        if has_end && message.deliveries >= source.max_deliveries && self.ends(queue, message, reason, until).await {
            let function = &self.info.function;
            let (source, id, deliveries) = (&source.name, &message.id, message.deliveries);
            tracing::warn!(%function, %source, id, deliveries, reason, "a message is a dead letter");
            return true;
        }
        let pause = pause_after(message.deliveries);
        let after = after.map_or(pause, |after| after.max(pause));
        self.give_back(queue, held, message, after).await;
        false
    }

    /// Puts a message whose deliveries are used up wherever it is to go. Returns whether it is there.
    async fn ends(&self, queue: &dyn Queue, message: &Message, reason: &str, until: Instant) -> bool {
        let source = &self.info.source;
        let told = self.tell_of_failure(message, reason, until).await;
        let Some(to) = source.dead_letter.as_deref() else {
            return told == NoticeOutcome::Kept;
        };
        let letter = DeadLetter {
            to,
            function: self.info.function.as_str(),
            source: source.name.as_str(),
            reason,
        };
        let buried = match told {
            // The program is stopped. Another delivery tells it.
            NoticeOutcome::Cut => return false,
            NoticeOutcome::Kept | NoticeOutcome::GivenUp => queue.bury(message, &letter).await,
        };
        buried.inspect_err(|error| self.queue_failed(error)).is_ok()
    }

    async fn give_back(&self, queue: &dyn Queue, held: &HeldDeliveries, message: &Message, after: Duration) {
        // Holding it again would undo the pause.
        let _alone = held.changing.lock().await;
        held.let_go(&message.receipt);
        if let Err(error) = queue.give_back(&message.receipt, after).await {
            // It comes again when its time is over.
            self.queue_failed(&error);
        }
    }
}

/// How long a message waits that failed in its nth delivery: 1, 2, 4, … seconds, up to five minutes.
pub(super) fn pause_after(deliveries: u32) -> Duration {
    let seconds = 1_u64.checked_shl(deliveries.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(RETRY_AFTER_MAX)
}
