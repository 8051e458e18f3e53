//! Calls to the scheduler: for slots, about leases, and the admin API passed on.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rekindle_wire::asynchronous::{
    AcceptedCall, CallOutcome, CallResult, CallbackOutcome, ClaimRequest, Claims, NewCall, Renewal,
};
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{LeaseAnswer, LeaseReport, Placement, PlacementRequest};
use rekindle_wire::stats::{TrafficAnswer, TrafficReport};
use rekindle_wire::{ApiError, CallId, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::headers;

/// The client for everything inside the cluster.
pub(crate) type Http = Client<HttpConnector, Body>;

const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Leases are short, and a report can be told again.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// Claims bring the bodies of several asynchronous invocations, in base64.
const ANSWER_MAX: usize = 32 << 20;
/// For what has to reach a disk.
const KEEP_LIMIT: Duration = Duration::from_secs(15);
/// A deploy's upload goes before its answer.
const ADMIN_LIMIT: Duration = Duration::from_secs(900);

/// A client with connections of its own.
pub(crate) fn client() -> Http {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_LIMIT));
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(1_024)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// The scheduler, as a gateway sees it.
#[derive(Debug, Clone)]
pub(crate) struct SchedulerClient {
    http: Http,
    address: String,
    token: HeaderValue,
}

impl SchedulerClient {
    pub(crate) fn new(address: String, token: HeaderValue) -> Self {
        Self {
            http: client(),
            address,
            token,
        }
    }

    /// Asks for a slot. The error is what the user is told.
    pub(crate) async fn place(&self, request: &PlacementRequest) -> Result<Placement, ApiError> {
        let limit = Duration::from_millis(request.wait_ms) + Duration::from_secs(25);
        let span = tracing::info_span!(
            "ask scheduler",
            otel.kind = "client",
            rekindle.role = "gateway",
            server.address = self.address,
        );
        self.call(Method::POST, "/internal/placements", Some(request), limit)
            .instrument(span)
            .await
    }

    /// Tells what became of leases.
    pub(crate) async fn report(&self, report: &LeaseReport) -> Result<LeaseAnswer, ApiError> {
        self.call(Method::POST, "/internal/leases", Some(report), REPORT_LIMIT)
            .await
    }

    /// Tells what was counted.
    pub(crate) async fn tell(&self, report: &TrafficReport) -> Result<TrafficAnswer, ApiError> {
        self.call(Method::POST, "/internal/traffic", Some(report), CALL_LIMIT)
            .await
    }

    /// Waits until leases are wanted back.
    pub(crate) async fn recalls(&self, gateway: &GatewayId, wait: Duration) -> Result<LeaseAnswer, ApiError> {
        let path = format!("/internal/recalls?gateway={gateway}&wait_ms={}", wait.as_millis());
        self.call(Method::GET, &path, None::<&()>, wait + CALL_LIMIT).await
    }

    /// Has an asynchronous invocation kept.
    pub(crate) async fn accept_call(&self, call: &NewCall) -> Result<AcceptedCall, ApiError> {
        self.call(Method::POST, "/internal/async/calls", Some(call), KEEP_LIMIT)
            .await
    }

    /// Waits for asynchronous invocations to run.
    pub(crate) async fn claim_calls(&self, request: &ClaimRequest, wait: Duration) -> Result<Claims, ApiError> {
        self.call(Method::POST, "/internal/async/claims", Some(request), wait + KEEP_LIMIT)
            .await
    }

    /// Tells which are still run.
    pub(crate) async fn renew_calls(&self, renewal: &Renewal) -> Result<(), ApiError> {
        self.call(Method::POST, "/internal/async/renewals", Some(renewal), CALL_LIMIT)
            .await
    }

    /// Tells what an attempt at one came to.
    pub(crate) async fn end_call(&self, outcome: &CallOutcome) -> Result<(), ApiError> {
        self.call(Method::POST, "/internal/async/outcomes", Some(outcome), KEEP_LIMIT)
            .await
    }

    /// Tells what an attempt at a callback came to.
    pub(crate) async fn end_callback(&self, outcome: &CallbackOutcome) -> Result<(), ApiError> {
        self.call(Method::POST, "/internal/async/callbacks", Some(outcome), KEEP_LIMIT)
            .await
    }

    /// Asks what came of one.
    pub(crate) async fn call_result(&self, id: &CallId, wait: Duration) -> Result<CallResult, ApiError> {
        let path = format!("/internal/async/results/{id}?wait_ms={}", wait.as_millis());
        self.call(Method::GET, &path, None::<&()>, wait + KEEP_LIMIT).await
    }

    /// Whether it answers.
    pub(crate) async fn is_ready(&self) -> bool {
        let uri = format!("http://{}/healthz", self.address);
        let Ok(request) = Request::get(uri).body(Body::empty()) else {
            return false;
        };
        let answer = tokio::time::timeout(CONNECT_LIMIT, self.http.request(request)).await;
        answer.is_ok_and(|a| a.is_ok_and(|a| a.status().is_success()))
    }

    /// Passes a request of the admin API on; both bodies stream.
    pub(crate) async fn pass_on(&self, mut request: Request<Body>) -> Result<Response<Incoming>, ApiError> {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri = self.uri(path)?;
        *request.uri_mut() = uri;
        headers::set_token(request.headers_mut(), &self.token);
        rekindle_telemetry::inject(request.headers_mut());
        match tokio::time::timeout(ADMIN_LIMIT, self.http.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(elapsed) => Err(self.unreachable(&elapsed)),
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<T, ApiError> {
        let body = match body {
            Some(body) => Body::from(serde_json::to_vec(body).map_err(|e| self.unreachable(&e))?),
            None => Body::empty(),
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.uri(path)?;
        let sent = request.headers_mut();
        sent.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers::set_token(sent, &self.token);
        rekindle_telemetry::inject(sent);
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|e| self.unreachable(&e))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|e| self.unreachable(&*e))?.to_bytes();
            if status.is_success() {
                serde_json::from_slice(&body).map_err(|e| self.unreachable(&e))
            } else {
                Err(serde_json::from_slice(&body).unwrap_or_else(|_| {
                    ApiError::new(
                        ErrorCode::Internal,
                        format!("the scheduler answered {status}: see its log"),
                    )
                }))
            }
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(result) => result,
            Err(elapsed) => Err(self.unreachable(&elapsed)),
        }
    }

    fn uri(&self, path: &str) -> Result<Uri, ApiError> {
        format!("http://{}{path}", self.address)
            .parse()
            .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the path cannot be passed on: {e}")))
    }

    fn unreachable(&self, error: &(dyn std::error::Error + 'static)) -> ApiError {
        tracing::warn!(scheduler = self.address, error, "the scheduler does not answer");
        ApiError::new(
            ErrorCode::Unavailable,
            "the scheduler does not answer: try again; if it lasts, see its log",
        )
    }
}
