//! Who restores: a restore program, or CRIU.

use std::time::Duration;

use rekindle_wire::api::{RestoredBy, VersionInfo};

use crate::{Platform, until};

/// How long restores may take to begin ahead.
const BEGUN_LIMIT: Duration = Duration::from_secs(90);
/// How long sandboxes may take to be furnished.
const FURNISHED_LIMIT: Duration = Duration::from_secs(30);

/// Whether the platforms of this run restore by programs where they can: with `FN_RESTORER=criu` none does.
pub fn programs_restore() -> bool {
    std::env::var("FN_RESTORER").as_deref() != Ok("criu")
}

/// Returns what restored a version's first copy, at its deploy.
#[track_caller]
pub fn restorer_of(version: &VersionInfo) -> &RestoredBy {
    let rehearsal = version
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.rehearsal.as_ref());
    let by = rehearsal.and_then(|rehearsal| rehearsal.restored_by.as_ref());
    by.unwrap_or_else(|| panic!("{} was not rehearsed", version.function))
}

/// Returns the version, whose copies a restore program makes.
#[track_caller]
pub fn by_program(version: VersionInfo) -> VersionInfo {
    let by = restorer_of(&version);
    let is_by_program = *by == RestoredBy::Program || !programs_restore();
    assert!(is_by_program, "{}: {by:?}", version.function);
    version
}

/// Restores a function, the only one of this platform, until the next restore has begun ahead: not before it is known
/// which pages are worth their memory.
#[track_caller]
pub fn restore_until_one_has_begun(platform: &Platform, name: &str, path: &str) {
    let level = |what: &str| platform.worker_metric(&format!("rekindle_sandboxes_{what}"));
    until("a restore that has begun", BEGUN_LIMIT, || {
        platform.fresh("restored", name, path).ok();
        until("sandboxes furnished anew", FURNISHED_LIMIT, || {
            (level("furnished") > 1.9).then_some(())
        });
        (level("begun") > 0.9).then_some(())
    });
}
