//! cgroup v2: one hierarchy, one directory for each group. Controllers are delegated level by level.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{self, FileError};
use super::limits::{CPU_PERIOD_US, DiskLimit, Limits};
use super::{DetectError, DiskError, FUNCTION, FreezeError, HELD, until_frozen};

/// Required controllers. Freezing needs no controller here.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// The limit of swap in bytes, apart from memory.
const SWAP_MAX: &str = "memory.swap.max";
/// The file that freezes a group.
pub(super) const FREEZE: &str = "cgroup.freeze";
/// Minimum quota that the kernel accepts, in microseconds.
const QUOTA_MIN_US: u64 = 1_000;

/// The directory of a group, or of the parent of all groups.
#[derive(Debug, Clone)]
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    /// Returns the hierarchy at `root`, if it is one and has the required controllers.
    pub(super) fn detect(root: &Path) -> Result<Option<Self>, DetectError> {
        let available = match files::read(&root.join("cgroup.controllers")) {
            Ok(text) => text,
            Err(e) if e.is_missing() => return Ok(None),
            Err(e) => return Err(DetectError::File(e)),
        };
        let has = |c: &&str| available.split_whitespace().any(|a| a == *c);
        let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|c| !has(c)).collect();
        if missing.is_empty() {
            Ok(Some(Self(root.to_owned())))
        } else {
            Err(DetectError::Missing {
                root: root.to_owned(),
                missing: missing.join(", "),
            })
        }
    }

    /// Returns the processor time of the group and those below it.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        let text = files::read(&self.0.join("cpu.stat")).ok()?;
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        used.trim().parse().ok().map(Duration::from_micros)
    }

    /// Lets groups directly below this one have limits.
    pub(super) fn delegate_controllers(&self) -> Result<(), DetectError> {
        let path = self.0.join("cgroup.subtree_control");
        let enabled = match files::read(&path) {
            Ok(text) => text,
            Err(e) if e.is_missing() => String::new(),
            Err(e) => return Err(DetectError::File(e)),
        };
        let missing: Vec<String> = CONTROLLERS
            .into_iter()
            .filter(|c| !enabled.split_whitespace().any(|e| e == *c))
            .map(|c| format!("+{c}"))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        files::write(&path, &missing.join(" ")).map_err(|e| match e.source.kind() {
            // The kernel's rule: a group other than the root either has processes or delegates controllers, not both.
            io::ErrorKind::ResourceBusy => DetectError::Occupied { path, source: e },
            _ => DetectError::File(e),
        })
    }

    /// Delegates `io` from `root` to this directory, and on to groups directly below it. It is optional, so it is not
    /// among the others.
    pub(super) fn delegate_io(&self, root: &Path, parent: &str) -> Result<(), DiskError> {
        let available = files::read(&root.join("cgroup.controllers")).map_err(DiskError::Refused)?;
        if !available.split_whitespace().any(|c| c == "io") {
            return Err(DiskError::NoController(root.display().to_string()));
        }
        let mut level = root.to_owned();
        let below = parent.split('/').map(Some).chain([None]);
        for next in below {
            files::write(&level.join("cgroup.subtree_control"), "+io").map_err(DiskError::Refused)?;
            level.extend(next);
        }
        Ok(())
    }

    pub(super) fn join(&self, name: &str) -> Self {
        Self(self.0.join(name))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn function(&self) -> PathBuf {
        self.file(FUNCTION)
    }

    pub(super) fn limit_memory(&self, bytes: u64) -> Result<(), FileError> {
        files::write(&self.file("memory.max"), &bytes.to_string())
    }

    /// Returns the memory that the kernel cannot reclaim under pressure.
    fn memory_own(&self) -> Result<u64, FileError> {
        let stat = self.file("memory.stat");
        Ok(files::read_key(&stat, "anon")? + files::read_key(&stat, "shmem")?)
    }

    /// The kernel would kill what is beyond the new limit. That is refused here, as version 1 refuses it.
    pub(super) fn lower_memory(&self, bytes: u64) -> Result<(), FileError> {
        if self.memory_own()? > bytes {
            let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
            return Err(FileError::new("write", &self.file("memory.max"), busy));
        }
        self.limit_memory(bytes)
    }

    pub(super) fn limit(&self, limits: &Limits) -> Result<(), FileError> {
        self.limit_memory(limits.memory_bytes)?;
        // Absent if the kernel has no swap accounting.
        files::write_if_present(&self.file(SWAP_MAX), "0")?;
        files::write(&self.file("memory.oom.group"), "1")?;
        let quota = limits.cpu_quota_us().max(QUOTA_MIN_US);
        files::write(&self.file("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?;
        let weight = limits.cpu_scaled(100).clamp(1, 10_000);
        files::write(&self.file("cpu.weight"), &weight.to_string())?;
        files::write(&self.file("pids.max"), &limits.pids.to_string())
    }

    pub(super) fn limit_disk(&self, limit: &DiskLimit) -> Result<(), FileError> {
        files::write(&self.file("io.max"), &limit.v2())
    }

    /// Thaws the group. Of the kernel's counters that cannot be reset, only the kills are read.
    pub(super) fn reset(&self) -> Result<(), FileError> {
        self.thaw()
    }

    /// Kills every process of the group and of those below, frozen ones too. Returns false if the kernel is older than
    /// 5.14 and has no such file.
    pub(super) fn kill_all(&self) -> Result<bool, FileError> {
        let path = self.file("cgroup.kill");
        if !path.exists() {
            return Ok(false);
        }
        files::write(&path, "1").map(|()| true)
    }

    pub(super) fn stop_forks(&self) {
        // This only makes a kill more reliable, which is repeated until nothing is left.
        let _ = files::write_if_present(&self.file("pids.max"), "0");
    }

    pub(super) fn memory_current(&self) -> Result<u64, FileError> {
        files::read_number(&self.file("memory.current"))
    }

    pub(super) fn memory_shared(&self) -> Result<u64, FileError> {
        files::read_key(&self.file("memory.stat"), "shmem")
    }

    pub(super) fn counts_swap(&self) -> bool {
        self.file(SWAP_MAX).exists()
    }

    pub(super) fn swap_current(&self) -> Result<u64, FileError> {
        files::read_number(&self.file("memory.swap.current"))
    }

    /// Swap has a limit of its own here. The limit equals what is in swap, and is higher only for a moment, so only the
    /// worker can put anything there.
    pub(super) fn lend_swap(&self, bytes: u64) -> Result<(), FileError> {
        let most = self.swap_current()? + bytes;
        files::write(&self.file(SWAP_MAX), &most.to_string())
    }

    pub(super) fn hold_swap(&self, limit: u64) -> Result<(), FileError> {
        let swapped = self.swap_current()?;
        files::write(&self.file(SWAP_MAX), &swapped.to_string())?;
        let now = files::read(&self.file("memory.max"))?;
        if now.trim().parse().map_or(true, |now: u64| now > limit) {
            // It has more than that for the moment, for its checkpoint.
            return Ok(());
        }
        // Only for an instance beyond it: a lower limit would refuse others what comes back from swap. Page cache does
        // not count, because it is reclaimed under pressure.
        let is_beyond = self.memory_own()?.saturating_add(swapped) > limit;
        self.limit_memory(if is_beyond {
            limit.saturating_sub(swapped)
        } else {
            limit
        })
    }

    pub(super) fn memory_peak(&self) -> Result<u64, FileError> {
        files::read_number(&self.file("memory.peak"))
    }

    pub(super) fn oom_kills(&self) -> Result<u64, FileError> {
        files::read_key(&self.file("memory.events"), "oom_kill")
    }

    pub(super) fn freeze(&self) -> Result<(), FreezeError> {
        files::write(&self.function().join(FREEZE), "1")?;
        let is_frozen = |events: &Path| files::read_key(events, "frozen").map(|n| n == 1);
        until_frozen(self.function().join("cgroup.events"), is_frozen, || self.thaw())
    }

    /// A frozen process that is killed need not be thawed to die here. Without `cgroup.kill`, this makes sure of it.
    pub(super) fn thaw_killed(&self) {
        for group in [self.function(), self.function().join(HELD)] {
            let _ = files::write_if_present(&group.join(FREEZE), "0");
        }
    }

    pub(super) fn thaw(&self) -> Result<(), FileError> {
        files::write(&self.function().join(FREEZE), "0")
    }
}
