//! Calls to the scheduler: for slots, about leases, and forwarded calls of the admin API.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rekindle_identity::{Connector, Member, Role, TlsError};
use rekindle_relay::InProcessRoles;
use rekindle_wire::asynchronous::{
    AcceptedCall, CallOutcome, CallResult, CallbackOutcome, ClaimRequest, Claims, NewCall, Renewal,
};
use rekindle_wire::headers::STANDBY;
use rekindle_wire::ids::{GatewayId, Namespace, WorkerId};
use rekindle_wire::interface::Endpoint;
use rekindle_wire::interface::scheduler::{
    AcceptCall, AskHost, AwaitKeys, AwaitRecalls, AwaitRoutes, ClaimCalls, EndCall, EndCallback, Place, ReadResult,
    RenewCalls, ReportLeases, ReportTraffic, ReportUsage,
};
use rekindle_wire::internal::{
    KeysResponse, LeaseReport, LeaseResponse, Placement, PlacementRequest, RoutesResponse, UsageReport,
};
use rekindle_wire::stats::{TrafficReport, TrafficResponse};
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId};
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::headers;

/// Connections to the scheduler.
#[derive(Debug, Clone)]
struct Http {
    client: Client<Connector, Body>,
    scheme: &'static str,
}

impl Http {
    fn request(&self, request: Request<Body>) -> ResponseFuture {
        self.client.request(request)
    }
}

const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A host that acknowledges nothing for this long is probed, and given up after as long again, with its requests in
/// flight. A function may take its time, its host's kernel may not.
const SILENT_AFTER: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Leases are short, and a report can be repeated.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// Claims bring the bodies of as many calls and callbacks as can be claimed at once, in base64.
const ANSWER_MAX: usize = 64 << 20;
/// Limit for calls that must reach a disk.
const KEEP_LIMIT: Duration = Duration::from_secs(15);
/// A deploy's upload precedes its response.
const ADMIN_LIMIT: Duration = Duration::from_secs(900);

/// Makes connections to members of a role.
pub(crate) fn connector(member: Option<&Member>, to: Role) -> Result<Connector, TlsError> {
    connector_for(member, to, SILENT_AFTER)
}

/// The same, where what was sent may stay unacknowledged for so long. The kernel counts a reader that pauses, too.
pub(crate) fn connector_for(
    member: Option<&Member>,
    to: Role,
    unacknowledged: Duration,
) -> Result<Connector, TlsError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_LIMIT));
    connector.set_keepalive(Some(SILENT_AFTER));
    connector.set_keepalive_interval(Some(SILENT_AFTER / 5));
    connector.set_tcp_user_timeout(Some(unacknowledged));
    rekindle_identity::connector(connector, member, to)
}

/// The scheme of addresses.
pub(crate) fn scheme(member: Option<&Member>) -> &'static str {
    if member.is_some() { "https" } else { "http" }
}

/// A client with connections of its own.
fn client(member: Option<&Member>, to: Role) -> Result<Http, TlsError> {
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(1_024)
        .pool_timer(TokioTimer::new())
        .build(connector(member, to)?);
    Ok(Http {
        client,
        scheme: scheme(member),
    })
}

/// How long a gateway waits for another scheduler to take over from one that is gone.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two rounds of asking all of them.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// The scheduler, as a gateway sees it. Of several, the one that answered last is asked first, and the next one if that
/// is gone or only stands by.
#[derive(Debug, Clone)]
pub(crate) struct SchedulerClient {
    http: Http,
    in_process: InProcessRoles,
    addresses: Arc<[String]>,
    current: Arc<AtomicUsize>,
    /// Index of the scheduler that last answered as the leader.
    leader: Arc<watch::Sender<usize>>,
    token: HeaderValue,
}

enum SchedulerAnswer<T> {
    Answered(T),
    /// It has seen nothing of the request, since it is gone or stands by.
    Elsewhere(ApiError),
}

impl SchedulerClient {
    /// `addresses` has one address, or several separated by commas.
    pub(crate) fn new(
        addresses: &str,
        token: HeaderValue,
        member: Option<&Member>,
        in_process: InProcessRoles,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            in_process,
            http: client(member, Role::Scheduler)?,
            addresses: addresses.split(',').map(|a| a.trim().to_owned()).collect(),
            current: Arc::default(),
            leader: Arc::default(),
            token,
        })
    }

    /// The scheduler that is asked first, with its index.
    fn first(&self) -> (usize, &str) {
        let at = self.current.load(Ordering::Relaxed);
        let address = self.addresses.get(at % self.addresses.len().max(1));
        (at, address.map_or("", String::as_str))
    }

    /// Passes over the scheduler at this index; another request may have done so already.
    fn pass_over(&self, at: usize) {
        let next = at.wrapping_add(1);
        let _passed_over_already = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Asks one scheduler after another, round by round, until the leader answers. One that does not answer is
    /// abandoned when another is found to lead, at the latest at the limit: its process may be suspended.
    async fn of_any<T, F>(&self, limit: Duration, ask: impl Fn(String) -> F) -> Result<T, ApiError>
    where
        F: Future<Output = SchedulerAnswer<T>>,
    {
        let began = tokio::time::Instant::now();
        let end = began + limit.min(TAKE_OVER_LIMIT);
        let mut asked = 0;
        loop {
            let (at, address) = self.first();
            let leaders = self.leader.subscribe();
            let answer = tokio::select! {
                answer = ask(address.to_owned()) => answer,
                () = self.another_leads(leaders, at) => SchedulerAnswer::Elsewhere(nobody_leads()),
                () = tokio::time::sleep_until(began + limit) => {
                    self.pass_over(at);
                    return Err(self.unreachable(address, &std::io::Error::from(std::io::ErrorKind::TimedOut)));
                }
            };
            let error = match answer {
                SchedulerAnswer::Answered(answer) => {
                    // Sent even if it led before: another request may have moved on to a scheduler that hangs.
                    self.leader.send_replace(at % self.addresses.len());
                    return Ok(answer);
                }
                SchedulerAnswer::Elsewhere(error) => error,
            };
            if self.addresses.len() == 1 {
                return Err(error);
            }
            self.pass_over(at);
            asked += 1;
            if asked % self.addresses.len() == 0 {
                if tokio::time::Instant::now() + ROUND_PAUSE >= end {
                    return Err(error);
                }
                tokio::time::sleep(ROUND_PAUSE).await;
            }
        }
    }

    /// Waits until a scheduler other than the one at this index has answered as the leader.
    async fn another_leads(&self, mut leaders: watch::Receiver<usize>, at: usize) {
        // The sender lives as long as `self`.
        while leaders.changed().await.is_ok() {
            if *leaders.borrow_and_update() != at % self.addresses.len() {
                return;
            }
        }
    }

    /// Asks for a slot. The error is what the user is told.
    pub(crate) async fn place(&self, request: &PlacementRequest) -> Result<Placement, ApiError> {
        let limit = Duration::from_millis(request.wait_ms) + Duration::from_secs(25);
        let span = tracing::info_span!(
            "ask scheduler",
            otel.kind = "client",
            rekindle.role = "gateway",
            server.address = self.first().1,
        );
        self.call(&Place {}, request, limit).instrument(span).await
    }

    pub(crate) async fn report(&self, report: &LeaseReport) -> Result<LeaseResponse, ApiError> {
        self.call(&ReportLeases {}, report, REPORT_LIMIT).await
    }

    /// Reports counts.
    pub(crate) async fn tell(&self, report: &TrafficReport) -> Result<TrafficResponse, ApiError> {
        self.call(&ReportTraffic {}, report, CALL_LIMIT).await
    }

    /// Reports what invocations used.
    pub(crate) async fn report_usage(&self, report: &UsageReport) -> Result<(), ApiError> {
        self.call(&ReportUsage {}, report, CALL_LIMIT).await
    }

    /// Waits for recalled leases.
    pub(crate) async fn recalls(&self, gateway: &GatewayId, wait: Duration) -> Result<LeaseResponse, ApiError> {
        let recalls = AwaitRecalls {
            gateway: gateway.clone(),
            wait_ms: u64::try_from(wait.as_millis()).ok(),
        };
        self.call(&recalls, &(), wait + CALL_LIMIT).await
    }

    /// Waits until routes change. With a function that is `wanted`, the answer is that error if the scheduler does not
    /// know it.
    pub(crate) async fn routes(
        &self,
        gateway: &GatewayId,
        (epoch, revision): (String, u64),
        wait: Duration,
        wanted: Option<&FunctionId>,
    ) -> Result<RoutesResponse, ApiError> {
        let routes = AwaitRoutes {
            gateway: gateway.clone(),
            epoch: Some(epoch),
            revision: Some(revision),
            wait_ms: u64::try_from(wait.as_millis()).ok(),
            wanted: wanted.cloned(),
        };
        self.call(&routes, &(), wait + CALL_LIMIT).await
    }

    /// Waits until keys change.
    pub(crate) async fn keys(
        &self,
        gateway: &GatewayId,
        (epoch, revision): (String, u64),
        wait: Duration,
    ) -> Result<KeysResponse, ApiError> {
        let keys = AwaitKeys {
            gateway: gateway.clone(),
            epoch: Some(epoch),
            revision: Some(revision),
            wait_ms: u64::try_from(wait.as_millis()).ok(),
        };
        self.call(&keys, &(), wait + CALL_LIMIT).await
    }

    /// Stores an asynchronous invocation.
    pub(crate) async fn accept_call(&self, call: &NewCall) -> Result<AcceptedCall, ApiError> {
        self.call(&AcceptCall {}, call, KEEP_LIMIT).await
    }

    /// Waits for asynchronous invocations to run.
    pub(crate) async fn claim_calls(&self, request: &ClaimRequest, wait: Duration) -> Result<Claims, ApiError> {
        self.call(&ClaimCalls {}, request, wait + KEEP_LIMIT).await
    }

    /// Reports which calls are still running.
    pub(crate) async fn renew_calls(&self, renewal: &Renewal) -> Result<(), ApiError> {
        self.call(&RenewCalls {}, renewal, CALL_LIMIT).await
    }

    /// Reports the outcome of an attempt at a call.
    pub(crate) async fn end_call(&self, outcome: &CallOutcome) -> Result<(), ApiError> {
        self.call(&EndCall {}, outcome, KEEP_LIMIT).await
    }

    /// Reports the outcome of an attempt at a callback.
    pub(crate) async fn end_callback(&self, outcome: &CallbackOutcome) -> Result<(), ApiError> {
        self.call(&EndCallback {}, outcome, KEEP_LIMIT).await
    }

    pub(crate) async fn call_result(&self, id: &CallId, wait: Duration) -> Result<CallResult, ApiError> {
        let result = ReadResult {
            id: id.clone(),
            wait_ms: u64::try_from(wait.as_millis()).ok(),
        };
        self.call(&result, &(), wait + KEEP_LIMIT).await
    }

    /// Whether a worker runs, or makes ready, any function of a namespace.
    pub(crate) async fn hosts(&self, worker: WorkerId, namespace: Namespace) -> Result<bool, ApiError> {
        self.call(&AskHost { worker, namespace }, &(), KEEP_LIMIT).await
    }

    /// Whether a leading scheduler answers.
    pub(crate) async fn is_ready(&self) -> bool {
        for _ in 0..self.addresses.len() {
            let (at, address) = self.first();
            if matches!(self.leads(address.to_owned()).await, SchedulerAnswer::Answered(())) {
                return true;
            }
            self.pass_over(at);
        }
        false
    }

    async fn leads(&self, address: String) -> SchedulerAnswer<()> {
        let address = address.as_str();
        let uri = format!("{}://{address}/readyz", self.http.scheme);
        let Ok(request) = Request::get(uri).body(Body::empty()) else {
            return SchedulerAnswer::Elsewhere(self.unreachable(address, &std::io::Error::other("it is no address")));
        };
        match tokio::time::timeout(CONNECT_LIMIT, self.http.request(request)).await {
            Ok(Ok(answer)) if answer.status().is_success() => SchedulerAnswer::Answered(()),
            Ok(Ok(_)) => SchedulerAnswer::Elsewhere(nobody_leads()),
            Ok(Err(error)) => SchedulerAnswer::Elsewhere(self.unreachable(address, &error)),
            Err(elapsed) => SchedulerAnswer::Elsewhere(self.unreachable(address, &elapsed)),
        }
    }

    /// Forwards a request of the admin API; both bodies stream.
    pub(crate) async fn pass_on(&self, mut request: Request<Body>) -> Result<Response<Incoming>, ApiError> {
        if self.addresses.len() > 1 {
            // Its body cannot be sent twice, so the leader is found first.
            self.of_any(TAKE_OVER_LIMIT, |address| self.leads(address)).await?;
        }
        let address = self.first().1;
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri = self.uri(address, path)?;
        *request.uri_mut() = uri;
        headers::set_token(request.headers_mut(), &self.token);
        rekindle_telemetry::inject(request.headers_mut());
        match tokio::time::timeout(ADMIN_LIMIT, self.http.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.unreachable(address, &error)),
            Err(elapsed) => Err(self.unreachable(address, &elapsed)),
        }
    }

    async fn call<E: Endpoint>(&self, at: &E, body: &E::Body, limit: Duration) -> Result<E::Answer, ApiError> {
        let (path, body) = (at.uri(), Bytes::from(E::encode(body)));
        self.of_any(limit, |address| self.ask::<E>(address, &path, body.clone()))
            .await
            .flatten()
    }

    /// Asks the scheduler at this address.
    async fn ask<E: Endpoint>(
        &self,
        address: String,
        path: &str,
        body: Bytes,
    ) -> SchedulerAnswer<Result<E::Answer, ApiError>> {
        let address = address.as_str();
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = E::OPERATION.method;
        *request.uri_mut() = match self.uri(address, path) {
            Ok(uri) => uri,
            Err(error) => return SchedulerAnswer::Answered(Err(error)),
        };
        let sent = request.headers_mut();
        sent.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers::set_token(sent, &self.token);
        rekindle_telemetry::inject(sent);
        let answer = match self.in_process.pass(address, request) {
            Ok(answering) => Ok(answering.await),
            Err(request) => self.http.request(request).await.map(|answer| answer.map(Body::new)),
        };
        let answer = match answer {
            Ok(answer) if answer.headers().contains_key(STANDBY) => return SchedulerAnswer::Elsewhere(nobody_leads()),
            Ok(answer) => answer,
            // Of several, this one has died during the request, and its work in memory with it. What it may have stored
            // is done at least once anyway.
            Err(error) => return SchedulerAnswer::Elsewhere(self.unreachable(address, &error)),
        };
        let status = answer.status();
        let read = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = match read {
            Ok(body) => body.to_bytes(),
            Err(error) => return SchedulerAnswer::Answered(Err(self.unreachable(address, &*error))),
        };
        SchedulerAnswer::Answered(if status.is_success() {
            E::decode(&body).map_err(|e| self.unreachable(address, &e))
        } else {
            Err(serde_json::from_slice(&body).unwrap_or_else(|_| {
                // An intermediary sends these when there is no scheduler behind it.
                let code = match status.as_u16() {
                    502..=504 => ErrorCode::Unavailable,
                    _ => ErrorCode::Internal,
                };
                ApiError::new(
                    code,
                    format!("the scheduler answered {status}: see `rekindle.log` in its data, or its journal"),
                )
            }))
        })
    }

    fn uri(&self, address: &str, path: &str) -> Result<Uri, ApiError> {
        format!("{}://{address}{path}", self.http.scheme)
            .parse()
            .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the path cannot be passed on: {e}")))
    }

    fn unreachable(&self, address: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
        tracing::warn!(scheduler = address, error, "the scheduler does not answer");
        ApiError::new(
            ErrorCode::Unavailable,
            "the scheduler does not answer: try again; if it lasts, see its log",
        )
    }
}

fn nobody_leads() -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        "no scheduler leads at this moment: try again; if it lasts, see the schedulers' logs",
    )
}

#[cfg(test)]
mod tests {
    use rekindle_wire::asynchronous::{
        BODY_MAX, CLAIM_MAX, CallState, ClaimedCall, ClaimedCallback, Encoded, Headers, InvocationKind, StoredRequest,
    };

    use super::*;

    #[test]
    fn the_largest_claim_can_be_read() {
        let (id, body) = (CallId::generate(), Encoded(vec![0xff; BODY_MAX].into()));
        let function: rekindle_wire::FunctionId = "hello".parse().unwrap();
        // A request with as many headers as a function may be sent.
        let request = StoredRequest {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            invocation: InvocationKind::Http,
            headers: Headers(vec![("x-long".to_owned(), "x".repeat(64 << 10))]),
            request_id: "r-1".to_owned(),
            peer: "127.0.0.1".parse().unwrap(),
        };
        let call = ClaimedCall {
            id: id.clone(),
            attempt: 1,
            function: function.clone(),
            request,
            body: body.clone(),
        };
        let callback = ClaimedCallback {
            url: "https://example.com/".to_owned(),
            attempt: 1,
            request_id: "r-1".to_owned(),
            result: CallResult {
                id,
                function,
                state: CallState::Done,
                attempts: 1,
                answer: None,
                error: None,
            },
            event: Some(body),
            ended_unix_ms: Some(1),
        };
        let count = CLAIM_MAX as usize;
        let claims = Claims {
            calls: vec![call; count],
            callbacks: vec![callback; count],
        };
        assert!(serde_json::to_vec(&claims).unwrap().len() < ANSWER_MAX);
    }
}
