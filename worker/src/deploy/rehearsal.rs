//! Rehearses a snapshot's first restore at its deploy. A copy is restored like any other, receives the warm-up
//! requests, and is ended before the version goes live. This shows that the snapshot can be restored, and brings its
//! images and its template to this host. The pages that the copy touched become the working set that the first call
//! finds.

use std::sync::Arc;
use std::time::Duration;

use rekindle_snapshotter::Store;
use rekindle_snapshotter::layer::store_touched;
use rekindle_wire::InstanceId;
use rekindle_wire::api::{Rehearsal, StartKind};
use rekindle_wire::internal::{StartInstance, VersionSpec, start_limit};
use rekindle_wire::{ApiError, ErrorCode, Secret};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::deploy::unlisted::UnlistedInstance;
use crate::deploy::warm_up;
use crate::instance::invoke::record_touched;
use crate::instance::start::Starter;
use crate::instance::{Instance, Instances, RunningInstance};
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

/// How long all requests to the copy may take together: a deploy waits for them.
const ASK_LIMIT: Duration = Duration::from_secs(60);
/// How long storing the working set and filling the template may take together. The remainder is done while the version
/// serves. A set that is not stored is stored by the next restore.
const LEFT_LIMIT: Duration = Duration::from_secs(5);

/// Rehearses first restores.
pub struct Rehearser {
    /// All instances.
    pub instances: Arc<Instances>,
    /// Starts the copies.
    pub starter: Arc<Starter>,
    /// Open snapshots, whose working sets rehearsals complete.
    pub snapshots: Arc<Snapshots>,
    /// Where the record of files goes.
    pub store: Store,
    /// Where rehearsals are counted.
    pub metrics: Arc<Metrics>,
}

impl Rehearser {
    /// Restores a version's snapshot once. No caller is sent to the copy.
    ///
    /// # Errors
    /// Returns an error when it cannot be restored, or its memory was lost. Its function's responses are no error, but
    /// may be a warning.
    pub(crate) async fn rehearse(&self, spec: &VersionSpec, secrets: &[Secret]) -> Result<Rehearsal, ApiError> {
        let instance = InstanceId::generate();
        let span = tracing::info_span!(
            "rehearse",
            "rekindle.role" = "worker",
            faas.instance = %instance,
            rekindle.pages = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
        );
        let apart = UnlistedInstance::new(&self.instances, &instance);
        let order = StartInstance {
            park: false,
            instance,
            start: StartKind::Restored,
            spec: spec.clone(),
            secrets: secrets.to_vec(),
            snapshot_key: None,
            ticket: None,
        };
        let rehearsed = self.run(order).instrument(span.clone()).await;
        apart.end("its restore was a rehearsal").await;
        match &rehearsed {
            Ok(Rehearsal { pages, warning, .. }) => {
                span.record("rekindle.pages", pages);
                self.metrics
                    .rehearsed(if warning.is_some() { "warned" } else { "done" });
            }
            Err(error) => {
                span.record("otel.status_code", "ERROR");
                span.record("error.type", error.code.as_str());
                self.metrics.rehearsed("failed");
            }
        }
        rehearsed
    }

    async fn run(&self, order: StartInstance) -> Result<Rehearsal, ApiError> {
        let instance = self.starter.accept_rehearsal(order)?;
        let limit = start_limit(instance.spec.config.boot_timeout());
        let running = instance.until_ready(Instant::now() + limit).await?;
        let restored = *instance.start_took.lock();
        let asked = tokio::time::timeout(ASK_LIMIT, ask(&instance, &running)).await;
        let warning =
            asked.unwrap_or_else(|_| Some(format!("it was not through with its requests after {ASK_LIMIT:?}")));
        // An instance that has ended has a verdict by now.
        if let Err(error) = instance.until_ready(Instant::now()).await
            && error.code == ErrorCode::SnapshotLost
        {
            return Err(error);
        }
        self.store_files(&instance).await;
        let is_unsent = record_touched(&running).is_some();
        let mut pages = 0;
        if let Some(snapshot) = &running.snapshot {
            pages = snapshot.begin().1.len();
            let store = async {
                match is_unsent {
                    true => self.snapshots.store_working_set(snapshot).await,
                    false => Ok(()),
                }
            };
            // Both run in parallel. A call at this moment would share the processors with them.
            let left = async { tokio::join!(store, snapshot.until_filled()).0 };
            match tokio::time::timeout(LEFT_LIMIT, left).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::warn!(snapshot = %snapshot.id, error = %e, "the working set is not stored"),
                Err(_) => tracing::info!(snapshot = %snapshot.id, "its template is filled on while it serves"),
            }
        }
        Ok(Rehearsal {
            restore_ms: restored.unwrap_or_default().as_secs_f64() * 1e3,
            pages: pages as u64,
            restored_by: running.snapshot.as_ref().map(|snapshot| snapshot.restored_by()),
            warning,
        })
    }
}

impl Rehearser {
    /// Stores which files of its image a copy has read. Without that, hosts fetch them one after the other.
    async fn store_files(&self, instance: &Instance) {
        let spec = &instance.spec;
        let (Some(pieces), Some(snapshot)) = (instance.touched_files(), &spec.snapshot) else {
            return;
        };
        let Ok(layer) = spec.rootfs.digest.parse() else { return };
        let stored = tokio::time::timeout(LEFT_LIMIT, store_touched(&self.store, snapshot, &layer, &pieces)).await;
        match stored {
            Ok(Ok(())) => tracing::info!(%snapshot, pieces = pieces.len(), "the files that a first request reads"),
            Ok(Err(error)) => tracing::warn!(%snapshot, %error, "which files a first request reads is not stored"),
            Err(_) => tracing::warn!(%snapshot, "which files a first request reads is not stored: the store is slow"),
        }
    }
}

/// Sends the copy the original's warm-up requests. Returns a description for the developer if a response is worse.
async fn ask(instance: &Instance, running: &RunningInstance) -> Option<String> {
    let config = &instance.spec.config;
    if config.warmup.is_empty() {
        // The original did not receive these requests, so any response is accepted.
        for request in config.rehearsed() {
            let answered = warm_up::send(instance, running, &request).await;
            tracing::debug!(?answered, "asked without a warm-up request");
        }
        return None;
    }
    let sent = warm_up::send_all(instance, running, &config.warmup).await;
    sent.err().map(|error| error.message)
}
