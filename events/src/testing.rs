//! What several tests need.

use bytes::Bytes;
use rekindle_wire::event_source::{EventSource, QueueKind};

use crate::queue::Message;

/// A source with batches of this size, whose dead letters go to `dead` after two deliveries.
pub(crate) fn source(batch: u32) -> EventSource {
    EventSource {
        name: "orders".parse().unwrap(),
        kind: QueueKind::Nats,
        url: "nats://q:4222".to_owned(),
        credentials: None,
        queue: "ORDERS".to_owned(),
        consumer: None,
        subject: None,
        batch,
        batch_window_ms: 0,
        concurrency: 4,
        max_deliveries: 2,
        dead_letter: Some("dead".to_owned()),
        on_success: None,
        on_failure: None,
    }
}

/// A message in its first delivery.
pub(crate) fn message(id: &str, body: &'static [u8]) -> Message {
    Message {
        id: id.to_owned(),
        body: Bytes::from_static(body),
        content_type: None,
        subject: None,
        time: None,
        traceparent: None,
        deliveries: 1,
        receipt: format!("receipt-{id}"),
    }
}
