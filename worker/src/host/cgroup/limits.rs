//! What a group may use, in the formats of both versions.

pub(super) const CPU_PERIOD_US: u64 = 100_000;

/// Resource limits of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Memory, page cache and tmpfs files included; no swap.
    pub memory_bytes: u64,
    /// Processor time, in cores. Also the group's weight against others.
    pub cpu_cores: f64,
    /// Number of processes and threads.
    pub pids: u64,
}

impl Limits {
    pub(super) fn cpu_quota_us(&self) -> u64 {
        self.cpu_scaled(CPU_PERIOD_US)
    }

    pub(super) fn cpu_scaled(&self, one_core: u64) -> u64 {
        // Saturating float-to-integer casts: no value of `cpu_cores` can wrap.
        (self.cpu_cores * one_core as f64).round() as u64
    }
}

/// A disk, and how fast a group may read from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskLimit {
    /// `MAJOR:MINOR` of the whole disk.
    pub(super) device: String,
    /// Bytes a second.
    pub(super) read_bytes: u64,
}

impl DiskLimit {
    /// Returns the limit in the format of `blkio.throttle.read_bps_device`.
    pub(super) fn v1(&self) -> String {
        format!("{} {}", self.device, self.read_bytes)
    }

    /// Returns the limit in the format of `io.max`.
    pub(super) fn v2(&self) -> String {
        format!("{} rbps={}", self.device, self.read_bytes)
    }
}

/// A device by its major and minor number; without a minor number, all devices of the major number.
pub(super) type Device = (u32, Option<u32>);
