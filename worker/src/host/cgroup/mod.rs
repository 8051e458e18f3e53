//! Control groups of sandboxes: one interface over cgroup v1 and v2. The worker chooses the version when it starts.
//!
//! ```text
//! detect ─► sweep (what a dead worker left) ─► create ─► procs_files → init writes itself in
//!                                                 │
//!                                   freeze ⇄ thaw │ kill ─► remove, or clean and use again (spare)
//! ```
//!
//! Everything here blocks its thread, mostly for microseconds. Calls that may wait longer document their limit.

mod devices;
mod disk;
mod errors;
mod files;
mod layout;
mod limits;
mod memory;
mod spare;
mod sweep;
mod v1;
mod v2;

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use procfs::process::Process;

use super::poll_until;
use layout::{Layout, PROCS, remove_directory};
use limits::DiskLimit;
use spare::Spares;

pub use errors::{CreateError, DetectError, DeviceError, DiskError, FreezeError, KillError};
pub use files::FileError;
pub use limits::Limits;
pub use spare::SpareCounts;
pub use sweep::{SweepError, SweptCgroup};

/// The group of the function's processes, below the group of the instance, which contains init and CRIU: only the
/// function is ever frozen. On v1 it exists in the freezer's hierarchy alone, on v2 without controllers, so all limits
/// stay the instance's.
const FUNCTION: &str = "function";
/// The group below it of processes that stay frozen longer than the others.
const HELD: &str = "held";
/// Where the kernel's cgroup filesystem is mounted.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The parent of all groups of a worker.
pub const PARENT: &str = "rekindle";

/// How long [`Cgroup::freeze`] waits at most.
pub const FREEZE_LIMIT: Duration = Duration::from_secs(2);
/// The most threads that an error tells of.
const THREADS_TOLD: usize = 16;
/// How long [`Cgroup::kill`] waits at most for the processes to be gone.
pub const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long [`Cgroup::remove`] tries at most.
pub const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// How long a dropped group waits at most, once for the kill and once for the removal.
const DROP_LIMIT: Duration = Duration::from_millis(500);

/// The hierarchy (or hierarchies) in use, and the parent of all groups in it.
#[derive(Debug, Clone)]
pub struct Cgroups {
    layout: Layout,
    disk: Option<DiskLimit>,
    spares: Arc<Spares>,
}

/// Waits until processes are frozen, as `is_frozen` reads from `file`. Lets them run again if they are not in time.
fn until_frozen(
    file: PathBuf,
    mut is_frozen: impl FnMut(&Path) -> Result<bool, FileError>,
    thaw: impl FnOnce() -> Result<(), FileError>,
) -> Result<(), FreezeError> {
    let mut failed = None;
    let frozen = poll_until(FREEZE_LIMIT, Duration::from_micros(100), || {
        is_frozen(&file).unwrap_or_else(|e| {
            failed = Some(e);
            true
        })
    });
    match failed {
        Some(e) => Err(FreezeError::File(e)),
        None if frozen => Ok(()),
        None => {
            let threads = threads_of(&file.with_file_name(PROCS));
            thaw()?;
            Err(FreezeError::StillRunning {
                path: file,
                limit: FREEZE_LIMIT,
                threads,
            })
        }
    }
}

/// What the first threads of a group do, as `NAME (STATE, KERNEL FUNCTION)`. Those that are frozen are in a
/// refrigerator or where they waited before.
fn threads_of(procs: &Path) -> String {
    let processes = files::read_pids(procs).unwrap_or_default();
    let processes = processes.into_iter().filter_map(|pid| Process::new(pid).ok());
    let threads = processes.filter_map(|process| process.tasks().ok()).flatten().flatten();
    let told = threads.filter_map(|thread| {
        let stat = thread.stat().ok()?;
        let waits = std::fs::read_to_string(format!("/proc/{}/task/{}/wchan", thread.pid, thread.tid));
        let waits = waits.unwrap_or_default();
        Some(format!("{} ({}, {waits})", stat.comm, stat.state))
    });
    told.take(THREADS_TOLD).collect::<Vec<_>>().join(", ")
}

fn usable(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(allowed)
}

impl Cgroups {
    /// Detects the version at `root` (normally [`CGROUP_ROOT`]), and creates the parent group [`PARENT`].
    ///
    /// # Errors
    /// Returns an error when a needed controller is missing or cannot be delegated.
    pub fn detect(root: &Path) -> Result<Self, DetectError> {
        Self::detect_below(root, PARENT)
    }

    /// Like [`Cgroups::detect`], with another parent, several levels deep if need be (`rekindle/w-1`): two workers on
    /// one host must not sweep each other's groups.
    ///
    /// # Errors
    /// The same as [`Cgroups::detect`].
    pub fn detect_below(root: &Path, parent: &str) -> Result<Self, DetectError> {
        if let Some(bad) = parent.split('/').find(|level| !usable(level)) {
            return Err(DetectError::Name(bad.to_owned()));
        }
        let layout = match v2::Directory::detect(root)? {
            Some(mut directory) => {
                directory.delegate_controllers()?;
                for level in parent.split('/') {
                    directory = directory.join(level);
                    files::make_all(&directory.0).map_err(DetectError::File)?;
                    directory.delegate_controllers()?;
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

    /// Returns the processor time of all groups since the parent was created; `None` if the host does not report it.
    pub fn processor_time(&self) -> Option<Duration> {
        match &self.layout {
            Layout::V1(directories) => directories.processor_time(),
            Layout::V2(directory) => directory.processor_time(),
        }
    }

    /// Returns whether the kernel accounts for a group's memory in swap.
    pub fn counts_swap(&self) -> bool {
        match &self.layout {
            Layout::V1(directories) => directories.counts_swap(),
            Layout::V2(directory) => directory.counts_swap(),
        }
    }

    /// Returns the version: 1 or 2.
    pub fn version(&self) -> u8 {
        match self.layout {
            Layout::V1(_) => 1,
            Layout::V2(_) => 2,
        }
    }

    /// Creates the group `name` with its limits.
    ///
    /// # Errors
    /// Returns an error when a group of that name exists, or the kernel refuses a limit. Nothing is left behind then.
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
                // This does not drop a Cgroup: that would kill the processes of a group that existed before.
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
        group.layout.limit(&limits).map_err(failed)?;
        if let Some(disk) = &self.disk {
            group.layout.limit_disk(disk).map_err(failed)?;
        }
        Ok(group)
    }

    /// Gives a group created ahead its limits, and its user's name if the kernel renames groups (v1 only).
    ///
    /// # Errors
    /// Returns an error when the name is taken or the kernel refuses a limit.
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

    /// Returns the number of groups below the parent.
    pub fn count(&self) -> usize {
        let of = |directory: &PathBuf| files::child_directories(directory).map_or(0, |c| c.len());
        self.layout.all().iter().map(of).max().unwrap_or(0)
    }

    /// Removes the parent, which must contain no groups.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn remove_parent(&self) -> Result<(), FileError> {
        self.layout.remove(REMOVE_LIMIT)?;
        match self.layout.devices() {
            Some(devices) => remove_directory(devices, REMOVE_LIMIT),
            None => Ok(()),
        }
    }

    /// Kills and removes every group below the parent, and returns what was there. Must be called before the first
    /// [`Cgroups::create`]. May block for [`KILL_LIMIT`] and [`REMOVE_LIMIT`] each group.
    ///
    /// # Errors
    /// Returns an error when something could not be killed or removed. The rest was removed all the same.
    pub fn sweep(&self) -> Result<Vec<SweptCgroup>, SweepError> {
        sweep::sweep(&self.layout)
    }
}

/// One group. Its drop kills its processes and removes it, without reporting failures.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    layout: Layout,
    removed: bool,
    /// Where it is kept for its next use, if it is clean on drop.
    home: Weak<Spares>,
}

impl Cgroup {
    /// Returns its name below the parent.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames it below the same parent, if the kernel supports that: v1 only.
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

    /// Returns the files into which a process writes `0` (or an id) to join the group: it must write to all of them.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.layout.joined().into_iter().map(|d| d.join(PROCS)).collect()
    }

    /// Returns the directory of the function's group, which is all that [`Self::freeze`] stops. CRIU gets it as a
    /// descriptor.
    pub fn function(&self) -> PathBuf {
        self.layout.function()
    }

    /// Opens the file into which a process writes `0` to join the function's group, before it runs the function.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be opened.
    pub fn function_procs(&self) -> Result<OwnedFd, FileError> {
        let path = self.function().join(PROCS);
        let opened = OpenOptions::new().write(true).open(&path);
        opened.map(OwnedFd::from).map_err(|e| FileError::new("open", &path, e))
    }

    /// Returns the ids of its processes, as this pid namespace sees them.
    ///
    /// # Errors
    /// Returns an error when the kernel's files cannot be read.
    pub fn pids(&self) -> Result<Vec<i32>, FileError> {
        self.layout.pids()
    }

    /// Kills every process, frozen or not, and waits until they are gone: at most [`KILL_LIMIT`]. From then on nothing
    /// can be started in the group.
    ///
    /// # Errors
    /// Returns an error when some did not die.
    pub fn kill(&self) -> Result<(), KillError> {
        self.layout.kill(&self.name, KILL_LIMIT).map(|_| ())
    }

    /// Freezes every process of the function. Returns when all of them are stopped, after at most [`FREEZE_LIMIT`].
    /// Init and CRIU keep running.
    ///
    /// # Errors
    /// Returns an error when they do not stop. They are then thawed again.
    pub fn freeze(&self) -> Result<(), FreezeError> {
        match &self.layout {
            Layout::V1(d) => d.freeze(),
            Layout::V2(d) => d.freeze(),
        }
    }

    /// Thaws the processes of the function.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be written.
    pub fn thaw(&self) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.thaw(),
            Layout::V2(d) => d.thaw(),
        }
    }

    /// Returns the ids of the function's processes.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read.
    pub fn function_pids(&self) -> Result<Vec<i32>, FileError> {
        files::read_pids(&self.function().join(PROCS))
    }

    /// Holds processes of the frozen function back: they stay frozen when it is thawed, until [`Self::release`]. Blocks
    /// for some milliseconds.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses. Some may be held then.
    pub fn hold(&self, pids: &[i32]) -> Result<(), FileError> {
        let held = self.layout.held();
        files::make_all(&held)?;
        match &self.layout {
            Layout::V1(_) => files::write(&held.join(v1::STATE), v1::FROZEN)?,
            Layout::V2(_) => files::write(&held.join(v2::FREEZE), "1")?,
        }
        layout::move_to(&held, pids)
    }

    /// Lets held processes go on with the others. Blocks for some milliseconds if there are any.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn release(&self) -> Result<(), FileError> {
        let held = self.layout.held();
        if !held.exists() {
            return Ok(());
        }
        // None of them can fork before it is moved.
        layout::move_to(&self.function(), &files::read_pids(&held.join(PROCS))?)?;
        remove_directory(&held, REMOVE_LIMIT)
    }

    /// Removes the group, which must contain no processes any more. Tries for at most [`REMOVE_LIMIT`].
    ///
    /// # Errors
    /// Returns an error when the kernel refuses. The drop tries once more.
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
                // Failures can be reported to nobody. The next start of the worker sweeps.
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

/// Runs work that may block on this thread, since the group's name must be free afterwards. On a runtime's thread,
/// other tasks move elsewhere meanwhile.
fn may_block(work: impl FnOnce()) {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests;
