//! Our side: the real publish into a store in a directory, and the real reader back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::stream::{self, StreamExt as _};
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::pagemap::ChunkRef;
use rekindle_snapshotter::seal::opening;
use rekindle_snapshotter::{
    CaptureMeta, CaptureOptions, ChunkCache, Codec, Keyring, Region, RegionIndex, RegionReader, Snapshot, publish,
};
use rekindle_store::Directory;
use rekindle_wire::snapshot_key::SNAPSHOT_KEY;
use rekindle_wire::{SnapshotId, SnapshotKey};
use tokio::runtime::Runtime;

use super::dump::ADDRESS;
use super::memory::Memory;
use super::{Clock, Elapsed};

/// The peer's object.
const SHIPPED: &str = "shipped";

/// The measurements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    /// Payloads with the page map and everything else.
    pub(super) stored_bytes: u64,
    /// Payloads alone.
    pub(super) payload_bytes: u64,
    /// From the dump to a published snapshot.
    pub(super) capture: Elapsed,
    /// From a store to plain memory.
    pub(super) restore: Elapsed,
    /// From the host's chunk cache to plain memory.
    pub(super) restore_cached: Elapsed,
}

/// A store in a directory, and the runtime of its calls.
pub(super) struct Store {
    runtime: Runtime,
    store: rekindle_snapshotter::Store,
    dir: PathBuf,
    /// What it is encrypted with.
    seal: Option<SnapshotKey>,
}

impl Store {
    /// Opens a store with its objects in `dir`.
    pub(super) fn start(dir: &Path, encrypted: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.context("the async runtime could not be started")?;
        let store = Directory::open(&dir.join("objects")).context("the store cannot be opened")?;
        let dir = dir.to_owned();
        let seal = encrypted.then(|| SnapshotKey::new(&[7; SNAPSHOT_KEY])).transpose()?;
        Ok(Self {
            runtime,
            store,
            dir,
            seal,
        })
    }

    /// Publishes the dump and reads its memory back into `memory`, twice.
    pub(super) fn measure(&self, dump: &Path, codec: Codec, memory: &Arc<Memory>) -> Result<Figures> {
        self.runtime.block_on(self.measured(dump, codec, memory))
    }

    /// Puts the peer's file into this store with the same client, several parts at once.
    pub(super) fn ship(&self, file: &Path) -> Result<()> {
        let put = self.runtime.block_on(Box::pin(self.store.put_file(SHIPPED, file)));
        put.map(drop).context("the peer's file cannot be put")
    }

    /// Fetches it into another file.
    pub(super) fn fetch(&self, file: &Path) -> Result<()> {
        let got = self.runtime.block_on(Box::pin(self.store.get_to_file(SHIPPED, file)));
        got.map(drop).context("the peer's file cannot be had")
    }

    async fn measured(&self, dump: &Path, codec: Codec, memory: &Arc<Memory>) -> Result<Figures> {
        let keys = Keyring::default();
        keys.set("bench", self.seal.as_ref());
        let opened = opening(&self.store, &keys);
        let meta = CaptureMeta {
            id: SnapshotId::generate(),
            origin: Origin::Import {
                name: "bench".to_owned(),
            },
            criu: "none".to_owned(),
            frozen_ms: 0.0,
            base: None,
            seal: keys.of_namespace("bench"),
            extra: Vec::new(),
            options: CaptureOptions {
                codec,
                ..CaptureOptions::default()
            },
        };
        let begun = Clock::start();
        let published = publish(&self.store, &RegionIndex::new(), dump, meta).await;
        let published = published.context("the dump cannot be published")?;
        let captured = begun.elapsed();

        let begun = Clock::start();
        let cache = ChunkCache::open(&self.dir.join("cache"), 64 << 30).context("no chunk cache")?;
        let reader = RegionReader::with_keys(self.store.clone(), cache, keys);
        let snapshot = Snapshot::open(&opened, &published.id)
            .await
            .context("the snapshot cannot be opened")?;
        read(&reader, &snapshot, memory).await?;
        // Until all of it is in the cache, too.
        reader.settled().await;
        let restored = begun.elapsed();
        memory.clear();
        let begun = Clock::start();
        read(&reader, &snapshot, memory).await?;
        let had_again = begun.elapsed();
        let totals = &published.manifest.totals;
        Ok(Figures {
            stored_bytes: published.new_bytes,
            payload_bytes: totals.stored_bytes - totals.shared_bytes,
            capture: captured,
            restore: restored,
            restore_cached: had_again,
        })
    }
}

/// Reads all memory, chunk by chunk, as many at once as there are cores.
async fn read(reader: &RegionReader, snapshot: &Snapshot, memory: &Arc<Memory>) -> Result<()> {
    let mut chunks: BTreeMap<(u64, [u8; 32]), (ChunkRef, Vec<Region>)> = BTreeMap::new();
    let mut first: std::collections::HashMap<ChunkRef, u64> = std::collections::HashMap::new();
    for region in snapshot.processes.iter().flat_map(|p| p.page_map.regions()) {
        if let Some(payload) = region.payload {
            let order = *first.entry(payload.chunk).or_insert(region.first.0);
            let entry = chunks.entry((order, payload.chunk.id.0));
            entry.or_insert_with(|| (payload.chunk, Vec::new())).1.push(*region);
        }
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let reads = stream::iter(chunks.into_values()).map(|(chunk, regions)| async move {
        let regions: Arc<[Region]> = regions.into();
        let (memory, places) = (Arc::clone(memory), Arc::clone(&regions));
        let put = move |at: usize, plain: &[u8]| memory.put(places[at].first.address() - ADDRESS, plain);
        reader.read_chunk(chunk, regions, put).await
    });
    let mut reads = reads.buffer_unordered(cores);
    while let Some(done) = reads.next().await {
        done.context("a region cannot be read")?;
    }
    Ok(())
}
