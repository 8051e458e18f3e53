//! What a function is sent: a CloudEvent 1.0 in the JSON format for a source with batches of one, and otherwise a list
//! of such events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rekindle_wire::event_source::{EventSource, QueueKind};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::queue::Message;

/// The media type of an event.
pub(crate) const ONE: &str = "application/cloudevents+json";
/// The media type of a list of events.
pub(crate) const BATCH: &str = "application/cloudevents-batch+json";
const JSON: &str = "application/json";

/// What an event says besides its data.
#[derive(Serialize)]
struct Attributes<'a> {
    specversion: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    source: String,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    datacontenttype: &'a str,
    /// Number of deliveries of the message, this one included: an extension of ours.
    deliveries: u32,
    /// The extension for distributed tracing.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

/// The event of a message, as JSON.
pub(crate) fn one(source: &EventSource, message: &Message) -> Vec<u8> {
    let (kind, data) = data(message);
    let attributes = Attributes {
        specversion: "1.0",
        kind: match source.kind {
            QueueKind::Nats => "rekindle.nats.message",
            QueueKind::Sqs => "rekindle.sqs.message",
        },
        source: source.to_string(),
        id: &message.id,
        subject: message.subject.as_deref(),
        time: message
            .time
            .map(|time| humantime::format_rfc3339_millis(time).to_string()),
        datacontenttype: kind,
        deliveries: message.deliveries,
        traceparent: message.traceparent.as_deref(),
    };
    // Texts and numbers alone cannot fail.
    let mut event = serde_json::to_vec(&attributes).unwrap_or_default();
    event.pop();
    event.extend_from_slice(&data);
    event.push(b'}');
    event
}

/// The events of messages, as a JSON list.
pub(crate) fn batch(source: &EventSource, messages: &[Message]) -> Vec<u8> {
    let events = messages.iter().map(|message| one(source, message));
    let mut list = vec![b'['];
    for (n, event) in events.enumerate() {
        if n > 0 {
            list.push(b',');
        }
        list.extend_from_slice(&event);
    }
    list.push(b']');
    list
}

/// The media type of the data and its member of the event, with the comma before it. JSON stays byte for byte as it
/// was sent.
fn data(message: &Message) -> (&str, Vec<u8>) {
    let said = message.content_type.as_deref();
    let media = said.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let may_be_json = media.is_empty() || media == JSON || media.ends_with("+json");
    let body = &message.body[..];
    if body.is_empty() {
        return (said.unwrap_or(JSON), Vec::new());
    }
    if may_be_json && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        return (said.unwrap_or(JSON), [b",\"data\":", body].concat());
    }
    match std::str::from_utf8(body) {
        // Whoever says JSON and sends none is not believed: the function sees a text.
        Ok(text) => {
            let text = serde_json::to_vec(text).unwrap_or_default();
            let kind = said.filter(|_| !may_be_json).unwrap_or("text/plain");
            (kind, [b",\"data\":", &text[..]].concat())
        }
        Err(_) => {
            let text = format!(",\"data_base64\":\"{}\"", STANDARD.encode(body));
            let kind = said.filter(|_| !may_be_json).unwrap_or("application/octet-stream");
            (kind, text.into_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{message, source};

    fn read(message: &Message) -> Value {
        serde_json::from_slice(&one(&source(1), message)).unwrap()
    }

    #[test]
    fn a_message_is_an_event_with_its_place_in_the_queue() {
        let mut message = message("ORDERS:7", br#"{"n": 12345678901234567890, "big": 1e400}"#);
        message.subject = Some("orders.new".to_owned());
        message.time = Some(UNIX_EPOCH + Duration::from_millis(1_795_737_600_123));
        message.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        message.deliveries = 2;
        let event = one(&source(1), &message);
        // Numbers that a parser would round stay as they are.
        let text = String::from_utf8(event).unwrap();
        assert!(
            text.ends_with(r#","data":{"n": 12345678901234567890, "big": 1e400}}"#),
            "{text}"
        );
        let head = format!("{}}}", text.split(",\"data\"").next().unwrap());
        let head: Value = serde_json::from_str(&head).unwrap();
        assert_eq!(
            head,
            json!({"specversion": "1.0", "type": "rekindle.nats.message", "source": "nats://q:4222/ORDERS",
                "id": "ORDERS:7", "subject": "orders.new", "time": "2026-11-27T00:00:00.123Z", "deliveries": 2,
                "datacontenttype": "application/json",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        );
    }

    #[test]
    fn any_body_can_be_sent() {
        for (kind, body, name, expected, said) in [
            (None, &b"{\"a\":1}"[..], "data", json!({"a": 1}), "application/json"),
            (None, b"plain", "data", json!("plain"), "text/plain"),
            (
                None,
                b"\xff\x00",
                "data_base64",
                json!("/wA="),
                "application/octet-stream",
            ),
            (Some("text/csv"), b"1,2", "data", json!("1,2"), "text/csv"),
            (Some("image/png"), b"\xff", "data_base64", json!("/w=="), "image/png"),
            (Some("application/json"), b"{", "data", json!("{"), "text/plain"),
            (
                Some("application/x+json"),
                b"[]",
                "data",
                json!([]),
                "application/x+json",
            ),
            (None, b"", "data", Value::Null, "application/json"),
        ] {
            let mut message = message("a", body);
            message.content_type = kind.map(str::to_owned);
            let event = read(&message);
            assert_eq!(
                (&event[name], &event["datacontenttype"]),
                (&expected, &json!(said)),
                "{event}"
            );
        }
    }

    #[test]
    fn several_messages_are_a_list() {
        let both = [message("a", b"1"), message("b", b"two")];
        let list: Value = serde_json::from_slice(&batch(&source(10), &both)).unwrap();
        assert_eq!((&list[0]["data"], &list[1]["data"]), (&json!(1), &json!("two")));
        assert_eq!(list.as_array().unwrap().len(), 2);
    }
}
