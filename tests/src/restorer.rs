//! Who restores: a restore program, or CRIU.

use rekindle_wire::api::{RestoredBy, VersionInfo};

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
