//! Asynchronous invocations: messages between gateways and the scheduler about them, and what users see of them.
//!
//! ```text
//! accepted ──> queued ──claimed──> running ──answered──> done
//!                ▲                    │
//!                └── failed, or its ──┤
//!                    gateway is gone  └─ attempts or age used up, or futile ──> dead ──retry──> queued
//! ```

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ids::{CallId, FunctionId, GatewayId};

/// Maximum size of an asynchronous invocation's body, and of a stored response body, in bytes.
pub const BODY_MAX: usize = 1 << 20;
/// Maximum length of an idempotency key in bytes.
pub const KEY_MAX: usize = 200;
/// Maximum length of a callback's URL in bytes.
pub const CALLBACK_MAX: usize = 2_000;
/// Maximum number of calls per claim.
pub const CLAIM_MAX: u32 = 16;

/// State of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// It waits to be run, for the first time or again.
    Queued,
    /// A gateway is running it.
    Running,
    /// The function has answered.
    Done,
    /// It was given up: a dead letter.
    Dead,
}

impl CallState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Running, Self::Done, Self::Dead];

    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }

    /// Whether the call stays in this state on its own.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dead)
    }
}

impl fmt::Display for CallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CallState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|s| s.as_str() == text);
        known.ok_or_else(|| format!("\"{text}\" is no state of a call: use queued, running, done or dead"))
    }
}

/// Bytes, encoded as base64 in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

impl Serialize for Encoded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

/// Headers in JSON, in order. Each byte of a value becomes the character with that number, so that no byte is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// The headers of a message.
    pub fn of(map: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| value.as_bytes().iter().map(|b| char::from(*b)).collect();
        Self(map.iter().map(|(n, v)| (n.as_str().to_owned(), text(v))).collect())
    }

    /// The headers as those of a message. Invalid ones are left out.
    pub fn map(&self) -> HeaderMap {
        let bytes = |text: &str| text.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>().ok();
        let pairs = self.0.iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(&bytes(value)?).ok()?;
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        });
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value);
        }
        map
    }
}

/// How a function is invoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvocationKind {
    /// With a request as its client has sent it.
    Http,
    /// With an event, which is the body.
    Event,
}

impl InvocationKind {
    /// The value of [`crate::headers::INVOCATION`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Event => "event",
        }
    }
}

/// A request without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The method.
    pub method: String,
    /// Path and query below the function. Starts with `/`.
    pub path: String,
    /// How the function is invoked with it.
    pub invocation: InvocationKind,
    /// Its headers, including its trace context.
    pub headers: Headers,
    /// The request id that its client was given.
    pub request_id: String,
    /// The client's address.
    pub peer: IpAddr,
}

/// Asks the scheduler to store a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCall {
    /// The call's id. The gateway generates it, so that a request that is repeated for lack of a response has the same
    /// id. If there is none, the scheduler generates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// The function.
    pub function: FunctionId,
    /// The request.
    pub request: StoredRequest,
    /// Its body.
    pub body: Encoded,
    /// The client's key for repeating the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The name of the client's key, if it has shown one: the call's owner. Otherwise the call belongs to anyone who
    /// knows the whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// URL to which the result is posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
}

/// The call has been stored durably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedCall {
    /// Its id.
    pub id: CallId,
    /// Whether its idempotency key was known. If so, this is the earlier call's id, and nothing more is run.
    pub known: bool,
    /// Path of the result, relative to the gateway.
    pub result: String,
}

/// A gateway's request for work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The gateway.
    pub gateway: GatewayId,
    /// Number of calls that it has room for.
    pub room: u32,
    /// Number of calls that it runs at most. 0: it does not say.
    #[serde(default)]
    pub places: u32,
    /// Number of callbacks that it has room for.
    pub callbacks: u32,
    /// Whether it posts events to destinations, too. Those of before the first such version do not.
    #[serde(default)]
    pub events: bool,
    /// How long it waits for work, in milliseconds.
    pub wait_ms: u64,
}

/// Work for a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Calls to run.
    pub calls: Vec<ClaimedCall>,
    /// Callbacks to post.
    pub callbacks: Vec<ClaimedCallback>,
}

/// A call that a gateway must run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedCall {
    /// The call.
    pub id: CallId,
    /// Number of the attempt, from 1. Later messages about it must state this number.
    pub attempt: u32,
    /// The function.
    pub function: FunctionId,
    /// The request.
    pub request: StoredRequest,
    /// Its body.
    pub body: Encoded,
}

/// A callback that a gateway must post.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedCallback {
    /// URL to post to.
    pub url: String,
    /// Number of attempts so far, including this one.
    pub attempt: u32,
    /// The request id that the call's client was given.
    pub request_id: String,
    /// The result of the call.
    pub result: CallResult,
    /// The event that is posted instead, to a destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Encoded>,
    /// When the call ended, in milliseconds since the Unix epoch: the outcome names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<i64>,
}

/// States that a gateway is still running these calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The gateway.
    pub gateway: GatewayId,
    /// The calls with the numbers of their attempts.
    pub held: Vec<(CallId, u32)>,
}

/// Outcome of an attempt at a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOutcome {
    /// The call.
    pub id: CallId,
    /// Number of the attempt.
    pub attempt: u32,
    /// The outcome.
    pub what: AttemptOutcome,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The function responded, with whatever status.
    Answered(StoredResponse),
    /// The function did not respond.
    Failed(ApiError),
    /// The gateway is shutting down, and the outcome of the attempt is unknown.
    Released,
}

/// Outcome of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackOutcome {
    /// The call.
    pub id: CallId,
    /// Number of the attempt at its callback.
    pub attempt: u32,
    /// Why it was not delivered. `None` if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether another attempt would have the same outcome.
    #[serde(default)]
    pub is_final: bool,
    /// Whether it was for a destination.
    #[serde(default)]
    pub is_event: bool,
    /// When the call had ended. It may have ended again since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<i64>,
}

/// A stored response of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    #[serde(default)]
    pub body: Encoded,
    /// Whether the body was larger than [`BODY_MAX`] and so was not stored.
    #[serde(default)]
    pub body_dropped: bool,
}

/// The known result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The call.
    pub id: CallId,
    /// The function.
    pub function: FunctionId,
    /// Its state.
    pub state: CallState,
    /// Number of attempts so far.
    pub attempts: u32,
    /// The function's last response.
    pub answer: Option<StoredResponse>,
    /// Why the last attempt got no response, or why the call was given up.
    pub error: Option<ApiError>,
}

/// An asynchronous invocation, as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AsyncCall {
    /// Its id.
    pub id: CallId,
    /// The function.
    pub function: FunctionId,
    /// Its state.
    pub state: CallState,
    /// The request's method.
    pub method: String,
    /// Path and query below the function.
    pub path: String,
    /// The request id that its client was given.
    pub request_id: String,
    /// The client's key for repeating the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Time of acceptance in milliseconds since the Unix epoch.
    pub accepted_unix_ms: i64,
    /// Earliest time of a queued call's next attempt, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_unix_ms: Option<i64>,
    /// Time of the response or of giving up, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_unix_ms: Option<i64>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Number of those attempts that count against `max_attempts`.
    pub failures: u32,
    /// Stored size in bytes.
    pub bytes: u64,
    /// Status of the function's last response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the last attempt failed, or why the call was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Its callback, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackInfo>,
    /// The destination of how it ended, if it has ended and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<CallbackInfo>,
}

/// A call's callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallbackInfo {
    /// URL that it is posted to, or the function that is invoked.
    pub url: String,
    /// `waiting` for the call's end or the next attempt, `delivered`, or `failed`.
    pub state: String,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Number of calls that were changed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Number of calls.
    pub calls: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_header_and_a_body_survives_json() {
        let mut map = HeaderMap::new();
        map.append("x-bytes", HeaderValue::from_bytes(b"a\xe9\xff").unwrap());
        map.append("x-bytes", HeaderValue::from_static("second"));
        let text = serde_json::to_string(&Headers::of(&map)).unwrap();
        assert_eq!(serde_json::from_str::<Headers>(&text).unwrap().map(), map);
        let body = Encoded(Bytes::from_static(b"\0\xff\n"));
        let text = serde_json::to_string(&body).unwrap();
        assert_eq!(serde_json::from_str::<Encoded>(&text).unwrap(), body);
    }

    #[test]
    fn what_is_no_header_is_left_out() {
        let bad = Headers(vec![
            ("a b".into(), "x".into()),
            ("a".into(), "\u{100}".into()),
            ("b".into(), "c".into()),
        ]);
        assert_eq!(bad.map().len(), 1);
    }
}
