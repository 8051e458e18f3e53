//! What this worker makes snapshots with, which snapshots it uses, and which it rejects. The scheduler uses this to
//! renew snapshots.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_init::seccomp;
use rekindle_wire::SnapshotId;
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::{RefusedSnapshot, SnapshotReport, VersionSpec};
use rekindle_wire::renewal::MadeWith;

use crate::config::FilterChoice;
use crate::snapshots::SnapshotError;
use crate::worker::Worker;

/// The form of the images that this worker makes. It must be raised with each change after which earlier snapshots
/// should be renewed: of ids, of limits, of the contents of images and notes. Changes of the system call filter do not
/// count.
const FORM: u32 = 2;
/// Maximum number of rejected snapshots in one report.
const REFUSED_MAX: usize = 64;

/// The current filter's digest.
static CURRENT: LazyLock<String> = LazyLock::new(|| blake3::hash(&seccomp::program()).to_hex().to_string());

/// Returns what snapshots of functions under this filter are made with.
#[must_use]
pub fn made_with(filter: FilterChoice) -> MadeWith {
    MadeWith {
        filter: filter.earlier().unwrap_or(&CURRENT).to_owned(),
        form: FORM,
    }
}

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

    fn untold(&self) -> Vec<RefusedSnapshot> {
        std::mem::take(&mut self.0.lock())
    }

    /// Keeps snapshots that could not be reported for the next report.
    pub fn not_told(&self, refused: Vec<RefusedSnapshot>) {
        let mut told = self.0.lock();
        told.extend(refused);
        told.truncate(REFUSED_MAX);
    }
}

/// Builds the report to the scheduler. The caller gives its rejected snapshots back with [`Refusals::not_told`] if the
/// report fails.
#[must_use]
pub fn report(worker: &Worker) -> SnapshotReport {
    SnapshotReport {
        makes: Some(made_with(worker.config.filter)),
        in_use: in_use(worker).into_iter().collect(),
        refused: worker.refusals.untold(),
    }
}

/// Returns the snapshots that instances have memory of, or are about to have.
fn in_use(worker: &Worker) -> BTreeSet<SnapshotId> {
    let instances = worker.all_instances();
    let used = instances.iter().filter_map(|instance| match instance.parts() {
        Some(parts) => parts.snapshot.as_ref().map(|snapshot| snapshot.id.clone()),
        None if *instance.kind.lock() == StartKind::Restored => instance.spec.snapshot.clone(),
        None => None,
    });
    used.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_filter_outdates_snapshots_and_is_outdated_by_the_current_one() {
        let (current, earlier) = (FilterChoice::default(), seccomp::EARLIER[0].parse().unwrap());
        let (current, earlier) = (made_with(current), made_with(earlier));
        assert_eq!(earlier.filter, seccomp::EARLIER[0]);
        assert!(current.outdates(Some(&earlier)).is_some() && earlier.outdates(Some(&current)).is_some());
        assert_eq!(current.outdates(Some(&current)), None);
    }
}
