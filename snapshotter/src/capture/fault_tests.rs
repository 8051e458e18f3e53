//! Corrupt bytes and broken connections lead either to an error that names what is bad, or to the right bytes.

mod chunks;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rekindle_store_s3::connect;

use super::*;
use crate::chunks::{ChunkCache, ReadError, RegionReader};
use crate::codec::PAGE_BYTES;
use crate::pagemap::PageIndex;
use crate::snapshot::{OpenError, Snapshot};
use crate::testing::{TestStore, Wire, config, impatient, meta, noise, small_dump};
use crate::working_set::{Recording, TouchedPage, load_working_set, store_working_set};

/// Memory of all kinds: noise, zeros, text.
fn memory() -> Vec<u8> {
    let mut bytes = noise(300 << 10, 1);
    bytes.resize(500 << 10, 0);
    while bytes.len() < 700 << 10 {
        bytes.extend_from_slice(b"some text that compresses very well. ");
    }
    bytes.truncate(700 << 10);
    bytes
}

struct Captured {
    server: TestStore,
    memory: Vec<u8>,
    published: Published,
}

async fn capture() -> Captured {
    let server = TestStore::start().await;
    let memory = memory();
    let dump = server.scratch("dump");
    small_dump(&dump, &memory);
    let mut meta = meta();
    let big = server.scratch("extra").join("big");
    std::fs::write(&big, noise(3 << 20, 9)).unwrap();
    let small = big.with_file_name("small");
    std::fs::write(&small, "small").unwrap();
    meta.extra = vec![
        ExtraFile {
            name: "big.tar".to_owned(),
            path: big,
        },
        ExtraFile {
            name: "tmp.tar".to_owned(),
            path: small,
        },
    ];
    let published = publish(&server.store, &RegionIndex::new(), &dump, meta).await.unwrap();
    Captured {
        server,
        memory,
        published,
    }
}

impl Captured {
    fn reader(&self, cache: &Path) -> RegionReader {
        RegionReader::new(self.server.store.clone(), ChunkCache::open(cache, 64 << 20).unwrap())
    }

    async fn open(&self) -> Snapshot {
        Snapshot::open(&self.server.store, &self.published.id).await.unwrap()
    }

    /// All lazy memory, read region by region.
    async fn read_all(&self, snapshot: &Snapshot, reader: &RegionReader) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        for region in snapshot.processes[0].page_map.regions() {
            all.extend_from_slice(&reader.read(region).await?);
        }
        Ok(all)
    }
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_gives_back_its_files_its_memory_and_its_extra_files() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let reader = captured.reader(&captured.server.scratch("cache"));
    assert_eq!(captured.read_all(&snapshot, &reader).await.unwrap(), captured.memory);
    let images = captured.server.scratch("images");
    snapshot.write_images(&images).await.unwrap();
    let names: Vec<_> = files(&images).into_keys().collect();
    assert_eq!(
        names,
        [
            "inventory.img",
            "mm-7.img",
            "pagemap-7.img",
            "pages-1.img",
            "pstree.img"
        ]
    );
    assert_eq!(files(&images)["pages-1.img"], [0x5a; 4096]);
    assert!(
        snapshot.write_images(&images).await.is_err(),
        "files are never overwritten"
    );
    let extra = captured.server.scratch("written");
    for (name, bytes) in [("big.tar", noise(3 << 20, 9)), ("tmp.tar", b"small".to_vec())] {
        snapshot.write_extra(name, &extra.join(name)).await.unwrap();
        assert_eq!(std::fs::read(extra.join(name)).unwrap(), bytes);
    }
    let missing = snapshot.write_extra("other", &extra.join("other")).await.unwrap_err();
    assert!(matches!(missing, OpenError::NoSuchFile { .. }));
    let report = crate::inspect(&captured.server.store, snapshot.id()).await.unwrap();
    assert_eq!(report.summary, captured.published.summary);
    assert_eq!(
        (report.processes.len(), report.chunks, report.eager_bytes),
        (1, 1, 4096)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_manifest_or_bundle_is_an_error_that_names_the_object() {
    let captured = capture().await;
    let (server, id) = (&captured.server, &captured.published.id);
    for key in [keys::manifest(id), keys::bundle(id)] {
        let good = server.store.get(&key).await.unwrap();
        for at in (0..good.len()).step_by(97) {
            server.flip(&key, at).await;
            let restored = server.scratch("restored");
            let opened = match Snapshot::open(&server.store, id).await {
                Ok(snapshot) => {
                    let images = snapshot.write_images(&restored).await;
                    let extra = snapshot.write_extra("tmp.tar", &restored.join("tmp.tar")).await;
                    images.and(extra).and(snapshot.pagemap_image(7).map(drop))
                }
                Err(error) => Err(error),
            };
            let error = opened.expect_err("a flipped bit").to_string();
            assert!(error.contains(&key), "{key} byte {at}: {error}");
            std::fs::remove_dir_all(&restored).unwrap();
            server.store.put(&key, good.clone()).await.unwrap();
        }
        server.store.put(&key, good.slice(..good.len() - 1)).await.unwrap();
        let cut = Snapshot::open(&server.store, id).await.unwrap_err().to_string();
        assert!(cut.contains(&key), "{cut}");
        server.store.put(&key, good).await.unwrap();
    }
    server.flip(&keys::extra(id, "big.tar"), 1 << 20).await;
    let path = server.scratch("written").join("big.tar");
    let error = captured.open().await.write_extra("big.tar", &path).await.unwrap_err();
    assert!(matches!(error, OpenError::Extra { .. }), "{error}");
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_died_is_an_error_for_every_reader_within_the_limit() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let reader = captured.reader(&captured.server.scratch("cache"));
    captured.server.stop().await;
    let started = Instant::now();
    let regions = snapshot.processes[0].page_map.regions();
    let reads = regions.iter().filter(|r| r.payload.is_some()).map(|r| reader.read(r));
    let limit = Duration::from_secs(20);
    for read in tokio::time::timeout(limit, futures::future::join_all(reads))
        .await
        .unwrap()
    {
        assert!(matches!(read, Err(ReadError::Fetch { .. })));
    }
    println!("failed after {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_is_cut_off_anywhere_leaves_no_snapshot_or_a_whole_one() {
    let server = TestStore::start().await;
    let dump = server.scratch("dump");
    let memory = noise(1 << 20, 3);
    small_dump(&dump, &memory);
    let unhindered = Wire::to(server.address, u64::MAX).await;
    let store = connect(impatient(unhindered.address)).await;
    publish(&store, &RegionIndex::new(), &dump, meta()).await.unwrap();
    let all = unhindered.sent();
    // A chunk of 1 MiB, then the bundle and the manifest in the last few KB, where the cuts are close to each other.
    let limits = (0..8)
        .map(|n| n * all / 8)
        .chain((0..40).map(|n| all - 12_000 + n * 330));
    let (mut failed, mut whole) = (0, 0);
    for limit in limits {
        for chunk in server.keys("chunks/").await {
            server.store.delete(&chunk).await.unwrap();
        }
        let wire = Wire::to(server.address, limit).await;
        let store = connect(impatient(wire.address)).await;
        let meta = meta();
        let id = meta.id.clone();
        let result = publish(&store, &RegionIndex::new(), &dump, meta).await;
        let opened = Snapshot::open(&server.store, &id).await;
        match (result, opened) {
            (Ok(_), Ok(_)) => whole += 1,
            (Err(_), Err(error)) if error.is_not_found() => failed += 1,
            // The manifest arrived, but its response did not, and neither did the attempt to remove it.
            (Err(_), Ok(snapshot)) => {
                snapshot.write_images(&server.scratch(id.as_str())).await.unwrap();
                whole += 1;
            }
            (result, opened) => panic!("cut after {limit}: {result:?}, {opened:?}"),
        }
    }
    println!("{failed} cut off, {whole} whole");
    assert!(
        failed > 10 && whole > 2,
        "the cuts must fall on both sides: {failed} failed, {whole} whole"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_snapshot_is_gone_and_others_keep_their_chunks() {
    let captured = capture().await;
    let server = &captured.server;
    let twin = publish(
        &server.store,
        &RegionIndex::new(),
        &server.dir.path().join("dump"),
        meta(),
    )
    .await
    .unwrap();
    crate::delete(&server.store, &captured.published.id).await.unwrap();
    crate::delete(&server.store, &captured.published.id).await.unwrap();
    assert!(
        server
            .keys(&keys::snapshot_prefix(&captured.published.id))
            .await
            .is_empty()
    );
    let gone = Snapshot::open(&server.store, &captured.published.id).await.unwrap_err();
    assert!(gone.is_not_found());
    let twin = Snapshot::open(&server.store, &twin.id).await.unwrap();
    let reader = captured.reader(&server.scratch("cache"));
    assert_eq!(captured.read_all(&twin, &reader).await.unwrap(), captured.memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_set_comes_back_in_order_with_the_snapshots_bytes() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let store = &captured.server.store;
    let reader = captured.reader(&captured.server.scratch("cache"));
    assert!(load_working_set(store, snapshot.id()).await.unwrap().is_none());
    // Backwards, with repeats, with a page of no region, and a process that is not in the snapshot.
    let pages = captured.memory.len() / PAGE_BYTES;
    let first = 0x10000 / PAGE_BYTES as u64;
    let touched = |pid, page, written| TouchedPage {
        pid,
        page: PageIndex(page),
        written,
    };
    let mut order: Vec<_> = (0..pages as u64)
        .rev()
        .map(|n| touched(7, first + n, n % 3 == 0))
        .collect();
    order.push(order[3]);
    order.push(touched(7, 1, false));
    order.push(touched(8, first, true));
    let recording = |restores| Recording { number: 1, restores };
    let stored = store_working_set(store, &snapshot, &reader, recording(1), &order);
    assert_eq!(stored.await.unwrap().pages, pages + 1);
    let set = load_working_set(store, snapshot.id()).await.unwrap().unwrap();
    let pack = set.check(&snapshot.processes).unwrap();
    assert_eq!(pack.recording, recording(1));
    let loaded = pack.pages;
    for (page, touched) in loaded.iter().zip(&order[..pages]) {
        let at = usize::try_from(touched.page.0 - first).unwrap() * PAGE_BYTES;
        assert_eq!(
            (page.pid, page.page, page.written),
            (touched.pid, touched.page, touched.written)
        );
        assert_eq!(page.bytes(), &captured.memory[at..at + PAGE_BYTES]);
        assert_eq!(
            page.content.is_none(),
            captured.memory[at..at + PAGE_BYTES].iter().all(|b| *b == 0)
        );
    }
    assert_eq!(loaded[pages].content, None);
    let stored = store_working_set(store, &snapshot, &reader, recording(2), &order[..1]);
    stored.await.unwrap();
    let later = load_working_set(store, snapshot.id()).await.unwrap().unwrap();
    let later = later.check(&snapshot.processes).unwrap();
    assert_eq!(
        (later.recording, later.pages.len()),
        (recording(2), 1),
        "the later one is in its place"
    );
    let key = keys::working_set(snapshot.id());
    captured.server.flip(&key, 90).await;
    let error = load_working_set(store, snapshot.id()).await.unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
    // One of an earlier version counts as none. One of a later version stays.
    let mut other = b"RKWS\x03\0".to_vec();
    store.put(&key, other.clone().into()).await.unwrap();
    assert!(load_working_set(store, snapshot.id()).await.unwrap().is_none());
    other[4] = 5;
    store.put(&key, other.into()).await.unwrap();
    let error = load_working_set(store, snapshot.id()).await.unwrap_err();
    assert!(error.is_of_a_later_build(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_no_whole_dump_is_refused_saying_what_is_wrong() {
    let server = TestStore::start().await;
    type Corruption<'a> = (&'a str, &'a dyn Fn(&Path));
    let spoil: [Corruption<'_>; 6] = [
        ("inventory.img is missing", &|d| {
            std::fs::remove_file(d.join("inventory.img")).unwrap()
        }),
        ("mm-7.img is missing", &|d| {
            std::fs::remove_file(d.join("mm-7.img")).unwrap()
        }),
        ("pages-1.img is missing", &|d| {
            std::fs::remove_file(d.join("pages-1.img")).unwrap()
        }),
        ("pages-1.img has 4096 bytes", &|d| {
            std::fs::write(d.join("pages-1.img"), [1; 4096]).unwrap()
        }),
        ("pagemap-7.img cannot be used", &|d| {
            std::fs::write(d.join("pagemap-7.img"), "").unwrap()
        }),
        ("incremental", &|d| {
            std::os::unix::fs::symlink("/nowhere", d.join("parent")).unwrap()
        }),
    ];
    for (message, spoil) in spoil {
        let dump = server.dir.path().join(message.replace(' ', "-"));
        small_dump(&dump, &noise(8192, 5));
        spoil(&dump);
        let error = publish(&server.store, &RegionIndex::new(), &dump, meta())
            .await
            .unwrap_err();
        let PublishError::Dump { cause, .. } = error else {
            panic!("{error}")
        };
        assert!(cause.to_string().contains(message), "{cause}");
    }
    assert!(server.keys("").await.is_empty(), "nothing was put");
}
