//! The caller's knowledge of the processes, from other sources than their images.

use std::ops::RangeInclusive;

/// Number of kinds of resource limits. They are numbered like the kernel's `RLIMIT_*`.
pub const RESOURCES: usize = 16;

/// Permitted values of a resource limit, soft and hard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Both exactly this value.
    Exactly(u64),
    /// At most this value. `u64::MAX` is the kernel's infinity.
    AtMost(u64),
}

/// Requirements on the processes.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Their only user.
    pub uid: u32,
    /// Their only group.
    pub gid: u32,
    /// Their supplementary groups.
    pub groups: Vec<u32>,
    /// BLAKE3 of the accepted system call filters. Each of them is sufficient.
    pub filters: Vec<[u8; 32]>,
    /// Their resource limits, by number.
    pub limits: [Limit; RESOURCES],
    /// The lowest `oom_score_adj`.
    pub oom_score_adj_min: i32,
    /// Permitted process and thread ids.
    pub pids: RangeInclusive<u32>,
    /// Whether the root filesystem is the function's own to write, and not shared.
    pub writes_root: bool,
    /// Inodes of the pipes that lead out of the sandbox and are only written to: the function's outputs.
    pub output_pipes: Vec<u32>,
    /// Files in the directory that are not images and are not read.
    pub other_files: Vec<String>,
    /// What images of a migrating instance may have in addition. `None` for a snapshot.
    pub travelling: Option<MigrationImages>,
}

/// What images of a migrating instance have, and those of a snapshot do not. No image has the instance's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationImages {
    /// CRIU's names of the templates: external files that are mapped privately and used in no other way.
    pub templates: Vec<String>,
    /// Location of the pages that CRIU restores itself.
    pub pages: PageLocation,
}

/// Location of the pages of a migrating instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageLocation {
    /// In its processes, or in `pages-N.img`, as CRIU dumps them.
    Dump,
    /// In `eager-PID` of each process, for the pages that CRIU is to restore. `pages-N.img` is yet to be built from
    /// these files.
    Eager,
}

impl Limit {
    /// Whether the limit may have this value.
    pub(crate) fn allows(self, soft: u64, hard: u64) -> bool {
        match self {
            Self::Exactly(value) => soft == value && hard == value,
            Self::AtMost(most) => soft <= hard && hard <= most,
        }
    }
}
