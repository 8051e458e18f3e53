//! One attempt at an invocation, from the moment its instance may see it. It decides what happens to the slot, whether
//! or not the client waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{HeaderValue, Response};
use rekindle_relay::{ResponseEnd, TrackedBody, Tunnel};
use rekindle_wire::api::StartKind;
use rekindle_wire::headers::{START, TIME_LEFT_MS};
use rekindle_wire::internal::start_limit;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::clients::ClientPermit;
use crate::forward::{self, AttemptResult, Outgoing};
use crate::lease::LeasedInstance;
use crate::slots::Slot;
use crate::usage::{AnswerMeter, Meter, Usage};
use crate::workers::Workers;

/// The worker enforces the limits of a start; this is for a worker that does not answer at all.
const SPARE: Duration = Duration::from_secs(5);

/// What an invocation holds until the function is done with it, whether or not its client is still there.
pub(crate) struct InvocationPermits {
    /// Place among the requests in flight.
    pub(crate) _permit: OwnedSemaphorePermit,
    /// Place among its client's requests.
    pub(crate) _client: Option<Arc<ClientPermit>>,
}

/// Everything that one attempt needs, so that it can outlast its client.
pub(crate) struct Exchange {
    pub(crate) workers: Workers,
    pub(crate) token: HeaderValue,
    pub(crate) outgoing: Arc<Outgoing>,
    pub(crate) slot: Slot,
    pub(crate) place: Arc<InvocationPermits>,
    /// Closes the client's connection.
    pub(crate) connection: CancellationToken,
    pub(crate) usage: Arc<Usage>,
}

/// Outcome of an attempt.
#[allow(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made: a box would be one more allocation for each request"
)]
pub(crate) enum AttemptOutcome {
    /// The function's response begins.
    Answered(StartedResponse),
    /// An error that is the invocation's outcome.
    Failed(ApiError),
    /// The function has seen nothing of it, or may see it twice. Another attempt may succeed. Has the error in case
    /// there is none.
    Retry(ApiError, RetryReason),
}

pub(crate) struct StartedResponse {
    pub(crate) response: Response<Body>,
    pub(crate) leased: LeasedInstance,
    pub(crate) start: StartKind,
    /// Time from sending the request to the response's headers.
    pub(crate) took: Duration,
}

/// Why an attempt came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// The instance accepted no more requests.
    Busy,
    /// The function's server refused the request unseen.
    Refused,
    /// The instance does not exist any more.
    Gone,
    /// Another gateway leases the instance by now.
    Fenced,
    /// No connection to the worker could be made.
    Unreachable,
    /// The connection to the worker broke.
    Broken,
}

impl RetryReason {
    /// As metrics have it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Fenced => "fenced",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
        }
    }
}

/// What lasts until the function is done with an invocation.
pub(crate) struct InFlight {
    slot: Slot,
    connection: CancellationToken,
    _place: Arc<InvocationPermits>,
    _answering: AnswerMeter,
    _span: Span,
}

impl rekindle_relay::ResponseGuard for InFlight {
    fn ended(mut self, end: ResponseEnd) {
        match end {
            ResponseEnd::Whole => return,
            ResponseEnd::Late => self.slot.is_stuck(),
            ResponseEnd::Cut => self.slot.is_lost(),
        }
        // A client that does not read would not notice.
        self.connection.cancel();
    }
}

impl Exchange {
    /// Sends the request and waits for the response's headers. The function's timeout begins when its instance is
    /// ready, which the worker knows.
    pub(crate) async fn run(mut self) -> AttemptOutcome {
        let outgoing = self.outgoing.clone();
        let leased = self.slot.leased.clone();
        let start = leased.start();
        let is_started = start == StartKind::Warm && !leased.fresh;
        let limit = if is_started {
            leased.timeout
        } else {
            start_limit(leased.boot_timeout) + leased.timeout + SPARE
        };
        let sent = Instant::now();
        let deadline = tokio::time::Instant::now() + limit;
        let function = &outgoing.function;
        let meter = Meter::begin(&self.usage, function, &leased);
        let outcome = match forward::attempt(&self.workers, &self.token, &outgoing, &leased, deadline).await {
            AttemptResult::Answered(response) => {
                leased.note_answer();
                let took = sent.elapsed();
                return AttemptOutcome::Answered(self.answered(response, leased, meter, (start, took), deadline));
            }
            AttemptResult::Gone => {
                self.slot.is_gone();
                AttemptOutcome::Retry(moved(function), RetryReason::Gone)
            }
            AttemptResult::Busy => {
                self.slot.is_lost();
                AttemptOutcome::Retry(busy(function), RetryReason::Busy)
            }
            // Nothing runs in the slot.
            AttemptResult::Refused => AttemptOutcome::Retry(refused(function), RetryReason::Refused),
            AttemptResult::Fenced => {
                self.slot.is_fenced();
                AttemptOutcome::Retry(moved(function), RetryReason::Fenced)
            }
            AttemptResult::Unreachable => {
                self.slot.is_unreachable();
                AttemptOutcome::Retry(unreachable(function), RetryReason::Unreachable)
            }
            AttemptResult::BrokeOff(error) => {
                self.slot.is_lost();
                AttemptOutcome::Failed(error)
            }
            AttemptResult::Broken(error) => {
                self.slot.is_lost();
                self.slot.avoid_worker();
                match leased.idempotent {
                    true => AttemptOutcome::Retry(error, RetryReason::Broken),
                    false => AttemptOutcome::Failed(error),
                }
            }
            AttemptResult::TimedOut if is_started => {
                self.slot.is_stuck();
                AttemptOutcome::Failed(timed_out(function, leased.timeout))
            }
            // The worker does not even report that the instance did not start in time: its state is unknown.
            AttemptResult::TimedOut => {
                self.slot.is_lost();
                AttemptOutcome::Failed(not_started(function, limit))
            }
            AttemptResult::Failed { error, instance_ended } => {
                match error.code {
                    _ if instance_ended => self.slot.is_gone(),
                    // The worker's timeout fired first.
                    ErrorCode::FunctionTimeout => self.slot.is_stuck(),
                    ErrorCode::FunctionError => leased.note_answer(),
                    _ => {}
                }
                AttemptOutcome::Failed(error)
            }
        };
        // An invocation that is sent again is counted then.
        if let AttemptOutcome::Failed(_) = &outcome {
            meter.failed(start);
        }
        outcome
    }

    fn answered(
        self,
        mut response: Response<Body>,
        leased: LeasedInstance,
        meter: Meter,
        (planned, took): (StartKind, Duration),
        deadline: tokio::time::Instant,
    ) -> StartedResponse {
        let left = response
            .headers()
            .get(TIME_LEFT_MS)
            .and_then(|v| v.to_str().ok()?.parse().ok())
            .map(|ms| tokio::time::Instant::now() + Duration::from_millis(ms));
        let deadline = left.map_or(deadline, |left| left.min(deadline));
        // A restore that fails before the function ran is followed by a boot; the worker reports what happened.
        let said = response
            .headers()
            .get(START)
            .and_then(|v| v.to_str().ok()?.parse().ok());
        let start = match planned {
            StartKind::Warm => StartKind::Warm,
            planned => said.unwrap_or(planned),
        };
        let answering = meter.answered(start, response.status());
        let body = answering.counted(std::mem::take(response.body_mut()));
        let held = InFlight {
            slot: self.slot,
            connection: self.connection,
            _place: self.place,
            _answering: answering,
            _span: Span::current(),
        };
        let response = match Tunnel::take(&mut response) {
            // It has no deadline, and the function is at work until it is closed.
            Some(tunnel) => {
                response.extensions_mut().insert(tunnel.holding(held));
                response.map(|_| Body::empty())
            }
            None => response.map(|_| Body::new(TrackedBody::wrap(body, deadline, held))),
        };
        StartedResponse {
            response,
            leased,
            start,
            took,
        }
    }
}

fn timed_out(function: &FunctionId, limit: Duration) -> ApiError {
    ApiError::new(
        ErrorCode::FunctionTimeout,
        format!(
            "{function} did not answer within its timeout of {}s: raise timeout in fn.toml, or see \
             `fn logs {function}`",
            limit.as_secs_f64()
        ),
    )
}

fn not_started(function: &FunctionId, limit: Duration) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!(
            "the worker that was to start {function} did not answer within {}s: try again; `fn status` shows the \
             workers",
            limit.as_secs_f64()
        ),
    )
}

fn busy(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the instance of {function} takes no requests now, as it moves: try again"),
    )
}

fn refused(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!(
            "the server of {function} refuses requests unseen (HTTP/2: REFUSED_STREAM, GOAWAY): try again, or lower \
             concurrency in fn.toml to what it takes"
        ),
    )
}

fn moved(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the instance of {function} went away before it took the request: try again"),
    )
}

fn unreachable(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the worker that runs {function} cannot be reached: try again; `fn status` shows the workers"),
    )
}
