//! Sources of events: queues whose messages a function is invoked with. The program `rekindle-events` reads them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{FunctionName, ParseIdError, SOURCE_NAME_MAX, is_label, text_type};

/// Maximum number of a function's sources.
pub const SOURCES_MAX: usize = 10;
/// The name of a function's only source.
pub const DEFAULT_SOURCE: &str = "default";
/// Maximum number of messages in a batch.
pub const BATCH_MAX: u32 = 100;
/// Maximum number of batches of a source that one reader has in flight.
pub const BATCHES_MAX: u32 = 100;
/// Deliveries after which a message is a dead letter, unless the source says otherwise.
pub const DELIVERIES: u32 = 5;
/// Maximum length of a reader's name, in characters.
pub const READER_MAX: usize = 100;
/// Maximum length of what a reader says of an error, in characters.
pub const PROBLEM_MAX: usize = 500;

/// A source's name, unique in its function: `[a-z][a-z0-9-]*`, at most [`SOURCE_NAME_MAX`] characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "orders")]
pub struct SourceName(Arc<str>);

text_type!(SourceName);

impl FromStr for SourceName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match is_label(text, SOURCE_NAME_MAX) {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Source(text.to_owned())),
        }
    }
}

impl Default for SourceName {
    fn default() -> Self {
        Self(DEFAULT_SOURCE.into())
    }
}

/// What serves a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// A stream of NATS JetStream.
    Nats,
    /// A queue of Amazon SQS, or of a server that speaks its protocol.
    Sqs,
}

impl QueueKind {
    /// Its name in `fn.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Sqs => "sqs",
        }
    }
}

/// A source of a function, as its `fn.toml` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventSource {
    /// Its name.
    pub name: SourceName,
    /// What serves the queue.
    #[serde(rename = "type")]
    pub kind: QueueKind,
    /// Address of the server. The operator of the readers decides which may be named.
    pub url: String,
    /// Name of the credentials, which the readers' configuration has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// The stream of NATS, or the queue of SQS: its path below the address.
    pub queue: String,
    /// NATS: the durable consumer. By default one of the source's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// NATS: the subjects of the stream that are read. By default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Maximum number of messages that the function gets at once. With 1 it gets an event, otherwise a list.
    pub batch: u32,
    /// How long a batch that is not full waits for more messages, in milliseconds.
    pub batch_window_ms: u64,
    /// Maximum number of batches that one reader has in flight.
    pub concurrency: u32,
    /// Deliveries after which a message that fails is a dead letter.
    pub max_deliveries: u32,
    /// Where dead letters go: a subject of NATS, or a queue of SQS. Without it a message comes again until it succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    /// The function of the namespace that is told of each message that the function has processed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_success: Option<FunctionName>,
    /// The function that is told of each message that has used up its deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<FunctionName>,
}

impl EventSource {
    /// How long a batch that is not full waits for more messages.
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.batch_window_ms)
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.url.trim_end_matches('/'), self.queue)
    }
}
