//! What happens to a call after an attempt: a pure function of the call, the outcome and the time.
//!
//! | the attempt | then |
//! |---|---|
//! | was answered below 500 | done |
//! | was answered 500 or more, threw, crashed, timed out, could not start | again after 1, 2, 4, … seconds, |
//! | | at most `max_attempts` times |
//! | did not reach the function: no slot, no worker | again, without counting |
//! | cannot succeed: no such function, an impossible request | dead |
//!
//! Each back-off is drawn from the upper half of its range, so that calls that failed together do not return together.

use std::time::Duration;

use rekindle_wire::asynchronous::AttemptOutcome;
use rekindle_wire::{ApiError, ErrorCode};

use crate::store::{CallDisposition, CallNotification, CallRow};

/// First pause; each further one is twice as long.
const PAUSE_MS: u64 = 1_000;
const PAUSE: Duration = Duration::from_millis(PAUSE_MS);
/// Longest pause after an attempt that counts.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Longest pause after an attempt that did not reach the function.
const UNREACHED_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of attempts at a callback.
const CALLBACK_ATTEMPTS: u32 = 8;
/// Maximum number of attempts to tell a destination: 45 minutes or so.
const EVENT_ATTEMPTS: u32 = 16;

/// Decides what happens to a call. `draw` is a random number from 0 to 1.
pub(super) fn judge(row: &CallRow, outcome: AttemptOutcome, now_unix_ms: i64, draw: f64) -> CallDisposition {
    let failed = match outcome {
        AttemptOutcome::Released => {
            return CallDisposition::Again {
                due_unix_ms: now_unix_ms,
                counts: false,
                error: None,
            };
        }
        AttemptOutcome::Answered(answer) if answer.status < 500 => return CallDisposition::Done { answer },
        AttemptOutcome::Answered(answer) => {
            let message = format!("{} answered {}", row.call.function, answer.status);
            (ApiError::new(ErrorCode::FunctionError, message), Some(answer))
        }
        AttemptOutcome::Failed(error) => (error, None),
    };
    let (error, answer) = failed;
    let counts = match error.code {
        ErrorCode::FunctionNotFound | ErrorCode::BadRequest | ErrorCode::TooLarge => {
            return CallDisposition::Dead { answer, error };
        }
        ErrorCode::Throttled | ErrorCode::QuotaExceeded | ErrorCode::NoCapacity | ErrorCode::Unavailable => false,
        _ => true,
    };
    let failures = row.call.failures + u32::from(counts);
    if counts && failures >= row.max_attempts {
        return CallDisposition::Dead { answer, error };
    }
    let pause = match counts {
        true => pause(failures - 1, PAUSE_MAX, draw),
        false => {
            let whole = pause(
                row.call.attempts.saturating_sub(failures + 1),
                UNREACHED_PAUSE_MAX,
                draw,
            );
            // There may be a free instance before the call is too old.
            let half = u64::try_from(row.expires_unix_ms.saturating_sub(now_unix_ms) / 2).unwrap_or(0);
            if half >= PAUSE_MS { whole.min(half) } else { whole }
        }
    };
    let due_unix_ms = now_unix_ms.saturating_add_unsigned(pause);
    if due_unix_ms < row.expires_unix_ms {
        return CallDisposition::Again {
            due_unix_ms,
            counts,
            error: Some(error),
        };
    }
    let error = match counts {
        true => error,
        false => ApiError::new(
            ErrorCode::Expired,
            format!("it is too old for another attempt; the last one: {}", error.message),
        ),
    };
    CallDisposition::Dead { answer, error }
}

/// When somebody is to be told again after `attempts`; `None` if that is given up.
pub(super) fn post_again(post: CallNotification, attempts: u32, now_unix_ms: i64, draw: f64) -> Option<i64> {
    let most = match post {
        CallNotification::Callback => CALLBACK_ATTEMPTS,
        CallNotification::Event => EVENT_ATTEMPTS,
    };
    let again = attempts < most;
    again.then(|| now_unix_ms.saturating_add_unsigned(pause(attempts.saturating_sub(1), PAUSE_MAX, draw)))
}

/// The pause after `before` others, milliseconds.
fn pause(before: u32, limit: Duration, draw: f64) -> u64 {
    let whole = PAUSE.saturating_mul(1 << before.min(16)).min(limit);
    let drawn = whole.mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0);
    u64::try_from(drawn.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rekindle_wire::asynchronous::{AsyncCall, CallState, StoredResponse};

    use super::*;

    fn row(failures: u32, attempts: u32) -> CallRow {
        let call = AsyncCall {
            id: rekindle_wire::CallId::generate(),
            function: "hello".parse().unwrap(),
            state: CallState::Running,
            method: "POST".into(),
            path: "/".into(),
            request_id: "r-1".into(),
            idempotency_key: None,
            accepted_unix_ms: 0,
            due_unix_ms: None,
            finished_unix_ms: None,
            attempts,
            failures,
            bytes: 1,
            status: None,
            error: None,
            callback: None,
            destination: None,
        };
        CallRow::new(call, 3, 100_000)
    }

    fn answered(status: u16) -> AttemptOutcome {
        AttemptOutcome::Answered(StoredResponse {
            status,
            headers: Default::default(),
            body: Default::default(),
            body_dropped: false,
        })
    }

    fn failed(code: ErrorCode) -> AttemptOutcome {
        AttemptOutcome::Failed(ApiError::new(code, "no"))
    }

    fn due(ended: CallDisposition) -> (i64, bool) {
        match ended {
            CallDisposition::Again {
                due_unix_ms, counts, ..
            } => (due_unix_ms, counts),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_is_the_end_unless_it_is_a_failure_of_the_function() {
        for status in [200, 302, 404, 429] {
            assert!(
                matches!(
                    judge(&row(0, 1), answered(status), 0, 0.0),
                    CallDisposition::Done { .. }
                ),
                "{status}"
            );
        }
        assert_eq!(due(judge(&row(0, 1), answered(503), 0, 1.0)), (1_000, true));
        let CallDisposition::Dead { answer, error } = judge(&row(2, 3), answered(500), 0, 1.0) else {
            panic!("three attempts were allowed");
        };
        assert_eq!((answer.unwrap().status, error.code), (500, ErrorCode::FunctionError));
    }

    #[test]
    fn pauses_double_and_are_drawn_from_their_upper_half() {
        assert_eq!(
            due(judge(&row(0, 1), failed(ErrorCode::FunctionError), 7, 1.0)),
            (1_007, true)
        );
        assert_eq!(
            due(judge(&row(1, 2), failed(ErrorCode::FunctionTimeout), 0, 1.0)),
            (2_000, true)
        );
        assert_eq!(
            due(judge(&row(1, 2), failed(ErrorCode::FunctionCrashed), 0, 0.0)),
            (1_000, true)
        );
        assert_eq!(pause(40, PAUSE_MAX, 1.0), 300_000);
    }

    #[test]
    fn an_attempt_that_did_not_reach_the_function_does_not_count() {
        for code in [
            ErrorCode::Throttled,
            ErrorCode::QuotaExceeded,
            ErrorCode::NoCapacity,
            ErrorCode::Unavailable,
        ] {
            assert_eq!(due(judge(&row(2, 3), failed(code), 0, 1.0)), (1_000, false), "{code:?}");
        }
        assert_eq!(
            due(judge(&row(0, 9), failed(ErrorCode::Throttled), 0, 1.0)),
            (30_000, false)
        );
    }

    #[test]
    fn what_is_too_old_for_another_attempt_is_given_up_at_once() {
        let CallDisposition::Dead { error, .. } = judge(&row(0, 1), failed(ErrorCode::Throttled), 99_500, 1.0) else {
            panic!("it comes after its end");
        };
        assert_eq!(error.code, ErrorCode::Expired);
    }

    #[test]
    fn what_did_not_reach_the_function_is_tried_until_it_is_too_old() {
        let mut now = 80_000;
        let mut attempts = Vec::new();
        while let CallDisposition::Again { due_unix_ms, .. } =
            judge(&row(0, 9), failed(ErrorCode::NoCapacity), now, 1.0)
        {
            attempts.push(due_unix_ms);
            now = due_unix_ms;
        }
        assert_eq!(attempts, [90_000, 95_000, 97_500, 98_750]);
    }

    #[test]
    fn what_cannot_succeed_is_not_tried_again() {
        for code in [ErrorCode::FunctionNotFound, ErrorCode::BadRequest] {
            assert!(matches!(
                judge(&row(0, 1), failed(code), 0, 1.0),
                CallDisposition::Dead { .. }
            ));
        }
    }

    #[test]
    fn a_gateway_that_ends_costs_nothing() {
        assert_eq!(due(judge(&row(2, 3), AttemptOutcome::Released, 5, 1.0)), (5, false));
    }

    #[test]
    fn a_callback_is_given_up_after_eight_attempts() {
        let again = |attempts| post_again(CallNotification::Callback, attempts, 0, 1.0);
        assert_eq!([1, 7, 8].map(again), [Some(1_000), Some(64_000), None]);
        let again = |attempts| post_again(CallNotification::Event, attempts, 0, 1.0);
        assert_eq!([1, 15, 16].map(again), [Some(1_000), Some(300_000), None]);
    }
}
