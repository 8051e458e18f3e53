//! What the answer to a batch means for its messages.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use rekindle_wire::headers::INSTANCE;
use rekindle_wire::{ApiError, ErrorCode};
use serde::Deserialize;

/// Longest wait that an answer may ask for.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// Longest reason that a dead letter carries, in characters.
const REASON_MAX: usize = 500;

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Succeeded,
    /// These of its messages failed, by their ids.
    SomeFailed(Vec<String>),
    /// All of them failed.
    Failed {
        reason: String,
        /// The earliest time for another attempt.
        after: Option<Duration>,
        /// Whether the function asks for less.
        is_overloaded: bool,
    },
    /// The batch is larger than the platform passes on. Parts of it may not be.
    TooLarge {
        reason: String,
    },
    /// The function has seen nothing of it, so that it does not count.
    Refused {
        reason: String,
        after: Option<Duration>,
        /// Whether waiting is all that it takes. Otherwise somebody must mend something.
        is_busy: bool,
    },
}

/// What a function may answer to a batch: which messages failed. The form is Lambda's.
#[derive(Deserialize)]
struct BatchResponse {
    #[serde(rename = "batchItemFailures")]
    failures: Option<Vec<BatchItemFailure>>,
}

#[derive(Deserialize)]
struct BatchItemFailure {
    #[serde(rename = "itemIdentifier")]
    id: String,
}

/// Judges an answer. `ids` are those of a batch, or none if the function got a single event. No body is one that was
/// too long.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>, ids: &[&str]) -> Verdict {
    let after = retry_after(headers);
    // The gateway names the instance in every answer of a function, and in none of its own.
    let is_own = !headers.contains_key(INSTANCE);
    let failed = |reason: String, is_overloaded| Verdict::Failed {
        reason: cut(reason),
        after,
        is_overloaded,
    };
    // A proxy before the gateway says it by the status alone.
    if is_own && (status == StatusCode::PAYLOAD_TOO_LARGE || is_too_large(body)) {
        return Verdict::TooLarge {
            reason: cut(reason(status, body)),
        };
    }
    let is_outage = is_own && !is_the_functions(body);
    match status {
        status if status.is_success() => match body {
            _ if ids.is_empty() => Verdict::Succeeded,
            Some(body) => answered(body, ids).unwrap_or_else(|reason| failed(reason, false)),
            None => failed("the answer is too long to say which messages failed".to_owned(), false),
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if is_outage => Verdict::Refused {
            reason: reason(status, body),
            after,
            is_busy: false,
        },
        _ if is_outage => Verdict::Refused {
            reason: reason(status, body),
            after,
            is_busy: true,
        },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => failed(reason(status, body), true),
        status => failed(reason(status, body), false),
    }
}

fn is_too_large(body: Option<&[u8]>) -> bool {
    let error = serde_json::from_slice::<ApiError>(body.unwrap_or_default());
    error.is_ok_and(|error| error.code == ErrorCode::TooLarge)
}

/// Whether an answer of the platform's own is about what the function did with the messages, or about the messages
/// themselves. All else passes, or is for somebody to mend, and another attempt may succeed.
fn is_the_functions(body: Option<&[u8]>) -> bool {
    let error = serde_json::from_slice::<ApiError>(body.unwrap_or_default());
    error.is_ok_and(|error| {
        matches!(
            error.code,
            ErrorCode::FunctionError
                | ErrorCode::FunctionTimeout
                | ErrorCode::FunctionCrashed
                | ErrorCode::FunctionOutOfMemory
                | ErrorCode::InvalidResponse
                | ErrorCode::BootFailed
                | ErrorCode::CallTooDeep
                | ErrorCode::HeadersTooLarge
                | ErrorCode::BadRequest
        )
    })
}

/// Which messages of a batch failed by the function's word. An answer that names others is not believed: all failed.
fn answered(body: &[u8], ids: &[&str]) -> Result<Verdict, String> {
    // Anything else that a function answers says nothing of failures.
    let Ok(BatchResponse {
        failures: Some(failures),
    }) = serde_json::from_slice::<BatchResponse>(body)
    else {
        return match serde_json::from_slice::<serde_json::Value>(body) {
            Ok(value) if value.get("batchItemFailures").is_some_and(|list| !list.is_null()) => {
                Err("batchItemFailures is no list of {\"itemIdentifier\": ID}".to_owned())
            }
            _ => Ok(Verdict::Succeeded),
        };
    };
    let failed: Vec<String> = failures.into_iter().map(|item| item.id).collect();
    match failed.iter().find(|id| !ids.contains(&id.as_str())) {
        Some(other) => Err(format!(
            "batchItemFailures names \"{other}\", which is no message of the batch"
        )),
        None if failed.is_empty() => Ok(Verdict::Succeeded),
        None => Ok(Verdict::SomeFailed(failed)),
    }
}

/// The status, and what the platform or the runtime says.
fn reason(status: StatusCode, body: Option<&[u8]>) -> String {
    #[derive(Deserialize)]
    struct ThrownException {
        #[serde(rename = "errorType")]
        kind: String,
        #[serde(rename = "errorMessage", default)]
        message: String,
    }
    let body = body.unwrap_or_default();
    let said = match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => Some(error.to_string()),
        Err(_) => serde_json::from_slice::<ThrownException>(body)
            .ok()
            .map(|thrown| format!("{}: {}", thrown.kind, thrown.message)),
    };
    match said {
        Some(said) => format!("{}: {said}", status.as_u16()),
        None => format!("answered {}", status.as_u16()),
    }
}

/// Cut, on one line, and in characters that a header takes.
fn cut(reason: String) -> String {
    let plain = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    reason.chars().map(plain).take(REASON_MAX).collect()
}

/// `Retry-After` in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = value.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(status: u16, headers: &[(&'static str, &'static str)], body: &str, ids: &[&str]) -> Verdict {
        let headers = headers.iter().map(|(n, v)| {
            let name = http::HeaderName::from_static(n);
            (name, HeaderValue::from_static(v))
        });
        let status = StatusCode::from_u16(status).unwrap();
        judge(status, &headers.collect(), Some(body.as_bytes()), ids)
    }

    const FUNCTION: (&str, &str) = ("x-fn-instance", "i-1");

    #[test]
    fn a_batch_says_which_of_its_messages_failed() {
        let batch = ["a", "b"];
        for (body, expected) in [
            ("", Verdict::Succeeded),
            ("null", Verdict::Succeeded),
            ("[1]", Verdict::Succeeded),
            ("{\"batchItemFailures\": null}", Verdict::Succeeded),
            ("{\"batchItemFailures\": []}", Verdict::Succeeded),
            (
                "{\"batchItemFailures\": [{\"itemIdentifier\": \"b\"}]}",
                Verdict::SomeFailed(vec!["b".to_owned()]),
            ),
        ] {
            assert_eq!(of(200, &[FUNCTION], body, &batch), expected, "{body}");
        }
        for body in [
            "{\"batchItemFailures\": [{\"itemIdentifier\": \"c\"}]}",
            "{\"batchItemFailures\": [{\"itemIdentifier\": \"\"}]}",
            "{\"batchItemFailures\": [{}]}",
            "{\"batchItemFailures\": \"a\"}",
        ] {
            let verdict = of(200, &[FUNCTION], body, &batch);
            assert!(matches!(verdict, Verdict::Failed { .. }), "{body}: {verdict:?}");
        }
        let none = judge(StatusCode::OK, &HeaderMap::new(), None, &batch);
        assert!(matches!(none, Verdict::Failed { .. }));
        // A single event succeeds by its status alone.
        let body = "{\"batchItemFailures\": [{\"itemIdentifier\": \"a\"}]}";
        assert_eq!(of(204, &[FUNCTION], body, &[]), Verdict::Succeeded);
    }

    #[test]
    fn what_the_function_has_not_seen_does_not_count() {
        let throttled = "{\"code\":\"throttled\",\"message\":\"wait\",\"request_id\":\"r\"}";
        assert_eq!(
            of(429, &[("retry-after", "7")], throttled, &[]),
            Verdict::Refused {
                reason: "429: throttled: wait".to_owned(),
                after: Some(Duration::from_secs(7)),
                is_busy: true,
            }
        );
        let missing = of(404, &[], "{}", &[]);
        assert!(
            matches!(missing, Verdict::Refused { is_busy: false, .. }),
            "{missing:?}"
        );
        for (status, code) in [
            (502, "secret_unavailable"),
            (500, "internal"),
            (502, "snapshot_lost"),
            (409, "conflict"),
        ] {
            let body = format!("{{\"code\":\"{code}\",\"message\":\"m\",\"request_id\":\"r\"}}");
            let verdict = of(status, &[], &body, &[]);
            assert!(
                matches!(verdict, Verdict::Refused { is_busy: true, .. }),
                "{code}: {verdict:?}"
            );
        }
        let large = "{\"code\":\"too_large\",\"message\":\"m\",\"request_id\":\"r\"}";
        assert!(matches!(of(413, &[], large, &[]), Verdict::TooLarge { .. }));
        assert!(matches!(of(413, &[FUNCTION], large, &[]), Verdict::Failed { .. }));
        for (status, code) in [(504, "function_timeout"), (502, "function_crashed")] {
            let body = format!("{{\"code\":\"{code}\",\"message\":\"m\",\"request_id\":\"r\"}}");
            assert!(matches!(of(status, &[], &body, &[]), Verdict::Failed { .. }), "{code}");
        }
        let own = of(503, &[FUNCTION, ("retry-after", "999999")], "busy", &[]);
        assert_eq!(
            own,
            Verdict::Failed {
                reason: "answered 503".to_owned(),
                after: Some(RETRY_AFTER_MAX),
                is_overloaded: true,
            }
        );
        for status in [400, 404, 413, 500, 502, 504] {
            let verdict = of(status, &[FUNCTION], "", &[]);
            assert!(
                matches!(
                    verdict,
                    Verdict::Failed {
                        is_overloaded: false,
                        ..
                    }
                ),
                "{status}: {verdict:?}"
            );
        }
    }

    #[test]
    fn a_reason_fits_a_header() {
        let thrown = "{\"errorType\":\"ValueError\",\"errorMessage\":\"no\\nsuch \u{fc}\"}";
        let Verdict::Failed { reason, .. } = of(502, &[FUNCTION], thrown, &[]) else {
            panic!("it failed")
        };
        assert_eq!(reason, "502: ValueError: no?such ?");
    }
}
