//! What this worker makes snapshots with, which snapshots it uses, and which it rejects. The scheduler uses this to
//! renew snapshots.

use std::collections::BTreeSet;

use rekindle_init::seccomp::FilterChoice;
use rekindle_wire::SnapshotId;
use rekindle_wire::api::StartKind;
use rekindle_wire::internal::SnapshotReport;

use crate::instance::Instances;
use crate::snapshots::{Refusals, made_with};

/// Builds the report to the scheduler. The caller gives its rejected snapshots back with [`Refusals::keep_unreported`]
/// if the report fails.
pub(super) fn report(filter: FilterChoice, instances: &Instances, refusals: &Refusals) -> SnapshotReport {
    SnapshotReport {
        makes: Some(made_with(filter)),
        in_use: in_use(instances).into_iter().collect(),
        refused: refusals.take_unreported(),
    }
}

/// Returns the snapshots that instances have memory of, or are about to have.
fn in_use(instances: &Instances) -> BTreeSet<SnapshotId> {
    let instances = instances.all();
    let used = instances.iter().filter_map(|instance| match instance.running() {
        Some(parts) => parts.snapshot.as_ref().map(|snapshot| snapshot.id.clone()),
        None if *instance.kind.lock() == StartKind::Restored => instance.spec.snapshot.clone(),
        None => None,
    });
    used.collect()
}
