//! Collections beside the real capture, through a real S3 protocol.

use futures::future::BoxFuture;

use super::*;
use crate::capture::publish;
use crate::chunks::{ChunkCache, RegionReader};
use crate::delete::delete;
use crate::region_index::RegionIndex;
use crate::snapshot::Snapshot;
use crate::testing::{TestStore, meta, noise, small_dump};

/// Nothing is known beyond what the store has; the snapshots named are wanted.
struct Keeping(Vec<SnapshotId>);

impl Rule for Keeping {
    fn wanted<'a>(&'a self, _: &'a [Found]) -> BoxFuture<'a, Result<Wanted, Box<dyn Error + Send + Sync>>> {
        Box::pin(async {
            Ok(Wanted {
                snapshots: self.0.iter().cloned().collect(),
                ..Wanted::default()
            })
        })
    }
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
    // The index knows the chunk; an empty one would put the very same.
    for index in [index, RegionIndex::new()] {
        let second = publish(&server.store, &index, &dump, meta()).await.unwrap();
        let other = Snapshot::open(&server.store, &second.id).await.unwrap();
        for region in other.processes[0].page_map.regions() {
            let chunk = region.payload.unwrap().chunk.id;
            assert_ne!(keys::chunk(&chunk), condemned[0]);
        }
        // Both publishers found the same other name.
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
    let rule = Keeping(kept.iter().map(|id| id.parse().unwrap()).collect());
    let collected = collect(&server.store, &mut Seen::default(), &rule, false)
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
        // Each shares most of its memory with the one before, which nobody wants any more.
        let dump = server.scratch(&format!("dump-{round}"));
        small_dump(&dump, &[&noise(round << 16, 5), &memory[round << 16..]].concat());
        let index = RegionIndex::new();
        index.seed(&server.store).await.unwrap();
        let meta = meta();
        let rule = Keeping(
            [kept.last().cloned(), Some(meta.id.clone())]
                .into_iter()
                .flatten()
                .collect(),
        );
        let mut seen = Seen::default();
        let (published, collected) = tokio::join!(
            publish(&server.store, &index, &dump, meta),
            collect(&server.store, &mut seen, &rule, false),
        );
        collected.unwrap();
        kept.push(published.unwrap().id);
        let snapshot = Snapshot::open(&server.store, kept.last().unwrap()).await.unwrap();
        let reader = RegionReader::new(
            server.store.clone(),
            ChunkCache::open(&server.scratch(&format!("cache-{round}")), 1 << 30).unwrap(),
        );
        for region in snapshot.processes[0].page_map.regions() {
            reader.read(region).await.unwrap();
        }
    }
    let rule = Keeping(kept.split_off(11));
    collect(&server.store, &mut Seen::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(server.store.list_folders("snapshots/").await.unwrap().len(), 1);
    let again = collect(&server.store, &mut Seen::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(again.total().objects, 0);
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
    let rule = Keeping(vec![published.id.clone()]);
    let dry = collect(&server.store, &mut Seen::default(), &rule, true).await.unwrap();
    assert_eq!((dry.remains.objects, dry.chunks.objects), (1, 1));
    assert!(
        server.keys("chunks/").await.contains(&"chunks/orphan".to_owned()),
        "a dry run removes nothing"
    );
    server.flip(&keys::manifest(&published.id), 200).await;
    let held = collect(&server.store, &mut Seen::default(), &rule, false)
        .await
        .unwrap();
    assert_eq!(held.held_by.first(), Some(&published.id));
    assert_eq!((held.remains.objects, held.chunks.objects), (1, 0));
    let freed = collect(&server.store, &mut Seen::default(), &Keeping(Vec::new()), false)
        .await
        .unwrap();
    assert_eq!(freed.snapshots.objects, 1, "nobody wants it any more");
    assert_eq!(server.keys("").await, Vec::<String>::new());
}
