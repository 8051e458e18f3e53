//! What a killed platform can leave behind, and its removal. The platform's mounts vanish with its mount namespace, and
//! that with its last process. So every process in its cgroups is killed, the cgroups are removed, and the run
//! directory is emptied. Both `fn down` and the next `fn up` do this; on a clean machine it does nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::layout::Layout;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const LIMIT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(20);

/// What was found and removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemovedLeftovers {
    /// Number of processes killed.
    pub(crate) processes: usize,
    pub(crate) cgroups: usize,
}

/// Removes what a platform with this layout left. It must not be running.
pub(crate) fn sweep(layout: &Layout) -> Result<RemovedLeftovers> {
    let swept = sweep_cgroups_of(layout)?;
    // Its other networks ended with its last process.
    rekindle_worker::host::network::sweep(&layout.cgroup);
    // Mounted only inside the platform's mount namespace: outside it is a plain, empty directory.
    match fs::remove_dir_all(layout.worker_run()) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("{}: cannot be removed", layout.worker_run().display()));
        }
        _ => {}
    }
    Ok(swept)
}

/// Removes only its cgroups; also suitable for a platform about to end.
pub(crate) fn sweep_cgroups_of(layout: &Layout) -> Result<RemovedLeftovers> {
    sweep_cgroups(Path::new(CGROUP_ROOT), &layout.cgroup)
}

/// Kills and removes the group `name` under every hierarchy of `root`.
fn sweep_cgroups(root: &Path, name: &str) -> Result<RemovedLeftovers> {
    let mut swept = RemovedLeftovers::default();
    let groups: Vec<PathBuf> = hierarchies(root)
        .into_iter()
        .map(|h| h.join(name))
        .filter(|g| g.is_dir())
        .collect();
    let deadline = Instant::now() + LIMIT;
    let mut killed = BTreeSet::new();
    for group in &groups {
        loop {
            // In all hierarchies: a process that one has frozen cannot die.
            killed.extend(groups.iter().flat_map(|group| kill_all(group)));
            match remove(group) {
                Ok(removed) => {
                    swept.cgroups += removed;
                    break;
                }
                Err(e) if Instant::now() > deadline => {
                    bail!("{}: still in use after {LIMIT:?}: {e}", group.display());
                }
                // A killed process stays in its group until it is reaped.
                Err(_) => thread::sleep(RETRY),
            }
        }
    }
    swept.processes = killed.len();
    Ok(swept)
}

/// The root itself for cgroup v2, otherwise each directory in it.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let Ok(entries) = fs::read_dir(root) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    // Two names may lead to one hierarchy, as cpu and cpu,cpuacct do.
    found.retain(|p| !p.is_symlink());
    found
}

/// Groups below `group`, deepest first, then itself.
fn tree(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(entries) = fs::read_dir(group) {
        for path in entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()) {
            found.extend(tree(&path));
        }
    }
    found.push(group.to_owned());
    found
}

/// Kills every process in the group and those below. Returns their ids.
fn kill_all(group: &Path) -> Vec<i32> {
    let mut killed = Vec::new();
    for group in tree(group) {
        // A frozen process takes the signal only when it runs again. Missing files are those of the other version.
        let _v1 = write(&group.join("freezer.state"), "THAWED");
        let _v2 = write(&group.join("cgroup.freeze"), "0");
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        for pid in text
            .lines()
            .filter_map(|l| l.parse::<i32>().ok())
            .filter(|p| *p > 1 && *p != own)
        {
            if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
                killed.push(pid);
            }
        }
    }
    killed
}

/// Writes to an existing control file; a missing one is not created.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use io::Write as _;
    fs::File::options().write(true).open(path)?.write_all(text.as_bytes())
}

fn remove(group: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for group in tree(group) {
        match fs::remove_dir(&group) {
            Ok(()) => removed += 1,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use super::*;

    fn fixture() -> (tempfile::TempDir, Child) {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        for hierarchy in ["memory", "freezer"] {
            fs::create_dir_all(dir.path().join(hierarchy).join("rekindle/i-1")).unwrap();
            fs::create_dir_all(dir.path().join(hierarchy).join("others")).unwrap();
        }
        (dir, child)
    }

    #[test]
    fn groups_of_every_hierarchy_go_and_others_stay() {
        let (dir, mut child) = fixture();
        let swept = sweep_cgroups(dir.path(), "rekindle").unwrap();
        assert_eq!(swept.cgroups, 4);
        assert!(!dir.path().join("memory/rekindle").exists());
        assert!(dir.path().join("memory/others").exists());
        assert_eq!(
            sweep_cgroups(dir.path(), "rekindle").unwrap(),
            RemovedLeftovers::default()
        );
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "a process outside the groups was killed"
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn processes_of_a_group_are_killed() {
        let (dir, mut child) = fixture();
        let procs = dir.path().join("memory/rekindle/i-1/cgroup.procs");
        fs::write(&procs, format!("{}\n", child.id())).unwrap();
        let pid = child.id().cast_signed();
        assert_eq!(kill_all(&dir.path().join("memory/rekindle")), [pid]);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn the_process_itself_is_spared() {
        let (dir, mut child) = fixture();
        let procs = dir.path().join("memory/rekindle/cgroup.procs");
        fs::write(&procs, format!("{}\n0\n1\n", std::process::id())).unwrap();
        assert!(kill_all(&dir.path().join("memory/rekindle")).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
