//! The working set: the pages that were touched from a restore to its first response, in that order, as one object. A
//! cold host reads it with one GET instead of the chunks the pages are spread over.
//!
//! It is made from the snapshot's own regions, never from an instance's memory, which has long gone other ways. Whoever
//! reads one compares it with them: it is a hint.

mod check;
pub(crate) mod encoding;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use rekindle_wire::SnapshotId;

use crate::chunks::{ReadError, RegionReader};
use crate::codec::{self, PAGE_BYTES};
use crate::hash_tree::{self, Node};
use crate::keys;
use crate::pagemap::{PageIndex, Region};
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreError};

pub use encoding::PackError;

/// Most pages of a working set: 256 MiB. What was touched later than that is left to faults.
pub const PAGES_MAX: usize = 65_536;

/// Restores that are recorded and merged; with so many a set is whole.
pub const RESTORES: u32 = 3;

static ZERO_PAGE: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// A page of a working set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSetPage {
    /// The process.
    pub pid: u32,
    /// The page.
    pub page: PageIndex,
    /// Its bytes; `None` if all are zero.
    pub content: Option<Bytes>,
    /// Whether every restore that was recorded has written to it.
    pub written: bool,
}

/// Which restores a working set was recorded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording {
    /// How often the snapshot's set was recorded anew before, as it no longer fitted.
    pub number: u32,
    /// The restores that are merged in it, on all hosts, as far as they were counted.
    pub restores: u32,
}

/// A working set whose pages are the snapshot's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSetPack {
    /// What it was recorded from.
    pub recording: Recording,
    /// Its pages, in the order of their first use.
    pub pages: Vec<WorkingSetPage>,
}

/// A working set as it was read. What its pages hold is whatever its writer chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncheckedWorkingSet {
    pack: WorkingSetPack,
    /// What the regions of its pages are hashed with, by process and address.
    siblings: Vec<Node>,
}

/// A page that was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The process.
    pub pid: u32,
    /// The page.
    pub page: PageIndex,
    /// See [`WorkingSetPage::written`].
    pub written: bool,
}

impl WorkingSetPage {
    /// Its bytes, a page of them.
    pub fn bytes(&self) -> &[u8] {
        self.content.as_deref().unwrap_or(&ZERO_PAGE)
    }
}

/// What was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredWorkingSet {
    /// Pages in it.
    pub pages: usize,
    /// Its size.
    pub bytes: u64,
}

/// Why there is no working set.
#[derive(Debug, thiserror::Error)]
pub enum WorkingSetError {
    /// A page could not be read from the snapshot.
    #[error("could not read the working set's pages of snapshot {id}")]
    Read {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: ReadError,
    },
    /// The store failed.
    #[error("could not reach the working set of snapshot {id}")]
    Store {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: StoreError,
    },
    /// The object is not a working set of this snapshot. It can be deleted: the next restore makes another.
    #[error("working set {key} is not usable")]
    Pack {
        /// Its key.
        key: String,
        /// Why.
        #[source]
        cause: PackError,
    },
    /// The process is shutting down.
    #[error("the working set was given up in a shutdown")]
    Shutdown,
}

impl WorkingSetError {
    /// Whether there is one, of a version that only a later build reads.
    pub fn is_of_a_later_build(&self) -> bool {
        matches!(self, Self::Pack { cause: PackError::Version(version), .. } if *version > encoding::VERSION)
    }
}

/// Store the working set of `snapshot`: the pages `order`, of which the first [`PAGES_MAX`] are kept, each once. Pages of
/// processes that are not in the snapshot are left out.
pub async fn store_working_set(
    store: &Store,
    snapshot: &Snapshot,
    reader: &RegionReader,
    recording: Recording,
    order: &[Touched],
) -> Result<StoredWorkingSet, WorkingSetError> {
    let id = snapshot.id().clone();
    let mut seen = HashSet::new();
    let mut pages = Vec::new();
    let mut trees = Trees::new();
    let mut last: Option<(u32, Region, Bytes)> = None;
    for Touched { pid, page, written } in order {
        let Some(process) = snapshot.process(*pid) else {
            continue;
        };
        if pages.len() == PAGES_MAX || !seen.insert((*pid, *page)) {
            continue;
        }
        let content = match process.page_map.lookup(*page) {
            None => None,
            Some(region) => {
                // Neighbours are touched one after the other, so the last region often serves the next page too.
                let kept = last.take().filter(|(of, kept, _)| of == pid && kept == region);
                let bytes = match kept {
                    Some((_, _, bytes)) => bytes,
                    None => Box::pin(reader.read(region))
                        .await
                        .map_err(|cause| WorkingSetError::Read { id: id.clone(), cause })?,
                };
                if check::holding(region).is_some() {
                    let tree = trees.entry((*pid, region.first));
                    tree.or_insert_with(|| Tree::of(&bytes))
                        .known
                        .insert(number_of(region, *page));
                }
                let content = page_of(region, *page, &bytes);
                last = Some((*pid, *region, bytes));
                content
            }
        };
        pages.push(WorkingSetPage {
            pid: *pid,
            page: *page,
            content,
            written: *written,
        });
    }
    let count = pages.len();
    let (named, pack) = (id.clone(), WorkingSetPack { recording, pages });
    let encode = move || encoding::encode(&named, &pack, &siblings(&trees));
    let encoded = tokio::task::spawn_blocking(encode).await;
    let encoded = Bytes::from(encoded.map_err(|_| WorkingSetError::Shutdown)?);
    let bytes = encoded.len() as u64;
    // In the place of an earlier one, which whoever stores has merged into its own.
    let put = store.put(&keys::working_set(&id), encoded).await;
    put.map_err(|cause| WorkingSetError::Store { id, cause })?;
    Ok(StoredWorkingSet { pages: count, bytes })
}

/// The trees of the regions that have pages of the set, by process and address.
type Trees = BTreeMap<(u32, PageIndex), Tree>;

/// The hash tree of a region.
struct Tree {
    nodes: Vec<Node>,
    /// The numbers of its pages that are in the set.
    known: BTreeSet<usize>,
}

impl Tree {
    fn of(plain: &[u8]) -> Self {
        let pages = plain.chunks(PAGE_BYTES).enumerate();
        Self {
            nodes: pages.map(|(number, page)| hash_tree::page_node(number, page)).collect(),
            known: BTreeSet::new(),
        }
    }
}

fn siblings(trees: &Trees) -> Vec<Node> {
    let of_region = |tree: &Tree| {
        let known: Vec<usize> = tree.known.iter().copied().collect();
        hash_tree::siblings(&tree.nodes, &known)
    };
    trees.values().flat_map(of_region).collect()
}

/// The working set of a snapshot; `None` while it has none, or one of an earlier version: that is recorded anew.
pub async fn load_working_set(store: &Store, id: &SnapshotId) -> Result<Option<UncheckedWorkingSet>, WorkingSetError> {
    let key = keys::working_set(id);
    let packed = match store.get(&key).await {
        Ok(packed) => packed,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(cause) => return Err(WorkingSetError::Store { id: id.clone(), cause }),
    };
    let id = id.clone();
    let decoded = tokio::task::spawn_blocking(move || encoding::decode(&id, &packed)).await;
    match decoded.map_err(|_| WorkingSetError::Shutdown)? {
        Ok(set) => Ok(Some(set)),
        Err(PackError::Version(version)) if version < encoding::VERSION => Ok(None),
        Err(cause) => Err(WorkingSetError::Pack { key, cause }),
    }
}

/// Which of the region's pages `page` is. It lies in it, as it was looked up by it.
fn number_of(region: &Region, page: PageIndex) -> usize {
    (page.0 - region.first.0) as usize
}

fn page_of(region: &Region, page: PageIndex, bytes: &Bytes) -> Option<Bytes> {
    // `bytes` has all pages of the region.
    let at = number_of(region, page) * PAGE_BYTES;
    let content = bytes.slice(at..at + PAGE_BYTES);
    (!codec::is_zero(&content)).then_some(content)
}
