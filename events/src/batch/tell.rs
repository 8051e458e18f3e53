//! Tells destinations what became of messages: functions of the namespace, which are invoked asynchronously. A message
//! is removed only once the platform keeps that, so a reader that is killed tells it with the next delivery. What is
//! told twice is known by its key.

use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use rekindle_wire::asynchronous::{BODY_MAX, KEY_MAX};
use rekindle_wire::{FunctionId, FunctionName, Namespace};
use serde_json::json;
use tokio::time::Instant;

use super::Batches;
use crate::event;
use crate::gateway::Notice;
use crate::queue::Message;

/// How long telling of the messages of a batch is tried, which holds its place meanwhile.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Pauses between attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Number of messages told of at once.
const AT_ONCE: usize = 8;
/// What is left for the rest of an event.
const ROOM: usize = 16 << 10;

/// What became of telling a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoticeOutcome {
    /// The platform keeps it, or nobody wants to be told.
    Kept,
    /// It was refused until it was given up.
    GivenUp,
    /// The program is stopped.
    Cut,
}

impl Batches {
    /// Tells of messages that succeeded. Returns those that may be removed, and those that come again as the program is
    /// stopped.
    pub(super) async fn tell_of_success(&self, messages: Vec<Message>, until: Instant) -> (Vec<Message>, Vec<Message>) {
        let Some(to) = &self.info.source.on_success else {
            return (messages, Vec::new());
        };
        let told = futures::stream::iter(messages).map(async |message| {
            let told = self.tell(to, "succeeded", &message, None, until).await;
            (message, told)
        });
        let told: Vec<(Message, NoticeOutcome)> = told.buffered(AT_ONCE).collect().await;
        let (done, cut): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, told)| *told != NoticeOutcome::Cut);
        let messages = |all: Vec<(Message, NoticeOutcome)>| all.into_iter().map(|(message, _)| message).collect();
        (messages(done), messages(cut))
    }

    /// Tells of a message whose deliveries are used up.
    pub(super) async fn tell_of_failure(&self, message: &Message, reason: &str, until: Instant) -> NoticeOutcome {
        match &self.info.source.on_failure {
            Some(to) => self.tell(to, "failed", message, Some(reason), until).await,
            None => NoticeOutcome::Kept,
        }
    }

    /// Tries until then, and once in any case.
    async fn tell(
        &self,
        to: &FunctionName,
        what: &str,
        message: &Message,
        reason: Option<&str>,
        until: Instant,
    ) -> NoticeOutcome {
        let (function, source) = (&self.info.function, &self.info.source.name);
        let namespace: Namespace = function.split().1.unwrap_or_default();
        let to = FunctionId::new(&namespace, to);
        let key = self.key(what, message);
        let mut pause = PAUSE_FIRST;
        loop {
            let notice = Notice {
                function: &to,
                body: self.notice(what, &key, message, reason),
                key: &key,
                traceparent: message.traceparent.as_deref(),
            };
            let told = tokio::select! {
                told = self.target.tell(notice) => told,
                () = self.cut.cancelled() => return NoticeOutcome::Cut,
            };
            let Err(error) = told else {
                self.metrics.told(function, source, "delivered");
                return NoticeOutcome::Kept;
            };
            if error.is_final || Instant::now() + pause > until {
                self.metrics.told(function, source, "failed");
                let (id, error) = (&message.id, &error as &dyn std::error::Error);
                tracing::warn!(%function, %source, %to, id, error, "a destination is not told of a message");
                return NoticeOutcome::GivenUp;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.cut.cancelled() => return NoticeOutcome::Cut,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Names what became of a message, in characters that a header takes.
    fn key(&self, what: &str, message: &Message) -> String {
        let (function, source) = (&self.info.function, &self.info.source.name);
        let key = format!("{what}/{function}/{source}/{}", message.id);
        if key.len() <= KEY_MAX && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return key;
        }
        // Two that differ anywhere are two.
        format!("{what}/{}", blake3::hash(key.as_bytes()).to_hex())
    }

    /// The event, which has the function's own as its request.
    fn notice(&self, what: &str, key: &str, message: &Message, reason: Option<&str>) -> Vec<u8> {
        let (function, source) = (&self.info.function, &self.info.source.name);
        let mut event = json!({
            "specversion": "1.0",
            "type": format!("rekindle.source.{what}"),
            "source": format!("/functions/{function}/sources/{source}"),
            "subject": message.id,
            "id": key,
            "time": humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            "datacontenttype": "application/json",
        });
        if let Some(parent) = &message.traceparent {
            event["traceparent"] = parent.as_str().into();
        }
        let mut data = json!({"deliveries": message.deliveries});
        if let Some(reason) = reason {
            data["error"] = json!({"message": reason});
        }
        let request = event::one(&self.info.source, message);
        let is_whole = request.len() + ROOM <= BODY_MAX;
        if !is_whole {
            data["request_left_out"] = true.into();
        }
        // The message stays byte for byte as it is.
        let open = |value: serde_json::Value| {
            let mut text = value.to_string();
            text.pop();
            text
        };
        let mut text = format!("{},\"data\":{}", open(event), open(data)).into_bytes();
        if is_whole {
            text.extend_from_slice(b",\"request\":");
            text.extend_from_slice(&request);
        }
        text.extend_from_slice(b"}}");
        text
    }
}
