//! What a platform must not leave behind: processes, mounts, control groups.

use std::fs;
use std::path::Path;

use crate::binaries::Programs;

/// Everything left of the platform with this root and run directory, each on a line. The platform must be stopped.
pub fn of(root: &Path, run: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let group = group_name(run);
    let root = root.to_str().unwrap();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        // Another process's mount namespace may hold our mounts; this one's are the host's.
        let mounted = read("mountinfo").lines().any(|l| l.contains(root));
        let grouped = read("cgroup")
            .lines()
            .any(|l| l.contains(&format!("/{group}/")) || l.ends_with(&format!("/{group}")));
        if mounted || grouped {
            found.push(format!(
                "process {pid} ({}), mounted {mounted}, grouped {grouped}",
                read("comm").trim()
            ));
        }
    }
    for directory in groups(&group) {
        found.push(format!("control group {directory}"));
    }
    found
}

/// Removes what a role with this run directory has left that was killed and not started again: an instance that was
/// frozen then stays, as a frozen process cannot die.
pub(crate) fn remove(programs: &Programs, run: &Path) {
    if groups(&group_name(run)).is_empty() {
        return;
    }
    // A failed test has reported that; this only cleans up.
    let _swept = programs.client("", "").arg("down").arg("--run").arg(run).output();
}

/// The platform's control groups that exist.
fn groups(name: &str) -> Vec<String> {
    let mut all = vec![Path::new("/sys/fs/cgroup").join(name)];
    let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    all.extend(
        hierarchies
            .map(|h| h.path())
            .filter(|h| !h.is_symlink())
            .map(|h| h.join(name)),
    );
    all.retain(|g| g.is_dir());
    all.iter().map(|g| g.display().to_string()).collect()
}

/// The name of a platform's control group: `rekindle-` and the FNV-1a hash of its run directory, as in `fn up`.
pub fn group_name(run: &Path) -> String {
    let bytes = run.as_os_str().as_encoded_bytes();
    let hash = bytes
        .iter()
        .fold(0x811C_9DC5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    format!("rekindle-{hash:08x}")
}
