//! The entry points of the fuzz targets, in every `cargo test`: seeds and thousands of damaged copies of them. None may
//! panic, abort, or hold more memory than a bound.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(unsafe_code, reason = "counts what the allocator gives out")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rekindle_snapshotter::fuzz;

/// The system's allocator, and how much it has given out at most.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// One target at a time, so that what is counted is its own.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs per target.
const CASES: u32 = 4000;

/// What may happen to a seed.
#[derive(Debug, Clone)]
enum Damage {
    Set(prop::sample::Index, u8),
    Word(prop::sample::Index, u32),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let word = prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(1 << 31),
        Just(0x7fff_ffff),
        any::<u32>()
    ];
    prop_oneof![
        4 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| Damage::Set(at, to)),
        4 => (any::<prop::sample::Index>(), word).prop_map(|(at, to)| Damage::Word(at, to)),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => (any::<prop::sample::Index>(), proptest::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(|(a, b)| Damage::Repeat(a, b)),
    ]
}

fn damaged(mut bytes: Vec<u8>, all: &[Damage]) -> Vec<u8> {
    for damage in all {
        let len = bytes.len();
        let place = |at: &prop::sample::Index| at.index(len + 1);
        match damage {
            Damage::Set(at, to) => {
                if let Some(byte) = bytes.get_mut(place(at)) {
                    *byte = *to;
                }
            }
            Damage::Word(at, to) => {
                let at = place(at);
                for (byte, new) in bytes.iter_mut().skip(at).zip(to.to_le_bytes()) {
                    *byte = new;
                }
            }
            Damage::Cut(at) => bytes.truncate(place(at)),
            Damage::Insert(at, new) => {
                let at = place(at);
                bytes.splice(at..at, new.iter().copied());
            }
            Damage::Repeat(a, b) => {
                let (from, to) = (place(a).min(place(b)), place(a).max(place(b)).min(place(a) + 4096));
                let copy = bytes.get(from..to).unwrap_or_default().to_vec();
                bytes.extend_from_slice(&copy);
            }
        }
    }
    bytes
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<_> = paths.iter().map(|p| fs::read(p).unwrap()).collect();
    assert!(!seeds.is_empty(), "{}: no seeds", dir.display());
    seeds
}

/// Gives `target` its seeds, which it must take, and damaged copies; it may hold `bound` bytes and 64 for each of its
/// input's.
fn survive(name: &str, bound: usize, cases: u32, target: impl Fn(&[u8]) -> bool) {
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seeds = seeds(name);
    let most = std::cell::Cell::new(0);
    let run = |input: &[u8]| {
        let before = HELD.load(Relaxed);
        PEAK.store(before, Relaxed);
        let taken = target(input);
        let held = PEAK.load(Relaxed).saturating_sub(before);
        most.set(most.get().max(held));
        assert!(
            held <= bound + 64 * input.len(),
            "{name} held {held} bytes for an input of {}",
            input.len()
        );
        taken
    };
    run(&[]);
    for (at, seed) in seeds.iter().enumerate() {
        assert!(
            run(seed),
            "{name}: seed {at} by name is refused: make the seeds anew, as snapshotter/src/fuzz.rs says"
        );
    }
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let inputs = (prop::sample::select(seeds), proptest::collection::vec(damage(), 0..8));
    let done = TestRunner::new(config).run(&inputs, |(seed, damage)| {
        run(&damaged(seed, &damage));
        Ok(())
    });
    drop(alone);
    done.unwrap();
    println!("{name}: {cases} damaged inputs, at most {} bytes held", most.get());
}

#[test]
fn manifests() {
    survive("manifest", 1 << 20, CASES, fuzz::manifest);
    survive("manifest_value", 1 << 20, CASES, fuzz::manifest_value);
}

#[test]
fn page_maps() {
    survive("page_map", 1 << 20, CASES, fuzz::page_map);
}

#[test]
fn regions() {
    survive("region", 16 << 20, CASES, fuzz::region);
}

#[test]
fn bundles() {
    survive("bundle", 16 << 20, CASES, fuzz::bundle);
}

#[test]
fn working_sets() {
    survive("working_set", 4 << 20, CASES, fuzz::working_set);
}

#[test]
fn images() {
    survive("images", 1 << 20, CASES, fuzz::images);
    survive("template", 1 << 20, CASES, fuzz::template);
}

#[test]
fn pages_in_a_directory() {
    let scratch = tempfile::tempdir().unwrap();
    survive("pages", 64 << 20, CASES / 8, |bytes| fuzz::pages(bytes, scratch.path()));
}

#[test]
fn layers() {
    let scratch = tempfile::tempdir().unwrap();
    survive("layer", 64 << 20, CASES / 4, |bytes| fuzz::layer(bytes, scratch.path()));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}
