//! The gateway, as this program uses it: which sources there are, and invocations.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use rekindle_identity::{CallError, Transport};
use rekindle_wire::api::{SourceInfo, SourceReports};
use rekindle_wire::destination::EVENT;
use rekindle_wire::error::chain;
use rekindle_wire::headers::{IDEMPOTENCY_KEY, TRACEPARENT};
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::users::{Invoke, ReportSources};
use rekindle_wire::internal::start_limit;
use rekindle_wire::{ApiError, FunctionId, Namespace};

use crate::verdict::{Verdict, judge};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Limit for the list of sources.
const LIST_LIMIT: Duration = Duration::from_secs(15);
/// What an invocation may take beyond the function's timeout and its start: waiting for a slot, and for the answer.
const INVOKE_MORE: Duration = Duration::from_secs(30);
/// Every gateway should take this much.
const LARGE: usize = 256 << 10;
/// A gateway refuses a body for its length while the body is being sent.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// Limit for telling a destination, which is kept and run later.
const TELL_LIMIT: Duration = Duration::from_secs(15);
/// Longest answer of a function that is read.
const ANSWER_MAX: usize = 1 << 20;
/// Longest list of sources.
const LIST_MAX: usize = 64 << 20;

/// A gateway and the key to it.
#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    transport: Transport,
    base: String,
    key: String,
}

/// What a destination is told.
#[derive(Debug)]
pub(crate) struct Notice<'a> {
    pub(crate) function: &'a FunctionId,
    pub(crate) body: Vec<u8>,
    /// Names what it tells of.
    pub(crate) key: &'a str,
    pub(crate) traceparent: Option<&'a str>,
}

/// Why a destination was not told.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct TellError {
    pub(crate) reason: String,
    /// Whether another attempt would end the same way.
    pub(crate) is_final: bool,
}

#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) function: &'a FunctionId,
    pub(crate) timeout: Duration,
    /// How long its boot may take, if it has to boot.
    pub(crate) boot_timeout: Duration,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// Those of a trace.
    pub(crate) headers: HeaderMap,
    /// The messages of a batch, or none of a single event.
    pub(crate) ids: &'a [&'a str],
}

impl Gateway {
    /// A gateway at an address. Does not connect.
    pub(crate) fn new(base: &str, key: String, ca: Option<&Path>) -> Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .context("the HTTP client could not be made")?;
        let transport = match base.starts_with("https://") {
            true => Transport::to_public(http, ca, None, CONNECT_LIMIT)?,
            false => Transport::plain(http),
        };
        Ok(Self {
            transport,
            base: base.to_owned(),
            key,
        })
    }

    /// Says how reading goes, and returns the sources of a namespace.
    pub(crate) async fn follow(&self, namespace: &Namespace, reports: &SourceReports) -> Result<Vec<SourceInfo>> {
        let at = ReportSources {
            namespace: Some(namespace.clone()),
        };
        let request = self
            .transport
            .http()
            .post(format!("{}{}", self.base, at.uri()))
            .bearer_auth(&self.key)
            .header(CONTENT_TYPE, "application/json")
            .timeout(LIST_LIMIT)
            .body(ReportSources::encode(reports));
        let response = self
            .transport
            .send(request)
            .await
            .context("the gateway does not answer")?;
        let status = response.status();
        let Some(body) = read(response, LIST_MAX)
            .await
            .context("the gateway's response ended early")?
        else {
            bail!("the gateway's answer is too long");
        };
        if !status.is_success() {
            match serde_json::from_slice::<ApiError>(&body) {
                Ok(error) => return Err(error.into()),
                Err(_) => bail!(
                    "{} answers {status}: set gateway to the address of a Rekindle gateway",
                    self.base
                ),
            }
        }
        ReportSources::decode(&body).context("the gateway is of a version that this program does not understand")
    }

    /// Invokes a function once.
    pub(crate) async fn invoke(&self, invocation: Invocation<'_>) -> Verdict {
        let (name, namespace) = invocation.function.split();
        let at = Invoke { name, namespace };
        let (bytes, began) = (invocation.body.len(), Instant::now());
        let is_large = bytes > LARGE;
        let request = self
            .transport
            .http()
            .post(format!("{}{}", self.base, at.uri()))
            .headers(invocation.headers)
            .bearer_auth(&self.key)
            .header(CONTENT_TYPE, invocation.content_type)
            .timeout(invocation.timeout + start_limit(invocation.boot_timeout) + INVOKE_MORE)
            .body(invocation.body);
        let again = request.try_clone().filter(|_| is_large && invocation.ids.len() <= 1);
        let hung_up = |error: &CallError| {
            is_large && !error.is_connect() && began.elapsed() < invocation.timeout.min(REFUSED_WITHIN)
        };
        let mut sent = self.transport.send(request).await;
        // The gateway may have closed the connection after a larger body. One event cannot be sent in smaller parts.
        if let (Err(error), Some(again)) = (&sent, again)
            && hung_up(error)
        {
            sent = self.transport.send(again).await;
        }
        let response = match sent {
            Ok(response) => response,
            // A gateway that refuses a body closes the connection, and its answer may be lost with that.
            Err(error) if hung_up(&error) => {
                return Verdict::TooLarge {
                    reason: format!("the gateway hung up on {bytes} bytes: {}", chain(&error)),
                };
            }
            Err(error) => return unanswered(&error),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        match read(response, ANSWER_MAX).await {
            Ok(body) => judge(status, &headers, body.as_deref(), invocation.ids),
            Err(error) if status == StatusCode::PAYLOAD_TOO_LARGE => Verdict::TooLarge {
                reason: format!("413: {}", chain(&error)),
            },
            Err(error) => Verdict::Failed {
                reason: format!("the response ended early: {}", chain(&error)),
                after: None,
                is_overloaded: false,
            },
        }
    }
}

impl Gateway {
    /// Has a function told later. The platform keeps that once this returns.
    pub(crate) async fn tell(&self, notice: Notice<'_>) -> Result<(), TellError> {
        let (name, namespace) = notice.function.split();
        let at = Invoke { name, namespace }.uri();
        let separator = if at.contains('?') { '&' } else { '?' };
        let request = self
            .transport
            .http()
            .post(format!("{}{at}{separator}async=true", self.base))
            .bearer_auth(&self.key)
            .header(CONTENT_TYPE, EVENT)
            .header(IDEMPOTENCY_KEY, notice.key)
            .timeout(TELL_LIMIT)
            .body(notice.body);
        let request = match notice.traceparent {
            Some(parent) => request.header(TRACEPARENT, parent),
            None => request,
        };
        let failed = |reason, is_final| TellError { reason, is_final };
        let response = self
            .transport
            .send(request)
            .await
            .map_err(|error| failed(format!("the gateway does not answer: {}", chain(&error)), false))?;
        let status = response.status();
        // A conflict: it was told in an earlier delivery.
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        let body = read(response, ANSWER_MAX).await.ok().flatten().unwrap_or_default();
        let said = serde_json::from_slice::<ApiError>(&body).map(|error| error.to_string());
        let is_final = matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::LOOP_DETECTED
        );
        Err(failed(said.unwrap_or_else(|_| format!("answered {status}")), is_final))
    }
}

fn unanswered(error: &CallError) -> Verdict {
    let reason = format!("the gateway does not answer: {}", chain(error));
    match error.is_connect() {
        true => Verdict::Refused {
            reason,
            after: None,
            is_busy: false,
        },
        false => Verdict::Failed {
            reason,
            after: None,
            is_overloaded: false,
        },
    }
}

/// The body, if it is not longer than `max`.
async fn read(mut response: reqwest::Response, max: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}
