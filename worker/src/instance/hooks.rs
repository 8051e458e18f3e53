//! Calls of a function's hooks around a snapshot.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use rekindle_relay::SendError;
use rekindle_wire::function_config::{Interface, Runtime};
use rekindle_wire::headers::{HOOK_PREFIX, RESEEDED};
use rekindle_wire::internal::VersionSpec;
use tracing::{Instrument as _, Span};

use super::client::own_url;
use super::lifecycle::Instance;
use super::running::RunningInstance;
use crate::snapshots::OpenSnapshot;

/// How long a hook may take, including its whole response.
const HOOK_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a hook response that is read, in bytes.
const HOOK_BODY_MAX: usize = 64 * 1024;

/// A call around a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Called before the checkpoint.
    BeforeSnapshot,
    /// Called in each restored instance before its first request.
    AfterRestore,
}

/// Returns the path to call for a hook, if the function has one.
fn hook_path(spec: &VersionSpec, hook: Hook) -> Option<String> {
    let config = &spec.config;
    let has_own = config.runtime == Runtime::Http && config.interface == Interface::Http;
    match (has_own, hook) {
        (true, Hook::BeforeSnapshot) => config.hooks.before_snapshot.clone(),
        (true, Hook::AfterRestore) => config.hooks.after_restore.clone(),
        (_, Hook::BeforeSnapshot) => Some(format!("{HOOK_PREFIX}before-snapshot")),
        (_, Hook::AfterRestore) => Some(format!("{HOOK_PREFIX}after-restore")),
    }
}

/// Returns whether copies of this snapshot's function have a hook with work to do.
pub(super) fn is_called_after_restore(spec: &VersionSpec, snapshot: &OpenSnapshot) -> bool {
    snapshot.notes.is_hook_needed() && hook_path(spec, Hook::AfterRestore).is_some()
}

/// Calls a hook, waits for its response and returns the body.
///
/// # Errors
/// Returns the function's response if it is an error, or says that there was none.
pub async fn call_hook(instance: &Instance, running: &RunningInstance, hook: Hook) -> Result<Bytes, String> {
    let Some(path) = hook_path(&instance.spec, hook) else {
        return Ok(Bytes::new());
    };
    let span = tracing::debug_span!(
        "hook",
        otel.name = format!("hook {path}"),
        otel.kind = "client",
        "rekindle.role" = "worker",
        faas.invoked_name = %instance.spec.function,
        faas.instance = %instance.id,
        http.response.status_code = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
    );
    let called = send_hook(instance, running, &path, &span)
        .instrument(span.clone())
        .await;
    if called.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    called
}

async fn send_hook(instance: &Instance, running: &RunningInstance, path: &str, span: &Span) -> Result<Bytes, String> {
    let mut request = http::Request::post(own_url(path))
        .header(http::header::CONTENT_LENGTH, 0)
        .header(rekindle_wire::headers::INSTANCE, instance.id.as_str());
    let reseeded = running.snapshot.as_ref().map(|snapshot| snapshot.notes.reseeded());
    if let Some(reseeded) = reseeded.filter(|kinds| !kinds.is_empty()) {
        request = request.header(RESEEDED, reseeded);
    }
    let request = request.body(Body::empty());
    let mut request = request.map_err(|e| format!("hook {path}: {e}"))?;
    rekindle_telemetry::inject_span(span, request.headers_mut());
    let exchange = async {
        let answer = running.client.send(request).await?;
        let status = answer.status();
        // Reading the body to its end lets the connection be reused. A longer body closes the connection.
        let body = axum::body::to_bytes(Body::new(answer.into_body()), HOOK_BODY_MAX).await;
        Ok((status, body.unwrap_or_default()))
    };
    let (status, body) = tokio::time::timeout(HOOK_LIMIT, exchange)
        .await
        .map_err(|_| format!("hook {path} did not answer within {} s", HOOK_LIMIT.as_secs()))?
        .map_err(|e: SendError| format!("hook {path}: {e}"))?;
    span.record("http.response.status_code", status.as_u16());
    if status.is_success() {
        Ok(body)
    } else {
        Err(format!(
            "hook {path} answered {status}: {}",
            String::from_utf8_lossy(&body)
        ))
    }
}
