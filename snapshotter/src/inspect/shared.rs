//! What a snapshot shares with the others in the store.

use std::collections::{HashMap, HashSet};

use futures::stream::{self, StreamExt as _};
use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;
use serde::Serialize;

use crate::digest::Digest;
use crate::keys;
use crate::pagemap::{PageMap, Region};
use crate::snapshot::read_page_maps;

/// Maximum number of other snapshots inspected, the newest ones. Each costs two calls.
const OTHERS_MAX: usize = 256;
/// Page maps in memory at once.
const CALLS_AT_ONCE: usize = 4;

/// Stored bytes that two snapshots both refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SharedWith {
    /// The other snapshot.
    pub id: SnapshotId,
    /// Bytes of the regions that both have.
    pub bytes: u64,
}

/// A storage location: a chunk and an offset in it.
type ChunkLocation = (Digest, u32);

/// Locations of a process's memory, including bases, each with its stored bytes.
fn places(map: &PageMap) -> impl Iterator<Item = (ChunkLocation, u64)> {
    let payloads = |region: &Region| [region.payload, region.base.map(|base| base.payload)];
    let all = map.regions().iter().flat_map(payloads).flatten();
    all.map(|p| ((p.chunk.id, p.offset), u64::from(p.len)))
}

/// The bytes that the snapshot with these page maps shares with each of the newest other snapshots, in descending
/// order. Snapshots that share nothing or cannot be read are left out.
pub(super) async fn shared_with(
    store: &Store,
    id: &SnapshotId,
    maps: impl Iterator<Item = &PageMap>,
) -> Result<Vec<SharedWith>, StoreError> {
    let ours: HashMap<ChunkLocation, u64> = maps.flat_map(places).collect();
    let folders = store.list_folders(keys::SNAPSHOTS).await?;
    let mut ids: Vec<SnapshotId> = folders.iter().filter_map(|name| name.parse().ok()).collect();
    ids.retain(|other| other != id);
    // Ids start with their creation time.
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids.truncate(OTHERS_MAX);
    let mut others = stream::iter(ids)
        .map(|other| Box::pin(async move { (read_page_maps(store, &other).await, other) }))
        .buffered(CALLS_AT_ONCE);
    let mut shared = Vec::new();
    while let Some((read, other)) = others.next().await {
        let Ok(maps) = read else { continue };
        let theirs: HashSet<ChunkLocation> = maps.iter().flat_map(places).map(|(place, _)| place).collect();
        let bytes = theirs.iter().filter_map(|place| ours.get(place)).sum();
        if bytes > 0 {
            shared.push(SharedWith { id: other, bytes });
        }
    }
    shared.sort_by_key(|s| std::cmp::Reverse(s.bytes));
    Ok(shared)
}
