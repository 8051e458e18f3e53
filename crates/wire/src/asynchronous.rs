//! Asynchronous invocations: what gateways and the scheduler say to each other of them, and what users see.
//!
//! ```text
//! accepted ──> queued ──claimed──> running ──answered──> done
//!                ▲                    │
//!                └── failed, or its ──┤
//!                    gateway is gone  └─ attempts or age used up, or of no use ──> dead ──retry──> queued
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
use crate::ids::{CallId, FunctionName, GatewayId};

/// The largest body of an asynchronous invocation, and of an answer that is kept, bytes.
pub const BODY_MAX: usize = 1 << 20;
/// The longest idempotency key, bytes.
pub const KEY_MAX: usize = 200;
/// The longest URL of a callback, bytes.
pub const CALLBACK_MAX: usize = 2_000;
/// Calls that one claim brings at most.
pub const CLAIM_MAX: u32 = 16;

/// Where an asynchronous invocation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// It waits to be run, for the first time or again.
    Queued,
    /// A gateway runs it.
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

    /// Whether nothing more happens to the call by itself.
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

/// Bytes, as base64 in JSON.
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

/// Headers in JSON, in order. A value's bytes are the characters of the same numbers, so that none is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// The headers of a message.
    pub fn of(map: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| value.as_bytes().iter().map(|b| char::from(*b)).collect();
        Self(map.iter().map(|(n, v)| (n.as_str().to_owned(), text(v))).collect())
    }

    /// As a message has them; what cannot be a header is left out.
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

/// A request, but for its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The method.
    pub method: String,
    /// Path and query below the function; starts with `/`.
    pub path: String,
    /// `http`, or `event`.
    pub invocation: String,
    /// Its headers, with the trace that it belongs to.
    pub headers: Headers,
    /// The id its client was told.
    pub request_id: String,
    /// The client's address.
    pub peer: IpAddr,
}

/// Asks the scheduler to keep a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCall {
    /// Its id, made by the gateway, so that one that is sent again since nobody answered is the same; made by the scheduler where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// The function.
    pub function: FunctionName,
    /// The request.
    pub request: StoredRequest,
    /// Its body.
    pub body: Encoded,
    /// By which its client may send it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Whose it is, where its client has shown a key: that key's name. Else it belongs to whoever knows the whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Where to post what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
}

/// The call is kept durably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedCall {
    /// Its id.
    pub id: CallId,
    /// Whether its idempotency key was known: then this is the earlier call's id, and nothing more is run.
    pub known: bool,
    /// Where what comes of it can be fetched, relative to the gateway.
    pub result: String,
}

/// A gateway asks for work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The gateway.
    pub gateway: GatewayId,
    /// Calls it has room for.
    pub room: u32,
    /// Callbacks it has room for.
    pub callbacks: u32,
    /// How long it waits for some, milliseconds.
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

/// A call that a gateway is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedCall {
    /// Which one.
    pub id: CallId,
    /// Which attempt this is, from 1. What is told of it later must name it.
    pub attempt: u32,
    /// The function.
    pub function: FunctionName,
    /// The request.
    pub request: StoredRequest,
    /// Its body.
    pub body: Encoded,
}

/// A callback that a gateway is to post.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedCallback {
    /// Where.
    pub url: String,
    /// The attempts at it so far, this one included.
    pub attempt: u32,
    /// The id that the call's client was told.
    pub request_id: String,
    /// What came of the call.
    pub result: CallResult,
}

/// A gateway still runs these calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The gateway.
    pub gateway: GatewayId,
    /// The calls, with their attempts.
    pub held: Vec<(CallId, u32)>,
}

/// What an attempt at a call came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOutcome {
    /// The call.
    pub id: CallId,
    /// Which attempt.
    pub attempt: u32,
    /// What it came to.
    pub what: AttemptOutcome,
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The function answered, with whatever status.
    Answered(StoredAnswer),
    /// It did not.
    Failed(ApiError),
    /// The gateway ends, and nothing is known of the attempt.
    Released,
}

/// What a callback came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackOutcome {
    /// The call.
    pub id: CallId,
    /// Which attempt at its callback.
    pub attempt: u32,
    /// Why it was not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether another attempt would end the same way.
    #[serde(default)]
    pub is_final: bool,
}

/// A function's answer, kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    #[serde(default)]
    pub body: Encoded,
    /// Whether the body was larger than [`BODY_MAX`], and is not kept.
    #[serde(default)]
    pub body_dropped: bool,
}

/// What is known of what came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// Which one.
    pub id: CallId,
    /// The function.
    pub function: FunctionName,
    /// Where it stands.
    pub state: CallState,
    /// Attempts so far.
    pub attempts: u32,
    /// The answer: the function's last one.
    pub answer: Option<StoredAnswer>,
    /// Why the last attempt was none, or why the call was given up.
    pub error: Option<ApiError>,
}

/// An asynchronous invocation, as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AsyncCall {
    /// Its id.
    pub id: CallId,
    /// The function.
    pub function: FunctionName,
    /// Where it stands.
    pub state: CallState,
    /// The request's method.
    pub method: String,
    /// Path and query below the function.
    pub path: String,
    /// The id its client was told.
    pub request_id: String,
    /// By which its client may send it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When it was accepted, milliseconds since the Unix epoch.
    pub accepted_unix_ms: i64,
    /// A queued call's next attempt is not before this, milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_unix_ms: Option<i64>,
    /// When it was answered or given up, milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_unix_ms: Option<i64>,
    /// Attempts so far.
    pub attempts: u32,
    /// Those among them that count against `max_attempts`.
    pub failures: u32,
    /// Size of what is kept of it, bytes.
    pub bytes: u64,
    /// The status of the function's last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the last attempt failed, or why it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Where what came of it is posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackInfo>,
}

/// A call's callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallbackInfo {
    /// Where it is posted.
    pub url: String,
    /// `waiting` for the call's end or the next attempt, `delivered`, or `failed`.
    pub state: String,
    /// Attempts so far.
    pub attempts: u32,
    /// Why the last one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How many calls were changed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// That many.
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
