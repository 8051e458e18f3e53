//! The memory of a control group.

use super::layout::Layout;
use super::{Cgroup, FileError};

impl Cgroup {
    /// Returns the memory charged to it now, in bytes.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read.
    pub fn memory_current(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.memory_current(),
            Layout::V2(d) => d.memory_current(),
        }
    }

    /// Returns how much of its memory is files in memory (`/tmp`, `/dev/shm`) and memory that processes share, in
    /// bytes.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read.
    pub fn memory_shared(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.memory_shared(),
            Layout::V2(d) => d.memory_shared(),
        }
    }

    /// Raises its memory limit for a while, to `bytes` in all. This must not be less than the present limit.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn raise_memory(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.raise_memory(bytes),
            Layout::V2(d) => d.limit_memory(bytes),
        }
    }

    /// Lowers its memory limit again, to `bytes` in all. This must not be more than the present limit.
    ///
    /// # Errors
    /// Returns an error when more than that is in use, or the kernel refuses.
    pub fn lower_memory(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(d) => d.lower_memory(bytes),
            Layout::V2(d) => d.lower_memory(bytes),
        }
    }

    /// Returns how much of its memory is in swap, in bytes.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read.
    pub fn swap_current(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.swap_current(),
            Layout::V2(d) => d.swap_current(),
        }
    }

    /// Lets the worker swap out this many more bytes of it.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn lend_swap(&self, bytes: u64) -> Result<(), FileError> {
        match &self.layout {
            // The v1 limit covers memory and swap together.
            Layout::V1(_) => Ok(()),
            Layout::V2(d) => d.lend_swap(bytes),
        }
    }

    /// Prevents any more of it from being swapped out, and limits memory and swap together to `limit`. An instance that
    /// has grown beyond it in the meantime is at its limit.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn hold_swap(&self, limit: u64) -> Result<(), FileError> {
        match &self.layout {
            Layout::V1(_) => Ok(()),
            Layout::V2(d) => d.hold_swap(limit),
        }
    }

    /// Returns the maximum memory that was ever charged to it, in bytes.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read; v2 has it since Linux 5.19.
    pub fn memory_peak(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.memory_peak(),
            Layout::V2(d) => d.memory_peak(),
        }
    }

    /// Returns how many of its processes the kernel killed because the group was at its memory limit.
    ///
    /// # Errors
    /// Returns an error when the kernel's file cannot be read.
    pub fn oom_kills(&self) -> Result<u64, FileError> {
        match &self.layout {
            Layout::V1(d) => d.oom_kills(),
            Layout::V2(d) => d.oom_kills(),
        }
    }
}
