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

use super::boot::Booter;
use super::damage::DamageExaminer;
use super::end::Supervisor;
use super::lifecycle::Instance;
use super::registry::Instances;
use super::reset::Resetter;
use super::restore::SnapshotRestorer;
use super::running::RunningInstance;
use super::runtime_snapshot::{RuntimeBooter, RuntimeSnapshotScope};
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

/// Options of a start, in addition to its order.
#[derive(Default)]
struct StartOptions {
    /// The scope of the runtime's snapshot that a boot starts from.
    scope: Option<RuntimeSnapshotScope>,
    /// Whether a failed restore ends the start.
    is_rehearsal: bool,
}

/// Reports the end of a start to those who wait for it, even when the start panics.
struct SettleOnDrop<'a> {
    instances: &'a Instances,
    instance: &'a Arc<Instance>,
    /// Of the instance when this start began.
    renewals: u64,
}

impl Drop for SettleOnDrop<'_> {
    fn drop(&mut self) {
        if !self.instance.settle(self.renewals) {
            self.instances.remove_this(self.instance);
        }
    }
}

/// Starts instances.
pub struct Starter {
    /// All instances.
    pub instances: Arc<Instances>,
    /// Where functions' output goes.
    pub logs: Arc<Logs>,
    /// Restores instances.
    pub restorer: SnapshotRestorer,
    /// Boots instances.
    pub booter: Arc<Booter>,
    /// Boots instances from the snapshots of their runtimes.
    pub runtime_booter: RuntimeBooter,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Hears of snapshots that cannot be restored.
    pub damage: Arc<DamageExaminer>,
    /// Puts copies of functions with `fresh` back.
    pub resetter: Arc<Resetter>,
    /// Watches over instances that are ready.
    pub supervisor: Arc<Supervisor>,
    /// Where starts are measured.
    pub metrics: Arc<Metrics>,
}

impl Starter {
    /// Registers an instance and starts it in the background. `caller` carries the trace that it belongs to; if it is
    /// empty, the instance belongs to the current trace.
    ///
    /// # Errors
    /// Returns an error when the worker accepts no instances, or already has one with this id.
    pub fn accept(self: &Arc<Self>, order: StartInstance, caller: &HeaderMap) -> Result<Arc<Instance>, ApiError> {
        self.begin(order, caller, StartOptions::default())
    }

    /// Like [`Self::accept`], but a boot starts from the runtime's snapshot that `scope` names.
    ///
    /// # Errors
    /// The same as [`Self::accept`].
    pub fn accept_shared(
        self: &Arc<Self>,
        order: StartInstance,
        caller: &HeaderMap,
        scope: Option<RuntimeSnapshotScope>,
    ) -> Result<Arc<Instance>, ApiError> {
        let beginning = StartOptions {
            scope,
            ..StartOptions::default()
        };
        self.begin(order, caller, beginning)
    }

    /// Like [`Self::accept`], for a restore that tests whether the snapshot can be restored. A failure does not fall
    /// back to a boot, and no request waits for it. It belongs to the current trace.
    ///
    /// # Errors
    /// The same as [`Self::accept`].
    pub(crate) fn accept_rehearsal(self: &Arc<Self>, order: StartInstance) -> Result<Arc<Instance>, ApiError> {
        let beginning = StartOptions {
            is_rehearsal: true,
            ..StartOptions::default()
        };
        self.begin(order, &HeaderMap::new(), beginning)
    }

    /// Like [`Self::accept`], for an order with the id of `old`, in whose place the instance comes. It starts once that
    /// one has stopped, because of `why`. It belongs to the current trace.
    pub(crate) async fn accept_instead(
        self: &Arc<Self>,
        old: &Arc<Instance>,
        order: StartInstance,
        why: &str,
    ) -> Arc<Instance> {
        let instance = self.make(order);
        instance.succeed(old);
        self.instances.replace(&instance);
        old.stop(why).await;
        self.launch(&instance, &HeaderMap::new(), StartOptions::default(), false);
        instance
    }

    fn begin(
        self: &Arc<Self>,
        order: StartInstance,
        caller: &HeaderMap,
        beginning: StartOptions,
    ) -> Result<Arc<Instance>, ApiError> {
        self.instances.check_accepting()?;
        let park = order.park;
        let instance = self.make(order);
        instance.records_files.store(beginning.is_rehearsal, Ordering::Relaxed);
        if !self.instances.add(&instance) {
            return Err(ApiError::new(
                ErrorCode::Conflict,
                format!("instance {} exists already", instance.id),
            ));
        }
        self.launch(&instance, caller, beginning, park);
        Ok(instance)
    }

    fn make(&self, order: StartInstance) -> Arc<Instance> {
        let sink = self
            .logs
            .sink(&order.spec.function, order.spec.version, order.instance.clone());
        let instance = Instance::new(order.instance, order.spec, order.start, order.ticket, sink);
        instance.give_secrets(order.secrets);
        instance
    }

    fn launch(self: &Arc<Self>, instance: &Arc<Instance>, caller: &HeaderMap, beginning: StartOptions, park: bool) {
        let span = tracing::info_span!(
            "start_instance",
            "rekindle.role" = "worker",
            faas.invoked_name = %instance.spec.function,
            faas.version = instance.spec.version.0,
            faas.instance = %instance.id,
            faas.start = %instance.kind.lock(),
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
        );
        rekindle_telemetry::set_parent(&span, caller);
        let (starter, starting) = (Arc::clone(self), Arc::clone(instance));
        let task = async move {
            starter.run(&starting, &beginning).await;
            if park {
                starting.park().await;
                starter.instances.changed.notify_one();
            }
        };
        tokio::spawn(task.instrument(span));
    }

    /// Renews an instance whose copy is used: puts that back, or restores another one.
    pub(super) async fn renew(&self, instance: &Arc<Instance>, used: Arc<RunningInstance>) {
        let _settled = SettleOnDrop {
            instances: &self.instances,
            instance,
            renewals: instance.renewals(),
        };
        // Whoever stops the instance now kills this one.
        if instance.starts_in(&used.sandbox).is_err() {
            return used.tear_down().await;
        }
        let span = tracing::Span::current();
        match self.resetter.put_back(&used).await {
            Some(Ok(pages)) => {
                span.record("rekindle.fresh.by", "reset");
                span.record("rekindle.pages", pages as u64);
                self.metrics.fresh_copy(None);
                instance.resets.succeeded();
                return self.supervisor.ready(instance, used).await;
            }
            // It was killed meanwhile.
            _ if !instance.is_starting() => return used.tear_down().await,
            Some(Err(unfit)) => {
                tracing::debug!(instance = %instance.id, error = %unfit, "a copy is not put back");
                span.record("rekindle.unfit", unfit.kind());
                self.metrics.fresh_copy(Some(unfit.kind()));
                instance.resets.failed();
            }
            None => self.metrics.fresh_copy(Some("no_point")),
        }
        span.record("rekindle.fresh.by", "restore");
        // A verdict was on the copy that goes.
        drop(instance.take_verdict());
        tokio::join!(used.tear_down(), self.restart(instance));
    }

    /// Starts an instance once more, as a new copy of its snapshot.
    async fn restart(&self, instance: &Arc<Instance>) {
        *instance.kind.lock() = match &instance.spec.snapshot {
            Some(_) => StartKind::Restored,
            None => StartKind::Booted,
        };
        instance.phases.lock().clear();
        self.run(instance, &StartOptions::default()).await;
    }

    async fn run(&self, instance: &Arc<Instance>, beginning: &StartOptions) {
        let _settled = SettleOnDrop {
            instances: &self.instances,
            instance,
            renewals: instance.renewals(),
        };
        let started = Instant::now();
        match self.start(instance, beginning).await {
            Ok(running) => {
                let kind = *instance.kind.lock();
                if !beginning.is_rehearsal {
                    self.metrics.ready(&instance.spec.function, kind, started.elapsed());
                }
                // Before a request can come: a server of one thread would hear nothing but this connection.
                if instance.spec.config.fresh {
                    running.client.connect_ahead().await;
                    // Not for the first: somebody may wait for it, and there may be no other request.
                    if instance.renewals() > 0 {
                        self.resetter.save_point(instance, &running).await;
                    }
                }
                self.supervisor.ready(instance, running).await;
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

    async fn start(
        &self,
        instance: &Arc<Instance>,
        beginning: &StartOptions,
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let kind = *instance.kind.lock();
        let Some(snapshot) = instance.spec.snapshot.clone().filter(|_| kind == StartKind::Restored) else {
            *instance.kind.lock() = StartKind::Booted;
            return match &beginning.scope {
                Some(scope) => {
                    let booting = Box::pin(self.runtime_booter.boot(instance, scope));
                    self.measured(instance, StartKind::Booted, booting).await
                }
                None => {
                    self.measured(instance, StartKind::Booted, Box::pin(self.booter.boot(instance)))
                        .await
                }
            };
        };
        let restoring = Box::pin(self.restorer.restore(instance, &snapshot));
        match self.measured(instance, StartKind::Restored, restoring).await {
            Ok(running) => Ok(running),
            Err(why) => {
                // If a lost page ended it, the restore itself has only seen a connection break.
                let why = instance.take_verdict().unwrap_or(why);
                if !instance.is_starting() {
                    return Err(why);
                }
                // Not for what the host or the function lacks. What is opened anew is in memory twice, as long as other
                // instances have the old one.
                let is_its_own = why.code == ErrorCode::RestoreFailed;
                if is_its_own {
                    self.snapshots.forget(&snapshot);
                }
                if beginning.is_rehearsal {
                    return Err(why);
                }
                tracing::error!(instance = %instance.id, %snapshot, error = %why, "restore failed; booting instead");
                instance
                    .sink
                    .platform(format!("restore failed, booting instead: {}", why.message));
                if is_its_own || why.code == ErrorCode::SnapshotLost {
                    self.damage.examine(instance, &snapshot);
                }
                *instance.kind.lock() = StartKind::Booted;
                let booting = Box::pin(self.booter.boot(instance));
                let booted = self.measured(instance, StartKind::Booted, booting).await;
                booted.map_err(|e| {
                    let message = format!("{}; booting instead failed too: {}", why.message, e.message);
                    ApiError::new(ErrorCode::RestoreFailed, message)
                })
            }
        }
    }

    /// Runs a start and records its phases.
    async fn measured(
        &self,
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
            rekindle.begun = tracing::field::Empty,
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
        self.metrics.started(kind, started.is_ok(), &phases);
        started
    }
}

/// Marks the current span as failed.
fn span_failed(error: &ApiError) {
    let span = tracing::Span::current();
    span.record("otel.status_code", "ERROR");
    span.record("error.type", error.code.as_str());
}
