//! The working set: the pages touched between a restore and its first response, in that order, as one object. A cold
//! host reads it with one GET, instead of all the chunks that the pages are spread over.
//!
//! It is built from the snapshot's own regions, never from an instance's memory, which has long since diverged. Readers
//! compare it with the regions, because it is only a hint.

mod check;
pub(crate) mod encoding;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;

use crate::chunks::{ReadError, RegionReader};
use crate::codec::{self, PAGE_BYTES};
use crate::hash_tree::{self, Node};
use crate::keys;
use crate::pagemap::{PageIndex, Region};
use crate::seal::{KeyId, sealing};
use crate::snapshot::Snapshot;

pub use encoding::PackError;

/// Maximum pages of a working set: 256 MiB. Pages touched later are left to page faults.
pub const PAGES_MAX: usize = 65_536;

/// Number of restores that are recorded and merged. With this many, a set is complete.
pub const RESTORES: u32 = 3;

static ZERO_PAGE: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// A page of a working set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSetPage {
    /// The process.
    pub pid: u32,
    /// The page.
    pub page: PageIndex,
    /// Its bytes. `None` if all are zero.
    pub content: Option<Bytes>,
    /// Whether it was written to in every recorded restore.
    pub written: bool,
}

/// The restores that a working set was recorded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording {
    /// How often the snapshot's set was recorded again because it no longer fitted.
    pub number: u32,
    /// Number of restores merged into it, on all hosts, as far as they were counted.
    pub restores: u32,
}

/// A working set whose pages match the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSetPack {
    /// What it was recorded from.
    pub recording: Recording,
    /// Its pages, in the order of their first use.
    pub pages: Vec<WorkingSetPage>,
}

/// A working set as read. The contents of its pages are whatever its writer chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncheckedWorkingSet {
    pack: WorkingSetPack,
    /// Nodes of the regions' hash trees beside these pages, by process and address.
    siblings: Vec<Node>,
}

/// A page that was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchedPage {
    /// The process.
    pub pid: u32,
    /// The page.
    pub page: PageIndex,
    /// See [`WorkingSetPage::written`].
    pub written: bool,
}

impl WorkingSetPage {
    /// The page's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.content.as_deref().unwrap_or(&ZERO_PAGE)
    }
}

/// A working set that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredWorkingSet {
    /// Number of pages.
    pub pages: usize,
    /// Size in bytes.
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
        /// The reader's error.
        #[source]
        cause: ReadError,
    },
    /// The store failed.
    #[error("could not reach the working set of snapshot {id}")]
    Store {
        /// The snapshot.
        id: SnapshotId,
        /// The store's error.
        #[source]
        cause: StoreError,
    },
    /// The object is not a working set of this snapshot. It can be deleted, and the next restore makes another.
    #[error("working set {key} is not usable")]
    Pack {
        /// Its key.
        key: String,
        /// What is wrong with it.
        #[source]
        cause: PackError,
    },
    /// The snapshot is encrypted, and its key is not at hand any more.
    #[error("snapshot {id} is encrypted with snapshot key {key}, which is not at hand: its working set is not stored")]
    NoKey {
        /// The snapshot.
        id: SnapshotId,
        /// Id of its key.
        key: KeyId,
    },
    /// The process is shutting down.
    #[error("the working set was given up in a shutdown")]
    Shutdown,
}

impl WorkingSetError {
    /// Whether it has a version that only a later build can read.
    pub fn is_of_a_later_build(&self) -> bool {
        matches!(self, Self::Pack { cause: PackError::Version(version), .. } if *version > encoding::VERSION)
    }
}

/// Stores the working set of `snapshot`. Keeps the first [`PAGES_MAX`] pages of `order`, without duplicates. Pages of
/// processes that are not in the snapshot are left out.
pub async fn store_working_set(
    store: &Store,
    snapshot: &Snapshot,
    reader: &RegionReader,
    recording: Recording,
    order: &[TouchedPage],
) -> Result<StoredWorkingSet, WorkingSetError> {
    let id = snapshot.id().clone();
    let mut seen = HashSet::new();
    let mut pages = Vec::new();
    let mut trees = Trees::new();
    let mut last: Option<(u32, Region, Bytes)> = None;
    for TouchedPage { pid, page, written } in order {
        let Some(process) = snapshot.process(*pid) else {
            continue;
        };
        if pages.len() == PAGES_MAX || !seen.insert((*pid, *page)) {
            continue;
        }
        let content = match process.page_map.lookup(*page) {
            None => None,
            Some(region) => {
                // Neighbouring pages are touched one after the other, so the last region often serves the next page
                // too.
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
    let sealed = match snapshot.manifest.sealed_by {
        Some(key) => Some(sealing(
            store,
            &reader.key(key).ok_or(WorkingSetError::NoKey { id: id.clone(), key })?,
        )),
        None => None,
    };
    let store = sealed.as_ref().unwrap_or(store);
    let bytes = encoded.len() as u64;
    // This replaces an earlier set, which the caller has merged into this one.
    let put = store.put(&keys::working_set(&id), encoded).await;
    put.map_err(|cause| WorkingSetError::Store { id, cause })?;
    Ok(StoredWorkingSet { pages: count, bytes })
}

/// Hash trees of the regions with pages in the set, by process and address.
type Trees = BTreeMap<(u32, PageIndex), Tree>;

/// The hash tree of a region.
struct Tree {
    nodes: Vec<Node>,
    /// Numbers of its pages that are in the set.
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

/// The working set of a snapshot. `None` if it has none, or one of an earlier version, which is recorded again.
pub async fn load_working_set(store: &Store, id: &SnapshotId) -> Result<Option<UncheckedWorkingSet>, WorkingSetError> {
    let key = keys::working_set(id);
    let packed = match store.get_at_most(&key, encoding::BYTES_MAX).await {
        Ok(packed) => packed,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(StoreError::TooLarge { bytes, .. }) => {
            let cause = PackError::TooLarge(bytes);
            return Err(WorkingSetError::Pack { key, cause });
        }
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

/// The page's number in its region. The region contains it, because it was found by looking up this page.
fn number_of(region: &Region, page: PageIndex) -> usize {
    (page.0 - region.first.0) as usize
}

fn page_of(region: &Region, page: PageIndex, bytes: &Bytes) -> Option<Bytes> {
    // `bytes` has all pages of the region.
    let at = number_of(region, page) * PAGE_BYTES;
    let content = bytes.slice(at..at + PAGE_BYTES);
    (!codec::is_zero(&content)).then_some(content)
}
