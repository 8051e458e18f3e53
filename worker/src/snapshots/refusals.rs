//! Snapshots that this worker rejects. The scheduler uses this to renew snapshots.

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_wire::internal::{RefusedSnapshot, VersionSpec};

use super::error::SnapshotError;

/// Maximum number of rejected snapshots in one report.
const REFUSED_MAX: usize = 64;

/// Snapshots whose images were rejected, and that the scheduler does not know of.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Vec<RefusedSnapshot>>);

impl Refusals {
    /// Records that a version could not be restored because its snapshot cannot be opened. Returns whether its images
    /// were rejected.
    pub fn note(&self, spec: &VersionSpec, error: &SnapshotError) -> bool {
        let SnapshotError::Refused(snapshot, why) = error else {
            return false;
        };
        let mut told = self.0.lock();
        if told.len() < REFUSED_MAX && told.iter().all(|refused| refused.snapshot != *snapshot) {
            told.push(RefusedSnapshot {
                snapshot: snapshot.clone(),
                function: spec.function.clone(),
                version: spec.version,
                why: chain(why),
            });
        }
        true
    }

    /// Takes those that the scheduler does not know yet. The caller gives them back with [`Self::keep_unreported`] if
    /// the report fails.
    pub fn take_unreported(&self) -> Vec<RefusedSnapshot> {
        std::mem::take(&mut self.0.lock())
    }

    /// Keeps snapshots that could not be reported for the next report.
    pub fn keep_unreported(&self, refused: Vec<RefusedSnapshot>) {
        let mut told = self.0.lock();
        told.extend(refused);
        told.truncate(REFUSED_MAX);
    }
}
