//! Runs asynchronous invocations: claims as many as there is room for, runs each like a client's invocation, and
//! reports the outcome. It renews its claims every few seconds; calls whose claims are not renewed go to another
//! gateway.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rekindle_wire::asynchronous::{
    AttemptOutcome, BODY_MAX, CallOutcome, CallbackOutcome, ClaimRequest, ClaimedCall, ClaimedCallback, Encoded,
    Headers, Renewal, StoredResponse,
};
use rekindle_wire::function_call::depth_of;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::{ApiError, CallId, ErrorCode, Selector};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::Callbacks;
use crate::dispatch::{Call, Chain, Dispatch};
use crate::scheduler::SchedulerClient;

/// How long a request for work is kept open.
const WAIT: Duration = Duration::from_secs(20);
/// Claims last several times as long.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Pause before a scheduler that did not answer is asked again.
const RETRY: Duration = Duration::from_millis(250);
/// How long reporting an outcome is retried. Late is better than never: a call that has run would run again.
const TELL_LIMIT: Duration = Duration::from_secs(600);
/// Number of callbacks posted at once.
const CALLBACKS: usize = 16;

/// Runs calls and reports their outcomes.
pub(crate) struct Runner {
    scheduler: SchedulerClient,
    gateway: GatewayId,
    dispatch: Arc<Dispatch>,
    callbacks: Callbacks,
    room: Arc<Semaphore>,
    /// Places of `room` in all.
    places: u32,
    callback_room: Arc<Semaphore>,
    held: Mutex<HashMap<CallId, u32>>,
    tasks: TaskTracker,
    /// Cancelled when nothing more is to be claimed.
    ending: CancellationToken,
}

impl Runner {
    /// A runner of at most `at_once` calls.
    pub(crate) fn new(dispatch: Arc<Dispatch>, callbacks: Callbacks, at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            scheduler: dispatch.slots.scheduler.clone(),
            gateway: dispatch.slots.gateway.clone(),
            dispatch,
            callbacks,
            room: Arc::new(Semaphore::new(at_once)),
            places: u32::try_from(at_once).unwrap_or(u32::MAX),
            callback_room: Arc::new(Semaphore::new(CALLBACKS)),
            held: Mutex::default(),
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
        })
    }

    /// Claims and runs calls until it is told to end.
    pub(crate) async fn run(self: Arc<Self>) {
        while !self.ending.is_cancelled() {
            let claimed = tokio::select! {
                () = self.ending.cancelled() => break,
                claimed = self.claim() => claimed,
            };
            if let Err(error) = claimed {
                tracing::debug!(%error, "no work can be asked for");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Renews the claims every few seconds. Runs until dropped.
    pub(crate) async fn renew(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let held: Vec<_> = self
                .held
                .lock()
                .iter()
                .map(|(id, attempt)| (id.clone(), *attempt))
                .collect();
            if held.is_empty() {
                continue;
            }
            let renewal = Renewal {
                gateway: self.gateway.clone(),
                held,
            };
            if let Err(error) = self.scheduler.renew_calls(&renewal).await {
                tracing::debug!(%error, "claims could not be renewed");
            }
        }
    }

    /// Claims nothing more, gives running calls until `limit`, and returns the rest.
    pub(crate) async fn end(&self, limit: Duration) {
        self.ending.cancel();
        self.tasks.close();
        drop(tokio::time::timeout(limit, self.tasks.wait()).await);
        let left: Vec<_> = self.held.lock().drain().collect();
        let releases = left.into_iter().map(|(id, attempt)| async move {
            let what = AttemptOutcome::Released;
            drop(self.scheduler.end_call(&CallOutcome { id, attempt, what }).await);
        });
        drop(tokio::time::timeout(Duration::from_secs(1), futures::future::join_all(releases)).await);
    }

    async fn claim(self: &Arc<Self>) -> Result<(), ApiError> {
        // One place must be free before any work is requested.
        let Ok(first) = self.room.clone().acquire_owned().await else {
            return Ok(());
        };
        let request = ClaimRequest {
            gateway: self.gateway.clone(),
            room: u32::try_from(self.room.available_permits() + 1).unwrap_or(u32::MAX),
            places: self.places,
            callbacks: u32::try_from(self.callback_room.available_permits()).unwrap_or(u32::MAX),
            events: true,
            wait_ms: u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX),
        };
        let claims = self.scheduler.claim_calls(&request, WAIT).await?;
        // Before anything is awaited: the claims are renewed from now on.
        self.held
            .lock()
            .extend(claims.calls.iter().map(|c| (c.id.clone(), c.attempt)));
        let mut first = Some(first);
        for call in claims.calls {
            // No other task takes places, so there is one.
            let place = first.take().or_else(|| self.room.clone().try_acquire_owned().ok());
            let here = self.clone();
            self.tasks.spawn(async move { here.attempt(call, place).await });
        }
        for callback in claims.callbacks {
            let place = self.callback_room.clone().try_acquire_owned().ok();
            let here = self.clone();
            self.tasks.spawn(async move { here.post(callback, place).await });
        }
        Ok(())
    }

    async fn attempt(&self, call: ClaimedCall, place: Option<OwnedSemaphorePermit>) {
        let (id, attempt) = (call.id.clone(), call.attempt);
        let span = tracing::info_span!(
            "async attempt",
            otel.name = format!("async {}", call.function),
            otel.kind = "consumer",
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
            rekindle.role = "gateway",
            rekindle.request_id = call.request.request_id,
            rekindle.async_id = id.as_str(),
            rekindle.attempt = attempt,
            faas.invoked_name = call.function.as_str(),
        );
        let sent = call.request.headers.map();
        rekindle_telemetry::set_parent(&span, &sent);
        let what = match self.invoke(call, sent).instrument(span.clone()).await {
            Ok(answer) => AttemptOutcome::Answered(answer),
            Err(error) => {
                span.record("error.type", error.code.as_str());
                span.record("otel.status_code", "ERROR");
                AttemptOutcome::Failed(error)
            }
        };
        drop(place);
        let outcome = CallOutcome { id, attempt, what };
        self.tell(|| self.scheduler.end_call(&outcome)).await;
        // A claim that ran out was given to a later attempt, here perhaps: its entry stays.
        if let Entry::Occupied(held) = self.held.lock().entry(outcome.id)
            && *held.get() == attempt
        {
            held.remove();
        }
    }

    async fn invoke(&self, claimed: ClaimedCall, mut sent: http::HeaderMap) -> Result<StoredResponse, ApiError> {
        rekindle_telemetry::inject(&mut sent);
        let chain = Chain {
            depth: depth_of(&sent),
            ..Chain::default()
        };
        let mut request = Request::new(Body::from(claimed.body.0));
        *request.method_mut() = Method::from_bytes(claimed.request.method.as_bytes())
            .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the method cannot be sent: {e}")))?;
        *request.headers_mut() = sent;
        let call = Call {
            function: claimed.function.clone(),
            selector: Selector::default(),
            path: claimed.request.path,
            invocation: claimed.request.invocation,
            // The scheduler keeps the error for those who may.
            reads_output: true,
            force: None,
            request_id: claimed.request.request_id,
            peer: claimed.request.peer,
            arrived: Instant::now(),
            connection: CancellationToken::new(),
            client: None,
            attempt: Some((claimed.id, claimed.attempt)),
            chain,
        };
        let answer = self.dispatch.serve(call, request).await?;
        keep(answer).await.map_err(|why| {
            let function = &claimed.function;
            ApiError::new(
                ErrorCode::FunctionError,
                format!("the response of {function} ended early: {why} (`fn logs {function}`)"),
            )
        })
    }

    async fn post(&self, callback: ClaimedCallback, place: Option<OwnedSemaphorePermit>) {
        let outcome: CallbackOutcome = self.callbacks.post(callback).await;
        drop(place);
        self.tell(|| self.scheduler.end_callback(&outcome)).await;
    }

    /// Reports to the scheduler until it has been received.
    async fn tell<F: Future<Output = Result<(), ApiError>>>(&self, mut attempt: impl FnMut() -> F) {
        let end = Instant::now() + TELL_LIMIT;
        let mut pause = RETRY;
        while let Err(error) = attempt().await {
            if Instant::now() > end {
                tracing::warn!(%error, "what came of an asynchronous invocation could not be told: it is run again");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }
}

/// A response as it is stored. A body that is too large is still read to its end: the function must not be disturbed.
async fn keep(answer: Response<Body>) -> Result<StoredResponse, axum::Error> {
    let (parts, mut body) = answer.into_parts();
    let mut kept = BytesMut::new();
    let mut dropped = false;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        dropped |= kept.len() + data.len() > BODY_MAX;
        if !dropped {
            kept.extend_from_slice(&data);
        }
    }
    Ok(StoredResponse {
        status: parts.status.as_u16(),
        headers: Headers::of(&parts.headers),
        body: Encoded(if dropped { Bytes::new() } else { kept.freeze() }),
        body_dropped: dropped,
    })
}
