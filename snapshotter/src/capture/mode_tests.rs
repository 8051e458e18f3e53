//! Every mode of the codec round-trips the memory, and the objects do not depend on the number of threads.

use proptest::prelude::*;

use super::*;
use crate::chunks::{ChunkCache, RegionReader};
use crate::codec::{Acceleration, PAGE_BYTES, RegionSize};
use crate::digest::Digest;
use crate::snapshot::Snapshot;
use crate::testing::{TestStore, meta, noise, small_dump};

/// Runs of pages of all kinds, up to 24 MiB: they span several windows, the first of which is partial.
fn memory() -> impl Strategy<Value = Vec<u8>> {
    let run = (0..5_u8, 1..400_usize, any::<u64>());
    proptest::collection::vec(run, 1..30).prop_map(|runs| {
        let mut bytes = Vec::new();
        for (kind, pages, seed) in runs {
            let len = pages * PAGE_BYTES;
            match kind {
                0 => bytes.resize(bytes.len() + len, 0),
                1 => bytes.extend(noise(len, seed)),
                2 => bytes.extend(std::iter::repeat_n(seed.to_le_bytes(), len / 8).flatten()),
                // The same in every run, so it is deduplicated.
                3 => bytes.extend(noise(len, 7)),
                _ => bytes.extend(noise(len, seed).into_iter().map(|b| b'a' + b % 9)),
            }
        }
        bytes
    })
}

fn options(size: RegionSize, acceleration: u8, threads: usize) -> CaptureOptions {
    let acceleration = Acceleration::new(acceleration).unwrap();
    CaptureOptions {
        codec: Codec {
            region: size,
            acceleration,
        },
        threads,
        consume: false,
    }
}

/// Cuts at the region size only. The sizes of the real algorithm must not exceed those of this one.
fn naive_stored(memory: &[u8], size: RegionSize, acceleration: Acceleration) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let mut stored = 0;
    // The dump begins at address 0x10000.
    let (head, rest) = memory.split_at(memory.len().min(size.bytes().saturating_sub(0x10000)));
    for region in [head]
        .into_iter()
        .filter(|head| !head.is_empty())
        .chain(rest.chunks(size.bytes()))
    {
        if seen.insert(Digest::of(region)) {
            stored += match crate::codec::encode(region, acceleration) {
                crate::codec::Encoded::Zero => 0,
                crate::codec::Encoded::Raw => region.len() as u64,
                crate::codec::Encoded::Lz4(block) => block.len() as u64,
            };
        }
    }
    stored
}

async fn read_all(server: &TestStore, snapshot: &Snapshot, cache: &str) -> Vec<u8> {
    let cache = ChunkCache::open(&server.scratch(cache), 1 << 30).unwrap();
    let reader = RegionReader::new(server.store.clone(), cache);
    let mut all = Vec::new();
    for region in snapshot.processes[0].page_map.regions() {
        all.extend_from_slice(&reader.read(region).await.unwrap());
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn memory_comes_back_in_every_mode_and_threads_do_not_show(
        memory in memory(), acceleration in 1..=32_u8,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(Box::pin(async {
            let server = TestStore::start().await;
            let dump = server.scratch("dump");
            small_dump(&dump, &memory);
            for size in ["4K", "64K", "256K", "1M", "4M"] {
                let size: RegionSize = size.parse().unwrap();
                let mut published = Vec::new();
                for threads in [1, 3] {
                    let mut meta = meta();
                    meta.options = options(size, acceleration, threads);
                    published.push(publish(&server.store, &RegionIndex::new(), &dump, meta).await.unwrap());
                }
                let [serial, parallel] = &published[..] else { panic!("two") };
                prop_assert_eq!(&serial.manifest.totals, &parallel.manifest.totals);
                let snapshot = Snapshot::open(&server.store, &serial.id).await.unwrap();
                let twin = Snapshot::open(&server.store, &parallel.id).await.unwrap();
                prop_assert_eq!(snapshot.manifest.region_bytes, size.bytes() as u64);
                prop_assert_eq!(&snapshot.processes[0].page_map, &twin.processes[0].page_map, "chunks and all");
                prop_assert_eq!(snapshot.processes[0].page_map.region_size(), size);
                let read = read_all(&server, &snapshot, &size.to_string()).await;
                prop_assert!(read == memory);

                let totals = &serial.manifest.totals;
                prop_assert_eq!(totals.memory_bytes, memory.len() as u64 + 4096);
                let naive = naive_stored(&memory, size, Acceleration::new(acceleration).unwrap());
                let new = totals.stored_bytes - totals.shared_bytes;
                if size <= RegionSize::DEFAULT {
                    prop_assert_eq!(new, naive, "up to 64 KiB, zeros change no cut");
                } else {
                    // Without its zeros a region may be raw, which costs an eighth at most. Matches rarely reach across
                    // the zeros.
                    prop_assert!(new <= naive * 8 / 7 + 4096, "{new} against {naive}");
                }
            }
            Ok(())
        }))?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_consumed_gives_its_memory_back_and_keeps_what_is_read_last() {
    use std::os::unix::fs::MetadataExt as _;
    let server = TestStore::start().await;
    let dump = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut memory = noise(9 << 20, 3);
    memory[(1 << 20)..(4 << 20)].fill(0);
    small_dump(dump.path(), &memory);
    let mut meta = meta();
    meta.options.consume = true;
    let published = publish(&server.store, &RegionIndex::new(), dump.path(), meta)
        .await
        .unwrap();
    let left = std::fs::metadata(dump.path().join("pages-1.img")).unwrap();
    assert_eq!(
        (left.blocks(), left.len()),
        (8, (9 << 20) + 4096),
        "the eager page alone, where it was"
    );
    let snapshot = Snapshot::open(&server.store, &published.id).await.unwrap();
    assert!(read_all(&server, &snapshot, "cache").await == memory);
    let images = server.scratch("images");
    snapshot.write_images(&images).await.unwrap();
    assert_eq!(std::fs::read(images.join("pages-1.img")).unwrap(), [0x5a; 4096]);
}
