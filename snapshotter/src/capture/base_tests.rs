//! Snapshots whose memory is stored as differences to another snapshot's.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::chunks::{ChunkCache, RegionReader};
use crate::interchange::export;
use crate::snapshot::Snapshot;
use crate::testing::{TestStore, meta, noise, small_dump};

/// The dump's process, and its first page.
const PID: u32 = 7;
const FIRST: usize = 0x10;
const REGION: usize = 64 << 10;
const REGIONS: usize = 40;

fn reader(server: &TestStore, cache: &str) -> RegionReader {
    let cache = ChunkCache::open(&server.scratch(cache), 1 << 30).unwrap();
    RegionReader::new(server.store.clone(), cache)
}

/// Memory that LZ4 cannot compress.
fn first_memory() -> Vec<u8> {
    noise(REGIONS * REGION, 7)
}

/// The same memory a while later. It has a counter in every page of every third region, a new region, a region that
/// moved with a change, and some pages more at the end.
fn later_memory() -> Vec<u8> {
    let mut memory = first_memory();
    for region in (0..REGIONS).step_by(3) {
        for page in 0..16 {
            memory[region * REGION + page * 4096 + 8] ^= 3;
        }
    }
    memory[REGION..2 * REGION].copy_from_slice(&noise(REGION, 9));
    // A region that is stored as a difference also occurs elsewhere, where it must decode to the same bytes.
    let (of, to) = (3 * REGION, 31 * REGION);
    memory.copy_within(of..of + REGION, to);
    memory.extend_from_slice(&noise(5 * 4096, 11));
    memory
}

struct PublishedPair {
    base: Published,
    later: Published,
}

/// Publishes both memories, the later on top of the first, from a worker with `reader`.
async fn publish_both(server: &TestStore, reader: &RegionReader, index: &RegionIndex) -> PublishedPair {
    let (first, later) = (server.scratch("first"), server.scratch("later"));
    small_dump(&first, &first_memory());
    small_dump(&later, &later_memory());
    let base = publish(&server.store, index, &first, meta()).await.unwrap();
    let opened = Snapshot::open(&server.store, &base.id).await.unwrap();
    let on = CaptureMeta {
        base: Some(BaseMemory::new(&opened, reader.clone())),
        ..meta()
    };
    let later = publish(&server.store, index, &later, on).await.unwrap();
    PublishedPair { base, later }
}

/// All lazy memory of a snapshot, region by region.
async fn memory_of(server: &TestStore, id: &SnapshotId, reader: &RegionReader) -> Vec<u8> {
    let snapshot = Snapshot::open(&server.store, id).await.unwrap();
    let map = &snapshot.process(PID).unwrap().page_map;
    let mut memory = Vec::new();
    for region in map.regions() {
        assert_eq!(region.first.0 as usize, FIRST + memory.len() / 4096);
        memory.extend_from_slice(&reader.read(region).await.unwrap());
    }
    memory
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_changed_little_is_stored_as_the_difference_and_comes_back() {
    let server = TestStore::start().await;
    let (own, index) = (reader(&server, "own"), RegionIndex::new());
    let PublishedPair { base, later } = publish_both(&server, &own, &index).await;
    assert_eq!(
        (&base.manifest.base, &later.manifest.base),
        (&None, &Some(base.id.clone()))
    );
    let totals = &later.manifest.totals;
    let new = totals.stored_bytes - totals.shared_bytes;
    // The new region, the pages at the end, and the differences.
    let whole = (REGION + 5 * 4096) as u64;
    assert!((whole..whole + 14 * 1024).contains(&new), "{totals:?}");

    let snapshot = Snapshot::open(&server.store, &later.id).await.unwrap();
    let regions = snapshot.process(PID).unwrap().page_map.regions();
    let differences: Vec<usize> = regions
        .iter()
        .enumerate()
        .filter_map(|(at, region)| region.base.map(|_| at))
        .collect();
    let expected: BTreeSet<usize> = (0..REGIONS).step_by(3).chain([31]).collect();
    assert_eq!(differences, expected.into_iter().collect::<Vec<_>>());
    assert_eq!(regions[3].payload, regions[31].payload, "one payload for both");

    // Read by the publisher, by a host that has nothing, and from that host's cache.
    let other = reader(&server, "other");
    for reader in [&own, &other, &other] {
        assert!(memory_of(&server, &later.id, reader).await == later_memory());
    }
    other.settled().await;
    for region in regions {
        let local = other.read_local(region).unwrap();
        let at = (region.first.0 as usize - FIRST) * 4096;
        assert!(local == later_memory()[at..at + region.plain_len()]);
    }

    // As templates are filled: chunk by chunk, from the store and from the cache.
    let third = reader(&server, "third");
    let wanted: Arc<[Region]> = regions.iter().filter(|r| r.base.is_some()).copied().collect();
    let chunk = wanted[0].payload.unwrap().chunk;
    for _ in 0..2 {
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        let take = move |at: usize, plain: &[u8]| send.send((at, plain.to_vec())).unwrap();
        third.read_chunk(chunk, Arc::clone(&wanted), take).await.unwrap();
        third.settled().await;
        let mut seen = 0;
        while let Some((at, plain)) = receive.recv().await {
            let start = (wanted[at].first.0 as usize - FIRST) * 4096;
            assert!(plain == later_memory()[start..start + REGION]);
            seen += 1;
        }
        assert_eq!(seen, wanted.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_needs_the_chunks_of_its_base_and_not_the_snapshot() {
    let server = TestStore::start().await;
    let own = reader(&server, "own");
    let PublishedPair { base, later } = publish_both(&server, &own, &RegionIndex::new()).await;
    crate::delete(&server.store, &base.id).await.unwrap();
    let needs = crate::collect::needs_of(&server.store, &later.id).await;
    let there: BTreeSet<String> = server.keys("chunks/").await.into_iter().collect();
    let theirs: BTreeSet<String> = needs.into_iter().filter(|key| key.starts_with("chunks/")).collect();
    assert_eq!(theirs, there, "the base's chunks, too");
    assert!(memory_of(&server, &later.id, &reader(&server, "other")).await == later_memory());
    let out = server.dir.path().join("exported");
    export(&server.store, &later.id, &out).await.unwrap();
    let pages = std::fs::read(out.join("pages-1.img")).unwrap();
    assert!(pages[..later_memory().len()] == later_memory());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_base_in_the_store_is_stored_whole() {
    let server = TestStore::start().await;
    let (own, index) = (reader(&server, "own"), RegionIndex::new());
    let (first, later) = (server.scratch("first"), server.scratch("later"));
    small_dump(&first, &first_memory());
    small_dump(&later, &later_memory());
    let base = publish(&server.store, &index, &first, meta()).await.unwrap();
    let opened = Snapshot::open(&server.store, &base.id).await.unwrap();
    let memory = BaseMemory::new(&opened, own.clone());
    // On this host, but no longer in the store.
    memory.bring().await.unwrap();
    for key in server.keys("chunks/").await {
        server.store.delete_once(&key).await.unwrap();
    }
    let on = |reader: &RegionReader| CaptureMeta {
        base: Some(BaseMemory::new(&opened, reader.clone())),
        ..meta()
    };
    let whole = publish(&server.store, &index, &later, on(&own)).await.unwrap();
    assert_eq!(whole.manifest.base, None);
    assert!(memory_of(&server, &whole.id, &reader(&server, "other")).await == later_memory());
    // Neither here nor there.
    for key in server.keys("chunks/").await {
        server.store.delete_once(&key).await.unwrap();
    }
    let again = publish(
        &server.store,
        &RegionIndex::new(),
        &later,
        on(&reader(&server, "empty")),
    )
    .await
    .unwrap();
    assert_eq!(
        (&again.manifest.base, again.summary.stored_bytes),
        (&None, whole.summary.stored_bytes)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotten_base_is_noticed_and_fetched_again_where_only_the_cache_is_rotten() {
    let server = TestStore::start().await;
    let own = reader(&server, "own");
    let PublishedPair { later, .. } = publish_both(&server, &own, &RegionIndex::new()).await;
    let snapshot = Snapshot::open(&server.store, &later.id).await.unwrap();
    let regions = snapshot.process(PID).unwrap().page_map.regions();
    let region = regions.iter().find(|r| r.base.is_some()).unwrap();
    let base = region.base.unwrap().payload;

    let host = reader(&server, "host");
    for payload in [region.payload.unwrap(), base] {
        host.bring(payload.chunk).await.unwrap();
    }
    host.settled().await;
    rot(
        &server.dir.path().join("host").join(base.chunk.id.to_string()),
        base.offset as usize,
    );
    assert_eq!(host.read_local(region), None);
    assert!(host.read(region).await.unwrap()[..] == later_memory()[..REGION]);

    server
        .flip(&crate::keys::chunk(&base.chunk.id), base.offset as usize)
        .await;
    let error = reader(&server, "other").read(region).await.unwrap_err();
    assert!(
        error.is_damage() && error.to_string().contains(&base.chunk.id.to_string()),
        "{error}"
    );
}

fn rot(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}
