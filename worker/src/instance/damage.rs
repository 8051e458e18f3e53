//! Tells a damaged snapshot from a temporary failure of the store. A failed restore or a lost page is only a suspicion.
//! The whole snapshot is then read once more in the background. Only data that the store reports as missing or returns
//! wrong counts. The scheduler is told, and from then on the version is booted.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_snapshotter::{Digest, RegionIndex, RegionReader, Snapshot, Store};
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::DamagedSnapshot;

use super::lifecycle::Instance;
use super::registry::Instances;

/// Suspected and known damage.
pub struct DamageExaminer {
    store: Store,
    reader: Arc<RegionReader>,
    index: Arc<RegionIndex>,
    instances: Arc<Instances>,
    examined: Mutex<HashSet<SnapshotId>>,
    found: Mutex<Vec<DamagedSnapshot>>,
}

impl DamageExaminer {
    /// Creates it without any suspicion. Later captures do not build on what `index` has of broken chunks.
    pub fn new(store: Store, reader: Arc<RegionReader>, index: Arc<RegionIndex>, instances: Arc<Instances>) -> Self {
        Self {
            store,
            reader,
            index,
            instances,
            examined: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Takes the findings that the scheduler does not know yet. The caller gives them back with
    /// [`Self::keep_unreported`] if the report fails.
    pub fn take_unreported(&self) -> Vec<DamagedSnapshot> {
        std::mem::take(&mut self.found.lock())
    }

    /// Keeps findings that could not be reported for the next report.
    pub fn keep_unreported(&self, damaged: Vec<DamagedSnapshot>) {
        self.found.lock().extend(damaged);
    }

    /// Examines in the background the snapshot that `instance` could not be restored from. Runs once at a time for each
    /// snapshot.
    pub fn examine(self: &Arc<Self>, instance: &Arc<Instance>, id: &SnapshotId) {
        if !self.examined.lock().insert(id.clone()) {
            return;
        }
        let (damage, instance, id) = (Arc::clone(self), Arc::clone(instance), id.clone());
        tokio::spawn(async move {
            let ordered = instance.spec.snapshot_digest.as_deref();
            let read = damage.read_all(&id, ordered).await;
            damage.examined.lock().remove(&id);
            let findings = match read {
                Ok(findings) => findings,
                Err(error) => return tracing::warn!(snapshot = %id, error, "a snapshot cannot be examined now"),
            };
            // Without a finding, it was a temporary failure of the store.
            let Some(why) = findings.why else { return };
            // The next snapshot must not build on broken chunks.
            damage.index.forget(&findings.chunks);
            tracing::error!(snapshot = %id, error = why, "a snapshot is damaged; its version is booted from now on");
            instance.sink.platform(format!(
                "snapshot {id} is damaged: {why}; this version is booted from now on: deploy again for a new snapshot"
            ));
            damage.keep_unreported(vec![DamagedSnapshot {
                snapshot: id,
                function: instance.spec.function.clone(),
                version: instance.spec.version,
                why,
            }]);
            damage.instances.changed.notify_one();
        });
    }

    /// Reads all of a snapshot. Data that the store reports as missing or returns wrong is a finding; any other failure
    /// ends the examination.
    async fn read_all(&self, id: &SnapshotId, ordered: Option<&str>) -> Result<DamageFindings, String> {
        let mut findings = DamageFindings::default();
        let snapshot = match Snapshot::open(&self.store, id).await {
            Ok(snapshot) => snapshot,
            Err(e) if e.is_damage() => {
                findings.why = Some(chain(&e));
                return Ok(findings);
            }
            Err(e) => return Err(chain(&e)),
        };
        let found = snapshot.digest.to_string();
        if let Some(ordered) = ordered.filter(|ordered| *ordered != found) {
            // The chunks themselves are not suspect.
            findings.why = Some(format!(
                "its manifest has the digest {found} instead of {ordered}: somebody has exchanged it"
            ));
            return Ok(findings);
        }
        let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions());
        for region in regions {
            // One finding for each chunk is enough.
            if region.chunks().any(|chunk| findings.chunks.contains(&chunk.id)) {
                continue;
            }
            match self.reader.read(region).await {
                Ok(_) => {}
                Err(e) if e.is_damage() => {
                    findings.why.get_or_insert_with(|| chain(&e));
                    findings.chunks.insert(e.chunk());
                }
                Err(e) => return Err(chain(&e)),
            }
        }
        Ok(findings)
    }
}

/// What is wrong with a snapshot; empty if it is intact.
#[derive(Debug, Default)]
struct DamageFindings {
    why: Option<String>,
    chunks: HashSet<Digest>,
}
