//! What a build takes of the host: files in its directory, files that it has deleted and holds open or mapped, and
//! messages that wait in its sockets.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use crate::host::disk::{free_bytes, tree_walk};
use crate::host::netlink_memory::NetlinkMemory;

/// What a build leaves free of its disk, where there was more.
const RESERVE_BYTES: u64 = 1 << 30;
/// Files of a group's directory that list its threads, in cgroup v1 and v2.
const THREADS: [&str; 2] = ["tasks", "cgroup.threads"];

/// Why an installer has to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    Late,
    Large,
    Deep,
    Hoarding,
    DiskFull,
}

/// What is looked at while an installer runs.
#[derive(Debug)]
pub(super) struct SpaceWatch {
    build_dir: PathBuf,
    groups: Vec<PathBuf>,
    /// What the build may take, in bytes.
    limit: u64,
    /// Bytes of the disk that it must leave free.
    pub(super) reserve: u64,
}

impl SpaceWatch {
    pub(super) fn begin(build_dir: PathBuf, groups: Vec<PathBuf>, limit: u64) -> Self {
        // A disk that was nearly full before is not the build's fault.
        let reserve = free_bytes(&build_dir).map_or(0, |free| (free / 2).min(RESERVE_BYTES));
        Self {
            build_dir,
            groups,
            limit,
            reserve,
        }
    }

    /// Returns why the installer has to be stopped, if it has. Blocks.
    pub(super) fn look(&self) -> Option<StopReason> {
        let Ok(named) = tree_walk(&self.build_dir, self.limit) else {
            return Some(StopReason::Deep);
        };
        let threads = threads(&self.groups);
        let device = fs::metadata(&self.build_dir).map_or(0, |build_dir| build_dir.dev());
        let left = self.limit.saturating_sub(named);
        if named > self.limit || deleted_bytes(&threads, device, left) > left {
            return Some(StopReason::Large);
        }
        if hoards_messages(&threads) {
            return Some(StopReason::Hoarding);
        }
        // Descriptors on their way through a socket are in no list.
        let free = free_bytes(&self.build_dir);
        free.is_some_and(|free| free < self.reserve)
            .then_some(StopReason::DiskFull)
    }
}

/// Returns the threads of a build, by its control group's `cgroup.procs` files. Each may have open files of its own.
fn threads(groups: &[PathBuf]) -> Vec<i32> {
    let directory = groups.first().and_then(|procs| procs.parent());
    let listed = directory.and_then(|directory| {
        let files = THREADS.iter().map(|name| directory.join(name));
        files.into_iter().find_map(|path| fs::read_to_string(path).ok())
    });
    let listed = listed.unwrap_or_default();
    listed.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the bytes on `device` of deleted files that these threads have open or mapped. Stops counting above
/// `enough`.
fn deleted_bytes(threads: &[i32], device: u64, enough: u64) -> u64 {
    let (mut seen, mut bytes) = (BTreeSet::new(), 0_u64);
    for thread in threads {
        let held = ["fd", "map_files"].map(|name| fs::read_dir(format!("/proc/{thread}/{name}")));
        for link in held.into_iter().flatten().flatten().flatten() {
            // This follows the kernel's link to the very file. A thread that ends meanwhile holds none.
            let Ok(file) = fs::metadata(link.path()) else { continue };
            if file.is_file() && file.nlink() == 0 && file.dev() == device && seen.insert(file.ino()) {
                bytes = bytes.saturating_add(file.blocks() * 512);
            }
            if bytes > enough {
                return bytes;
            }
        }
    }
    bytes
}

/// Returns whether these threads hold too many netlink messages. Those in the worker's network are not asked.
fn hoards_messages(threads: &[i32]) -> bool {
    let network = |thread: &str| fs::read_link(format!("/proc/{thread}/ns/net")).ok();
    let own = network("self");
    let inside = threads.iter().find(|thread| {
        let its = network(&thread.to_string());
        its.is_some() && its != own
    });
    let memory = NetlinkMemory::open(Path::new("/proc")).ok();
    let held = memory
        .zip(inside)
        .map(|(memory, thread)| memory.beyond(Pid::from_raw(*thread)));
    matches!(held, Some(Ok(Some(_))))
}
