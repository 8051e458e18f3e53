//! The instances that leave this host.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rekindle_wire::ids::MigrationId;
use rekindle_wire::migration::{MigrationKind, MigrationPhases, SettleLimit, SourceOrder, TargetOrder};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::Notify;

use super::super::peer::Peers;
use super::migration_source::{MigrationSource, RESOLVE_LIMIT, images_there, not_ready, refuse_large};
use crate::criu::Criu;
use crate::criu::dump::DumpingCriu;
use crate::errors::unavailable;
use crate::instance::{Instances, gone};
use crate::metrics::Metrics;
use crate::snapshots::dump_dir::{DumpDir, DumpDirs};

/// How long the target may take to prepare.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);
/// How long an instance waits until the images of an earlier copy are gone.
const IMAGES_LIMIT: Duration = Duration::from_secs(10);
/// How long a prepared migration source waits for the order to leave.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Migration sources by migration id.
pub struct MigrationSources {
    here: Mutex<HashMap<MigrationId, Arc<MigrationSource>>>,
    instances: Arc<Instances>,
    criu: Arc<Criu>,
    dump_dirs: DumpDirs,
    peers: Peers,
    /// This worker's address, at which targets ask for pages.
    address: String,
    metrics: Arc<Metrics>,
}

impl MigrationSources {
    /// Creates it without any source, on the worker at `address`.
    pub fn new(
        instances: Arc<Instances>,
        criu: Arc<Criu>,
        dump_dirs: DumpDirs,
        peers: Peers,
        address: String,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            here: Mutex::default(),
            instances,
            criu,
            dump_dirs,
            peers,
            address,
            metrics,
        }
    }

    /// Returns a migration source.
    ///
    /// # Errors
    /// Returns `not_found` when it was cancelled or is done.
    pub fn get(&self, id: &MigrationId) -> Result<Arc<MigrationSource>, ApiError> {
        let found = self.here.lock().get(id).cloned();
        found.ok_or_else(|| {
            ApiError::new(
                ErrorCode::NotFound,
                format!("no migration source {id}: it is done, or was given up"),
            )
        })
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.here.lock().is_empty()
    }

    fn remove(&self, id: &MigrationId) -> Option<Arc<MigrationSource>> {
        self.here.lock().remove(id)
    }

    /// Prepares an instance to leave. It keeps running as before.
    ///
    /// # Errors
    /// Returns an error when it cannot leave, or the target cannot take it.
    pub async fn prepare(self: &Arc<Self>, order: SourceOrder) -> Result<(), ApiError> {
        let instance = self.instances.get(&order.instance).ok_or_else(gone)?;
        if instance.spec.config.fresh {
            let message = format!(
                "{} has `fresh`, so nothing of instance {} is worth a move: the next invocation gets another copy \
                 wherever it runs",
                instance.spec.function, instance.id
            );
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        // This happens while it still serves: an earlier copy may still fetch its memory from images of this instance.
        match tokio::time::timeout(IMAGES_LIMIT, instance.images.acquire()).await {
            Ok(_) => {}
            Err(_) => return Err(images_there(&instance)),
        }
        let running = instance.running().ok_or_else(|| not_ready(&instance))?;
        if running.is_arriving() {
            let message = format!(
                "memory of {} is still on its way here: try again in a moment",
                instance.id
            );
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        refuse_large(&instance, &running)?;
        let target = self.peers.at(&order.to, &order.id);
        let clone = match &order.kind {
            MigrationKind::Move => None,
            MigrationKind::Clone(id) => Some(id.clone()),
        };
        let started = *instance.kind.lock();
        let target_order = TargetOrder {
            id: order.id.clone(),
            instance: clone.clone().unwrap_or_else(|| instance.id.clone()),
            clone: clone.is_some(),
            started,
            spec: instance.spec.clone(),
            from: self.address.clone(),
            base: running.snapshot.as_ref().map(|s| s.id.clone()),
            layout: running
                .snapshot
                .as_ref()
                .map_or_else(String::new, |s| s.template.fingerprint()),
        };
        target.order(&target_order, PREPARE_LIMIT).await?;
        let source = async {
            let memory = running.cgroup.memory_current().unwrap_or(0);
            let path = self.dump_dirs.choose(memory).join(format!("leave-{}", order.id));
            let dir = DumpDir::make(&path).map_err(|e| unavailable("make the image directory", &e))?;
            let criu = DumpingCriu::start(&self.criu, &running.sandbox, &running.cgroup, dir.path()).await;
            let criu = criu.map_err(|e| unavailable("dump the instance", &e))?;
            Ok(MigrationSource {
                id: order.id.clone(),
                instance: Arc::clone(&instance),
                kind: order.kind,
                target: target.clone(),
                criu: Mutex::new(Some(criu)),
                dir,
                left: RwLock::new(None),
                room: Mutex::new(None),
                link_names: Arc::default(),
                running: Mutex::new(None),
                heard: Mutex::new(Instant::now()),
                done: Notify::new(),
                over: AtomicBool::new(false),
            })
        };
        match source.await {
            Ok(source) => {
                self.here.lock().insert(order.id.clone(), Arc::new(source));
                tokio::spawn(Arc::clone(self).expire(order.id));
                Ok(())
            }
            Err(e) => {
                drop(target.cancel(RESOLVE_LIMIT).await);
                Err(e)
            }
        }
    }

    /// Cancels a prepared migration source that never got the order to leave.
    async fn expire(self: Arc<Self>, id: MigrationId) {
        tokio::time::sleep(WAIT_LIMIT).await;
        let waiting = self.get(&id).is_ok_and(|d| d.criu.lock().is_some());
        if waiting {
            tracing::warn!(migration = %id, "a migration source was never told to leave");
            self.cancel(&id).await;
        }
    }

    /// Cancels a migration source that has not left.
    pub async fn cancel(&self, id: &MigrationId) {
        if let Some(source) = self.remove(id) {
            source.criu.lock().take();
            drop(source.target.cancel(RESOLVE_LIMIT).await);
        }
    }

    /// Makes the instance leave now. On an error it keeps running here, unless the error says that it is lost.
    ///
    /// # Errors
    /// Returns what prevented it.
    pub async fn perform(
        self: &Arc<Self>,
        source: &Arc<MigrationSource>,
        order: &SettleLimit,
    ) -> Result<MigrationPhases, ApiError> {
        let performed = source.perform(&self.instances, &self.criu, order).await;
        self.metrics.migration_ended(&source.kind, performed.as_ref().ok());
        let done = match &performed {
            Ok(phases) => {
                let (migration, instance, to) = (&source.id, &source.instance.id, source.target.address());
                tracing::info!(%migration, %instance, to, ?phases, "left");
                source.instance.sink.platform(format!(
                    "{} to {} within {:.1} ms",
                    if source.kind == MigrationKind::Move {
                        "moved"
                    } else {
                        "copied"
                    },
                    source.target.address(),
                    phases.pause_ms
                ));
                false
            }
            Err(error) => {
                tracing::warn!(migration = %source.id, instance = %source.instance.id, %error, "did not leave");
                self.instances.changed.notify_one();
                true
            }
        };
        if done {
            self.cancel(&source.id).await;
        } else {
            tokio::spawn(Arc::clone(self).release_when_done(Arc::clone(source)));
        }
        performed
    }

    /// Keeps the stopped processes until their pages are at the target, then releases them.
    async fn release_when_done(self: Arc<Self>, source: Arc<MigrationSource>) {
        source.until_done().await;
        self.remove(&source.id);
        source.release().await;
    }
}
