//! `fn invoke --json`: everything about a response as one JSON object, for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use rekindle_wire::{ApiError, headers};
use reqwest::Response;
use serde::Serialize;

use super::Head;

/// The object that is printed. A key without a value is left out.
#[derive(Debug, Serialize)]
struct Invocation {
    status: u16,
    /// How its instance was started, and which it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    /// From sending until the last byte.
    ms: f64,
    /// The platform's measurements by phase, milliseconds.
    timing: BTreeMap<String, f64>,
    /// All headers; the values of a repeated one are joined by commas.
    headers: BTreeMap<String, String>,
    /// The platform's error, in place of a function's response.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ApiError>,
    #[serde(flatten)]
    body: Option<Body>,
}

/// Text if it is UTF-8.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Body {
    Body(String),
    BodyBase64(String),
}

impl Body {
    fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Body(text),
            Err(e) => Self::BodyBase64(STANDARD.encode(e.as_bytes())),
        }
    }
}

/// What is known before the body is read.
pub(super) struct ResponseHead {
    head: Head,
    headers: HeaderMap,
}

impl ResponseHead {
    pub(super) fn of(head: Head, response: &Response) -> Self {
        Self {
            head,
            headers: response.headers().clone(),
        }
    }

    /// The response was the platform's error.
    pub(super) fn failed(self, error: ApiError, took: Duration) -> Result<String> {
        self.written(Some(error), None, took)
    }

    /// The response was the function's; `body` is all of it.
    pub(super) fn answered(self, body: Vec<u8>, took: Duration) -> Result<String> {
        self.written(None, Some(Body::of(body)), took)
    }

    fn written(self, error: Option<ApiError>, body: Option<Body>, took: Duration) -> Result<String> {
        let mut all = BTreeMap::<String, String>::new();
        for (name, value) in &self.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            all.entry(name.as_str().to_owned())
                .and_modify(|v| *v = format!("{v}, {value}"))
                .or_insert_with(|| value.into_owned());
        }
        let invocation = Invocation {
            status: self.head.status.as_u16(),
            start: self.head.start,
            instance: self.head.instance,
            request_id: all.get(headers::REQUEST_ID).cloned(),
            ms: took.as_secs_f64() * 1e3,
            timing: self.head.timing.into_iter().collect(),
            headers: all,
            error,
            body,
        };
        serde_json::to_string_pretty(&invocation).context("the answer cannot be written as JSON")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(body: Option<&[u8]>) -> Value {
        let response: Response = http::Response::builder()
            .status(201)
            .header(headers::START, "restored")
            .header(headers::REQUEST_ID, "r-1")
            .header(headers::SERVER_TIMING, "restore;dur=2.5")
            .header("x-two", "a")
            .header("x-two", "b")
            .body("")
            .unwrap()
            .into();
        let begun = ResponseHead::of(Head::of(&response), &response);
        let took = Duration::from_millis(7);
        let text = match body {
            Some(body) => begun.answered(body.to_vec(), took),
            None => begun.failed(ApiError::new(rekindle_wire::ErrorCode::Throttled, "busy"), took),
        };
        serde_json::from_str(&text.unwrap()).unwrap()
    }

    #[test]
    fn text_is_text_and_other_bytes_are_base64() {
        let text = written(Some("\u{fc}ber".as_bytes()));
        let expected = json!({
            "status": 201, "start": "restored", "request_id": "r-1", "ms": 7.0, "timing": {"restore": 2.5},
            "body": "\u{fc}ber",
            "headers": {
                "x-fn-start": "restored", "x-request-id": "r-1", "server-timing": "restore;dur=2.5", "x-two": "a, b",
            },
        });
        assert_eq!(text, expected);
        let bytes = written(Some(&[0xff, 0]));
        assert_eq!((&bytes["body_base64"], &bytes["body"]), (&json!("/wA="), &Value::Null));
    }

    #[test]
    fn an_error_of_the_platform_stands_in_the_place_of_the_body() {
        let error = written(None);
        assert_eq!(error["error"]["code"], "throttled");
        assert_eq!((error.get("body"), error.get("body_base64")), (None, None));
    }
}
