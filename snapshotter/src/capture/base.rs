//! The memory that a process started from. Regions that have changed little since are stored as differences to it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rekindle_wire::SnapshotId;

use super::cut::CutRegion;
use crate::chunks::{ReadError, RegionReader};
use crate::codec::Compressor;
use crate::digest::Digest;
use crate::pagemap::{Base, ChunkRef, PageMap, Payload, Region};
use crate::seal::KeyId;
use crate::snapshot::Snapshot;

/// Maximum number of concurrent chunk fetches.
const CALLS_AT_ONCE: usize = 4;
/// Maximum distance in pages from the start of a base to the start of its region. Nothing is mapped below this address
/// (the kernel's `mmap_min_addr`), so the same difference also works for the same bytes elsewhere.
const PAGES_BEFORE: u64 = 16;

/// The memory of a snapshot, by process and address.
#[derive(Clone)]
pub struct BaseMemory {
    id: SnapshotId,
    maps: HashMap<u32, Arc<PageMap>>,
    reader: RegionReader,
    sealed_by: Option<KeyId>,
}

impl fmt::Debug for BaseMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BaseMemory")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl BaseMemory {
    /// The memory of `snapshot`, read through `reader`.
    pub fn new(snapshot: &Snapshot, reader: RegionReader) -> Self {
        let maps = snapshot.processes.iter().map(|p| (p.pid, Arc::clone(&p.page_map)));
        Self {
            id: snapshot.id().clone(),
            maps: maps.collect(),
            reader,
            sealed_by: snapshot.manifest.sealed_by,
        }
    }

    /// The key that the snapshot is encrypted with, if it is.
    pub(super) fn sealed_by(&self) -> Option<KeyId> {
        self.sealed_by
    }

    /// The snapshot that the memory belongs to.
    pub(super) fn id(&self) -> &SnapshotId {
        &self.id
    }

    /// Every payload that can be a base.
    pub(super) fn payloads(&self) -> impl Iterator<Item = Payload> {
        let regions = self.maps.values().flat_map(|map| map.regions());
        regions.filter(|r| r.base.is_none()).filter_map(|r| r.payload)
    }

    /// Fetches its chunks to this host, so that [`Self::difference`] need not wait for the store.
    pub(super) async fn bring(&self) -> Result<(), ReadError> {
        let chunks: BTreeSet<(Digest, u32)> = self.payloads().map(|p| (p.chunk.id, p.chunk.len)).collect();
        let reader = &self.reader;
        let brought =
            stream::iter(chunks).map(|(id, len)| Box::pin(async move { reader.bring(ChunkRef { id, len }).await }));
        brought.buffer_unordered(CALLS_AT_ONCE).try_collect::<()>().await?;
        self.reader.settled().await;
        Ok(())
    }

    /// The region of process `pid` that has the most pages in common with `cut`.
    pub(super) fn of(&self, pid: u32, cut: &CutRegion) -> Option<Base> {
        let regions = self.maps.get(&pid)?.regions();
        let (first, end) = (cut.first.0, cut.first.0 + u64::from(cut.pages));
        let from = regions.partition_point(|r| r.end().0 <= first);
        let common = |r: &&Region| r.end().0.min(end) - r.first.0.max(first);
        let meeting = regions[from..].iter().take_while(|r| r.first.0 < end);
        let usable = meeting.filter(|r| r.base.is_none() && first.saturating_sub(r.first.0) < PAGES_BEFORE);
        let base = usable.filter(|r| r.payload.is_some()).max_by_key(common)?;
        Some(Base {
            first: base.first,
            pages: base.pages,
            payload: base.payload?,
        })
    }

    /// The LZ4 block of the difference between `cut`, with the bytes `plain`, and `base`. `None` if the difference is
    /// not worth storing, or the base is not on this host.
    pub(super) fn difference<'a>(
        &self,
        cut: &CutRegion,
        plain: &[u8],
        base: &Base,
        compressor: &'a mut Compressor,
        difference: &mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let own = self.reader.read_local(&base.region())?;
        difference.clear();
        difference.extend_from_slice(plain);
        let region = Region {
            first: cut.first,
            pages: cut.pages,
            payload: None,
            base: None,
        };
        base.exclusive_or(&region, difference, &own);
        compressor.block(difference)
    }
}
