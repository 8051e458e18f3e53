//! Calls between functions of one namespace: what a worker says of a call that it passes on to a gateway.

use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::error::{ApiError, ErrorCode};
use crate::headers::{CALL_DEPTH, FUNCTION_CALL};
use crate::ids::{FunctionId, InstanceId};

/// The domain of functions inside of sandboxes: `NAME.fn.internal` is the function NAME of the caller's own namespace.
/// `internal` is reserved for private use, so no resolver of the world ever answers it.
pub const CALL_DOMAIN: &str = "fn.internal";

/// Most calls that one invocation may be the end of: a function that calls a function, and so on.
pub const CALL_DEPTH_MAX: u32 = 16;

/// A function's call of another one, as the caller's worker knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function that calls.
    pub caller: FunctionId,
    /// The instance of it that calls.
    pub instance: InstanceId,
    /// Whom it calls: `NAME`, `ALIAS--NAME` or `VERSION--NAME`, as in a host. The namespace is the caller's.
    pub callee: String,
    /// How.
    pub how: CallKind,
    /// Number of calls that led here, this one included.
    pub depth: u32,
    /// The milliseconds that the caller has left.
    pub left_ms: u64,
}

/// What a called function is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// The request.
    Http,
    /// The request's body, as an event.
    Event,
    /// The same, later.
    Later,
}

impl FunctionCall {
    /// The header that carries it. `None` if it cannot be written, which no caller can bring about.
    pub fn to_header(&self) -> Option<HeaderValue> {
        let text = serde_json::to_string(self).ok()?;
        HeaderValue::from_str(&text).ok()
    }

    /// The call that a worker's request carries.
    ///
    /// # Errors
    /// `bad_request` if it carries none that can be read.
    pub fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let sent = headers.get(FUNCTION_CALL);
        let call = sent.and_then(|value| serde_json::from_slice(value.as_bytes()).ok());
        call.ok_or_else(|| {
            let message = format!("the header {FUNCTION_CALL} names no call: only workers send it");
            ApiError::new(ErrorCode::BadRequest, message)
        })
    }
}

/// Number of calls that led to an invocation, as the header of a request between roles says it.
pub fn depth_of(headers: &HeaderMap) -> u32 {
    let sent = headers.get(CALL_DEPTH).and_then(|value| value.to_str().ok());
    sent.and_then(|depth| depth.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let call = FunctionCall {
            caller: "orders.team".parse().unwrap(),
            instance: InstanceId::generate(),
            callee: "canary--stock".to_owned(),
            how: CallKind::Event,
            depth: 3,
            left_ms: 1_500,
        };
        let mut headers = HeaderMap::new();
        assert_eq!(FunctionCall::of(&headers).unwrap_err().code, ErrorCode::BadRequest);
        headers.insert(FUNCTION_CALL, call.to_header().unwrap());
        assert_eq!(FunctionCall::of(&headers), Ok(call));
        headers.insert(FUNCTION_CALL, HeaderValue::from_static("{}"));
        assert!(FunctionCall::of(&headers).is_err());
    }

    #[test]
    fn an_invocation_of_a_client_has_no_depth() {
        let mut headers = HeaderMap::new();
        assert_eq!(depth_of(&headers), 0);
        headers.insert(CALL_DEPTH, HeaderValue::from_static("4"));
        assert_eq!(depth_of(&headers), 4);
    }
}
