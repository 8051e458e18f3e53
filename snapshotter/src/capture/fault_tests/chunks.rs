//! Chunks that rot, go away, or are put by several.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_rots_or_goes_away_is_an_error_that_names_it() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let [key] = &captured.server.keys("chunks/").await[..] else {
        panic!("one chunk")
    };
    let good = captured.server.store.get(key).await.unwrap();
    for at in (0..good.len()).step_by(good.len() / 7) {
        captured.server.flip(key, at).await;
        let cache = captured.server.scratch("cache");
        let error = captured
            .read_all(&snapshot, &captured.reader(&cache))
            .await
            .unwrap_err();
        assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
        assert!(key.ends_with(&error.to_string()[6..70]), "{error}");
        assert!(files(&cache).is_empty(), "a corrupt chunk is never cached");
        captured.server.store.put(key, good.clone()).await.unwrap();
    }
    captured.server.store.delete(key).await.unwrap();
    let cache = captured.server.scratch("cache");
    let error = captured
        .read_all(&snapshot, &captured.reader(&cache))
        .await
        .unwrap_err();
    let ReadError::Fetch { cause, .. } = &error else {
        panic!("{error}")
    };
    assert!(cause.is_not_found());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_chunk_that_rots_is_fetched_again() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let dir = captured.server.scratch("cache");
    let reader = captured.reader(&dir);
    captured.read_all(&snapshot, &reader).await.unwrap();
    reader.settled().await;
    let (name, good) = files(&dir).pop_first().unwrap();
    let path = dir.join(name);
    let spoil: [&dyn Fn(); 3] = [
        &|| {
            let mut bytes = good.clone();
            bytes.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
            std::fs::write(&path, bytes).unwrap();
        },
        &|| std::fs::write(&path, &good[..good.len() / 3]).unwrap(),
        &|| std::fs::remove_file(&path).unwrap(),
    ];
    for spoil in spoil {
        spoil();
        assert_eq!(captured.read_all(&snapshot, &reader).await.unwrap(), captured.memory);
        reader.settled().await;
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_of_one_chunk_fetch_it_once_and_a_second_reader_finds_it_on_disk() {
    let captured = capture().await;
    let snapshot = captured.open().await;
    let wire = Wire::to(captured.server.address, u64::MAX).await;
    let store = connect(config(wire.address)).await;
    let dir = captured.server.scratch("cache");
    let reader = RegionReader::new(store.clone(), ChunkCache::open(&dir, 64 << 20).unwrap());
    let regions = snapshot.processes[0].page_map.regions();
    let reads = (0..20).flat_map(|_| regions).map(|region| reader.read(region));
    for read in futures::future::join_all(reads).await {
        read.unwrap();
    }
    let chunk = regions.iter().find_map(|r| r.payload).unwrap().chunk;
    let received = wire.received();
    assert!(
        received > u64::from(chunk.len) && received < u64::from(chunk.len) * 3 / 2,
        "{received}"
    );

    let whole = async |reader: &RegionReader| {
        let (give, given) = std::sync::mpsc::channel();
        let take = move |_, plain: &[u8]| give.send(plain.to_vec()).unwrap();
        reader.read_chunk(chunk, regions.into(), take).await.unwrap();
        given.into_iter().collect::<Vec<_>>()
    };
    reader.settled().await;
    assert_eq!(whole(&reader).await.concat(), captured.memory);
    assert_eq!(wire.received(), received, "all from disk");
    let later = RegionReader::new(store.clone(), ChunkCache::open(&dir, 64 << 20).unwrap());
    let local: Option<Vec<Bytes>> = regions.iter().map(|r| later.read_local(r)).collect();
    assert_eq!(local.unwrap().concat(), captured.memory);
    later.bring(chunk).await.unwrap();
    assert_eq!(wire.received(), received, "all from disk");

    // A chunk that rots is fetched again, and regions given before are given again.
    let path = dir.join(chunk.id.to_string());
    let mut rotten = std::fs::read(&path).unwrap();
    *rotten.last_mut().unwrap() ^= 1;
    std::fs::write(&path, rotten).unwrap();
    let given = whole(&later).await;
    assert!(given.len() > regions.len(), "{}", given.len());
    assert_eq!(given[given.len() - regions.len()..].concat(), captured.memory);
    assert!(wire.received() > received, "from the store");
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_of_a_missing_chunk_are_stored_again_and_a_taken_id_is_left_alone() {
    let captured = capture().await;
    let server = &captured.server;
    let index = RegionIndex::new();
    index.seed(&server.store).await.unwrap();
    assert!(!index.is_empty());
    let [chunk] = &server.keys("chunks/").await[..] else {
        panic!("one chunk")
    };
    server.store.delete(chunk).await.unwrap();
    let dump = server.dir.path().join("dump");
    let again = publish(&server.store, &index, &dump, meta()).await.unwrap();
    assert_eq!(server.keys("chunks/").await, std::slice::from_ref(chunk));
    assert_ne!(again.summary.shared_bytes, again.summary.stored_bytes);

    let mut taken = meta();
    taken.id = captured.published.id.clone();
    let before = server.store.get(&keys::manifest(&taken.id)).await.unwrap();
    let other = server.scratch("other");
    small_dump(&other, &noise(4096, 77));
    let error = publish(&server.store, &index, &other, taken).await.unwrap_err();
    assert!(matches!(error, PublishError::IdTaken(_)), "{error}");
    assert_eq!(
        server.store.get(&keys::manifest(&captured.published.id)).await.unwrap(),
        before
    );
    assert_eq!(
        captured
            .read_all(&captured.open().await, &captured.reader(&server.scratch("cache")))
            .await
            .unwrap(),
        captured.memory
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_is_corrupt_is_put_by_another_name_by_the_next_publish() {
    let captured = capture().await;
    let server = &captured.server;
    let index = RegionIndex::new();
    index.seed(&server.store).await.unwrap();
    let dump = server.dir.path().join("dump");
    // The index has seen the chunk and refers to it.
    let twin = publish(&server.store, &index, &dump, meta()).await.unwrap();
    assert_eq!(twin.summary.shared_bytes, twin.summary.stored_bytes);
    let [key] = &server.keys("chunks/").await[..] else {
        panic!("one chunk")
    };
    server.flip(key, 1000).await;
    let cache = ChunkCache::open(&server.scratch("cache"), 64 << 20).unwrap();
    let reader = RegionReader::new(server.store.clone(), cache);
    let snapshot = captured.open().await;
    let error = captured.read_all(&snapshot, &reader).await.unwrap_err();
    let ReadError::Corrupt { chunk, .. } = error else {
        panic!("{error}")
    };
    index.forget(&[chunk].into());
    let again = publish(&server.store, &index, &dump, meta()).await.unwrap();
    assert_ne!(again.summary.shared_bytes, again.summary.stored_bytes);
    let is_whole = async |published: &Published| {
        let snapshot = Snapshot::open(&server.store, &published.id).await.unwrap();
        let read = captured.read_all(&snapshot, &reader).await;
        assert_eq!(read.unwrap(), captured.memory);
    };
    is_whole(&again).await;
    assert_eq!(server.keys("chunks/").await.len(), 2);

    // So does a worker that knows nothing, whatever length the existing object has. It leaves that object alone,
    // because the store may have it.
    let junk = Bytes::from_static(b"junk");
    for taken in server.keys("chunks/").await {
        server.store.put(&taken, junk.clone()).await.unwrap();
    }
    let third = publish(&server.store, &RegionIndex::new(), &dump, meta()).await;
    is_whole(&third.unwrap()).await;
    assert_eq!(server.keys("chunks/").await.len(), 3);
    assert_eq!(server.store.get(key).await.unwrap(), junk);

    // An existing object with the right bytes is used.
    let fourth = publish(&server.store, &RegionIndex::new(), &dump, meta()).await;
    is_whole(&fourth.unwrap()).await;
    assert_eq!(server.keys("chunks/").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_seen_by_an_earlier_publish_is_looked_up_again_by_the_next() {
    let captured = capture().await;
    let server = &captured.server;
    let index = RegionIndex::new();
    index.seed(&server.store).await.unwrap();
    let dump = server.dir.path().join("dump");
    publish(&server.store, &index, &dump, meta()).await.unwrap();
    let [key] = &server.keys("chunks/").await[..] else {
        panic!("one chunk")
    };
    let good = server.store.get(key).await.unwrap();
    server.store.delete(key).await.unwrap();
    publish(&server.store, &index, &dump, meta()).await.unwrap();
    assert_eq!(server.store.get(key).await.unwrap(), good);
    // A truncated object is not accepted, and is left alone.
    server.store.put(key, good.slice(..good.len() / 2)).await.unwrap();
    let whole = publish(&server.store, &index, &dump, meta()).await.unwrap();
    let snapshot = Snapshot::open(&server.store, &whole.id).await.unwrap();
    let reader = captured.reader(&server.scratch("cache"));
    assert_eq!(captured.read_all(&snapshot, &reader).await.unwrap(), captured.memory);
    assert_eq!(server.store.get(key).await.unwrap().len(), good.len() / 2);
}
