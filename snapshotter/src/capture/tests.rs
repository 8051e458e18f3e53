//! Real dumps, stored and read back over the real S3 protocol.

use std::collections::BTreeMap;
use std::path::Path;

use rekindle_criu::images::PagemapImage;

use super::*;
use crate::chunks::{ChunkCache, RegionReader};
use crate::pagemap::PageIndex;
use crate::snapshot::Snapshot;
use crate::testing::{TestStore, criu_dump, meta};

/// What CRIU wrote: the bytes of each page in each pages image, by process and page.
fn pages_of(dir: &Path) -> BTreeMap<(u32, PageIndex), (bool, Vec<u8>)> {
    let mut pages = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let pid = name.strip_prefix("pagemap-").and_then(|n| n.strip_suffix(".img"));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        let pagemap = PagemapImage::parse(&std::fs::read(dir.join(&name)).unwrap()).unwrap();
        let bytes = std::fs::read(dir.join(format!("pages-{}.img", pagemap.pages_id))).unwrap();
        let mut rest = bytes.chunks_exact(4096);
        for entry in &pagemap.entries {
            for page in 0..entry.pages {
                let bytes = rest.next().unwrap().to_vec();
                pages.insert((pid, PageIndex(entry.first.0 + page)), (entry.lazy, bytes));
            }
        }
        assert_eq!(rest.next(), None);
    }
    pages
}

fn reader(server: &TestStore, cache: &str) -> RegionReader {
    let cache = ChunkCache::open(&server.scratch(cache), 1 << 30).unwrap();
    RegionReader::new(server.store.clone(), cache)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_a_real_dump_comes_back_and_a_second_time_costs_nothing() {
    let server = TestStore::start().await;
    let dump = server.scratch("dump");
    let Some(()) = criu_dump(&dump) else { return };
    let index = RegionIndex::new();
    let started = std::time::Instant::now();
    let published = publish(&server.store, &index, &dump, meta()).await.unwrap();
    println!(
        "{:?}, new bytes {}, {:?}",
        published.summary,
        published.new_bytes,
        started.elapsed()
    );

    let started = std::time::Instant::now();
    let snapshot = Snapshot::open(&server.store, &published.id).await.unwrap();
    println!("opened in {:?}", started.elapsed());
    assert_eq!(snapshot.processes.len(), 2);
    let restored = server.scratch("restored");
    let started = std::time::Instant::now();
    snapshot.write_images(&restored).await.unwrap();
    println!("images written in {:?}", started.elapsed());

    let original = pages_of(&dump);
    let eager: BTreeMap<_, _> = original
        .iter()
        .filter(|(_, (lazy, _))| !lazy)
        .map(|(k, v)| (*k, v.clone()))
        .collect();
    assert_eq!(
        pages_of(&restored),
        eager,
        "the restored pagemaps have the eager pages and no others"
    );
    let lazy = original.iter().filter(|(_, (lazy, _))| *lazy);
    let reader = reader(&server, "cache");
    let mut count = 0;
    for ((pid, page), (_, bytes)) in lazy {
        let region = snapshot.process(*pid).unwrap().page_map.lookup(*page).unwrap();
        let plain = reader.read(region).await.unwrap();
        let at = usize::try_from(page.0 - region.first.0).unwrap() * 4096;
        assert_eq!(&plain[at..at + 4096], bytes, "pid {pid} {page}");
        count += 1;
    }
    let in_maps: u64 = snapshot.processes.iter().map(|p| p.page_map.page_count()).sum();
    assert_eq!(in_maps, count, "the page maps have the lazy pages and no others");

    let totals = &published.manifest.totals;
    assert!(
        totals.zero_bytes >= 2 * (4 << 20),
        "two processes have 4 MiB of zeros: {totals:?}"
    );
    assert!(
        totals.shared_bytes >= 2 << 20,
        "the child's noise is its parent's: {totals:?}"
    );
    for entry in std::fs::read_dir(&dump).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let edited = name.starts_with("pagemap-") && !name.starts_with("pagemap-shmem") || name.starts_with("pages-");
        if name.ends_with(".img") && !edited {
            let (was, is) = (std::fs::read(dump.join(&name)), std::fs::read(restored.join(&name)));
            assert_eq!(was.unwrap(), is.unwrap(), "{name}");
        }
    }

    let chunks = server.keys("chunks/").await;
    let again = publish(&server.store, &index, &dump, meta()).await.unwrap();
    let seeded = RegionIndex::new();
    assert_eq!(seeded.seed(&server.store).await.unwrap(), 2);
    let third = publish(&server.store, &seeded, &dump, meta()).await.unwrap();
    assert_eq!(server.keys("chunks/").await, chunks, "no chunk was added");
    for twin in [again, third] {
        assert_eq!(twin.summary.shared_bytes, twin.summary.stored_bytes);
        let expected = Snapshot::open(&server.store, &twin.id).await.unwrap();
        assert_eq!(expected.processes[0].page_map, snapshot.processes[0].page_map);
    }
}
