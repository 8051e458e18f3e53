//! The chunk cache on its own.

use std::fs;

use super::cache::ChunkCache;
use crate::digest::Digest;
use crate::pagemap::ChunkRef;
use crate::testing::noise;

fn chunk(seed: u64) -> (ChunkRef, Vec<u8>) {
    let bytes = noise(1000, seed);
    let id = Digest::of(&bytes);
    (ChunkRef { id, len: 1000 }, bytes)
}

fn reads(cache: &ChunkCache, seed: u64) -> bool {
    let (reference, bytes) = chunk(seed);
    let mut part = [0; 100];
    let there = cache.read(&reference.id, 500, &mut part);
    assert!(!there || part == bytes[500..600]);
    there
}

fn insert(cache: &ChunkCache, seed: u64) {
    let (reference, bytes) = chunk(seed);
    cache.insert(reference, &bytes).unwrap();
}

#[test]
fn the_chunk_longest_unused_goes_first_and_a_restart_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ChunkCache::open(dir.path(), 3500).unwrap();
    for seed in [1, 2, 3] {
        insert(&cache, seed);
    }
    assert!(reads(&cache, 1));
    insert(&cache, 4);
    assert_eq!([1, 2, 3, 4].map(|seed| reads(&cache, seed)), [true, false, true, true]);
    assert_eq!((cache.bytes(), fs::read_dir(dir.path()).unwrap().count()), (3000, 3));
    let usage = cache.usage();
    assert_eq!(
        (usage.chunks, usage.hits, usage.evicted, usage.evicted_bytes),
        (3, 4, 1, 1000)
    );

    fs::write(dir.path().join("tmp-7"), "unfinished").unwrap();
    fs::write(dir.path().join("stranger"), "?").unwrap();
    let again = ChunkCache::open(dir.path(), 2500).unwrap();
    assert_eq!((again.bytes(), fs::read_dir(dir.path()).unwrap().count()), (2000, 2));
}

#[test]
fn a_chunk_larger_than_the_cache_is_not_kept_and_the_same_one_twice_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let small = ChunkCache::open(dir.path(), 999).unwrap();
    insert(&small, 1);
    assert!(!reads(&small, 1));
    let cache = ChunkCache::open(dir.path(), 2000).unwrap();
    insert(&cache, 1);
    insert(&cache, 1);
    assert_eq!(cache.bytes(), 1000);
    cache.remove(&chunk(1).0.id);
    assert_eq!((cache.bytes(), reads(&cache, 1)), (0, false));
}

#[test]
fn a_file_that_vanished_or_was_cut_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ChunkCache::open(dir.path(), 10_000).unwrap();
    for (seed, cut) in [(1, None), (2, Some(550))] {
        insert(&cache, seed);
        let path = dir.path().join(chunk(seed).0.id.to_string());
        match cut {
            None => fs::remove_file(&path).unwrap(),
            Some(len) => fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(len)
                .unwrap(),
        }
        assert!(!reads(&cache, seed));
        assert!(!cache.contains(&chunk(seed).0.id));
    }
    assert_eq!(cache.bytes(), 0);
}
