//! The instances that arrive on this host.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::ids::MigrationId;
use rekindle_wire::migration::{ExpectedInstance, TargetOrder};
use rekindle_wire::{ApiError, ErrorCode};

use super::host::TargetHost;
use super::migration_target::{MigrationTarget, PreparedTarget};
use crate::errors::unavailable;
use crate::instance::Instance;
use crate::logs::Logs;

/// How long a prepared migration target waits for its images.
const WAIT_LIMIT: Duration = Duration::from_secs(90);
/// How long an announced instance is expected, and the maximum number of announced instances.
const EXPECTED_LIMIT: Duration = Duration::from_secs(60);
const EXPECTED_MAX: usize = 1024;

/// Arriving instances by migration id.
pub struct MigrationTargets {
    here: Mutex<HashMap<MigrationId, Arc<MigrationTarget>>>,
    expected: Mutex<HashMap<MigrationId, (Instant, ExpectedInstance)>>,
    host: Arc<TargetHost>,
    logs: Arc<Logs>,
}

impl MigrationTargets {
    /// Creates it without any target.
    pub fn new(host: TargetHost, logs: Arc<Logs>) -> Self {
        Self {
            here: Mutex::default(),
            expected: Mutex::default(),
            host: Arc::new(host),
            logs,
        }
    }

    /// Records the scheduler's announcement that an instance will arrive.
    ///
    /// # Errors
    /// Returns `unavailable` when too many are expected.
    pub fn expect(&self, id: MigrationId, expected: ExpectedInstance) -> Result<(), ApiError> {
        let mut all = self.expected.lock();
        all.retain(|_, (since, _)| since.elapsed() < EXPECTED_LIMIT);
        if all.len() >= EXPECTED_MAX {
            let message = format!("{EXPECTED_MAX} instances are on their way here: try again in a moment");
            return Err(ApiError::new(ErrorCode::Unavailable, message));
        }
        all.insert(id, (Instant::now(), expected));
        Ok(())
    }

    /// Returns what the instance runs, if it was announced. The scheduler's word counts, not the source's. An
    /// announcement is valid once.
    fn admit(&self, order: &TargetOrder) -> Result<ExpectedInstance, ApiError> {
        let announced = self.expected.lock().remove(&order.id);
        let comes = |expected: &ExpectedInstance| {
            let (said, spec) = (&order.spec, &expected.spec);
            let what = (&said.function, said.version) == (&spec.function, spec.version);
            what && order.instance == expected.instance && order.from == expected.from
        };
        match announced {
            Some((since, expected)) if since.elapsed() < EXPECTED_LIMIT && comes(&expected) => Ok(expected),
            _ => {
                let message = format!(
                    "the scheduler has not said that {} comes here from {}",
                    order.instance, order.from
                );
                Err(ApiError::new(ErrorCode::Unauthorized, message))
            }
        }
    }

    /// Returns a migration target.
    ///
    /// # Errors
    /// Returns `not_found` when it was cancelled or has been done for long.
    pub fn get(&self, id: &MigrationId) -> Result<Arc<MigrationTarget>, ApiError> {
        let found = self.here.lock().get(id).cloned();
        found.ok_or_else(|| {
            ApiError::new(
                ErrorCode::NotFound,
                format!("no migration target {id}: it is done, or was given up"),
            )
        })
    }

    /// Takes a sandbox and opens the snapshot that the memory is mapped from.
    ///
    /// # Errors
    /// Returns an error when the host cannot take the instance.
    pub async fn prepare(self: &Arc<Self>, order: TargetOrder) -> Result<(), ApiError> {
        let ExpectedInstance {
            spec, secrets, ticket, ..
        } = self.admit(&order)?;
        let order = TargetOrder { spec, ..order };
        self.host.instances.check_accepting()?;
        if self.host.instances.get(&order.instance).is_some() {
            let message = format!("instance {} is on this worker already", order.instance);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        let spec = &order.spec;
        let sink = self.logs.sink(&spec.function, spec.version, order.instance.clone());
        let instance = Instance::new(order.instance.clone(), spec.clone(), order.started, ticket, sink);
        instance.give_secrets(secrets);
        let opening = async {
            let Some(id) = &order.base else { return Ok(None) };
            // It must be the snapshot of the instance's version, whatever the source says.
            if spec.snapshot.as_ref() != Some(id) {
                let message = format!("its memory is mapped from snapshot {id}, which is not its version's");
                return Err(ApiError::new(ErrorCode::Conflict, message));
            }
            let (writes_root, digest) = (spec.config.image.is_some(), spec.snapshot_digest.as_deref());
            let opened = self.host.snapshots.open(id, spec.uid, writes_root, digest);
            let (snapshot, _) = opened.await.map_err(|e| unavailable("open the snapshot", &e))?;
            Ok::<_, ApiError>(Some(snapshot))
        };
        // What is made for later would take the processors while it stands still.
        let arrival = self.host.start_limiter.arriving();
        // The group does not have the instance's name: remains of the instance may still be here when it comes back.
        let (base, isolated) = tokio::join!(opening, self.host.isolator.isolate(&instance, order.id.as_str()));
        let (base, isolated) = (base?, isolated?);
        if let Some(base) = &base {
            let completing = base.template.complete();
            completing.map_err(|e| unavailable("read the files of the function", &e))?;
        }
        let layout = base.as_ref().map_or_else(String::new, |b| b.template.fingerprint());
        if layout != order.layout {
            let message = "the two workers lay templates out differently: they run different versions of fn";
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        let id = order.id.clone();
        let target = MigrationTarget::new(
            order,
            instance,
            Arc::clone(&self.host),
            PreparedTarget {
                isolated,
                base,
                arrival,
            },
        );
        self.here.lock().insert(id.clone(), target);
        let targets = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(WAIT_LIMIT).await;
            let target = targets.here.lock().remove(&id);
            if let Some(target) = target {
                // Nobody asks any more what became of it. One that never ran is torn down.
                target.cancel();
            }
        });
        Ok(())
    }
}
