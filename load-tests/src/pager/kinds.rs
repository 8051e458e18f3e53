//! What is measured of the pager: the workloads, and the backings of their memory.

use clap::ValueEnum;

/// What a process does with its restored memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// Bursts of touches, most of them on pages it has, with 5 ms of idle between.
    InteractiveBurst,
    /// Reads all of its memory from front to back, over and over, and writes to every fourth page.
    AnonStreamer,
    /// Touches pages at random; every second touch writes.
    RandomTouchHeap,
    /// Maps fresh memory, writes to every page of it, and unmaps it, over and over.
    MmapChurn,
    /// Touches, then unmaps, restored memory, sixteen pages at a time, and maps fresh memory in its place.
    RestoredChurn,
}

/// How the memory is provided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Backing {
    /// Plain anonymous memory, without content and without a pager.
    Anonymous,
    /// A plain private mapping of the file that holds the content, without a pager.
    File,
    /// The pager's main one: a full template, mapped.
    Template,
    /// A full template, mapped, on a tmpfs with `huge=always`.
    Huge,
    /// Its plain one: pages copied from a full template.
    Copy,
    /// The main one with an empty template, filled from compressed regions on disk.
    Cache,
}

impl Workload {
    pub(crate) const ALL: [Self; 5] = [
        Self::InteractiveBurst,
        Self::AnonStreamer,
        Self::RandomTouchHeap,
        Self::MmapChurn,
        Self::RestoredChurn,
    ];
}

impl Backing {
    pub(crate) const ALL: [Self; 6] = [
        Self::Anonymous,
        Self::File,
        Self::Template,
        Self::Huge,
        Self::Copy,
        Self::Cache,
    ];

    /// Whether the pager serves it.
    pub(crate) fn is_served(self) -> bool {
        !matches!(self, Self::Anonymous | Self::File)
    }

    /// Whether the process maps the file.
    pub(crate) fn is_mapped(self) -> bool {
        !matches!(self, Self::Anonymous | Self::Copy)
    }
}

/// A kind's name, as on the command line.
pub(crate) fn name(kind: impl ValueEnum) -> String {
    kind.to_possible_value()
        .map_or_else(String::new, |v| v.get_name().to_owned())
}
