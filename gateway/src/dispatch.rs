//! The life of an invocation in the gateway: body, place, slot, worker, response.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{HeaderValue, Request, Response, Version};
use rekindle_relay::{DetachOnDrop, call_timeout, is_grpc, takes_trailers};
use rekindle_telemetry::TraceRef;
use rekindle_wire::api::StartKind;
use rekindle_wire::asynchronous::InvocationKind;
use rekindle_wire::headers::{
    ASYNC_ATTEMPT, ASYNC_ID, CALL_DEPTH, CALLER_FUNCTION, INSTANCE, INVOCATION, REQUEST_ID, START, VERSION,
};
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId, Selector, VersionNumber};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::body::{Intake, Sender};
use crate::clients::ClientPermit;
use crate::connection::WINDOW;
use crate::exchange::{AttemptOutcome, Exchange, InvocationPermits, RetryReason, StartedResponse};
use crate::forward::Outgoing;
use crate::metrics::{Metrics, ServingInstance};
use crate::routes::{ChosenVersion, Routes};
use crate::share::Outcome;
use crate::slots::{Slot, Slots, throttled};
use crate::timing::{self, Phases};
use crate::usage::Usage;
use crate::workers::Workers;
use crate::{grpc, headers};

/// Maximum number of counted attempts for an invocation.
const ATTEMPTS: u32 = 3;
/// An instance that is busy at the moment costs no attempt. It is asked again after a back-off that grows up to this,
/// and at most `TURNED_AWAY_MAX` times.
const BACK_OFF: Duration = Duration::from_millis(20);
const TURNED_AWAY_MAX: u32 = 256;
/// A slot that was free here but is useless by now costs no attempt either. There may be as many as instances ended at
/// once; each is met once.
const STALE_MAX: u32 = 4096;

/// State shared by invocations.
pub(crate) struct Dispatch {
    pub(crate) slots: Arc<Slots>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) workers: Workers,
    pub(crate) token: HeaderValue,
    pub(crate) in_flight: Arc<Semaphore>,
    /// Maximum length of a body that its function has in memory as a whole.
    pub(crate) max_body: u64,
    pub(crate) intake: Intake,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) usage: Arc<Usage>,
}

/// An invocation as the router understood it.
pub(crate) struct Call {
    pub(crate) function: FunctionId,
    /// Which of its versions.
    pub(crate) selector: Selector,
    /// Path and query below the function; starts with `/`.
    pub(crate) path: String,
    pub(crate) invocation: InvocationKind,
    /// Whether its caller may read what the function writes.
    pub(crate) reads_output: bool,
    /// Starts a fresh instance in this way.
    pub(crate) force: Option<StartKind>,
    pub(crate) request_id: String,
    pub(crate) peer: IpAddr,
    pub(crate) arrived: Instant,
    /// Closes the client's connection.
    pub(crate) connection: CancellationToken,
    /// What its client holds of its limits.
    pub(crate) client: Option<Arc<ClientPermit>>,
    /// For an asynchronous invocation: its id, and the number of the attempt.
    pub(crate) attempt: Option<(CallId, u32)>,
    /// What led to it, if a function called.
    pub(crate) chain: Chain,
}

/// What led to an invocation, if a function called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain {
    /// Number of calls between functions.
    pub(crate) depth: u32,
    /// The function that waits for the answer.
    pub(crate) caller: Option<FunctionId>,
    /// For how long it does.
    pub(crate) until: Option<Instant>,
}

impl Dispatch {
    /// Serves one invocation. Errors become responses here.
    pub(crate) async fn invoke(&self, call: Call, request: Request<Body>) -> Response<Body> {
        let request_id = call.request_id.clone();
        let stranger_to = (!call.reads_output).then(|| call.function.clone());
        let answer = self.serve(call, request).await;
        answer.unwrap_or_else(|error| {
            let error = match stranger_to {
                Some(function) => without_output(error, &function),
                None => error,
            };
            error.with_request_id(&request_id).into_response()
        })
    }

    pub(crate) async fn serve(&self, call: Call, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let span = tracing::info_span!(
            "invoke",
            otel.name = format!("invoke {}", call.function),
            otel.kind = "server",
            otel.status_code = tracing::field::Empty,
            rekindle.role = "gateway",
            rekindle.request_id = call.request_id,
            error.type = tracing::field::Empty,
            faas.invoked_name = call.function.as_str(),
            faas.trigger = "http",
            faas.coldstart = tracing::field::Empty,
            faas.instance = tracing::field::Empty,
            faas.version = tracing::field::Empty,
            faas.start = tracing::field::Empty,
            http.request.method = request.method().as_str(),
            url.path = request.uri().path(),
            http.response.status_code = tracing::field::Empty,
        );
        rekindle_telemetry::set_parent(&span, request.headers());
        let client = TraceRef::sent(request.headers());
        let arrived = call.arrived;
        let measured = self.metrics.measure(&call.function, arrived, client);
        let (mut chosen, mut placed) = (ChosenVersion::default(), None);
        // The deadline of a call is its client's: the function may go on past it.
        let of_client = call_timeout(request.headers()).filter(|_| is_grpc(request.headers()));
        let of_caller = call.chain.until.map(|until| until.saturating_duration_since(arrived));
        let call_timeout = of_caller.or(of_client);
        let function = call_timeout.map(|_| call.function.clone());
        let running = Box::pin(self.run(call, request, &mut chosen, &mut placed)).instrument(span.clone());
        let answer = match call_timeout.zip(function) {
            None => running.await,
            Some((limit, function)) => {
                let left = limit.saturating_sub(arrived.elapsed());
                let running = tokio::time::timeout(left, running).await;
                running.unwrap_or_else(|_| {
                    Err(match of_caller {
                        None => grpc::deadline_passed(&function),
                        Some(_) => caller_timed_out(&function),
                    })
                })
            }
        };
        if let (Some(share), Some(version)) = (&chosen.share, chosen.version)
            && let Some(outcome) = Outcome::of(answer.as_ref().map(Response::status), arrived.elapsed())
        {
            let start = placed.map(|placed: ServingInstance| placed.start.as_str());
            share.count(version, start, outcome);
        }
        let status = match &answer {
            Ok(answer) => {
                measured.answered(placed, answer.status(), &span);
                answer.status()
            }
            Err(error) => {
                span.record("error.type", error.code.as_str());
                span.record("otel.status_code", "ERROR");
                tracing::debug!(parent: &span, %error, "an invocation failed");
                measured.failed(placed, error, &span);
                error.code.status()
            }
        };
        span.record("http.response.status_code", status.as_u16());
        answer
    }

    /// Runs the invocation. `chosen` and `placed` receive what serves it, or was to, as soon as that is known.
    async fn run(
        &self,
        call: Call,
        request: Request<Body>,
        chosen: &mut ChosenVersion,
        placed: &mut Option<ServingInstance>,
    ) -> Result<Response<Body>, ApiError> {
        *chosen = self.routes.choose(&call.function, &call.selector, request.headers())?;
        let version = chosen.version;
        // Before the place: a client that does not send its body holds none.
        let max_body = self.max_body(&call, version);
        let outgoing = self.prepare(&call, request, max_body).await?;
        let permit = self.in_flight.clone().try_acquire_owned().map_err(|_| {
            self.metrics.refused("in_flight");
            ApiError::new(
                ErrorCode::Unavailable,
                "the gateway has as many requests in flight as it takes: try again, or add a gateway",
            )
        })?;
        let mut phases = Phases {
            route: call.arrived.elapsed(),
            ..Phases::default()
        };
        let outgoing = Arc::new(outgoing);
        let place = Arc::new(InvocationPermits {
            _permit: permit,
            _client: call.client.clone(),
        });
        let mut last = None;
        let place_by = tokio::time::Instant::now() + self.slots.limit();
        let (mut attempts, mut turned_away, mut stale) = (0, 0, 0);
        while attempts < ATTEMPTS && turned_away < TURNED_AWAY_MAX && stale < STALE_MAX {
            if last.is_some() && tokio::time::Instant::now() >= place_by {
                break;
            }
            let placing = Instant::now();
            let slot = tokio::time::timeout_at(place_by, self.place(&call, version)).await;
            let slot = slot.unwrap_or_else(|_| Err(throttled(&call.function)))?;
            phases.place += placing.elapsed();
            let planned = slot.leased.start();
            let serves = slot.leased.version;
            *placed = Some(ServingInstance {
                start: planned,
                version: serves,
            });
            self.metrics.placed(&call.function, planned, placing.elapsed());
            Span::current().record("faas.version", serves.0);
            // The worker should keep its part of the trace too.
            rekindle_telemetry::keep_if_slow(&Span::current(), call.arrived.elapsed());
            let exchange = Exchange {
                workers: self.workers.clone(),
                token: self.token.clone(),
                outgoing: outgoing.clone(),
                slot,
                place: place.clone(),
                connection: call.connection.clone(),
                usage: self.usage.clone(),
            };
            // From here on the function may be at work. It owns the slot until it is done, whoever waits for the
            // response.
            match DetachOnDrop::new(exchange.run()).await {
                AttemptOutcome::Answered(answer) => {
                    phases.answer = answer.took;
                    let (answer, came_to_be) = finish(&call, answer, &phases);
                    *placed = Some(ServingInstance {
                        start: came_to_be,
                        version: serves,
                    });
                    return Ok(answer);
                }
                AttemptOutcome::Failed(error) => {
                    outgoing.body.check(max_body)?;
                    return Err(error);
                }
                AttemptOutcome::Retry(error, reason) => {
                    rekindle_telemetry::keep(&Span::current());
                    self.metrics.attempted_again(reason.as_str());
                    outgoing.body.check(max_body)?;
                    if !outgoing.body.can_be_sent_again() {
                        return Err(error);
                    }
                    last = Some(error);
                    match reason {
                        // The next slot may belong to the same instance, which is frozen for a moment: it is being
                        // moved, or copied.
                        RetryReason::Busy => {
                            tokio::time::sleep(BACK_OFF.min(Duration::from_millis(1 << turned_away.min(8)))).await;
                            turned_away += 1;
                        }
                        RetryReason::Refused => {
                            tokio::time::sleep(BACK_OFF).await;
                            attempts += 1;
                        }
                        RetryReason::Gone | RetryReason::Fenced if planned == StartKind::Warm => stale += 1,
                        RetryReason::Gone | RetryReason::Fenced | RetryReason::Unreachable | RetryReason::Broken => {
                            attempts += 1
                        }
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| ApiError::new(ErrorCode::Internal, "an invocation was not attempted")))
    }

    /// The most that the request's body may have. One that its function reads while it comes has no limit, since no
    /// part of it is kept anywhere.
    fn max_body(&self, call: &Call, version: Option<VersionNumber>) -> u64 {
        let streams = |version| call.invocation == InvocationKind::Http && self.routes.streams(&call.function, version);
        if version.is_some_and(streams) {
            u64::MAX
        } else {
            self.max_body
        }
    }

    /// The request as it will go to a worker.
    async fn prepare(&self, call: &Call, request: Request<Body>, max_body: u64) -> Result<Outgoing, ApiError> {
        let (parts, body) = request.into_parts();
        let mut to_worker = parts.headers;
        let is_http2 = parts.version == Version::HTTP_2;
        let sender = Sender {
            client: call.client.clone(),
            window: if is_http2 { WINDOW } else { 0 },
            is_call: is_http2 && is_grpc(&to_worker),
        };
        let has_trailers = is_http2 && takes_trailers(&to_worker);
        let body = self.intake.receive(&to_worker, body, max_body, &sender).await?;
        headers::strip_request(&mut to_worker);
        if call.invocation == InvocationKind::Event || call.attempt.is_some() {
            // No client's connection waits for it.
            headers::strip_upgrade(&mut to_worker);
        }
        headers::set_forwarded(&mut to_worker, call.peer);
        headers::set(&mut to_worker, REQUEST_ID, &call.request_id);
        headers::set(&mut to_worker, INVOCATION, call.invocation.as_str());
        if call.chain.depth > 0 {
            headers::set(&mut to_worker, CALL_DEPTH, &call.chain.depth.to_string());
        }
        if let Some(caller) = &call.chain.caller {
            headers::set(&mut to_worker, CALLER_FUNCTION, caller.name());
        }
        if let Some((id, attempt)) = &call.attempt {
            headers::set(&mut to_worker, ASYNC_ID, id.as_str());
            headers::set(&mut to_worker, ASYNC_ATTEMPT, &attempt.to_string());
        }
        Ok(Outgoing {
            function: call.function.clone(),
            method: parts.method,
            path: call.path.clone(),
            headers: to_worker,
            body,
            version: if has_trailers {
                Version::HTTP_2
            } else {
                Version::HTTP_11
            },
            since: call.arrived,
            caller_until: call.chain.until,
        })
    }

    /// Takes a slot: an existing one, or one that the scheduler finds or starts.
    async fn place(&self, call: &Call, version: Option<VersionNumber>) -> Result<Slot, ApiError> {
        let span = tracing::debug_span!(
            "place",
            rekindle.role = "gateway",
            rekindle.instance = tracing::field::Empty,
            rekindle.start = tracing::field::Empty,
        );
        let slot = match call.force {
            None => {
                let taken = self.slots.take(&call.function, version);
                taken.instrument(span.clone()).await?
            }
            Some(kind) => {
                let taken = self.slots.take_fresh(&call.function, version, kind);
                taken.instrument(span.clone()).await?
            }
        };
        span.record("rekindle.instance", slot.leased.instance.as_str());
        span.record("rekindle.start", slot.leased.start().as_str());
        Ok(slot)
    }
}

/// The error as those may read it who may not read what the function writes, which can be a secret.
pub(crate) fn without_output(error: ApiError, function: &FunctionId) -> ApiError {
    let what = match error.code {
        ErrorCode::BootFailed => "could not start",
        // A hook's answer may be the reason.
        ErrorCode::RestoreFailed => "could not be restored",
        ErrorCode::FunctionCrashed => "ended before it answered",
        ErrorCode::FunctionError => "failed with an error of its own",
        _ => return error,
    };
    ApiError {
        message: format!("{function} {what}: `fn logs {function}` shows what it wrote"),
        ..error
    }
}

/// The outcome for a function whose own invocation ends before the one that it called is answered.
fn caller_timed_out(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::FunctionTimeout,
        format!("{function} did not answer before its caller's own timeout: raise timeout in the caller's fn.toml"),
    )
}

/// The response as the client gets it, and how the invocation started.
fn finish(call: &Call, answer: StartedResponse, phases: &Phases) -> (Response<Body>, StartKind) {
    let StartedResponse {
        response,
        leased,
        start,
        ..
    } = answer;
    let (mut parts, body) = response.into_parts();
    let worker = timing::of_worker(&parts.headers);
    headers::strip_answer(&mut parts.headers);
    headers::set(&mut parts.headers, REQUEST_ID, &call.request_id);
    headers::set(&mut parts.headers, START, start.as_str());
    headers::set(&mut parts.headers, INSTANCE, leased.instance.as_str());
    headers::set(&mut parts.headers, VERSION, &leased.version.to_string());
    if let Some((name, value)) = timing::merged(phases, &worker) {
        parts.headers.insert(name, value);
    }
    let span = Span::current();
    span.record("faas.instance", leased.instance.as_str());
    span.record("faas.start", start.as_str());
    span.record("faas.coldstart", start.is_cold());
    (Response::from_parts(parts, body), start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_told_the_code_and_nothing_that_a_function_wrote() {
        let function = "hello".parse().unwrap();
        for (code, is_hidden) in [
            (ErrorCode::BootFailed, true),
            (ErrorCode::RestoreFailed, true),
            (ErrorCode::FunctionCrashed, true),
            (ErrorCode::FunctionError, true),
            (ErrorCode::FunctionTimeout, false),
            (ErrorCode::Throttled, false),
        ] {
            let error = without_output(ApiError::new(code, "postgres://u:secret@db"), &function);
            assert_eq!(error.code, code);
            assert_eq!(!error.message.contains("secret"), is_hidden, "{error}");
            assert_eq!(error.message.contains("fn logs hello"), is_hidden, "{error}");
        }
    }
}
