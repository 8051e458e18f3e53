//! Sends requests to roles and gateways, plainly, over TLS, or within the process.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::uri::Scheme;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rekindle_relay::InProcessRoles;
use rekindle_wire::interface::{Endpoint, version};

use crate::connect::{Connector, connector};
use crate::member::Member;
use crate::public::{self, PublicError};
use rekindle_wire::interface::Role;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The call failed on a plain connection.
    #[error("the call failed")]
    Plain(#[from] reqwest::Error),
    /// The connection failed, or the other end is not the expected one.
    #[error("the call over TLS failed")]
    Guarded(#[source] hyper_util::client::legacy::Error),
    /// The response broke off.
    #[error("the response ended early")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There was no response in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The request is not valid over TLS.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
}

impl CallError {
    /// Whether no connection could be made.
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Plain(error) => error.is_connect(),
            Self::Guarded(error) => error.is_connect(),
            _ => false,
        }
    }

    /// Whether the response took too long.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Plain(error) => error.is_timeout(),
            error => matches!(error, Self::TimedOut(_)),
        }
    }

    /// The TLS error, if it is why there is no connection.
    pub fn tls(&self) -> Option<&rustls::Error> {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            // The source of an I/O error skips the error that it wraps.
            let inner = error.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
            let inner = inner.map(|e| e as &(dyn std::error::Error + 'static));
            let found = inner.unwrap_or(error);
            if let Some(tls) = found.downcast_ref() {
                return Some(tls);
            }
            cause = inner.or_else(|| error.source());
        }
        None
    }
}

/// Sends requests built by `reqwest`: plainly by `reqwest` itself, or over TLS to members of one role.
#[derive(Debug, Clone)]
pub struct Transport {
    plain: reqwest::Client,
    guarded: Option<Client<Connector, reqwest::Body>>,
    in_process: InProcessRoles,
}

impl Transport {
    /// Uses TLS if there is a member. `plain` builds the requests in either case.
    ///
    /// # Errors
    /// If the member's certificate cannot be used.
    pub fn new(plain: reqwest::Client, member: Option<&Member>, to: Role) -> Result<Self, rustls::Error> {
        let guarded = match member {
            None => None,
            Some(member) => {
                let mut http = HttpConnector::new();
                http.set_nodelay(true);
                http.set_connect_timeout(Some(Duration::from_secs(2)));
                Some(client(connector(http, Some(member), to)?))
            }
        };
        Ok(Self {
            plain,
            guarded,
            in_process: InProcessRoles::default(),
        })
    }

    /// Without TLS.
    pub fn plain(plain: reqwest::Client) -> Self {
        Self {
            plain,
            guarded: None,
            in_process: InProcessRoles::default(),
        }
    }

    /// Uses TLS to a gateway, as its clients do: its certificate must come from an authority that this machine trusts,
    /// or from one in the file `ca`. A gateway that asks for a certificate is shown that of `own`, with its key.
    ///
    /// # Errors
    /// If there is no such authority.
    pub fn to_public(
        plain: reqwest::Client,
        ca: Option<&Path>,
        own: Option<(&Path, &Path)>,
        connect_limit: Duration,
    ) -> Result<Self, PublicError> {
        Ok(Self {
            plain,
            guarded: Some(client(public::connector(ca, own, connect_limit)?)),
            in_process: InProcessRoles::default(),
        })
    }

    /// The same transport. Requests to an address registered in `in_process` bypass the network.
    #[must_use]
    pub fn with_in_process(self, in_process: InProcessRoles) -> Self {
        Self { in_process, ..self }
    }

    /// A transport with its own client, which ignores the environment's proxies.
    ///
    /// # Errors
    /// If the member's certificate cannot be used.
    pub fn to(role: Role, member: Option<&Member>) -> Result<Self, rustls::Error> {
        let plain = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build();
        Self::new(plain.unwrap_or_default(), member, role)
    }

    /// The client that requests are built with.
    pub fn http(&self) -> &reqwest::Client {
        &self.plain
    }

    /// A call of a role's operation at this address, `host:port`, without the cluster's token. It names the versions
    /// that this build understands.
    pub fn call<E: Endpoint>(&self, address: &str, at: &E, body: &E::Body) -> reqwest::RequestBuilder {
        let (name, versions) = version::header();
        let call = self
            .plain
            .request(E::OPERATION.method, format!("http://{address}{}", at.uri()))
            .header(name, versions);
        match E::encode(body) {
            body if body.is_empty() => call,
            body => call.header(CONTENT_TYPE, "application/json").body(body),
        }
    }

    /// Sends a request to its address, with the scheme replaced by the one used here. With a time limit, the whole
    /// response arrives within it.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(&self, call: reqwest::RequestBuilder) -> Result<reqwest::Response, CallError> {
        let request = call.build()?;
        let limit = request.timeout().copied();
        if let Some(service) = self.in_process.at(request.url().authority()) {
            let request: http::Request<reqwest::Body> = request.try_into()?;
            let passed = service(request.map(Body::new));
            let stream = |body: Body| reqwest::Body::wrap_stream(body.into_data_stream());
            return within(limit, async { Ok(passed.await.map(stream)) }).await;
        }
        let Some(client) = &self.guarded else {
            return Ok(self.plain.execute(request).await?);
        };
        let mut request: http::Request<reqwest::Body> = request.try_into()?;
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        *request.uri_mut() = http::Uri::from_parts(parts).map_err(|e| CallError::Request(e.into()))?;
        let sent = client.request(request);
        within(limit, async {
            Ok(sent.await.map_err(CallError::Guarded)?.map(reqwest::Body::wrap))
        })
        .await
    }
}

pub(crate) fn client(connector: Connector) -> Client<Connector, reqwest::Body> {
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// With a limit, the whole response. Otherwise its head.
async fn within(
    limit: Option<Duration>,
    sent: impl Future<Output = Result<http::Response<reqwest::Body>, CallError>>,
) -> Result<reqwest::Response, CallError> {
    let Some(limit) = limit else {
        return Ok(sent.await?.into());
    };
    let whole = async {
        let (head, body) = sent.await?.into_parts();
        let body = body.collect().await.map_err(|e| CallError::Body(e.into()))?.to_bytes();
        Ok(http::Response::from_parts(head, body).into())
    };
    tokio::time::timeout(limit, whole)
        .await
        .map_err(|_| CallError::TimedOut(limit))?
}
