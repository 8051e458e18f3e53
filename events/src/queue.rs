//! What every queue can do, whatever serves it.

use std::error::Error;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// How long a reader may hold a message before it says again that it works on it. After that the queue delivers the
/// message again.
pub(crate) const HOLD: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Its id, unique in its queue and the same in every delivery.
    pub(crate) id: String,
    pub(crate) body: Bytes,
    /// The media type of its body, if its sender named one.
    pub(crate) content_type: Option<String>,
    /// Its subject in the queue, where there are subjects.
    pub(crate) subject: Option<String>,
    /// When it was sent.
    pub(crate) time: Option<SystemTime>,
    /// The trace that its sender was in.
    pub(crate) traceparent: Option<String>,
    /// Number of its deliveries, this one included.
    pub(crate) deliveries: u32,
    /// Names this delivery to the queue.
    pub(crate) receipt: String,
}

/// Why a queue did not do something.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub(crate) struct QueueError {
    doing: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

impl QueueError {
    /// `doing` says what failed, and how to mend it if that is known.
    pub(crate) fn new(doing: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            doing: doing.into(),
            source: source.into(),
        }
    }
}

/// What a reader asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveRequest {
    /// Maximum number of messages.
    pub(crate) messages: u32,
    /// How long to wait for more once there is one.
    pub(crate) window: Duration,
}

/// A queue. Every call ends within some seconds, [`Queue::receive`] within its window besides.
#[async_trait]
pub(crate) trait Queue: Send + Sync {
    /// Waits some seconds for messages. None if there are none. It ends early once `stop` is cancelled, but never
    /// throws away what it has: the messages are delivered to nobody else until their time is over.
    async fn receive(&self, wanted: ReceiveRequest, stop: &CancellationToken) -> Result<Vec<Message>, QueueError>;

    /// Interval at which deliveries must be extended that are worked on.
    fn extend_every(&self) -> Duration;

    /// Holds these deliveries for as long again.
    async fn extend(&self, receipts: &[String]) -> Result<(), QueueError>;

    /// Removes messages, or counts them as processed.
    async fn remove(&self, receipts: &[String]) -> Result<(), QueueError>;

    /// Has a message delivered again after this time.
    async fn give_back(&self, receipt: &str, after: Duration) -> Result<(), QueueError>;

    /// Puts a copy among the dead letters. It is durable there once this returns.
    async fn bury(&self, message: &Message, letter: &DeadLetter<'_>) -> Result<(), QueueError>;

    /// Number of messages that wait.
    async fn lag(&self) -> Result<u64, QueueError>;
}

/// What is said of a dead letter.
#[derive(Debug)]
pub(crate) struct DeadLetter<'a> {
    /// Where it goes.
    pub(crate) to: &'a str,
    /// The function that it failed in.
    pub(crate) function: &'a str,
    /// The source that it came by.
    pub(crate) source: &'a str,
    /// Why it failed.
    pub(crate) reason: &'a str,
}

/// The names under which that is said, and how often the message was delivered.
pub(crate) const DEAD_FUNCTION: &str = "Rekindle-Function";
pub(crate) const DEAD_SOURCE: &str = "Rekindle-Source";
pub(crate) const DEAD_REASON: &str = "Rekindle-Reason";
pub(crate) const DEAD_DELIVERIES: &str = "Rekindle-Deliveries";
pub(crate) const DEAD_ID: &str = "Rekindle-Message-Id";
