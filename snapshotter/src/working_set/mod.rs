//! The working set: the pages that were touched from a restore to its first response, in that order, as one object. A
//! cold host reads it with one GET instead of the chunks the pages are spread over.
//!
//! It is made from the snapshot's own regions, never from an instance's memory, which has long gone other ways.

pub(crate) mod encoding;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use bytes::Bytes;
use rekindle_wire::SnapshotId;

use crate::chunks::{ReadError, RegionReader};
use crate::codec::{self, PAGE_BYTES};
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

/// A working set as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSetPack {
    /// What it was recorded from.
    pub recording: Recording,
    /// Its pages, in the order of their first use.
    pub pages: Vec<WorkingSetPage>,
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
    let named = id.clone();
    let encoded = tokio::task::spawn_blocking(move || encoding::encode(&named, recording, &pages)).await;
    let encoded = Bytes::from(encoded.map_err(|_| WorkingSetError::Shutdown)?);
    let bytes = encoded.len() as u64;
    // In the place of an earlier one, which whoever stores has merged into its own.
    let put = store.put(&keys::working_set(&id), encoded).await;
    put.map_err(|cause| WorkingSetError::Store { id, cause })?;
    Ok(StoredWorkingSet { pages: count, bytes })
}

/// The working set of a snapshot; `None` while it has none.
pub async fn load_working_set(store: &Store, id: &SnapshotId) -> Result<Option<WorkingSetPack>, WorkingSetError> {
    let key = keys::working_set(id);
    let packed = match store.get(&key).await {
        Ok(packed) => packed,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(cause) => return Err(WorkingSetError::Store { id: id.clone(), cause }),
    };
    let id = id.clone();
    let decoded = tokio::task::spawn_blocking(move || encoding::decode(&id, &packed)).await;
    let pack = decoded.map_err(|_| WorkingSetError::Shutdown)?;
    pack.map(Some).map_err(|cause| WorkingSetError::Pack { key, cause })
}

fn page_of(region: &Region, page: PageIndex, bytes: &Bytes) -> Option<Bytes> {
    // `page` lies in `region`, as it was looked up by it, and `bytes` has all its pages.
    let at = (page.0 - region.first.0) as usize * PAGE_BYTES;
    let content = bytes.slice(at..at + PAGE_BYTES);
    (!codec::is_zero(&content)).then_some(content)
}
