//! One invocation into an instance: wait until it is ready, send the request over a connection inside its sandbox, stream
//! the answer back. The request counts as in flight until the last byte of the answer is gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body::Frame;
use rekindle_wire::api::StartKind;
use rekindle_wire::{ApiError, ErrorCode, InstanceId, headers};
use tokio::time::Instant as Deadline;
use tracing::Instrument;

use crate::instance::{InFlight, Instance, gone};
use crate::worker::Worker;

/// The deadline of a request that brings none.
const DEFAULT_LIMIT: Duration = Duration::from_secs(900);
/// Headers that concern one connection only.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
];

/// Serves `ANY /invoke/{instance}/{path}`.
///
/// # Errors
/// `instance_gone` before the function saw the request; else what became of it.
pub async fn invoke(
    worker: Arc<Worker>,
    id: InstanceId,
    path: String,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let span = tracing::info_span!("invoke", "rekindle.role" = "worker", instance = %id, otel.kind = "server");
    rekindle_telemetry::set_parent(&span, request.headers());
    forward(worker, id, path, request).instrument(span).await
}

async fn forward(
    worker: Arc<Worker>,
    id: InstanceId,
    path: String,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let deadline = deadline(request.headers());
    let instance = worker.instance(&id).ok_or_else(gone)?;
    let (in_flight, first) = instance.usage.enter().ok_or_else(gone)?;
    let waited = Instant::now();
    let parts = instance.until_ready(deadline).await?;
    let start = waited.elapsed();
    let inward = inward(request, &path)?;
    let sent = Instant::now();
    let answered = tokio::time::timeout_at(deadline, parts.client.send(inward))
        .instrument(tracing::info_span!("function", otel.kind = "client"))
        .await;
    let answer = match answered {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) => {
            tracing::debug!(error = ?e, "no answer");
            return Err(instance.end_reason().await);
        }
        Err(_) => {
            return Err(ApiError::new(
                ErrorCode::FunctionTimeout,
                format!(
                    "the function did not answer within its timeout of {} s; raise timeout in fn.toml",
                    instance.spec.manifest.timeout().as_secs_f64()
                ),
            ));
        }
    };
    let function = sent.elapsed();
    if first {
        record_working_set(&worker, &instance);
    }
    Ok(outward(answer, &instance, first.then_some(start), function, in_flight))
}

fn deadline(headers: &HeaderMap) -> Deadline {
    let asked = headers
        .get(headers::DEADLINE_MS)
        .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let left = asked.map_or(DEFAULT_LIMIT, |ms| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_millis(ms).saturating_sub(now)
    });
    Deadline::now() + left.min(DEFAULT_LIMIT)
}

/// The request as the function sees it.
fn inward(request: Request<Body>, path: &str) -> Result<Request<Body>, ApiError> {
    let (mut head, body) = request.into_parts();
    let uri = format!("http://function{path}");
    head.uri = uri
        .parse::<Uri>()
        .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("path {path:?} cannot be requested: {e}")))?;
    head.version = http::Version::HTTP_11;
    let internal: Vec<HeaderName> = head
        .headers
        .keys()
        .filter(|n| n.as_str().starts_with("x-rekindle-"))
        .cloned()
        .collect();
    for name in internal {
        head.headers.remove(name);
    }
    for name in HOP_BY_HOP {
        head.headers.remove(name);
    }
    rekindle_telemetry::inject(&mut head.headers);
    Ok(Request::from_parts(head, body))
}

/// The answer as the gateway gets it.
fn outward(
    answer: Response<hyper::body::Incoming>,
    instance: &Instance,
    start: Option<Duration>,
    function: Duration,
    in_flight: InFlight,
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    for name in HOP_BY_HOP {
        head.headers.remove(name);
    }
    // Only the platform speaks in its own name.
    head.headers.remove(headers::PLATFORM_ERROR);
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let mut timing = String::new();
    let kind = *instance.kind.lock();
    if start.is_some() {
        let took = instance.start_took.lock().unwrap_or_default();
        let name = if kind == StartKind::Booted { "boot" } else { "restore" };
        timing = format!("{name};dur={:.3}, ", ms(took));
        for (phase, took) in instance.phases.lock().iter() {
            timing.push_str(&format!("{phase};dur={:.3}, ", ms(*took)));
        }
    }
    timing.push_str(&format!("function;dur={:.3}", ms(function)));
    if let Ok(value) = HeaderValue::from_str(&timing) {
        head.headers.append(headers::SERVER_TIMING, value);
    }
    // What the gateway planned may have become a boot.
    if start.is_some() {
        head.headers
            .insert(headers::START, HeaderValue::from_static(kind.as_str()));
    } else {
        head.headers.remove(headers::START);
    }
    Response::from_parts(
        head,
        Body::new(Counted {
            body,
            _in_flight: in_flight,
        }),
    )
}

/// A body that keeps its request in flight until it ends.
struct Counted {
    body: hyper::body::Incoming,
    _in_flight: InFlight,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// After the first answer of a restored instance: what it touched belongs to the snapshot's working set.
fn record_working_set(worker: &Arc<Worker>, instance: &Arc<Instance>) {
    let Some(parts) = instance.parts() else { return };
    let (Some(pager), Some(snapshot)) = (&parts.pager, &parts.snapshot) else {
        return;
    };
    let touched = pager.take_working_set();
    if !snapshot.record(&touched) {
        return;
    }
    let (worker, snapshot) = (Arc::clone(worker), Arc::clone(snapshot));
    tokio::spawn(async move {
        if let Err(e) = worker.snapshots.store_working_set(&snapshot, &touched).await {
            tracing::warn!(snapshot = %snapshot.id, error = %e, "the working set is not stored");
        }
    });
}
