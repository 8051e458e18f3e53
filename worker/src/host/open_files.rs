//! The host's limit of open files.

use std::path::Path;

/// Raises the host's limit of open files, where systemd has not done so at boot. Control groups charge and limit the
/// memory of open files, so this limit only lets a few functions use up what all others need.
pub(crate) fn raise() {
    let limit = Path::new("/proc/sys/fs/file-max");
    let is_raised = |now: String| now.trim().parse().is_ok_and(|now: u64| now >= 1 << 40);
    if std::fs::read_to_string(limit).is_ok_and(is_raised) {
        return;
    }
    if let Err(error) = std::fs::write(limit, i64::MAX.to_string()) {
        tracing::warn!(%error, "the host's limit of open files (fs.file-max) stays: functions can use up all of them");
    }
}
