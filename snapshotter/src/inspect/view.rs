//! The memory of a process by mapping: what a snapshot or image directory holds of it, and in which form. Pure.

use std::collections::HashMap;

use rekindle_criu::images::{Backing, Mapping, PE_LAZY, PE_PARENT, StoredPagemap};
use serde::{Serialize, Serializer};

use crate::codec::{Encoding, PAGE_BYTES};
use crate::pagemap::{PageIndex, PageMap, Region};

const PAGE: u64 = PAGE_BYTES as u64;

/// How pages are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Not stored, because they are zero.
    Zero,
    /// Uncompressed.
    Raw,
    /// Compressed by LZ4.
    Compressed,
    /// As the difference to another snapshot's pages.
    Difference,
    /// Separately: they must be in memory before the process runs.
    Eager,
    /// In a parent directory.
    Parent,
}

impl Kind {
    /// All kinds, in the order of the legend.
    pub const ALL: [Self; 6] = [
        Self::Zero,
        Self::Raw,
        Self::Compressed,
        Self::Difference,
        Self::Eager,
        Self::Parent,
    ];

    /// How a region is stored.
    pub(super) fn of(region: &Region) -> Self {
        match (region.payload.map(|p| p.encoding), region.base) {
            (None, _) => Self::Zero,
            (Some(_), Some(_)) => Self::Difference,
            (Some(Encoding::Raw), None) => Self::Raw,
            (Some(Encoding::Lz4), None) => Self::Compressed,
        }
    }

    /// The kind's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Raw => "raw",
            Self::Compressed => "compressed",
            Self::Difference => "difference",
            Self::Eager => "eager",
            Self::Parent => "in parent",
        }
    }
}

/// Consecutive pages stored in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First page.
    pub first: PageIndex,
    /// Number of pages.
    pub pages: u64,
    /// How they are stored.
    pub kind: Kind,
    /// Stored bytes. Unknown for eager pages.
    pub stored_bytes: u64,
}

impl Span {
    fn end(&self) -> u64 {
        self.first.0 + self.pages
    }
}

/// Bytes of memory by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Zero.
    pub zero_bytes: u64,
    /// Stored uncompressed.
    pub raw_bytes: u64,
    /// Compressed.
    pub compressed_bytes: u64,
    /// Stored as the difference to another snapshot's pages.
    pub difference_bytes: u64,
    /// In memory before the process runs.
    pub eager_bytes: u64,
    /// In a parent directory.
    pub parent_bytes: u64,
}

impl Kinds {
    /// The bytes of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Zero => self.zero_bytes,
            Kind::Raw => self.raw_bytes,
            Kind::Compressed => self.compressed_bytes,
            Kind::Difference => self.difference_bytes,
            Kind::Eager => self.eager_bytes,
            Kind::Parent => self.parent_bytes,
        }
    }

    /// Total of all kinds.
    pub fn total(&self) -> u64 {
        Kind::ALL.iter().map(|k| self.of(*k)).sum()
    }

    /// The sum of both.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for kind in Kind::ALL {
            self.add(kind, other.of(kind));
        }
        self
    }

    fn add(&mut self, kind: Kind, bytes: u64) {
        match kind {
            Kind::Zero => self.zero_bytes += bytes,
            Kind::Raw => self.raw_bytes += bytes,
            Kind::Compressed => self.compressed_bytes += bytes,
            Kind::Difference => self.difference_bytes += bytes,
            Kind::Eager => self.eager_bytes += bytes,
            Kind::Parent => self.parent_bytes += bytes,
        }
    }
}

/// A mapping, with figures about its memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MappingView {
    /// Address of its first byte.
    #[serde(serialize_with = "hexadecimal")]
    pub start: u64,
    /// One past its last byte.
    #[serde(serialize_with = "hexadecimal")]
    pub end: u64,
    /// `rwx`, as in `/proc/PID/maps`.
    pub access: String,
    /// A file's path, or a label such as `[heap]`.
    pub name: String,
    /// Its memory in the snapshot.
    #[serde(flatten)]
    pub kinds: Kinds,
    /// Stored bytes of that memory, except eager pages.
    pub stored_bytes: u64,
    /// The part of its memory that a first response touches.
    pub working_set_bytes: u64,
    /// Its memory, by address.
    #[serde(skip)]
    pub spans: Vec<Span>,
    /// Its pages in the working set, by address.
    #[serde(skip)]
    pub working_set: Vec<PageIndex>,
}

/// The memory of a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessView {
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Its mappings, by address.
    pub mappings: Vec<MappingView>,
}

fn hexadecimal<S: Serializer>(address: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{address:#x}"))
}

/// Lazy memory as in a snapshot, with the eager pages of its pagemap in between.
pub(super) fn spans_of_snapshot(map: &PageMap, pagemap: &StoredPagemap) -> Vec<Span> {
    let lazy = map.regions().iter().map(|region| Span {
        first: region.first,
        pages: u64::from(region.pages),
        kind: Kind::of(region),
        stored_bytes: region.payload.map_or(0, |p| u64::from(p.len)),
    });
    let eager = pagemap.runs.iter().filter(|r| r.flags & PE_LAZY == 0);
    let eager = eager.map(|run| Span {
        first: PageIndex::containing(run.address),
        pages: run.pages,
        kind: Kind::Eager,
        stored_bytes: 0,
    });
    let mut spans: Vec<Span> = lazy.chain(eager).collect();
    spans.sort_by_key(|s| s.first);
    spans
}

/// Memory as in an image directory.
pub(super) fn spans_of_pagemap(pagemap: &StoredPagemap) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut push = |span: Span| match spans.last_mut() {
        Some(last) if last.end() == span.first.0 && last.kind == span.kind => {
            last.pages += span.pages;
            last.stored_bytes += span.stored_bytes;
        }
        _ => spans.push(span),
    };
    for run in &pagemap.runs {
        let first = PageIndex::containing(run.address);
        let whole = |kind, stored_bytes| Span {
            first,
            pages: run.pages,
            kind,
            stored_bytes,
        };
        if run.flags & PE_PARENT != 0 {
            push(whole(Kind::Parent, 0));
        } else if run.flags & PE_LAZY == 0 {
            push(whole(Kind::Eager, run.payload_bytes()));
        } else if let Some(blocks) = &run.blocks {
            let per_block = u64::from(blocks.pages_per_block);
            for (at, size) in (0..).zip(&blocks.sizes) {
                let from: u64 = at * per_block;
                let pages = per_block.min(run.pages - from);
                let kind = match u64::from(*size) {
                    0 => Kind::Zero,
                    stored if stored == pages * PAGE => Kind::Raw,
                    _ => Kind::Compressed,
                };
                push(Span {
                    first: PageIndex(first.0 + from),
                    pages,
                    kind,
                    stored_bytes: u64::from(*size),
                });
            }
        } else {
            push(whole(Kind::Raw, run.payload_bytes()));
        }
    }
    spans
}

impl ProcessView {
    /// Assigns spans and working set, both sorted by address, to the mappings that contain them. Anything outside all
    /// mappings is left out.
    pub(super) fn new(
        pid: u32,
        mappings: &[Mapping],
        files: &HashMap<u32, String>,
        spans: &[Span],
        working_set: &[PageIndex],
    ) -> Self {
        let views = mappings.iter().map(|mapping| {
            let (start, end) = (mapping.start / PAGE, mapping.end / PAGE);
            let mut view = MappingView {
                start: mapping.start,
                end: mapping.end,
                access: access(mapping.access),
                name: name(mapping.backing, files),
                kinds: Kinds::default(),
                stored_bytes: 0,
                working_set_bytes: 0,
                spans: Vec::new(),
                working_set: Vec::new(),
            };
            let from = spans.partition_point(|s| s.end() <= start);
            for span in spans[from..].iter().take_while(|s| s.first.0 < end) {
                let (first, last) = (span.first.0.max(start), span.end().min(end));
                // If a region is split between mappings, its bytes count for the first part.
                let stored_bytes = if first == span.first.0 { span.stored_bytes } else { 0 };
                view.kinds.add(span.kind, (last - first) * PAGE);
                view.stored_bytes += stored_bytes;
                view.spans.push(Span {
                    first: PageIndex(first),
                    pages: last - first,
                    kind: span.kind,
                    stored_bytes,
                });
            }
            let from = working_set.partition_point(|p| p.0 < start);
            view.working_set = working_set[from..].iter().take_while(|p| p.0 < end).copied().collect();
            view.working_set_bytes = view.working_set.len() as u64 * PAGE;
            view
        });
        Self {
            pid,
            mappings: views.collect(),
        }
    }

    /// All its memory by kind.
    pub fn kinds(&self) -> Kinds {
        let none = Kinds::default();
        self.mappings.iter().fold(none, |sum, mapping| sum.plus(&mapping.kinds))
    }
}

fn access(prot: u32) -> String {
    let letter = |bit, letter| if prot & bit != 0 { letter } else { '-' };
    [letter(1, 'r'), letter(2, 'w'), letter(4, 'x')].iter().collect()
}

fn name(backing: Backing, files: &HashMap<u32, String>) -> String {
    let file = |id: u64| {
        let name = u32::try_from(id).ok().and_then(|id| files.get(&id));
        name.cloned().unwrap_or_else(|| format!("[file {id}]"))
    };
    match backing {
        Backing::Heap => "[heap]".to_owned(),
        Backing::Stack => "[stack]".to_owned(),
        Backing::Anonymous => "[anonymous]".to_owned(),
        Backing::Shared => "[shared]".to_owned(),
        Backing::Kernel => "[kernel]".to_owned(),
        Backing::FilePrivate(id) | Backing::FileShared(id) => file(id),
    }
}
