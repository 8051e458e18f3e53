//! cgroup v1: a hierarchy for each controller, so a group is several directories with one name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{self, FileError};
use super::limits::{CPU_PERIOD_US, Device, DiskLimit, Limits};
use super::{DetectError, DeviceError, DiskError, FUNCTION, FreezeError, HELD, until_frozen};

const MEMORY: &str = "memory";
const CPU: &str = "cpu";
const PIDS: &str = "pids";
const FREEZER: &str = "freezer";
/// The file that freezes a group, and what is written to it.
pub(super) const STATE: &str = "freezer.state";
pub(super) const FROZEN: &str = "FROZEN";
/// Optional: reads from the disk are limited where it exists.
const BLKIO: &str = "blkio";
/// Optional as well: a sandbox has no node of another device.
const DEVICES: &str = "devices";
const CONTROLLERS: [&str; 4] = [MEMORY, CPU, PIDS, FREEZER];

/// Minimum quota that the kernel accepts, in microseconds.
const QUOTA_MIN_US: u64 = 1_000;
/// Minimum share that the kernel accepts; 1024 is one core's worth.
const SHARES_MIN: u64 = 2;

/// Directories of one group (or of the parent of all groups), one for each controller. If several controllers are
/// mounted together, their directories are the same.
#[derive(Debug, Clone)]
pub(super) struct Directories {
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
    freezer: PathBuf,
    blkio: Option<PathBuf>,
    /// The parent's directory: all groups may open the same devices.
    pub(super) devices: Option<PathBuf>,
}

impl Directories {
    /// Finds the four hierarchies below `root`.
    pub(super) fn detect(root: &Path) -> Result<Self, DetectError> {
        let names = files::child_directories(root).map_err(DetectError::File)?;
        let find = |controller: &str| hierarchy(root, &names, controller);
        let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|c| find(c).is_none()).collect();
        match (find(MEMORY), find(CPU), find(PIDS), find(FREEZER)) {
            (Some(memory), Some(cpu), Some(pids), Some(freezer)) => Ok(Self {
                memory,
                cpu,
                pids,
                freezer,
                blkio: None,
                devices: None,
            }),
            _ => Err(DetectError::Missing {
                root: root.to_owned(),
                missing: missing.join(", "),
            }),
        }
    }

    /// Adds this hierarchy to groups created from now on.
    pub(super) fn add_blkio(&mut self, root: &Path, parent: &str) -> Result<(), DiskError> {
        let made = below_another(root, parent, BLKIO).map_err(DiskError::Refused)?;
        self.blkio = Some(made.ok_or_else(|| DiskError::NoController(root.display().to_string()))?);
        Ok(())
    }

    /// Limits processes of groups created from now on to these devices.
    pub(super) fn limit_devices(&mut self, root: &Path, parent: &str, allowed: &[Device]) -> Result<(), DeviceError> {
        let made = below_another(root, parent, DEVICES).map_err(DeviceError::Refused)?;
        let directory = made.ok_or_else(|| DeviceError::NoController(root.display().to_string()))?;
        let write = |file: &str, what: &str| files::write(&directory.join(file), what).map_err(DeviceError::Refused);
        write("devices.deny", "a")?;
        for (major, minor) in allowed {
            let minor = minor.map_or("*".to_owned(), |minor| minor.to_string());
            write("devices.allow", &format!("c {major}:{minor} rwm"))?;
        }
        self.devices = Some(directory);
        Ok(())
    }

    fn map(&self, change: impl Fn(&Path) -> PathBuf) -> Self {
        Self {
            memory: change(&self.memory),
            cpu: change(&self.cpu),
            pids: change(&self.pids),
            freezer: change(&self.freezer),
            blkio: self.blkio.as_deref().map(change),
            devices: self.devices.clone(),
        }
    }

    pub(super) fn join(&self, name: &str) -> Self {
        self.map(|directory| directory.join(name))
    }

    pub(super) fn beside(&self, name: &str) -> Self {
        self.map(|directory| directory.with_file_name(name))
    }

    /// Returns the processor time of the group and those below it, if it is counted beside the limits (`cpu,cpuacct`).
    pub(super) fn processor_time(&self) -> Option<Duration> {
        let text = files::read(&self.cpu.join("cpuacct.usage")).ok()?;
        text.trim().parse().ok().map(Duration::from_nanos)
    }

    pub(super) fn function(&self) -> PathBuf {
        self.freezer.join(FUNCTION)
    }

    fn state(&self) -> PathBuf {
        self.function().join(STATE)
    }

    pub(super) fn all(&self) -> Vec<PathBuf> {
        let mut all = vec![
            self.memory.clone(),
            self.cpu.clone(),
            self.pids.clone(),
            self.freezer.clone(),
        ];
        all.extend(self.blkio.clone());
        all.sort();
        all.dedup();
        all
    }

    pub(super) fn raise_memory(&self, bytes: u64) -> Result<(), FileError> {
        // The reverse of the order in `lower_memory`: the limit of memory alone may not exceed that of memory and swap
        // together.
        files::write_if_present(&self.memory.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
        files::write(&self.memory.join("memory.limit_in_bytes"), &bytes.to_string())
    }

    pub(super) fn lower_memory(&self, bytes: u64) -> Result<(), FileError> {
        files::write(&self.memory.join("memory.limit_in_bytes"), &bytes.to_string())?;
        files::write_if_present(&self.memory.join("memory.memsw.limit_in_bytes"), &bytes.to_string())
    }

    pub(super) fn limit(&self, limits: &Limits) -> Result<(), FileError> {
        self.lower_memory(limits.memory_bytes)?;
        files::write_if_present(&self.memory.join("memory.swappiness"), "0")?;
        // Version 1 charges the buffers of TCP and UDP only where they have a limit.
        let tcp = self.memory.join("memory.kmem.tcp.limit_in_bytes");
        files::write_if_present(&tcp, &limits.memory_bytes.to_string())?;
        let quota = limits.cpu_quota_us().max(QUOTA_MIN_US);
        files::write(&self.cpu.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
        files::write(&self.cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
        let shares = limits.cpu_scaled(1024).max(SHARES_MIN);
        files::write(&self.cpu.join("cpu.shares"), &shares.to_string())?;
        files::write(&self.pids.join("pids.max"), &limits.pids.to_string())
    }

    pub(super) fn limit_disk(&self, limit: &DiskLimit) -> Result<(), FileError> {
        match &self.blkio {
            Some(blkio) => files::write(&blkio.join("blkio.throttle.read_bps_device"), &limit.v1()),
            None => Ok(()),
        }
    }

    /// Thaws the group, and resets the kernel's counters that can be reset.
    pub(super) fn reset(&self) -> Result<(), FileError> {
        self.thaw()?;
        for counter in [
            "memory.max_usage_in_bytes",
            "memory.memsw.max_usage_in_bytes",
            "memory.failcnt",
            "memory.memsw.failcnt",
        ] {
            files::write_if_present(&self.memory.join(counter), "0")?;
        }
        // Exists if processor time is counted beside its limits, as is usual.
        files::write_if_present(&self.cpu.join("cpuacct.usage"), "0")?;
        Ok(())
    }

    /// Prevents the group's processes from forking.
    pub(super) fn stop_forks(&self) {
        // This only makes a kill more reliable, which is repeated until nothing is left.
        let _ = files::write_if_present(&self.pids.join("pids.max"), "0");
    }

    pub(super) fn memory_current(&self) -> Result<u64, FileError> {
        files::read_number(&self.memory.join("memory.usage_in_bytes"))
    }

    pub(super) fn memory_shared(&self) -> Result<u64, FileError> {
        files::read_key(&self.memory.join("memory.stat"), "total_shmem")
    }

    /// Without this file, a limit of memory would not limit anything: swap would come on top.
    pub(super) fn counts_swap(&self) -> bool {
        self.memory.join("memory.memsw.limit_in_bytes").exists()
    }

    pub(super) fn swap_current(&self) -> Result<u64, FileError> {
        // The value in `memory.stat` is up to two seconds old, and takes long to read.
        let before = self.memory_current()?;
        let both = files::read_number(&self.memory.join("memory.memsw.usage_in_bytes"))?;
        // Memory that is freed between two reads was not swapped.
        Ok(both.saturating_sub(before.max(self.memory_current()?)))
    }

    pub(super) fn memory_peak(&self) -> Result<u64, FileError> {
        files::read_number(&self.memory.join("memory.max_usage_in_bytes"))
    }

    pub(super) fn oom_kills(&self) -> Result<u64, FileError> {
        files::read_key(&self.memory.join("memory.oom_control"), "oom_kill")
    }

    pub(super) fn freeze(&self) -> Result<(), FreezeError> {
        let is_frozen = |state: &Path| {
            // Written again each time: a process that forked meanwhile leaves the state at FREEZING until someone
            // looks.
            files::write(state, FROZEN)?;
            Ok(files::read(state)?.trim() == "FROZEN")
        };
        until_frozen(self.state(), is_frozen, || self.thaw())
    }

    /// Takes effect at once: the kernel wakes every process before the write returns.
    pub(super) fn thaw(&self) -> Result<(), FileError> {
        files::write(&self.state(), "THAWED")
    }

    /// A frozen process dies of SIGKILL only once it is thawed.
    pub(super) fn thaw_killed(&self) {
        for group in [self.function(), self.function().join(HELD)] {
            let _ = files::write_if_present(&group.join(STATE), "THAWED");
        }
    }
}

/// Creates the group `parent` in the hierarchy of a controller that not every host has.
fn below_another(root: &Path, parent: &str, controller: &str) -> Result<Option<PathBuf>, FileError> {
    let names = files::child_directories(root)?;
    let made = hierarchy(root, &names, controller).map(|found| found.join(parent));
    made.iter().try_for_each(|directory| files::make_all(directory))?;
    Ok(made)
}

/// Returns the hierarchy of a controller. Its directory is named after its controllers, separated by commas if they are
/// mounted together (`cpu,cpuacct`).
fn hierarchy(root: &Path, names: &[String], controller: &str) -> Option<PathBuf> {
    let mut candidates = names.iter().filter(|n| n.split(',').any(|c| c == controller));
    let found = candidates.find(|n| root.join(n).join("cgroup.procs").exists());
    found.map(|n| root.join(n))
}
