//! Control groups of sandboxes, one interface over cgroup v1 and v2; which one is chosen when the worker starts.
//!
//! ```text
//! detect ─► sweep (what a dead worker left) ─► create ─► procs_files → init writes itself in
//!                                                 │
//!                                   freeze ⇄ thaw │ kill ─► remove, or clean and use again (spare)
//! ```
//!
//! Everything here blocks its thread, mostly for microseconds; what may wait longer says for how long at most.

mod devices;
mod disk;
mod errors;
mod files;
mod layout;
mod spare;
mod sweep;
mod v1;
mod v2;

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disk::DiskLimit;
use layout::{Layout, PROCS, remove_directory};
use spare::Spares;

pub use errors::{CreateError, DetectError, DeviceError, DiskError, FreezeError, KillError};
pub use files::FileError;
pub use spare::SpareCounts;
pub use sweep::{SweepError, Swept};

/// Where the kernel's cgroup filesystem is mounted.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The group above all of ours.
pub const PARENT: &str = "rekindle";

/// How long [`Cgroup::freeze`] waits at most.
pub const FREEZE_LIMIT: Duration = Duration::from_secs(2);
/// How long [`Cgroup::kill`] waits at most for the processes to be gone.
pub const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long [`Cgroup::remove`] tries at most.
pub const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// How long a dropped group waits at most, once for the kill and once for the removal.
const DROP_LIMIT: Duration = Duration::from_millis(500);

const CPU_PERIOD_US: u64 = 100_000;

/// What a group may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Memory, page cache and tmpfs files included; no swap.
    pub memory_bytes: u64,
    /// Processor time, in cores. Also its weight against others.
    pub cpu_cores: f64,
    /// Processes and threads.
    pub pids: u64,
}

impl Limits {
    fn cpu_quota_us(&self) -> u64 {
        self.cpu_scaled(CPU_PERIOD_US)
    }

    fn cpu_scaled(&self, one_core: u64) -> u64 {
        // Saturating float-to-integer casts: no value of `cpu_cores` can wrap.
        (self.cpu_cores * one_core as f64).round() as u64
    }
}

/// The hierarchy (or hierarchies) in use, and the parent of all groups in it.
#[derive(Debug, Clone)]
pub struct Cgroups {
    layout: Layout,
    disk: Option<DiskLimit>,
    spares: Arc<Spares>,
}

/// Calls `done` until it says true; false when `limit` passed first.
fn poll_until(limit: Duration, pause: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(pause);
    }
}

fn usable(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(allowed)
}

impl Cgroups {
    /// Finds out which version `root` (normally [`CGROUP_ROOT`]) is, and makes the parent group [`PARENT`].
    ///
    /// # Errors
    /// When a needed controller is missing or cannot be handed down.
    pub fn detect(root: &Path) -> Result<Self, DetectError> {
        Self::detect_below(root, PARENT)
    }

    /// The same with another parent, several levels deep if need be (`rekindle/w-1`): two workers on one host must not
    /// sweep each other's groups.
    ///
    /// # Errors
    /// As [`Cgroups::detect`].
    pub fn detect_below(root: &Path, parent: &str) -> Result<Self, DetectError> {
        if let Some(bad) = parent.split('/').find(|level| !usable(level)) {
            return Err(DetectError::Name(bad.to_owned()));
        }
        let layout = match v2::Directory::detect(root)? {
            Some(mut directory) => {
                directory.hand_down()?;
                for level in parent.split('/') {
                    directory = directory.join(level);
                    files::make_all(&directory.0).map_err(DetectError::File)?;
                    directory.hand_down()?;
                }
                Layout::V2(directory)
            }
            None => {
                let directories = v1::Directories::detect(root)?.join(parent);
                for directory in directories.all() {
                    files::make_all(&directory).map_err(DetectError::File)?;
                }
                Layout::V1(Box::new(directories))
            }
        };
        Ok(Self {
            layout,
            disk: None,
            spares: Arc::default(),
        })
    }

    /// Processor time that all groups together have used since the parent was made; `None` where the host does not say.
    pub fn processor_time(&self) -> Option<Duration> {
        match &self.layout {
            Layout::V1(directories) => directories.processor_time(),
            Layout::V2(directory) => directory.processor_time(),
        }
    }

    /// Whether the kernel counts what of a group's memory is in swap.
    pub fn counts_swap(&self) -> bool {
        match &self.layout {
            Layout::V1(directories) => directories.counts_swap(),
            Layout::V2(directory) => directory.counts_swap(),
        }
    }

    /// 1 or 2.
    pub fn version(&self) -> u8 {
        match self.layout {
            Layout::V1(_) => 1,
            Layout::V2(_) => 2,
        }
    }

    /// Makes the group `name` with its limits.
    ///
    /// # Errors
    /// When there is a group of that name, or the kernel refuses a limit. Nothing is left behind then.
    pub fn create(&self, name: &str, limits: Limits) -> Result<Cgroup, CreateError> {
        if !usable(name) {
            return Err(CreateError::Name(name.to_owned()));
        }
        let failed = |source| CreateError::File {
            name: name.to_owned(),
            source,
        };
        let layout = self.layout.join(name);
        let mut made: Vec<PathBuf> = Vec::new();
        for directory in layout.all().into_iter().chain([layout.function()]) {
            if let Err(e) = files::make_new(&directory) {
                // Not by dropping a Cgroup: that would kill those in a group that was there before.
                for directory in &made {
                    let _ = remove_directory(directory, Duration::ZERO);
                }
                return Err(failed(e));
            }
            made.push(directory);
        }
        let group = Cgroup {
            name: name.to_owned(),
            layout,
            removed: false,
            home: Weak::new(),
        };
        files::let_enter(&group.layout.function()).map_err(failed)?;
        group.layout.limit(&limits).map_err(failed)?;
        if let Some(disk) = &self.disk {
            group.layout.limit_disk(disk).map_err(failed)?;
        }
        Ok(group)
    }

    /// Gives a group made ahead of its use its limits, and its user's name where the kernel renames groups (v1 only).
    ///
    /// # Errors
    /// When the name is taken or the kernel refuses a limit.
    pub fn assign(&self, group: &mut Cgroup, name: &str, limits: Limits) -> Result<(), CreateError> {
        if !usable(name) {
            return Err(CreateError::Name(name.to_owned()));
        }
        let failed = |source| CreateError::File {
            name: name.to_owned(),
            source,
        };
        group.rename(name).map_err(failed)?;
        group.layout.limit(&limits).map_err(failed)
    }

    /// How many groups there are below the parent.
    pub fn count(&self) -> usize {
        let of = |directory: &PathBuf| files::child_directories(directory).map_or(0, |c| c.len());
        self.layout.all().iter().map(of).max().unwrap_or(0)
    }

    /// Removes the parent, below which there must be none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_parent(&self) -> Result<(), FileError> {
        self.layout.remove(REMOVE_LIMIT)?;
        match self.layout.devices() {
            Some(devices) => remove_directory(devices, REMOVE_LIMIT),
            None => Ok(()),
        }
    }

    /// Kills and removes every group below the parent. To be called before the first [`Cgroups::create`]; returns what
    /// was there. May block for [`KILL_LIMIT`] and [`REMOVE_LIMIT`] each group.
    ///
    /// # Errors
    /// When something could not be killed or removed; the rest was all the same.
    pub fn sweep(&self) -> Result<Vec<Swept>, SweepError> {
        sweep::sweep(&self.layout)
    }
}

/// One group. Dropping it kills what is in it and removes it, without telling of failures.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    layout: Layout,
    removed: bool,
    /// Where it is kept for its next use, if it is clean when it is dropped.
    home: Weak<Spares>,
}

impl Cgroup {
    /// Its name below the parent.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames it beside itself where the kernel does that: v1 only.
    fn rename(&mut self, name: &str) -> Result<(), FileError> {
        if let Layout::V1(_) = self.layout {
            let renamed = self.layout.beside(name);
            for (from, to) in self.layout.all().iter().zip(renamed.all()) {
                std::fs::rename(from, &to).map_err(|e| FileError::new("rename", &to, e))?;
            }
            self.layout = renamed;
            self.name = name.to_owned();
        }
        Ok(())
    }

    /// The files a process writes `0` (or an id) into to be in the group: all of them.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.layout.joined().into_iter().map(|d| d.join(PROCS)).collect()
    }

    /// The directory of the function's group, which is all that [`Self::freeze`] stops: CRIU is told of it by a descriptor.
    pub fn function(&self) -> PathBuf {
        self.layout.function()
    }

    /// What a process that is to be in the function's group writes `0` into, before it runs the function.
    ///
    /// # Errors
    /// When the kernel's file cannot be opened.
    pub fn function_procs(&self) -> Result<OwnedFd, FileError> {
        let path = self.function().join(PROCS);
        let opened = OpenOptions::new().write(true).open(&path);
        opened.map(OwnedFd::from).map_err(|e| FileError::new("open", &path, e))
    }

    /// Process ids in it, as this pid namespace sees them.
    ///
    /// # Errors
    /// When the kernel's files cannot be read.
    pub fn pids(&self) -> Result<Vec<i32>, FileError> {
        self.layout.pids()
    }

    /// Kills every process, frozen or not, and waits until they are gone: at most [`KILL_LIMIT`]. From then on nothing
    /// can be started in the group.
    ///
    /// # Errors
    /// When some did not die.
    pub fn kill(&self) -> Result<(), KillError> {
        self.layout.kill(&self.name, KILL_LIMIT).map(|_| ())
    }

    /// Memory charged to it now, bytes.
    ///
    /// # Errors
    /// When the kernel's file cannot be read.
    pub fn memory_current(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.memory_current(),
            Layout::V2(d) => d.memory_current(),
        }
    }

    /// Gives it more memory for a while: `bytes` in all, not less than it has.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn raise_memory(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.raise_memory(bytes),
            Layout::V2(d) => d.limit_memory(bytes),
        }
    }

    /// Takes it back: `bytes` in all, not more than it has.
    ///
    /// # Errors
    /// When more than that is in use, or the kernel refuses.
    pub fn lower_memory(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.lower_memory(bytes),
            Layout::V2(d) => d.lower_memory(bytes),
        }
    }

    /// How much of its memory is in swap, bytes.
    ///
    /// # Errors
    /// When the kernel's file cannot be read.
    pub fn swap_current(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.swap_current(),
            Layout::V2(d) => d.swap_current(),
        }
    }

    /// Lets the worker swap out so much more of it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn lend_swap(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            // Its limit is one of memory and swap together.
            Layout::V1(_) => Ok(()),
            Layout::V2(d) => d.lend_swap(bytes),
        }
    }

    /// From now on nothing more of it can be swapped out, and memory and swap together are no more than `limit`: an instance that has
    /// grown beyond it meanwhile is at its limit.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn hold_swap(&self, limit: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(_) => Ok(()),
            Layout::V2(d) => d.hold_swap(limit),
        }
    }

    /// The most memory that was ever charged to it, bytes.
    ///
    /// # Errors
    /// When the kernel's file cannot be read; v2 has it since Linux 5.19.
    pub fn memory_peak(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.memory_peak(),
            Layout::V2(d) => d.memory_peak(),
        }
    }

    /// How many of its processes the kernel killed because the group was at its memory limit.
    ///
    /// # Errors
    /// When the kernel's file cannot be read.
    pub fn oom_kills(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.oom_kills(),
            Layout::V2(d) => d.oom_kills(),
        }
    }

    /// Stops every process of the function; returns when all of them stand still, after at most [`FREEZE_LIMIT`]. Init and CRIU go on.
    ///
    /// # Errors
    /// When they do not; they are thawed again then.
    pub fn freeze(&self) -> Result<(), FreezeError> {
        match &self.layout {
            Layout::V1(d) => d.freeze(),
            Layout::V2(d) => d.freeze(),
        }
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// When the kernel's file cannot be written.
    pub fn thaw(&self) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.thaw(),
            Layout::V2(d) => d.thaw(),
        }
    }

    /// Removes the group, which must have no processes any more: tries for at most [`REMOVE_LIMIT`].
    ///
    /// # Errors
    /// When the kernel refuses; dropping it tries once more.
    pub fn remove(mut self) -> Result<(), FileError> {
        self.layout.remove(REMOVE_LIMIT)?;
        self.removed = true;
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.removed {
            may_block(|| {
                // Nobody is left to tell; the next start of the worker sweeps.
                let _ = self.layout.kill(&self.name, DROP_LIMIT);
                let kept = self
                    .home
                    .upgrade()
                    .map(|home| home.take_back(&self.name, self.layout.clone()));
                let left = match kept {
                    Some(Ok(())) => return,
                    Some(Err(layout)) => layout,
                    None => self.layout.clone(),
                };
                let _ = left.remove(DROP_LIMIT);
            });
        }
    }
}

/// Does what may block, on this thread since its name must be free afterwards; on a thread of a runtime, other tasks go
/// elsewhere meanwhile.
fn may_block(work: impl FnOnce()) {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests;
