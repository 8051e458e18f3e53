//! What a destination is told of a call's end: a CloudEvent 1.0 in the JSON format.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use rekindle_wire::asynchronous::{
    BODY_MAX, CallResult, CallState, ClaimedCallback, Encoded, Headers, InvocationKind, NewCall, StoredRequest,
};
use rekindle_wire::destination::EVENT;
use rekindle_wire::function_call::depth_of;
use rekindle_wire::headers::{CALL_DEPTH, TRACEPARENT};
use rekindle_wire::{ApiError, Destination, ErrorCode, FunctionId};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::store::DueEvent;

/// Longest body of a request or an answer that an event carries.
const PART_MAX: usize = 256 << 10;
/// The owner of these calls' idempotency keys: no client is called that.
const OWNER: &str = "platform destinations";

/// An invocation that tells a function.
pub(super) struct EventCall {
    pub(super) call: NewCall,
    /// Number of calls and ends that led to it.
    pub(super) depth: u32,
}

/// The event for an address, as a gateway posts it.
pub(super) fn posted(due: DueEvent) -> ClaimedCallback {
    let call = &due.stored.row.call;
    let result = CallResult {
        id: call.id.clone(),
        function: call.function.clone(),
        state: call.state,
        attempts: call.attempts,
        answer: None,
        error: None,
    };
    ClaimedCallback {
        url: due.to.to_string(),
        attempt: due.attempt,
        request_id: call.request_id.clone(),
        result,
        event: Some(Encoded(text(&due))),
        ended_unix_ms: call.finished_unix_ms,
    }
}

/// The invocation that tells a function.
///
/// # Errors
/// If the destination is no function.
pub(super) fn call(due: DueEvent) -> Result<EventCall, ApiError> {
    let Destination::Function(name) = &due.to else {
        return Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("{} is no function", due.to),
        ));
    };
    let (_, namespace) = due.stored.row.call.function.split();
    let sent = due.request.headers.map();
    let depth = depth_of(&sent).saturating_add(1);
    let mut headers = vec![
        ("content-type".to_owned(), EVENT.to_owned()),
        (CALL_DEPTH.to_owned(), depth.to_string()),
    ];
    headers.extend(traceparent(&due.request).map(|parent| (TRACEPARENT.to_owned(), parent)));
    let call = NewCall {
        id: None,
        function: FunctionId::new(&namespace.unwrap_or_default(), name),
        request: StoredRequest {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            invocation: InvocationKind::Event,
            headers: Headers(headers),
            request_id: due.request.request_id.clone(),
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
        },
        body: Encoded(text(&due)),
        idempotency_key: Some(id(&due)),
        owner: Some(OWNER.to_owned()),
        callback: None,
    };
    Ok(EventCall { call, depth })
}

/// Names the end: a call that is queued anew may end again.
fn id(due: &DueEvent) -> String {
    let call = &due.stored.row.call;
    format!("{}/{}", call.id, call.finished_unix_ms.unwrap_or(0))
}

fn traceparent(request: &StoredRequest) -> Option<String> {
    let value = request.headers.map().get(TRACEPARENT)?.to_str().ok()?.to_owned();
    Some(value)
}

#[derive(Serialize)]
struct Event<'a> {
    specversion: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    source: String,
    subject: &'a str,
    id: String,
    time: String,
    datacontenttype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    data: CallData<'a>,
}

#[derive(Serialize)]
struct CallData<'a> {
    async_id: &'a str,
    request_id: &'a str,
    attempts: u32,
    request: CallRequest<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<CallResponse<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CallError<'a>>,
}

#[derive(Serialize)]
struct CallRequest<'a> {
    method: &'a str,
    path: &'a str,
    #[serde(flatten)]
    body: EventBody<'a>,
}

#[derive(Serialize)]
struct CallResponse<'a> {
    status: u16,
    #[serde(flatten)]
    body: EventBody<'a>,
}

#[derive(Serialize)]
struct CallError<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Default, Serialize)]
struct EventBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<ReadableBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<Encoded>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    body_left_out: bool,
}

/// JSON, byte for byte as it was sent, or another text.
#[derive(Serialize)]
#[serde(untagged)]
enum ReadableBody<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

impl<'a> EventBody<'a> {
    /// A body that is sent on, unless it has more than `most` bytes.
    fn of(headers: &Headers, body: &'a [u8], most: usize) -> Self {
        let headers = headers.map();
        let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok());
        let mut told = Self {
            content_type: kind.map(str::to_owned),
            ..Self::default()
        };
        if body.len() > most {
            told.body_left_out = true;
            return told;
        }
        let media = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let is_json = media == "application/json" || media.ends_with("+json");
        let sent = if is_json { json(body) } else { None };
        match (sent, std::str::from_utf8(body)) {
            (Some(json), _) => told.body = Some(ReadableBody::Json(json)),
            (None, Ok(text)) => told.body = Some(ReadableBody::Text(text)),
            (None, Err(_)) => told.body_base64 = Some(Encoded(body.to_vec().into())),
        }
        told
    }
}

/// JSON as it is, if whoever reads the event can be expected to read it. A client must not be able to hide how its call
/// ended by brackets in ten thousand levels.
fn json(body: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice::<Value>(body).ok()?;
    serde_json::from_slice(body).ok()
}

fn text(due: &DueEvent) -> Bytes {
    let whole = event(due, PART_MAX);
    // JSON writes some bytes as six.
    if whole.len() <= BODY_MAX {
        return whole.into();
    }
    event(due, 0).into()
}

/// The event as JSON, with bodies of at most this many bytes.
fn event(due: &DueEvent, part_max: usize) -> Vec<u8> {
    let call = &due.stored.row.call;
    let result = due.stored.clone().result();
    let request = CallRequest {
        method: &due.request.method,
        path: &due.request.path,
        body: EventBody::of(&due.request.headers, &due.body, part_max),
    };
    let answer = result.answer.as_ref().map(|answer| CallResponse {
        status: answer.status,
        body: match answer.body_dropped {
            true => EventBody {
                body_left_out: true,
                ..EventBody::default()
            },
            false => EventBody::of(&answer.headers, &answer.body.0, part_max),
        },
    });
    let since = Duration::from_millis(u64::try_from(call.finished_unix_ms.unwrap_or(0)).unwrap_or(0));
    let event = Event {
        specversion: "1.0",
        kind: match call.state {
            CallState::Done => "rekindle.function.succeeded",
            _ => "rekindle.function.failed",
        },
        source: format!("/functions/{}", call.function),
        subject: call.id.as_str(),
        id: id(due),
        time: humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string(),
        datacontenttype: "application/json",
        traceparent: traceparent(&due.request),
        data: CallData {
            async_id: call.id.as_str(),
            request_id: &call.request_id,
            attempts: call.attempts,
            request,
            answer,
            error: result.error.as_ref().map(|error| CallError {
                code: error.code.as_str(),
                message: &error.message,
            }),
        },
    };
    // Texts, numbers and JSON that was read cannot fail.
    serde_json::to_vec(&event).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rekindle_wire::CallId;
    use rekindle_wire::asynchronous::{AsyncCall, StoredResponse};
    use serde_json::json;

    use super::*;
    use crate::store::{CallRow, StoredCall};

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn due(to: &str, depth: u32, answer: Option<(&str, &[u8])>, error: Option<ApiError>) -> DueEvent {
        let state = if error.is_some() {
            CallState::Dead
        } else {
            CallState::Done
        };
        let call = AsyncCall {
            id: CallId::generate(),
            function: "orders.team".parse().unwrap(),
            state,
            method: "POST".to_owned(),
            path: "/a".to_owned(),
            request_id: "r-1".to_owned(),
            idempotency_key: None,
            accepted_unix_ms: 0,
            due_unix_ms: None,
            finished_unix_ms: Some(1_795_737_600_000),
            attempts: 2,
            failures: 1,
            bytes: 0,
            status: None,
            error,
            callback: None,
            destination: None,
        };
        let mut row = CallRow::new(call, 3, 0);
        row.answered(answer.map(|(kind, _)| StoredResponse {
            status: 200,
            headers: Headers(vec![("content-type".to_owned(), kind.to_owned())]),
            body: Encoded::default(),
            body_dropped: false,
        }));
        let headers = [
            ("content-type", "application/json"),
            (CALL_DEPTH, &depth.to_string()),
            (TRACEPARENT, PARENT),
            ("x-api-key", "hush"),
        ];
        DueEvent {
            stored: StoredCall {
                row,
                body: answer.map(|(_, body)| body.to_vec()),
                answer_sealed: None,
            },
            to: to.parse().unwrap(),
            attempt: 1,
            request: StoredRequest {
                method: "POST".to_owned(),
                path: "/a".to_owned(),
                invocation: InvocationKind::Http,
                headers: Headers(headers.map(|(n, v)| (n.to_owned(), v.to_owned())).into()),
                request_id: "r-1".to_owned(),
                peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            },
            body: b"{\"order\": 7}".to_vec(),
        }
    }

    fn read(body: &Encoded) -> Value {
        serde_json::from_slice(&body.0).unwrap()
    }

    #[test]
    fn a_function_gets_the_request_the_answer_and_its_place_in_the_chain() {
        let EventCall { call, depth } = call(due("audit", 3, Some(("application/json", b"{\"n\": 7}")), None)).unwrap();
        assert_eq!((call.function.as_str(), depth), ("audit.team", 4));
        assert_eq!(depth_of(&call.request.headers.map()), 4);
        assert_eq!(call.request.headers.map()[TRACEPARENT], PARENT);
        let told = read(&call.body);
        assert!(!told.to_string().contains("hush"), "headers are nobody else's: {told}");
        assert_eq!(told["type"], "rekindle.function.succeeded");
        assert_eq!(told["source"], "/functions/orders.team");
        assert_eq!(told["time"], "2026-11-27T00:00:00.000Z");
        assert_eq!(told["traceparent"], PARENT);
        assert_eq!(told["id"].as_str(), call.idempotency_key.as_deref());
        let data = &told["data"];
        assert_eq!((&data["attempts"], &data["answer"]["status"]), (&json!(2), &json!(200)));
        assert_eq!(
            (&data["request"]["path"], &data["request"]["body"]),
            (&json!("/a"), &json!({"order": 7}))
        );
        assert_eq!(data["answer"]["body"], json!({"n": 7}));
        assert!(super::call(due("https://example.com/", 0, None, None)).is_err());
    }

    #[test]
    fn json_is_sent_on_byte_for_byte() {
        let json = r#"{"n": 123456789012345678901234567890, "b": 1, "a": 1.10, "b": "\u00e9"}"#;
        let mut due = due("audit", 0, Some(("application/x+json", json.as_bytes())), None);
        due.body = json.as_bytes().to_vec();
        let event = call(due).unwrap().call.body;
        let text = std::str::from_utf8(&event.0).unwrap();
        assert_eq!(text.matches(&format!("\"body\":{json}")).count(), 2, "{text}");
    }

    #[test]
    fn any_answer_can_be_told_within_bounds() {
        let told = |kind, body: &[u8]| {
            let posted = posted(due("https://example.com/", 0, Some((kind, body)), None));
            let event = posted.event.unwrap();
            assert!(event.0.len() <= BODY_MAX);
            read(&event)["data"]["answer"].clone()
        };
        assert_eq!(told("text/plain", b"{}")["body"], "{}");
        assert_eq!(told("application/json", b"{")["body"], "{");
        assert_eq!(told("image/png", b"\xff")["body_base64"], "/w==");
        let deep = format!("{}{}", "[".repeat(9_999), "]".repeat(9_999));
        assert_eq!(told("application/json", deep.as_bytes())["body"], deep);
        let wide = [1; PART_MAX];
        for long in [&wide[..], &[b'x'; PART_MAX + 1]] {
            let long = told("text/plain", long);
            assert_eq!((&long["body_left_out"], long.get("body")), (&json!(true), None));
        }
        let error = ApiError::new(ErrorCode::FunctionTimeout, "too slow");
        let failed = posted(due("https://example.com/", 0, None, Some(error)));
        let failed = read(&failed.event.unwrap());
        assert_eq!(failed["type"], "rekindle.function.failed");
        assert_eq!(failed["data"]["error"]["code"], "function_timeout");
    }
}
