//! Sealed objects on their own, and encrypted snapshots in a store.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use rekindle_store::{Directory, Store};
use rekindle_wire::SnapshotKey;

use super::form::{BLOCK, plain_len};
use super::*;
use crate::capture::{BaseMemory, CaptureMeta, ExtraFile, publish};
use crate::chunks::{ChunkCache, RegionReader};
use crate::region_index::RegionIndex;
use crate::snapshot::{OpenError, Snapshot};
use crate::testing::{TestStore, meta, noise, small_dump};
use crate::working_set::{Recording, TouchedPage, load_working_set, store_working_set};

/// What a function has in its memory: LZ4 keeps it as it is.
const MARK: &[u8] = b"wQ2pLx9sVt4KzB7n-mark-of-a-function";
const PID: u32 = 7;

fn key(byte: u8) -> SnapshotKey {
    SnapshotKey::new(&[byte; 32]).unwrap()
}

fn sealing_key(byte: u8) -> Arc<SealingKey> {
    Arc::new(SealingKey::new(&key(byte)))
}

fn keyring(byte: u8) -> Keyring {
    let keys = Keyring::default();
    keys.set("team", Some(&key(byte)));
    keys
}

fn of(range: Range<usize>) -> Range<u64> {
    range.start as u64..range.end as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_range_comes_back_and_nothing_that_was_changed(
        len in prop_oneof![0..200_usize, (BLOCK - 20)..(BLOCK + 20), 0..(3 * BLOCK)],
        cut in any::<(prop::sample::Index, prop::sample::Index)>(), at: prop::sample::Index, bit in 0..8_u8,
    ) {
        let (key, plain) = (sealing_key(1), noise(len, len as u64));
        let sealed = key.seal("chunks/a", &plain).unwrap();
        prop_assert_eq!(sealed.len() as u64, sealed_len(len as u64));
        prop_assert_eq!(plain_len(sealed.len() as u64), len as u64);
        prop_assert_eq!(key.open("chunks/a", &sealed).unwrap(), &plain[..]);
        let (one, other) = (cut.0.index(len + 1), cut.1.index(len + 1));
        let range = one.min(other)..one.max(other);
        let header = Header::parse(&sealed).unwrap();
        let place = place_of(&of(range.clone()), header.len);
        let part = &sealed[usize::try_from(place.start).unwrap()..usize::try_from(place.end).unwrap()];
        let mut found = vec![0; range.len()];
        key.open_range("chunks/a", header, &of(range.clone()), part, &mut found).unwrap();
        prop_assert_eq!(&found, &plain[range]);

        // Nothing follows the header of an object without bytes, and so nothing in it is read.
        let elsewhere = key.open("chunks/b", &sealed);
        prop_assert!(elsewhere.map_or(true, |opened| len == 0 && opened.is_empty()), "it is another object's");
        let mut forged = sealed.clone();
        forged[at.index(sealed.len())] ^= 1 << bit;
        prop_assert!(len == 0 || key.open("chunks/a", &forged).is_err());
        prop_assert!(len == 0 || key.open("chunks/a", &sealed[..sealed.len() - 1]).is_err());
    }
}

#[test]
fn two_seals_of_one_object_have_nothing_in_common_and_another_key_is_an_error_by_name() {
    let (one, other) = (sealing_key(1), sealing_key(2));
    let (a, b) = (one.seal("a", &[0; 4096]).unwrap(), one.seal("a", &[0; 4096]).unwrap());
    assert_ne!(a[HEADER..], b[HEADER..]);
    assert_eq!(other.open("a", &a), Err(OpenSealError::OtherKey(one.id())));
    assert_eq!(one.digest(MARK), sealing_key(1).digest(MARK));
    assert_ne!(one.digest(MARK), other.digest(MARK));
    let id = one.id();
    assert_eq!(id.to_string().parse::<KeyId>().unwrap(), id);
    assert!("A".repeat(32).parse::<KeyId>().is_err() && "é".repeat(16).parse::<KeyId>().is_err());
}

#[test]
fn a_namespace_has_one_key_and_loses_it() {
    let keys = Keyring::default();
    assert!(keys.is_empty());
    keys.set("team", None);
    keys.set("team", Some(&key(1)));
    keys.set("other", Some(&key(2)));
    let first = keys.of_namespace("team").unwrap().id();
    assert_eq!(first, sealing_key(1).id());
    keys.set("team", Some(&key(3)));
    assert!(keys.get(first).is_none(), "it was replaced");
    keys.set("team", None);
    assert!(keys.of_namespace("team").is_none() && keys.get(sealing_key(3).id()).is_none());
    assert!(keys.get(sealing_key(2).id()).is_some());
}

/// Memory with the mark in each page of its first half. The rest cannot be compressed.
fn memory() -> Vec<u8> {
    let mut memory = vec![0; 64 * 4096];
    for page in memory.chunks_mut(4096) {
        page[100..100 + MARK.len()].copy_from_slice(MARK);
        page[0] = 1;
    }
    memory.extend_from_slice(&noise(64 * 4096, 5));
    memory
}

/// Publishes this memory, with an extra file in the bundle and one of its own.
async fn published(
    server: &TestStore,
    index: &RegionIndex,
    memory: &[u8],
    seal: Option<Arc<SealingKey>>,
    base: Option<BaseMemory>,
) -> crate::Published {
    let meta = meta();
    let dump = server.scratch(meta.id.as_str());
    small_dump(&dump, memory);
    let extra = |name: &str, bytes: Vec<u8>| {
        let path = dump.join(name);
        std::fs::write(&path, bytes).unwrap();
        ExtraFile {
            name: name.to_owned(),
            path,
        }
    };
    let extra = vec![
        extra("small.tar", MARK.to_vec()),
        extra("large.tar", MARK.repeat(100_000)),
    ];
    let meta = CaptureMeta {
        seal,
        extra,
        base,
        ..meta
    };
    publish(&server.store, index, &dump, meta).await.unwrap()
}

async fn objects_with(store: &Store, part: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for object in store.list("").await.unwrap() {
        let bytes = store.get(&object.key).await.unwrap();
        if bytes.windows(part.len()).any(|window| window == part) {
            found.push(object.key);
        }
    }
    found
}

fn files_with(dir: &Path, part: &[u8]) -> usize {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files
        .filter(|bytes| bytes.windows(part.len()).any(|window| window == part))
        .count()
}

async fn memory_of(snapshot: &Snapshot, reader: &RegionReader) -> Vec<u8> {
    let mut memory = Vec::new();
    for region in snapshot.process(PID).unwrap().page_map.regions() {
        memory.extend_from_slice(&reader.read(region).await.unwrap());
    }
    memory
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_regions_read_of_a_large_chunk_come_before_the_chunk() {
    let server = TestStore::start().await;
    let memory = noise(2 << 20, 7);
    for (seal, keys) in [
        (None, Keyring::default()),
        (None, keyring(1)),
        (Some(sealing_key(1)), keyring(1)),
    ] {
        let published = published(&server, &RegionIndex::new(), &memory, seal, None).await;
        let snapshot = Snapshot::open(&opening(&server.store, &keys), &published.id)
            .await
            .unwrap();
        let regions = snapshot.process(PID).unwrap().page_map.regions();
        let dir = server.scratch("cache");
        let another = || {
            let cache = ChunkCache::open(&dir, 1 << 30).unwrap();
            RegionReader::with_keys(server.store.clone(), cache, keys.clone())
        };
        let reader = another();
        let counts = || (reader.counts().fetched_alone, reader.counts().fetched_chunks);
        let own = &memory[3 * 65536..4 * 65536];
        assert_eq!(reader.read(&regions[3]).await.unwrap(), own);
        assert_eq!(counts(), (1, 0));
        assert_eq!(memory_of(&snapshot, &reader).await, memory);
        assert_eq!(counts(), (4, 1), "others need the chunk");

        // Nothing of it is on the disk, and what the store has is damaged.
        let payload = regions[3].payload.unwrap();
        let chunk = format!("chunks/{}", payload.chunk.id);
        reader.settled().await;
        std::fs::remove_dir_all(&dir).unwrap();
        let (good, reader) = (server.store.get(&chunk).await.unwrap(), another());
        // In the middle of a region, sealed or not.
        let at = payload.chunk.len / 2 + 30_000;
        server.flip(&chunk, at as usize).await;
        let damaged = regions.iter().find(|region| {
            let payload = region.payload.unwrap();
            (payload.offset..payload.offset + payload.len).contains(&at)
        });
        let damaged = damaged.unwrap();
        assert_eq!(reader.read(&regions[3]).await.unwrap(), own, "its own bytes are right");
        let reader = another();
        let error = reader.read(damaged).await.map(drop).unwrap_err();
        assert_eq!((error.chunk(), error.is_damage()), (payload.chunk.id, true), "{error}");
        assert_eq!(reader.counts().fetched_alone, 0);
        server.store.put(&chunk, good).await.unwrap();
        assert_eq!(reader.read(damaged).await.unwrap().len(), 65536);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_encrypted_snapshot_is_found_in_the_store_and_another_host_restores_it() {
    let server = TestStore::start().await;
    let index = RegionIndex::new();
    let plain = published(&server, &index, &memory(), None, None).await;
    let in_clear = objects_with(&server.store, MARK).await;
    assert!(in_clear.iter().any(|key| key.starts_with("chunks/")), "{in_clear:?}");
    assert!(in_clear.iter().any(|key| key.ends_with("/bundle")), "{in_clear:?}");
    assert!(in_clear.iter().any(|key| key.ends_with("/large.tar")), "{in_clear:?}");
    let before: BTreeSet<String> = server.keys("chunks/").await.into_iter().collect();

    let sealed = published(&server, &index, &memory(), Some(sealing_key(1)), None).await;
    assert_eq!(
        sealed.summary.shared_bytes, plain.summary.shared_bytes,
        "it shares nothing with one that is not encrypted"
    );
    assert_eq!(objects_with(&server.store, MARK).await, in_clear, "not one more");
    assert!(
        objects_with(&server.store, &noise(4096, 5))
            .await
            .iter()
            .all(|key| before.contains(key))
    );
    let twin = published(&server, &index, &memory(), Some(sealing_key(1)), None).await;
    assert_eq!(
        twin.summary.shared_bytes, twin.summary.stored_bytes,
        "it shares all with its twin"
    );
    let other = published(&server, &index, &memory(), Some(sealing_key(2)), None).await;
    assert_eq!(other.summary.shared_bytes, plain.summary.shared_bytes);

    // Another host, with the key.
    let keys = keyring(1);
    let store = opening(&server.store, &keys);
    let dir = server.scratch("cache");
    let cache = || ChunkCache::open(&dir, 1 << 30).unwrap();
    let reader = RegionReader::with_keys(server.store.clone(), cache(), keys.clone());
    let snapshot = Snapshot::open(&store, &sealed.id).await.unwrap();
    assert_eq!(snapshot.digest, sealed.digest);
    assert_eq!(memory_of(&snapshot, &reader).await, memory());
    for (name, bytes) in [("small.tar", MARK.to_vec()), ("large.tar", MARK.repeat(100_000))] {
        let path = server.scratch("extra").with_extension(name);
        snapshot.write_extra(name, &path).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
    }
    reader.settled().await;
    assert_eq!(files_with(&dir, MARK), 0, "the cache has it as the store does");
    let cached = RegionReader::with_keys(server.store.clone(), cache(), keys.clone());
    let region = snapshot.process(PID).unwrap().page_map.regions()[0];
    assert!(cached.read_local(&region).is_some());
    assert_eq!(memory_of(&snapshot, &cached).await, memory());
    assert_eq!(cached.counts().fetched_regions, 0);

    // Its working set, too.
    let recording = Recording { number: 0, restores: 1 };
    let touched = TouchedPage {
        pid: PID,
        page: region.first,
        written: false,
    };
    store_working_set(&store, &snapshot, &reader, recording, &[touched])
        .await
        .unwrap();
    assert_eq!(objects_with(&server.store, MARK).await, in_clear);
    let set = load_working_set(&store, &sealed.id).await.unwrap().unwrap();
    assert_eq!(set.check(&snapshot.processes).unwrap().pages.len(), 1);

    // One that is not encrypted is read with keys as without.
    let snapshot = Snapshot::open(&store, &plain.id).await.unwrap();
    assert_eq!(memory_of(&snapshot, &reader).await, memory());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_an_error_by_name_and_so_is_none() {
    let server = TestStore::start().await;
    let sealed = published(&server, &RegionIndex::new(), &memory(), Some(sealing_key(1)), None).await;
    let id = sealing_key(1).id().to_string();
    let error = Snapshot::open(&server.store, &sealed.id).await.unwrap_err();
    assert!(
        matches!(error, OpenError::Sealed { .. }) && error.is_damage(),
        "{error:?}"
    );
    assert!(error.to_string().contains(&id), "{error}");
    let error = Snapshot::open(&opening(&server.store, &keyring(2)), &sealed.id)
        .await
        .unwrap_err();
    assert!(error.is_sealed() && error.is_damage(), "{error:?}");
    assert!(format!("{error:?}").contains(&id), "{error:?}");

    let snapshot = Snapshot::open(&opening(&server.store, &keyring(1)), &sealed.id)
        .await
        .unwrap();
    let cache = ChunkCache::open(&server.scratch("other"), 1 << 30).unwrap();
    let reader = RegionReader::with_keys(server.store.clone(), cache, keyring(2));
    let region = snapshot.process(PID).unwrap().page_map.regions()[0];
    let error = reader.read(&region).await.unwrap_err();
    assert!(error.is_damage() && format!("{error:?}").contains(&id), "{error:?}");

    // A chunk in another's place, and one that was changed.
    let chunks = server.keys("chunks/").await;
    let chunk = crate::keys::chunk(&region.payload.unwrap().chunk.id);
    let bytes = server.store.get(&chunk).await.unwrap();
    let mut forged = bytes.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    server.store.put(&chunk, forged.into()).await.unwrap();
    let cache = ChunkCache::open(&server.scratch("third"), 1 << 30).unwrap();
    let reader = RegionReader::with_keys(server.store.clone(), cache, keyring(1));
    let mut errors = 0;
    for region in snapshot.process(PID).unwrap().page_map.regions() {
        errors += usize::from(reader.read(region).await.is_err());
    }
    assert!(errors > 0, "{chunks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_to_memory_of_the_same_key_only() {
    let server = TestStore::start().await;
    let index = RegionIndex::new();
    let keys = keyring(1);
    let store = opening(&server.store, &keys);
    let cache = ChunkCache::open(&server.scratch("cache"), 1 << 30).unwrap();
    let reader = RegionReader::with_keys(server.store.clone(), cache, keys);
    let mut later = memory();
    later.iter_mut().step_by(4096).for_each(|byte| *byte ^= 3);
    for (base_sealed, later_sealed) in [(false, true), (true, false), (true, true)] {
        let seal = |sealed: bool| sealed.then(|| sealing_key(1));
        let base = published(&server, &index, &memory(), seal(base_sealed), None).await;
        let base = Snapshot::open(&store, &base.id).await.unwrap();
        let base = BaseMemory::new(&base, reader.clone());
        let later_index = RegionIndex::new();
        let made = published(&server, &later_index, &later, seal(later_sealed), Some(base)).await;
        assert_eq!(made.manifest.base.is_some(), base_sealed == later_sealed);
        let snapshot = Snapshot::open(&store, &made.id).await.unwrap();
        assert_eq!(memory_of(&snapshot, &reader).await, later);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_looks_like_a_sealed_chunk_is_memory() {
    let server = TestStore::start().await;
    let mut memory = noise(32 * 4096, 3);
    let unknown = sealing_key(9).seal("chunks/x", &[1; 100]).unwrap();
    memory[..unknown.len()].copy_from_slice(&unknown);
    let made = published(&server, &RegionIndex::new(), &memory, None, None).await;
    let keys = keyring(1);
    let store = opening(&server.store, &keys);
    let cache = ChunkCache::open(&server.scratch("cache"), 1 << 30).unwrap();
    let reader = RegionReader::with_keys(server.store.clone(), cache, keys);
    let snapshot = Snapshot::open(&store, &made.id).await.unwrap();
    assert_eq!(memory_of(&snapshot, &reader).await, memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passing_error_is_an_error_and_not_ciphertext() {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::open(dir.path()).unwrap();
    let (short, long) = ("snapshots/a/short", "snapshots/a/long");
    let plain = noise(8192, 3);
    let sealed = sealing_key(1).seal(long, &plain).unwrap();
    store.put(short, plain[..8].to_vec().into()).await.unwrap();
    store.put(long, sealed.clone().into()).await.unwrap();
    let files = std::fs::read_dir(dir.path().join("objects")).unwrap();
    let file = files
        .map(|entry| entry.unwrap().path())
        .find(|path| std::fs::read(path).unwrap() == sealed)
        .unwrap();
    // Reading a directory fails. It is the object again as soon as that has.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let mended = file.clone();
    let observed = store.observed(Arc::new(move |_| {
        if mended.is_dir() {
            std::fs::remove_dir(&mended).unwrap();
            std::fs::write(&mended, &sealed).unwrap();
        }
    }));
    let opened = opening(&observed, &keyring(1));
    let error = opened.get_range(long, 100..200).await.unwrap_err();
    assert!(!error.is_sealed() && !error.is_not_found(), "{error:?}");
    assert_eq!(opened.get_range(long, 100..200).await.unwrap(), plain[100..200]);
    assert_eq!(
        opened.get_range(short, 2..8).await.unwrap(),
        plain[2..8],
        "it has no header"
    );
}
