//! What the caller knows of the processes, from elsewhere than their images.

use std::ops::RangeInclusive;

/// How many kinds of resource limits there are; their numbers are the kernel's `RLIMIT_*`.
pub const RESOURCES: usize = 16;

/// What a resource limit may be, soft and hard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// This, both.
    Exactly(u64),
    /// No more than this. `u64::MAX` is the kernel's infinity.
    AtMost(u64),
}

/// What processes must be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Their only user.
    pub uid: u32,
    /// Their only group.
    pub gid: u32,
    /// Their supplementary groups.
    pub groups: Vec<u32>,
    /// BLAKE3 of the system call filters, each of which is enough.
    pub filters: Vec<[u8; 32]>,
    /// Their resource limits, by number.
    pub limits: [Limit; RESOURCES],
    /// The lowest `oom_score_adj`.
    pub oom_score_adj_min: i32,
    /// Which process and thread ids there may be.
    pub pids: RangeInclusive<u32>,
    /// The lowest port that may be bound.
    pub port_min: u16,
    /// The inodes of pipes that lead out of the sandbox and are written to only: the function's outputs.
    pub output_pipes: Vec<u32>,
    /// Files in the directory that are no images: not read.
    pub other_files: Vec<String>,
    /// Of an instance that moves: what its images may have besides. `None` of a snapshot.
    pub travelling: Option<Travelling>,
}

/// What images of an instance that moves have, and those of a snapshot do not: its memory is in no image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Travelling {
    /// What CRIU calls the templates: external files, which are mapped privately and nothing else.
    pub templates: Vec<String>,
    /// Where the pages are that CRIU restores itself.
    pub pages: PagesIn,
}

/// Where the pages of an instance that moves are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagesIn {
    /// In its processes, or in `pages-N.img`, as CRIU dumps them.
    Dump,
    /// In `eager-PID` of each process, those that CRIU is to restore. `pages-N.img` is still to be made of it.
    Eager,
}

impl Limit {
    /// Whether a limit may be this.
    pub(crate) fn allows(self, soft: u64, hard: u64) -> bool {
        match self {
            Self::Exactly(value) => soft == value && hard == value,
            Self::AtMost(most) => soft <= hard && hard <= most,
        }
    }
}
