//! One invocation of an instance: waits until the instance is ready, sends the request over a connection inside its
//! sandbox, and streams the response back. The request counts as in flight until the function has ended its response,
//! even if the caller has gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::header::UPGRADE;
use http::{HeaderValue, Request, Response};
use hyper::upgrade::OnUpgrade;
use rekindle_pager::PageRef;
use rekindle_relay::{
    DetachOnDrop, ResponseEnd, ResponseGuard, SendError, TrackedBody, Tunnel, strip_hop_by_hop_but_upgrade,
};
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::start_limit;
use rekindle_wire::{ApiError, ErrorCode, InstanceId, headers};
use tokio::time::Instant as Deadline;
use tracing::{Instrument, Span};

use super::answer_start::{self, ResponseBody};
use super::inward::{deadline, inward, is_hook};
use super::lifecycle::{Instance, gone};
use super::overdue;
use super::registry::Instances;
use super::renew;
use super::restore::record_first_fault;
use super::running::RunningInstance;
use super::start::Starter;
use super::usage::{Entry, InFlight};
use crate::host::file_pages::FilePages;
use crate::host::start_limiter::StartLimiter;
use crate::metrics::Metrics;
use crate::snapshots::{OpenSnapshot, Snapshots};

/// How long after the deadline the worker ends a response. The gateway ends it at the deadline; this covers a gateway
/// that is gone.
const BACKSTOP: Duration = Duration::from_secs(2);

/// How long storing a working set waits for a moment without a start.
const CALM_LIMIT: Duration = Duration::from_secs(5);

/// How long a function has to notice that its connection was closed.
const NOTICE: Duration = Duration::from_secs(1);

/// Sends requests into instances.
pub struct Invoker {
    /// All instances.
    pub instances: Arc<Instances>,
    /// Renews instances whose functions want a fresh one for each request.
    pub starter: Arc<Starter>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// Open snapshots, whose working sets requests complete.
    pub snapshots: Arc<Snapshots>,
    /// Where requests are measured.
    pub metrics: Arc<Metrics>,
}

impl Invoker {
    /// Serves `ANY /invoke/{instance}/{path}`.
    ///
    /// # Errors
    /// Returns `instance_gone` if the function never saw the request. Otherwise the error says what became of the
    /// request.
    pub async fn invoke(
        self: Arc<Self>,
        id: InstanceId,
        path: String,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        // A header carries the parent span, even if the gateway runs in this process.
        let span = tracing::debug_span!(
            parent: None,
            "invoke",
            "rekindle.role" = "worker",
            otel.kind = "server",
            faas.instance = %id,
            faas.invoked_name = tracing::field::Empty,
            faas.version = tracing::field::Empty,
            faas.start = tracing::field::Empty,
            faas.coldstart = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
        );
        rekindle_telemetry::set_parent(&span, request.headers());
        let answer = self.forward(id, path, request).instrument(span.clone()).await;
        if let Err(error) = &answer {
            span.record("error.type", error.code.as_str());
            // These codes are the normal way in which the gateway learns that an instance is gone or busy.
            if !matches!(
                error.code,
                ErrorCode::InstanceGone | ErrorCode::InstanceBusy | ErrorCode::RequestRefused | ErrorCode::LeaseEnded
            ) {
                span.record("otel.status_code", "ERROR");
            }
        }
        answer
    }

    async fn forward(
        self: Arc<Self>,
        id: InstanceId,
        path: String,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let last = deadline(request.headers());
        let instance = self.instances.get(&id).ok_or_else(gone)?;
        let lease = request
            .headers()
            .get(headers::LEASE)
            .map(|v| v.to_str().unwrap_or_default());
        if is_hook(&instance.spec.config.hooks, &path) {
            let message = format!(
                "{path:?} is a hook of {}: only the platform calls it",
                instance.spec.function
            );
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
        let (mut in_flight, first) = match instance.usage.enter(instance.spec.config.concurrency, lease) {
            Entry::Entered(in_flight, first) => (in_flight, first),
            Entry::Full => return Err(busy()),
            Entry::Fenced => return Err(fenced()),
            Entry::Closed => return Err(gone()),
        };
        let span = Span::current();
        span.record("faas.invoked_name", instance.spec.function.as_str());
        span.record("faas.version", instance.spec.version.0);
        let waiting = match instance.is_starting() {
            true => tracing::info_span!("wait for start", "rekindle.role" = "worker"),
            false => Span::none(),
        };
        let entered = Instant::now();
        let start_limit = start_limit(instance.spec.config.boot_timeout());
        let start_by = last.min(Deadline::now() + start_limit);
        let fresh = instance.spec.config.fresh;
        let running = if fresh {
            let unused = renew::unused(&self.starter, &instance, start_by).instrument(waiting);
            let (running, renewal) = unused.await?;
            in_flight.drop_after(renewal);
            running
        } else {
            instance.until_ready(start_by).instrument(waiting).await?
        };
        let waited = entered.elapsed();
        let thawed = instance.unpark(&running).await?;
        if let Some(took) = thawed {
            self.metrics.thawed(took);
            self.instances.changed.notify_one();
        }
        let start = match (first, thawed) {
            (_, Some(took)) => Some(StartWait::Thawed(took)),
            (true, None) => Some(StartWait::First(waited)),
            (false, None) if fresh => Some(StartWait::Renewed(waited)),
            (false, None) => None,
        };
        let kind = how(&instance, start);
        span.record("faas.start", kind.as_str());
        span.record("faas.coldstart", kind.is_cold());
        // The function's timeout begins now. The duration of its start is the platform's.
        let deadline = last.min(Deadline::now() + instance.spec.config.timeout());
        in_flight.is_chained(instance.chains.enter(request.headers(), deadline));
        let request = inward(request, &path, &instance, entered.elapsed(), deadline)?;
        let exchange = Exchange {
            invoker: self,
            instance,
            running,
            in_flight,
            first,
            start,
            deadline,
        };
        // The function does not notice that the caller has gone. It keeps running, and counts as in flight for as long
        // as it does.
        DetachOnDrop::new(exchange.run(request)).await
    }

    /// Records the pages that a restored instance touched before its first response: they belong to the snapshot's
    /// working set.
    fn record_working_set(self: &Arc<Self>, instance: &Instance) {
        let Some(snapshot) = instance.running().and_then(|running| record_touched(&running)) else {
            return;
        };
        let invoker = Arc::clone(self);
        tokio::spawn(async move {
            // Nobody waits for this. If several recordings overlap, one of them stores all.
            invoker.start_limiter.until_calm(CALM_LIMIT).await;
            if let Err(e) = invoker.snapshots.store_working_set(&snapshot).await {
                tracing::warn!(snapshot = %snapshot.id, error = %e, "the working set is not stored");
            }
        });
    }
}

/// The response to a request beyond the instance's concurrency limit. The gateway places the request again.
fn busy() -> ApiError {
    ApiError::new(
        ErrorCode::InstanceBusy,
        "the instance has as many requests in it as it takes",
    )
}

/// The response to a request that the function's server refused unseen. The gateway places the request again.
fn refused() -> ApiError {
    ApiError::new(
        ErrorCode::RequestRefused,
        "the function's server refused the request before it looked at it",
    )
}

/// The response to a request under a lease that has ended. The gateway places the request again.
fn fenced() -> ApiError {
    ApiError::new(
        ErrorCode::LeaseEnded,
        "another gateway has a newer lease on the instance",
    )
}

#[derive(Debug, Clone, Copy)]
enum StartWait {
    /// It waited this long for the instance's start, which may have begun earlier.
    First(Duration),
    /// It waited this long for a parked instance to thaw.
    Thawed(Duration),
    /// It waited this long for a new copy, in an instance that has served others.
    Renewed(Duration),
}

struct Exchange {
    invoker: Arc<Invoker>,
    instance: Arc<Instance>,
    running: Arc<RunningInstance>,
    in_flight: InFlight,
    /// Whether it is the first request in this instance.
    first: bool,
    /// What the request waited for, if anything.
    start: Option<StartWait>,
    deadline: Deadline,
}

impl Exchange {
    async fn run(self, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let sent = Instant::now();
        let running = self.running;
        let is_new_copy = self.instance.spec.config.fresh && !running.was_put_back();
        let near = request.extensions_mut().remove::<OnUpgrade>();
        let may_change = request.headers().contains_key(UPGRADE);
        // The span lasts until the first byte of the response.
        let span = tracing::debug_span!(
            "function",
            "rekindle.role" = "worker",
            otel.kind = "client",
            faas.invoked_name = %self.instance.spec.function,
            faas.instance = %self.instance.id,
            http.response.status_code = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
        );
        rekindle_telemetry::inject_span(&span, request.headers_mut());
        let failed_as = |why: &'static str| {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", why);
        };
        let mut sending = Box::pin(async move { running.client.send(request).await });
        let answered = tokio::time::timeout_at(self.deadline, &mut sending)
            .instrument(span.clone())
            .await;
        let mut answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(SendError::Refused(error))) => {
                failed_as("refused");
                tracing::debug!(?error, "the function's server refused a request");
                return Err(refused());
            }
            Ok(Err(e)) => {
                failed_as("broken");
                tracing::debug!(error = ?e, "no answer");
                return Err(self.instance.no_answer(&e, self.first).await);
            }
            Err(_) => {
                failed_as("timeout");
                let limit = self.instance.spec.config.timeout();
                let seconds = limit.as_secs_f64();
                let said = format!("an invocation did not answer within its timeout of {seconds} s");
                self.instance.sink.platform(said);
                tokio::spawn(overdue::wait(
                    Arc::clone(&self.invoker.instances),
                    self.instance,
                    self.in_flight,
                    sending,
                ));
                return Err(ApiError::new(
                    ErrorCode::FunctionTimeout,
                    format!("the function did not answer within its timeout of {seconds} s; raise timeout in fn.toml"),
                ));
            }
        };
        let tunnel = Tunnel::take(&mut answer);
        if tunnel.is_some() && !may_change {
            failed_as("malformed");
            let message = "an answer has status 101, and the request asked for no other protocol";
            return Err(self.instance.invalid_response(message));
        }
        let answer = match answer_start::begin(answer, &self.instance).await {
            Ok(answer) => answer,
            Err(error) => {
                failed_as("malformed");
                return Err(error);
            }
        };
        let function = sent.elapsed();
        span.record("http.response.status_code", answer.status().as_u16());
        if answer.status().is_server_error() {
            failed_as("5xx");
        }
        let kind = how(&self.instance, self.start);
        self.invoker
            .metrics
            .invoked(&self.instance.spec.function, kind, function);
        if self.first || is_new_copy {
            self.invoker.record_working_set(&self.instance);
        }
        let mut answer = outward(answer, &self.instance, self.start, function);
        let left = self.deadline.saturating_duration_since(Deadline::now());
        answer.headers_mut().insert(
            headers::TIME_LEFT_MS,
            HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        );
        if let Some(tunnel) = tunnel {
            return Ok(changed(answer, tunnel.holding(self.in_flight), near));
        }
        Ok(answer.map(|body| {
            Body::new(TrackedBody::wrap(
                body,
                self.deadline + BACKSTOP,
                InFlightGuard(self.in_flight),
            ))
        }))
    }
}

/// The response that changes the protocol of a connection. A gateway on another host is joined here; one in this
/// process gets the function's end.
fn changed(answer: Response<ResponseBody>, tunnel: Tunnel, near: Option<OnUpgrade>) -> Response<Body> {
    let mut answer = answer.map(|_| Body::empty());
    match near {
        None => drop(answer.extensions_mut().insert(tunnel)),
        Some(near) => drop(tokio::spawn(async move {
            if let Err(error) = tunnel.join(near).await {
                tracing::debug!(%error, "a tunnel ended early");
            }
        })),
    }
    answer
}

/// Keeps the request in flight until the last byte of the response.
struct InFlightGuard(InFlight);

impl ResponseGuard for InFlightGuard {
    fn ended(self, end: ResponseEnd) {
        // If the response was cut off, the connection is closed and the function's next write fails. The gateway
        // watches the deadline and decides whether a late function has to stop.
        if end == ResponseEnd::Whole {
            return;
        }
        tokio::spawn(async move {
            tokio::time::sleep(NOTICE).await;
            drop(self.0);
        });
    }
}

/// Returns the start kind of an instance for a request that waited for `start`.
fn how(instance: &Instance, start: Option<StartWait>) -> StartKind {
    match start {
        Some(StartWait::First(_)) => *instance.kind.lock(),
        Some(StartWait::Thawed(_)) => StartKind::Parked,
        Some(StartWait::Renewed(_)) | None => StartKind::Warm,
    }
}

/// Builds the response that the gateway receives.
fn outward(
    answer: Response<ResponseBody>,
    instance: &Instance,
    start: Option<StartWait>,
    function: Duration,
) -> Response<ResponseBody> {
    let (mut head, body) = answer.into_parts();
    strip_hop_by_hop_but_upgrade(&mut head.headers);
    // Only the platform may set this header.
    head.headers.remove(headers::PLATFORM_ERROR);
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let mut timing = String::new();
    let kind = *instance.kind.lock();
    if let Some(StartWait::Thawed(took)) = start {
        timing = format!("thaw;dur={:.3}, ", ms(took));
    }
    if let Some(StartWait::Renewed(waited)) = start {
        timing = format!("renew;dur={:.3}, ", ms(waited));
    }
    if let Some(StartWait::First(waited)) = start {
        let took = instance.start_took.lock().unwrap_or_default();
        let name = if kind == StartKind::Booted { "boot" } else { "restore" };
        timing = format!("wait;dur={:.3}, {name};dur={:.3}, ", ms(waited), ms(took));
        for (phase, took) in instance.phases.lock().iter().chain(instance.inner_phases.lock().iter()) {
            timing.push_str(&format!("{phase};dur={:.3}, ", ms(*took)));
        }
    }
    timing.push_str(&format!("function;dur={:.3}", ms(function)));
    if let Ok(value) = HeaderValue::from_str(&timing) {
        head.headers.append(headers::SERVER_TIMING, value);
    }
    // A start that the gateway planned as a restore may have become a boot.
    let kind = how(instance, start);
    if kind == StartKind::Warm {
        head.headers.remove(headers::START);
    } else {
        head.headers
            .insert(headers::START, HeaderValue::from_static(kind.as_str()));
    }
    Response::from_parts(head, body)
}

/// Ends the recording of the pages that a restored instance touches. Returns its snapshot if its working set is to be
/// stored.
pub(crate) fn record_touched(running: &RunningInstance) -> Option<Arc<OpenSnapshot>> {
    let (Some(pager), Some(snapshot), Some(begun)) = (&running.pager, &running.snapshot, running.working_set) else {
        return None;
    };
    record_first_fault(pager);
    let touched = pager.take_working_set();
    let faults = pager.stats().faults.load(Ordering::Relaxed);
    let written = |pages: &[PageRef]| running.sandbox.written(pages);
    let is_unsent = snapshot.record(begun, &touched, written, faults);
    note_file_pages(running, snapshot);
    is_unsent.then(|| Arc::clone(snapshot))
}

/// Notes, at the first response of this host's first copy, which pages of files it has touched.
fn note_file_pages(running: &RunningInstance, snapshot: &OpenSnapshot) {
    if snapshot.file_pages.get().is_some() {
        return;
    }
    let Some(layout) = snapshot.template.layout() else {
        return;
    };
    let paged = || layout.mapped.iter().chain(&layout.anonymous);
    let is_paged = |page: PageRef| paged().any(|range| range.contains(page));
    match FilePages::of(running.sandbox.init_pid(), &snapshot.template.pids(), is_paged) {
        Ok(found) => {
            tracing::debug!(snapshot = %snapshot.id, blocks = found.count(), "pages of files are known");
            // Whoever else has noted them has noted the same.
            let _known = snapshot.file_pages.set(found);
        }
        Err(error) => {
            tracing::debug!(%error, "the pages of files that a copy has touched are not known");
            // It is looked once.
            let _known = snapshot.file_pages.set(FilePages::default());
        }
    }
}
