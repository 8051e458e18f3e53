//! Records snapshots that workers refuse or cannot restore, so that they are renewed.

use rekindle_wire::clock::unix_s;
use rekindle_wire::internal::{RefusedSnapshot, VersionSpec};
use rekindle_wire::renewal::RenewalReason;
use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};

use crate::state::Scheduler;
use crate::store::AttemptReset;

/// A snapshot refused this soon after it was made would be refused again, seconds.
const REFUSED_AGAIN: i64 = 3_600;

/// Records that a worker refused the images of a snapshot.
pub(crate) async fn note_refused(scheduler: &Scheduler, refused: &RefusedSnapshot) {
    let why = format!("a worker refused it: {}", refused.why);
    want(scheduler, (&refused.function, refused.version), &refused.snapshot, &why).await;
}

/// Records that a version is booted since no worker with room has all instruction sets of its snapshot's processor. A
/// snapshot taken on such a worker can be used on all.
pub(crate) async fn note_lacking(scheduler: &Scheduler, spec: &VersionSpec) {
    if let Some(snapshot) = &spec.snapshot {
        let why = "workers with room lack instructions of the processor that it was taken on";
        want(scheduler, (&spec.function, spec.version), snapshot, why).await;
    }
}

async fn want(
    scheduler: &Scheduler,
    (function, version): (&FunctionId, VersionNumber),
    snapshot: &SnapshotId,
    why: &str,
) {
    let serving = scheduler.state().catalog.serving(function, version);
    // The version has another snapshot by now, or none.
    if serving.is_none_or(|live| live.spec.snapshot.as_ref() != Some(snapshot)) {
        return;
    }
    let now = unix_s();
    let again = |renewed: &i64| renewed.saturating_add(REFUSED_AGAIN).max(now);
    let due = scheduler.renewals.renewed.lock().get(function).map_or(now, again);
    let cause = (RenewalReason::Refused, why);
    let noted = scheduler
        .store
        .want_renewal((function, version), cause, (now, due), AttemptReset::No)
        .await;
    match noted {
        Ok(true) => {
            tracing::warn!(%function, %version, %snapshot, why, "a snapshot is refused: another is to be made");
            scheduler.renewals.wake.notify_one();
        }
        Ok(false) => {}
        // The next start that fails because of it reports it again.
        Err(error) => {
            tracing::warn!(%function, error = &error as &dyn std::error::Error, "a refused snapshot could not be \
                noted");
        }
    }
}
