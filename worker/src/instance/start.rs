//! Starts an instance: accepts the order at once and makes the instance ready in the background. A failed restore falls
//! back to a boot, so that a damaged snapshot costs time but no requests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::HeaderMap;
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::StartInstance;
use rekindle_wire::{ApiError, ErrorCode};
use tracing::Instrument;

use super::{Instance, RunningInstance};
use crate::deploy::runtime_snapshot::{Scope, boot_shared};
use crate::instance::boot::boot;
use crate::instance::damage::examine;
use crate::instance::restore::restore;
use crate::worker::Worker;

/// Registers an instance and starts it in the background. `caller` carries the trace that it belongs to; if it is
/// empty, the instance belongs to the current trace.
///
/// # Errors
/// Returns an error when the worker accepts no instances, or already has one with this id.
pub fn accept(worker: &Arc<Worker>, order: StartInstance, caller: &HeaderMap) -> Result<Arc<Instance>, ApiError> {
    begin(worker, order, caller, Beginning::default())
}

/// Like [`accept`], but a boot starts from the runtime's snapshot that `scope` names.
///
/// # Errors
/// The same as [`accept`].
pub fn accept_shared(
    worker: &Arc<Worker>,
    order: StartInstance,
    caller: &HeaderMap,
    scope: Option<Scope>,
) -> Result<Arc<Instance>, ApiError> {
    let beginning = Beginning {
        scope,
        ..Beginning::default()
    };
    begin(worker, order, caller, beginning)
}

/// Like [`accept`], for a restore that tests whether the snapshot can be restored. A failure does not fall back to a
/// boot, and no request waits for it. It belongs to the current trace.
///
/// # Errors
/// The same as [`accept`].
pub(crate) fn accept_rehearsal(worker: &Arc<Worker>, order: StartInstance) -> Result<Arc<Instance>, ApiError> {
    let beginning = Beginning {
        is_rehearsal: true,
        ..Beginning::default()
    };
    begin(worker, order, &HeaderMap::new(), beginning)
}

/// Options of a start, in addition to its order.
#[derive(Default)]
struct Beginning {
    /// The scope of the runtime's snapshot that a boot starts from.
    scope: Option<Scope>,
    /// Whether a failed restore ends the start.
    is_rehearsal: bool,
}

fn begin(
    worker: &Arc<Worker>,
    order: StartInstance,
    caller: &HeaderMap,
    beginning: Beginning,
) -> Result<Arc<Instance>, ApiError> {
    if worker.draining.load(Ordering::Relaxed) {
        return Err(ApiError::new(
            ErrorCode::Unavailable,
            "the worker takes no new instances",
        ));
    }
    let sink = worker
        .logs
        .sink(&order.spec.function, order.spec.version, order.instance.clone());
    let park = order.park;
    let instance = Instance::new(order.instance, order.spec, order.start, sink);
    if !worker.add(&instance) {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("instance {} exists already", instance.id),
        ));
    }
    let span = tracing::info_span!(
        "start_instance",
        "rekindle.role" = "worker",
        faas.invoked_name = %instance.spec.function,
        faas.version = instance.spec.version.0,
        faas.instance = %instance.id,
        faas.start = %order.start,
        otel.status_code = tracing::field::Empty,
        error.type = tracing::field::Empty,
    );
    rekindle_telemetry::set_parent(&span, caller);
    let (worker, starting) = (Arc::clone(worker), Arc::clone(&instance));
    let task = async move {
        run(&worker, &starting, &beginning).await;
        if park {
            starting.park().await;
            worker.changed.notify_one();
        }
    };
    tokio::spawn(task.instrument(span));
    Ok(instance)
}

/// Starts an instance once more, as a new copy of its snapshot.
pub(super) async fn again(worker: &Arc<Worker>, instance: &Arc<Instance>) {
    *instance.kind.lock() = match &instance.spec.snapshot {
        Some(_) => StartKind::Restored,
        None => StartKind::Booted,
    };
    instance.phases.lock().clear();
    run(worker, instance, &Beginning::default()).await;
}

async fn run(worker: &Arc<Worker>, instance: &Arc<Instance>, beginning: &Beginning) {
    let _settled = Settled { worker, instance };
    let started = Instant::now();
    match start(worker, instance, beginning).await {
        Ok(parts) => {
            let kind = *instance.kind.lock();
            if !beginning.is_rehearsal {
                worker.metrics.ready(&instance.spec.function, kind, started.elapsed());
            }
            instance.ready(parts, worker).await;
        }
        Err(error) => {
            // The start itself has only seen its process end.
            let error = instance.take_verdict().unwrap_or(error);
            span_failed(&error);
            tracing::warn!(instance = %instance.id, %error, "not started");
            instance.failed(error);
        }
    }
}

/// Reports the end of a start to those who wait for it, even when the start panics.
struct Settled<'a> {
    worker: &'a Worker,
    instance: &'a Instance,
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        if !self.instance.settle() {
            self.worker.remove(&self.instance.id);
        }
    }
}

async fn start(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    beginning: &Beginning,
) -> Result<Arc<RunningInstance>, ApiError> {
    let kind = *instance.kind.lock();
    let Some(snapshot) = instance.spec.snapshot.clone().filter(|_| kind == StartKind::Restored) else {
        *instance.kind.lock() = StartKind::Booted;
        return match &beginning.scope {
            Some(scope) => {
                let booting = Box::pin(boot_shared(worker, instance, scope));
                measured(worker, instance, StartKind::Booted, booting).await
            }
            None => measured(worker, instance, StartKind::Booted, Box::pin(boot(worker, instance))).await,
        };
    };
    let restoring = Box::pin(restore(worker, instance, &snapshot));
    match measured(worker, instance, StartKind::Restored, restoring).await {
        Ok(parts) => Ok(parts),
        Err(why) => {
            // If a lost page ended it, the restore itself has only seen a connection break.
            let why = instance.take_verdict().unwrap_or(why);
            if !instance.is_starting() {
                return Err(why);
            }
            worker.snapshots.forget(&snapshot);
            if beginning.is_rehearsal {
                return Err(why);
            }
            tracing::error!(instance = %instance.id, %snapshot, error = %why, "restore failed; booting instead");
            instance
                .sink
                .platform(format!("restore failed, booting instead: {}", why.message));
            examine(worker, instance, &snapshot);
            *instance.kind.lock() = StartKind::Booted;
            let booting = Box::pin(boot(worker, instance));
            let booted = measured(worker, instance, StartKind::Booted, booting).await;
            booted.map_err(|e| {
                let message = format!("{}; booting instead failed too: {}", why.message, e.message);
                ApiError::new(ErrorCode::RestoreFailed, message)
            })
        }
    }
}

/// Runs a start and records its phases.
async fn measured(
    worker: &Worker,
    instance: &Instance,
    kind: StartKind,
    start: impl Future<Output = Result<Arc<RunningInstance>, ApiError>>,
) -> Result<Arc<RunningInstance>, ApiError> {
    // The phases of a failed restore are already in the list.
    let before = instance.phases.lock().len();
    instance.inner_phases.lock().clear();
    let span = tracing::info_span!(
        "start",
        otel.name = if kind == StartKind::Restored { "restore" } else { "boot" },
        "rekindle.role" = "worker",
        rekindle.snapshot = instance.spec.snapshot.as_ref().map(|id| id.as_str()),
        rekindle.tier = tracing::field::Empty,
        rekindle.handover = tracing::field::Empty,
        rekindle.restorer = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        error.type = tracing::field::Empty,
    );
    let started = async {
        let started = start.await;
        if let Err(error) = &started {
            span_failed(error);
        }
        started
    };
    let started = started.instrument(span).await;
    let mut phases = instance.phases.lock()[before..].to_vec();
    phases.extend_from_slice(&instance.inner_phases.lock());
    worker.metrics.started(kind, started.is_ok(), &phases);
    started
}

/// Marks the current span as failed.
fn span_failed(error: &ApiError) {
    let span = tracing::Span::current();
    span.record("otel.status_code", "ERROR");
    span.record("error.type", error.code.as_str());
}
