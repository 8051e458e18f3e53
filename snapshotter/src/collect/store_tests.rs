//! Collections concurrent with the real capture, over the real S3 protocol.

use std::path::PathBuf;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_store::Store;
use rekindle_store_s3::connect;

use super::model::Dice;
use super::*;
use crate::capture::{BaseMemory, CaptureMeta, publish};
use crate::chunks::{ChunkCache, RegionReader};
use crate::delete::delete;
use crate::region_index::RegionIndex;
use crate::snapshot::Snapshot;
use crate::testing::{TestStore, Wire, impatient, meta, noise, small_dump};

/// A rule that keeps these snapshots and knows nothing beyond the store.
struct KeepListed(Vec<SnapshotId>);

impl Rule for KeepListed {
    fn wanted<'a>(
        &'a self,
        _: &'a [FoundSnapshot],
    ) -> BoxFuture<'a, Result<RequiredObjects, Box<dyn Error + Send + Sync>>> {
        Box::pin(async {
            Ok(RequiredObjects {
                snapshots: self.0.iter().cloned().collect(),
                ..RequiredObjects::default()
            })
        })
    }
}

/// Reads all of a snapshot's memory, like a host that has none of it.
async fn read_all(store: &Store, id: &SnapshotId) -> Result<(), Box<dyn Error>> {
    let snapshot = Snapshot::open(store, id).await?;
    let folder = tempfile::tempdir()?;
    let reader = RegionReader::new(store.clone(), ChunkCache::open(folder.path(), 1 << 30)?);
    for region in snapshot.processes[0].page_map.regions() {
        reader.read(region).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_chunk_that_is_being_collected_is_neither_shared_nor_put_again_under_its_name() {
    let server = TestStore::start().await;
    let dump = server.scratch("dump");
    small_dump(&dump, &noise(300 << 10, 3));
    let index = RegionIndex::new();
    let first = publish(&server.store, &index, &dump, meta()).await.unwrap();
    let condemned = server.keys("chunks/").await;
    let list = format!("{{\"rekindle_names\":1,\"names\":[\"{}\"]}}", condemned[0]);
    server.store.put("collecting/r-1", list.into()).await.unwrap();
    // The index knows the chunk. An empty index would put the same chunk.
    for index in [index, RegionIndex::new()] {
        let second = publish(&server.store, &index, &dump, meta()).await.unwrap();
        let other = Snapshot::open(&server.store, &second.id).await.unwrap();
        for region in other.processes[0].page_map.regions() {
            let chunk = region.payload.unwrap().chunk.id;
            assert_ne!(keys::chunk(&chunk), condemned[0]);
        }
        // Both publishers found the same alternative name.
        assert_eq!(server.keys("chunks/").await.len(), 2);
    }
    assert_eq!(
        server.keys("publishing/").await,
        Vec::<String>::new(),
        "notes are taken back"
    );
    delete(&server.store, &first.id).await.unwrap();
    server.store.delete("collecting/r-1").await.unwrap();
    let kept = server.store.list_folders("snapshots/").await.unwrap();
    let rule = KeepListed(kept.iter().map(|id| id.parse().unwrap()).collect());
    let collected = collect(&server.store, &mut NeedsCache::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!((collected.chunks.objects, collected.snapshots.objects), (1, 0));
    assert!(!server.keys("chunks/").await.contains(&condemned[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_published_while_others_are_deleted_and_collected_are_whole() {
    let server = TestStore::start().await;
    let memory = noise(900 << 10, 4);
    let mut kept: Vec<SnapshotId> = Vec::new();
    for round in 0..12_usize {
        // Each snapshot shares most of its memory with the previous one, which is unwanted by then.
        let dump = server.scratch(&format!("dump-{round}"));
        small_dump(&dump, &[&noise(round << 16, 5), &memory[round << 16..]].concat());
        let index = RegionIndex::new();
        index.seed(&server.store).await.unwrap();
        let meta = meta();
        let rule = KeepListed(
            [kept.last().cloned(), Some(meta.id.clone())]
                .into_iter()
                .flatten()
                .collect(),
        );
        let mut seen = NeedsCache::default();
        let (published, collected) = tokio::join!(
            publish(&server.store, &index, &dump, meta),
            collect(&server.store, &mut seen, &rule, false),
        );
        collected.unwrap();
        kept.push(published.unwrap().id);
        read_all(&server.store, kept.last().unwrap()).await.unwrap();
    }
    let rule = KeepListed(kept.split_off(11));
    collect(&server.store, &mut NeedsCache::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(server.store.list_folders("snapshots/").await.unwrap().len(), 1);
    let again = collect(&server.store, &mut NeedsCache::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(again.total().objects, 0);
}

/// Snapshots that are being published, or exist and have not been deleted.
#[derive(Default)]
struct LiveSnapshots(Mutex<BTreeSet<SnapshotId>>);

impl Rule for LiveSnapshots {
    fn wanted<'a>(
        &'a self,
        _: &'a [FoundSnapshot],
    ) -> BoxFuture<'a, Result<RequiredObjects, Box<dyn Error + Send + Sync>>> {
        Box::pin(async {
            Ok(RequiredObjects {
                snapshots: self.0.lock().iter().cloned().collect(),
                ..RequiredObjects::default()
            })
        })
    }
}

/// Maximum delays of requests, one per history, so that others come between any two requests.
const DELAYS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(12)];

/// Polls `work` for at most `life`, then drops it and returns `None`. Without a limit, it must not hang.
async fn alive_for<T>(life: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    let done = tokio::time::timeout(life.unwrap_or(Duration::from_mins(1)), work).await;
    assert!(done.is_ok() || life.is_some(), "it hangs");
    done.ok()
}

/// A history on a real server: concurrent publishers, which delete most of what they publish, and collections. Any of
/// them may lose its connection after any number of bytes, or die at any moment.
struct ConcurrentHistory {
    server: TestStore,
    /// Dumps that share half of their memory, each with a later version of it.
    dumps: Vec<PathBuf>,
    /// A host, for publishers that store differences to existing snapshots.
    host: RegionReader,
    alive: LiveSnapshots,
    delay: Duration,
    /// Published, cut off. Collections done, cut off. Chunks removed, snapshots removed. Published as differences.
    /// Wanted at the end.
    counts: Mutex<[u64; 8]>,
}

impl ConcurrentHistory {
    async fn start(dice: &mut Dice, delay: Duration) -> Self {
        let server = TestStore::start().await;
        let dumps = (0..6).map(|n| {
            let dump = server.scratch(&format!("dump-{n}"));
            let own = noise(150 << 10, n / 2);
            let mut memory = [&noise(150 << 10, 1), &own[..]].concat();
            if n % 2 == 1 {
                let counter = dice.roll(4096) as usize;
                memory.chunks_mut(4096).for_each(|page| page[counter % page.len()] ^= 1);
            }
            small_dump(&dump, &memory);
            dump
        });
        let dumps = dumps.collect();
        let cache = ChunkCache::open(&server.scratch("host"), 1 << 30).unwrap();
        Self {
            dumps,
            host: RegionReader::new(server.store.clone(), cache),
            server,
            alive: LiveSnapshots::default(),
            delay,
            counts: Mutex::default(),
        }
    }

    /// A slow connection to the server. One in three ends after some bytes.
    async fn store(&self, dice: &mut Dice) -> (Wire, Store) {
        let limit = if dice.once_in(3) {
            dice.roll(400 << 10)
        } else {
            u64::MAX
        };
        let wire = Wire::slow(self.server.address, limit, self.delay).await;
        let store = connect(impatient(wire.address)).await;
        (wire, store)
    }

    async fn publish(&self, mut dice: Dice) {
        for _ in 0..8 {
            let (_wire, store) = self.store(&mut dice).await;
            let index = RegionIndex::new();
            if !dice.once_in(3) {
                drop(index.seed(&self.server.store).await);
            }
            let meta = CaptureMeta {
                base: self.base(&mut dice).await,
                ..meta()
            };
            let id = meta.id.clone();
            self.alive.0.lock().insert(id.clone());
            let life = dice.once_in(3).then(|| Duration::from_millis(dice.roll(250)));
            let published = publish(&store, &index, dice.pick::<PathBuf>(&self.dumps), meta);
            if let Some(Ok(published)) = alive_for(life, published).await {
                self.counts.lock()[0] += 1;
                self.counts.lock()[6] += u64::from(published.manifest.base.is_some());
                self.read(&id).await;
                if dice.once_in(4) {
                    continue;
                }
            } else {
                self.counts.lock()[1] += 1;
            }
            self.alive.0.lock().remove(&id);
            if dice.once_in(2) {
                drop(delete(&store, &id).await);
            }
        }
    }

    /// In one of two cases, a snapshot to use as a base. It may be collected at any moment.
    async fn base(&self, dice: &mut Dice) -> Option<BaseMemory> {
        let there = self.server.store.list_folders(keys::SNAPSHOTS).await.unwrap();
        if there.is_empty() || dice.once_in(2) {
            return None;
        }
        let id: SnapshotId = dice.pick::<String>(&there).parse().unwrap();
        let opened = Snapshot::open(&self.server.store, &id).await.ok()?;
        Some(BaseMemory::new(&opened, self.host.clone()))
    }

    async fn collect(&self, mut dice: Dice) {
        for _ in 0..12 {
            let (_wire, store) = self.store(&mut dice).await;
            let life = dice.once_in(4).then(|| Duration::from_millis(dice.roll(200)));
            let mut seen = NeedsCache::default();
            let done = alive_for(life, collect(&store, &mut seen, &self.alive, false)).await;
            let mut counts = self.counts.lock();
            if let Some(Ok(collected)) = done {
                counts[2] += 1;
                counts[4] += collected.chunks.objects;
                counts[5] += collected.snapshots.objects;
            } else {
                counts[3] += 1;
            }
        }
    }

    /// A wanted snapshot is complete.
    async fn read(&self, id: &SnapshotId) {
        if let Err(what) = read_all(&self.server.store, id).await {
            assert!(!self.alive.0.lock().contains(id), "{id} is wanted: {what:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn real_publishers_and_collections_that_die_at_random_lose_nothing_that_is_wanted() {
    let mut totals = [0; 8];
    for (seed, delay) in (0..27).zip(DELAYS.into_iter().cycle()) {
        // How often each happens is a matter of time, too.
        if seed >= 9 && totals.iter().all(|n| *n > 10) {
            break;
        }
        let mut dice = Dice(seed);
        let crowd = ConcurrentHistory::start(&mut dice, delay).await;
        let mut another = || Dice(dice.roll(u64::MAX));
        let publishers = (0..3).map(|_| crowd.publish(another())).collect::<Vec<_>>();
        let collections = [crowd.collect(another()), crowd.collect(another())];
        tokio::join!(
            futures::future::join_all(publishers),
            futures::future::join_all(collections),
        );
        let wanted = crowd.alive.0.lock().clone();
        crowd.counts.lock()[7] += wanted.len() as u64;
        for id in &wanted {
            crowd.read(id).await;
        }
        // Snapshots whose manifest arrived without a response are just as complete, until a collection comes by.
        for id in crowd.server.store.list_folders(keys::SNAPSHOTS).await.unwrap() {
            let id: SnapshotId = id.parse().unwrap();
            match crowd.server.store.get(&keys::manifest(&id)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => continue,
                Err(error) => panic!("{error}"),
            }
            if let Err(what) = read_all(&crowd.server.store, &id).await {
                // What a collection had asked for when it was cut off may be done only now, its manifest first.
                let manifest = crowd.server.store.get(&keys::manifest(&id)).await;
                assert!(manifest.is_err_and(|e| e.is_not_found()), "{id} is there: {what:?}");
            }
        }
        for (total, count) in totals.iter_mut().zip(*crowd.counts.lock()) {
            *total += count;
        }
    }
    println!(
        "published, cut off; collections done, cut off; chunks, snapshots removed; as differences; wanted: {totals:?}"
    );
    assert!(totals.iter().all(|n| *n > 10), "{totals:?}");
}

#[tokio::test]
async fn what_is_left_of_half_a_snapshot_goes_and_a_damaged_one_that_is_wanted_holds_everything_up() {
    let server = TestStore::start().await;
    let dump = server.scratch("dump");
    small_dump(&dump, &noise(300 << 10, 6));
    let published = publish(&server.store, &RegionIndex::new(), &dump, meta())
        .await
        .unwrap();
    let half = meta().id;
    server.store.put(&keys::bundle(&half), "half".into()).await.unwrap();
    server.store.put("chunks/orphan", "nobody's".into()).await.unwrap();
    let rule = KeepListed(vec![published.id.clone()]);
    let dry = collect(&server.store, &mut NeedsCache::default(), &rule, true)
        .await
        .unwrap();
    assert_eq!((dry.remains.objects, dry.chunks.objects), (1, 1));
    assert!(
        server.keys("chunks/").await.contains(&"chunks/orphan".to_owned()),
        "a dry run removes nothing"
    );
    server.flip(&keys::manifest(&published.id), 200).await;
    let held = collect(&server.store, &mut NeedsCache::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(held.held_by.first(), Some(&published.id));
    assert_eq!((held.remains.objects, held.chunks.objects), (1, 0));
    let freed = collect(
        &server.store,
        &mut NeedsCache::default(),
        &KeepListed(Vec::new()),
        false,
    )
    .await
    .unwrap();
    assert_eq!(freed.snapshots.objects, 1, "nobody wants it any more");
    assert_eq!(server.keys("").await, Vec::<String>::new());
}
