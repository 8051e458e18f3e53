//! Calls to workers. Each call has a time limit and carries the cluster's token and the current trace.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rekindle_identity::{CallError, Issuing, Role, TlsError, Transport};
use rekindle_relay::InProcessRoles;
use rekindle_wire::headers;
use rekindle_wire::internal::{PrepareRequest, StartInstance};
use rekindle_wire::migration::{Departed, Expected, Leave, SourceOrder};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, MigrationId};
use serde::Serialize;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// A worker may wait for a function to end before it answers.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// For two workers that prepare or hand an instance over: their own limits are shorter.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// Why a call to a worker failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// The worker cannot be reached or did not answer in time.
    #[error("worker {address} did not answer")]
    Unreachable {
        address: String,
        #[source]
        source: CallError,
    },
    /// The worker refused.
    #[error("worker {address} answered {status}: {message}")]
    Refused {
        address: String,
        status: StatusCode,
        /// The platform's error code, if the answer has one.
        code: Option<ErrorCode>,
        message: String,
    },
}

impl WorkerError {
    /// Whether another worker may succeed: this one cannot be reached, or is shutting down.
    pub(crate) fn may_do_elsewhere(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { .. } => self.is_leaving(),
        }
    }

    /// Whether the worker takes nothing new, as it is shutting down.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// Result of stopping or parking an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halted {
    /// It was stopped or parked.
    Done,
    /// It serves an invocation and stays.
    Busy,
    /// It is gone.
    Gone,
}

/// The scheduler's connections to all workers.
#[derive(Debug)]
pub(crate) struct WorkerClient {
    transport: Transport,
    token: HeaderValue,
}

impl WorkerClient {
    /// `token` must be usable as a header value; [`crate::serve`] checks it.
    pub(crate) fn new(token: &str, issuing: Option<&Issuing>, in_process: InProcessRoles) -> Result<Self, TlsError> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .unwrap_or_default();
        let mut token = HeaderValue::from_str(token).unwrap_or(HeaderValue::from_static(""));
        token.set_sensitive(true);
        let member = issuing.map(|i| &**i.member());
        let transport = Transport::new(http, member, Role::Worker)?.with_in_process(in_process);
        Ok(Self { transport, token })
    }

    /// Asks for an instance. The worker answers before it is ready.
    pub(crate) async fn start(&self, address: &str, start: &StartInstance) -> Result<(), WorkerError> {
        let call = self.post(address, "/instances", start).timeout(CALL_LIMIT);
        self.send(address, call).await.map(drop)
    }

    /// Stops an instance; with `if_idle`, only if it serves nothing.
    pub(crate) async fn stop(
        &self,
        address: &str,
        instance: &InstanceId,
        if_idle: bool,
    ) -> Result<Halted, WorkerError> {
        let query = if if_idle { "?if_idle=true" } else { "" };
        let url = format!("http://{address}/instances/{instance}{query}");
        self.halt(address, self.transport.http().delete(url).timeout(STOP_LIMIT))
            .await
    }

    /// Parks an instance that serves nothing.
    pub(crate) async fn park(&self, address: &str, instance: &InstanceId) -> Result<Halted, WorkerError> {
        let url = format!("http://{address}/instances/{instance}/park");
        self.halt(address, self.transport.http().post(url).timeout(CALL_LIMIT))
            .await
    }

    async fn halt(&self, address: &str, call: reqwest::RequestBuilder) -> Result<Halted, WorkerError> {
        match self.send(address, call).await {
            Ok(_) => Ok(Halted::Done),
            Err(WorkerError::Refused { status, .. })
                if status == StatusCode::NOT_FOUND || status == StatusCode::GONE =>
            {
                Ok(Halted::Gone)
            }
            Err(WorkerError::Refused { status, .. }) if status == StatusCode::CONFLICT => Ok(Halted::Busy),
            Err(error) => Err(error),
        }
    }

    /// Tells a worker that an instance will arrive from another worker.
    pub(crate) async fn expect(&self, address: &str, id: &MigrationId, expected: &Expected) -> Result<(), WorkerError> {
        let url = format!("http://{address}/arrivals/{id}/expected");
        let call = self.transport.http().put(url).json(expected).timeout(CALL_LIMIT);
        self.send(address, call).await.map(drop)
    }

    /// Prepares the migration source and target of an instance.
    pub(crate) async fn depart(&self, address: &str, order: &SourceOrder) -> Result<(), WorkerError> {
        let call = self.post(address, "/departures", order).timeout(MOVE_LIMIT);
        self.send(address, call).await.map(drop)
    }

    /// Cancels such a move; best effort.
    pub(crate) async fn stay(&self, address: &str, id: &MigrationId) {
        let url = format!("http://{address}/departures/{id}");
        if let Err(error) = self
            .send(address, self.transport.http().delete(url).timeout(CALL_LIMIT))
            .await
        {
            tracing::debug!(%id, %error, "a move is not given up; it will be, by itself");
        }
    }

    /// Tells the instance to leave, after at most `settle`.
    pub(crate) async fn leave(
        &self,
        address: &str,
        id: &MigrationId,
        leave: &Leave,
        settle: Duration,
    ) -> Result<Departed, WorkerError> {
        let path = format!("/departures/{id}/leave");
        let call = self.post(address, &path, leave).timeout(MOVE_LIMIT + settle);
        let unreadable = |source: reqwest::Error| WorkerError::Unreachable {
            address: address.to_owned(),
            source: source.into(),
        };
        self.send(address, call).await?.json().await.map_err(unreadable)
    }

    /// Stops a function's instances and removes its logs.
    pub(crate) async fn remove_function(&self, address: &str, function: &FunctionId) -> Result<(), WorkerError> {
        let url = format!("http://{address}/functions/{function}");
        self.send(address, self.transport.http().delete(url).timeout(STOP_LIMIT))
            .await
            .map(drop)
    }

    /// Begins to prepare a version. The response body is lines of events, and has no time limit of its own here.
    pub(crate) async fn prepare(
        &self,
        address: &str,
        request: &PrepareRequest,
    ) -> Result<reqwest::Response, WorkerError> {
        self.send(address, self.post(address, "/prepare", request)).await
    }

    /// A function's log lines on one worker.
    pub(crate) async fn logs(
        &self,
        address: &str,
        function: &FunctionId,
        tail: usize,
        follow: bool,
    ) -> Result<reqwest::Response, WorkerError> {
        let url = format!("http://{address}/logs/{function}?tail={tail}&follow={follow}");
        let call = self.transport.http().get(url);
        let call = if follow { call } else { call.timeout(CALL_LIMIT) };
        self.send(address, call).await
    }

    /// A worker's metrics, in the format that `accept` names.
    pub(crate) async fn metrics(
        &self,
        address: &str,
        accept: Option<&HeaderValue>,
    ) -> Result<reqwest::Response, WorkerError> {
        let mut call = self
            .transport
            .http()
            .get(format!("http://{address}/metrics"))
            .timeout(CALL_LIMIT);
        if let Some(accept) = accept {
            call = call.header(http::header::ACCEPT, accept);
        }
        self.send(address, call).await
    }

    fn post(&self, address: &str, path: &str, body: &impl Serialize) -> reqwest::RequestBuilder {
        self.transport.http().post(format!("http://{address}{path}")).json(body)
    }

    async fn send(&self, address: &str, call: reqwest::RequestBuilder) -> Result<reqwest::Response, WorkerError> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(headers::CLUSTER_TOKEN), self.token.clone());
        rekindle_telemetry::inject(&mut headers);
        let unreachable = |source| WorkerError::Unreachable {
            address: address.to_owned(),
            source,
        };
        let call = call.headers(headers);
        let answer = self.transport.send(call).await.map_err(unreachable)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = tokio::time::timeout(CALL_LIMIT, answer.bytes()).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let (code, message) = match serde_json::from_slice::<ApiError>(&body) {
            Ok(error) => (Some(error.code), error.message),
            Err(_) => (None, String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned()),
        };
        Err(WorkerError::Refused {
            address: address.to_owned(),
            status,
            code,
            message,
        })
    }
}
