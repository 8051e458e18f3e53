//! What is measured, by name, and the result of one run.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::client::Reply;

/// One way to get the function's first response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// Through the platform, in a booted instance.
    Booted,
    /// Through the platform, in an instance restored from the snapshot.
    Restored,
    /// Through the platform, in an instance that was idle and frozen.
    Parked,
    /// Through the platform, in a copy that has served nothing, restored after the invocation before. Measured only if
    /// named: its restores take sandboxes from the pool of the others.
    Fresh,
    /// Through the platform, in an existing instance.
    Warm,
    /// The same bootstrap as an existing process on the host, asked directly.
    Direct,
    /// The same bootstrap started as a process on the host.
    Plain,
    /// The same in a container of crun.
    Crun,
    /// The same in a container of runc.
    Runc,
    /// The same in a container of podman.
    Podman,
    /// `podman container restore` of such a container's exported checkpoint.
    PodmanRestore,
    /// Stock `criu restore` of that process.
    Criu,
    /// Stock `criu restore --lazy-pages` of that process, including the start of `criu lazy-pages`.
    LazyPages,
    /// Like [`Criu`](Self::Criu), with the most detailed log.
    CriuLogged,
    /// Like [`Criu`](Self::Criu), without the kernel probe of an earlier run.
    CriuUnprobed,
    /// Like [`Criu`](Self::Criu), with its images on a disk's filesystem instead of in memory.
    CriuOnDisk,
    /// Like [`Criu`](Self::Criu), by a `criu swrk` that was started before the trigger.
    CriuWaiting,
    /// Stock `criu dump` of that process into memory; the process continues. Its start is not measured.
    CriuDump,
    /// Like [`CriuDump`](Self::CriuDump), by a `criu swrk` that was started before.
    CriuDumpWaiting,
}

impl Subject {
    /// Subjects measured only if named: a fresh copy for each invocation, and where CRIU's own time goes.
    pub(crate) const ONLY_NAMED: [Self; 5] = [
        Self::Fresh,
        Self::CriuLogged,
        Self::CriuUnprobed,
        Self::CriuOnDisk,
        Self::CriuWaiting,
    ];

    /// Subjects with which an instance's freeze is compared (`rekindle-bench checkpoint`).
    pub(crate) const DUMPS: [Self; 2] = [Self::CriuDump, Self::CriuDumpWaiting];

    /// All other subjects, in the order of the tables.
    pub(crate) const ALL: [Self; 12] = [
        Self::Booted,
        Self::Restored,
        Self::Parked,
        Self::Warm,
        Self::Direct,
        Self::Plain,
        Self::Crun,
        Self::Runc,
        Self::Podman,
        Self::PodmanRestore,
        Self::Criu,
        Self::LazyPages,
    ];

    /// Its name on the command line and in the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Booted => "booted",
            Self::Restored => "restored",
            Self::Parked => "parked",
            Self::Fresh => "fresh",
            Self::Warm => "warm",
            Self::Direct => "direct",
            Self::Plain => "plain",
            Self::Crun => "crun",
            Self::Runc => "runc",
            Self::Podman => "podman",
            Self::PodmanRestore => "podman-restore",
            Self::Criu => "criu",
            Self::LazyPages => "lazy-pages",
            Self::CriuLogged => "criu-logged",
            Self::CriuUnprobed => "criu-unprobed",
            Self::CriuOnDisk => "criu-on-disk",
            Self::CriuWaiting => "criu-waiting",
            Self::CriuDump => "criu-dump",
            Self::CriuDumpWaiting => "criu-dump-waiting",
        }
    }

    /// Its title in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Booted => "rekindle, booted",
            Self::Restored => "rekindle, restored",
            Self::Parked => "rekindle, parked",
            Self::Fresh => "rekindle, fresh",
            Self::Warm => "rekindle, warm",
            Self::Direct => "running process, asked directly",
            Self::Plain => "plain process start",
            Self::Crun => "crun, container start",
            Self::Runc => "runc, container start",
            Self::Podman => "podman, container start",
            Self::PodmanRestore => "podman, restore of a checkpoint",
            Self::Criu => "CRIU, eager restore",
            Self::LazyPages => "CRIU, lazy-pages",
            Self::CriuLogged => "CRIU, eager, log level 4",
            Self::CriuUnprobed => "CRIU, eager, no kernel probe kept",
            Self::CriuOnDisk => "CRIU, eager, images on disk",
            Self::CriuWaiting => "CRIU, eager, started ahead",
            Self::CriuDump => "CRIU, dump to memory",
            Self::CriuDumpWaiting => "CRIU, dump to memory, started ahead",
        }
    }

    /// Whether it runs through the platform.
    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Booted | Self::Restored | Self::Parked | Self::Fresh | Self::Warm
        )
    }

    /// Whether nothing has to be started for it. Such a run is short, so there are several in a round.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Warm | Self::Direct)
    }
}

/// One run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// From the trigger to the last byte of the first response, milliseconds.
    pub(crate) ms: f64,
    /// The phases of `Server-Timing`, milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) phases: BTreeMap<String, f64>,
}

impl Sample {
    /// What began at the trigger and ended with this response, just now.
    pub(crate) fn since(triggered: Instant, reply: &Reply) -> Self {
        Self {
            ms: ms_since(triggered),
            phases: reply.phases(),
        }
    }
}

/// Milliseconds since then.
pub(crate) fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1_000.0
}
