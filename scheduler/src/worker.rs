//! Calls to workers. Each call has a time limit and carries the cluster's token and the current trace.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use rekindle_identity::{CallError, CertificateIssuer, Role, TlsError, Transport};
use rekindle_relay::InProcessRoles;
use rekindle_wire::api::InstanceObjects;
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::interface::{Endpoint, worker as operations};
use rekindle_wire::internal::{PrepareRequest, StartInstance};
use rekindle_wire::migration::{ExpectedInstance, MigrationPhases, SettleLimit, SourceOrder};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, MigrationId, Secret};

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
    /// The worker's answer is not of this interface.
    #[error("worker {address} gave an answer that cannot be read")]
    Unread {
        address: String,
        #[source]
        source: serde_json::Error,
    },
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
            Self::Unreachable { .. } | Self::Unread { .. } => true,
            Self::Refused { .. } => self.is_leaving(),
        }
    }

    /// Whether the worker may have done what it was asked: the request may have reached it.
    pub(crate) fn may_have_been_done(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !source.is_connect(),
            Self::Unread { .. } => true,
            Self::Refused { .. } => false,
        }
    }

    /// Whether the worker takes nothing new, as it is shutting down.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// Result of stopping or parking an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopOutcome {
    /// It was stopped or parked.
    Done,
    /// It serves an invocation and stays.
    Busy,
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
    pub(crate) fn new(
        token: &str,
        issuing: Option<&CertificateIssuer>,
        in_process: InProcessRoles,
    ) -> Result<Self, TlsError> {
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
        self.ask(address, &operations::Start {}, start, CALL_LIMIT).await
    }

    /// Stops an instance; with `if_idle`, only if it serves nothing.
    pub(crate) async fn stop(&self, address: &str, id: &InstanceId, if_idle: bool) -> Result<StopOutcome, WorkerError> {
        let stop = operations::Stop {
            id: id.clone(),
            if_idle: Some(if_idle),
        };
        stop_outcome(self.ask(address, &stop, &(), STOP_LIMIT).await)
    }

    /// Looks at what an instance has from the kernel.
    pub(crate) async fn objects(&self, address: &str, id: &InstanceId) -> Result<InstanceObjects, WorkerError> {
        let read = operations::ReadObjects { id: id.clone() };
        self.ask(address, &read, &(), STOP_LIMIT).await
    }

    /// Parks an instance that serves nothing.
    pub(crate) async fn park(&self, address: &str, id: &InstanceId) -> Result<StopOutcome, WorkerError> {
        let park = operations::Park { id: id.clone() };
        stop_outcome(self.ask(address, &park, &(), CALL_LIMIT).await)
    }

    /// Gives a running instance other secrets.
    pub(crate) async fn set_secrets(
        &self,
        address: &str,
        id: &InstanceId,
        secrets: &Vec<Secret>,
    ) -> Result<(), WorkerError> {
        let set = operations::SetSecrets { id: id.clone() };
        self.ask(address, &set, secrets, CALL_LIMIT).await
    }

    /// Tells a worker that an instance will arrive from another worker.
    pub(crate) async fn expect(
        &self,
        address: &str,
        id: &MigrationId,
        expected: &ExpectedInstance,
    ) -> Result<(), WorkerError> {
        let expect = operations::ExpectTarget { id: id.clone() };
        self.ask(address, &expect, expected, CALL_LIMIT).await
    }

    /// Prepares an instance's migration at its source, which prepares the target.
    pub(crate) async fn prepare_source(&self, address: &str, order: &SourceOrder) -> Result<(), WorkerError> {
        let prepare = operations::PrepareSource {};
        self.ask(address, &prepare, order, MOVE_LIMIT).await
    }

    /// Cancels a migration that is only prepared; best effort.
    pub(crate) async fn cancel_source(&self, address: &str, id: &MigrationId) {
        let cancel = operations::CancelSource { id: id.clone() };
        if let Err(error) = self.ask(address, &cancel, &(), CALL_LIMIT).await {
            tracing::debug!(%id, %error, "a migration was not cancelled; its source does so when its time is over");
        }
    }

    /// Performs the prepared migration once requests have ended, after at most `settle`.
    pub(crate) async fn perform(
        &self,
        address: &str,
        id: &MigrationId,
        limit: &SettleLimit,
        settle: Duration,
    ) -> Result<MigrationPhases, WorkerError> {
        let perform = operations::PerformMigration { id: id.clone() };
        self.ask(address, &perform, limit, MOVE_LIMIT + settle).await
    }

    /// Stops a function's instances and removes its logs.
    pub(crate) async fn remove_function(&self, address: &str, name: &FunctionId) -> Result<(), WorkerError> {
        let remove = operations::RemoveFunction { name: name.clone() };
        self.ask(address, &remove, &(), STOP_LIMIT).await
    }

    /// Begins to prepare a version. The response body is lines of events, and has no time limit of its own here.
    pub(crate) async fn prepare(
        &self,
        address: &str,
        request: &PrepareRequest,
    ) -> Result<reqwest::Response, WorkerError> {
        let prepare = operations::Prepare {};
        self.send(address, self.call(address, &prepare, request)).await
    }

    /// A function's log lines on one worker.
    pub(crate) async fn logs(
        &self,
        address: &str,
        function: &FunctionId,
        tail: usize,
        follow: bool,
    ) -> Result<reqwest::Response, WorkerError> {
        let logs = operations::ReadLogs {
            function: function.clone(),
            tail: Some(tail),
            follow: Some(follow),
        };
        let call = self.call(address, &logs, &());
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
            .header(CLUSTER_TOKEN, &self.token)
            .timeout(CALL_LIMIT);
        if let Some(accept) = accept {
            call = call.header(http::header::ACCEPT, accept);
        }
        self.send(address, call).await
    }

    fn call<E: Endpoint>(&self, address: &str, at: &E, body: &E::Body) -> reqwest::RequestBuilder {
        let call = self.transport.call(address, at, body);
        call.header(CLUSTER_TOKEN, &self.token)
    }

    /// Calls an operation, and reads its answer.
    async fn ask<E: Endpoint>(
        &self,
        address: &str,
        at: &E,
        body: &E::Body,
        limit: Duration,
    ) -> Result<E::Answer, WorkerError> {
        let call = self.call(address, at, body).timeout(limit);
        let answer = self.send(address, call).await?;
        let body = answer.bytes().await.map_err(|source| WorkerError::Unreachable {
            address: address.to_owned(),
            source: source.into(),
        })?;
        E::decode(&body).map_err(|source| WorkerError::Unread {
            address: address.to_owned(),
            source,
        })
    }

    async fn send(&self, address: &str, call: reqwest::RequestBuilder) -> Result<reqwest::Response, WorkerError> {
        let mut headers = HeaderMap::new();
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

/// What became of an instance that was to be stopped or parked.
fn stop_outcome(answer: Result<(), WorkerError>) -> Result<StopOutcome, WorkerError> {
    match answer {
        Ok(()) => Ok(StopOutcome::Done),
        Err(WorkerError::Refused { status, .. }) if status == StatusCode::NOT_FOUND || status == StatusCode::GONE => {
            Ok(StopOutcome::Gone)
        }
        Err(WorkerError::Refused { status, .. }) if status == StatusCode::CONFLICT => Ok(StopOutcome::Busy),
        Err(error) => Err(error),
    }
}
