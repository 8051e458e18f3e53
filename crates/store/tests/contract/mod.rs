//! The suite that every store passes: the directory here, and S3 servers in `rekindle-store-s3`.

use bytes::Bytes;
use rekindle_store::{ObjectInfo, Outcome, Store};
use tokio::sync::mpsc;

/// Bytes without any pattern.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        // Knuth's MMIX.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// All pieces of an object, and whether the end was marked.
async fn pieces(store: &Store, key: &str) -> (Vec<u8>, bool) {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(2);
    let receive = async {
        let mut all = Vec::new();
        while let Some(piece) = receiver.recv().await {
            if piece.is_empty() {
                return (all, true);
            }
            all.extend_from_slice(&piece);
        }
        (all, false)
    };
    let (sent, received) = tokio::join!(store.get_pieces(key, sender), receive);
    assert_eq!(sent.is_ok(), received.1, "{sent:?}");
    received
}

/// What the platform requires of every store. `scratch` is a directory for its files.
pub(crate) async fn keeps_the_contract(store: &Store, scratch: &std::path::Path) {
    store.ensure_place().await.unwrap();
    store.check().await.unwrap();

    // Whole, in part, absent.
    let body = Bytes::from(noise(100_000, 1));
    store.put("a/one", body.clone()).await.unwrap();
    assert_eq!(store.get("a/one").await.unwrap(), body);
    assert_eq!(store.get_range("a/one", 500..700).await.unwrap(), body.slice(500..700));
    assert_eq!(
        store.get_range("a/one", 99_999..100_000).await.unwrap(),
        body.slice(99_999..)
    );
    assert_eq!(store.get_range("a/one", 7..7).await.unwrap(), Bytes::new());
    assert!(
        store.get_range("a/one", 99_999..100_001).await.is_err(),
        "a range beyond the end is no short answer"
    );
    assert_eq!(store.head("a/one").await.unwrap().len, 100_000);
    assert_eq!(store.get_at_most("a/one", 100_000).await.unwrap(), body);
    assert!(matches!(
        store.get_at_most("a/one", 99_999).await,
        Err(rekindle_store::StoreError::TooLarge {
            bytes: 100_000,
            most: 99_999,
            ..
        })
    ));
    assert!(store.get_at_most("a/none", 1).await.unwrap_err().is_not_found());
    store.put("a/empty", Bytes::new()).await.unwrap();
    assert_eq!(store.get_at_most("a/empty", 0).await.unwrap(), Bytes::new());
    assert_eq!(store.get("a/empty").await.unwrap(), Bytes::new());
    for missing in [
        store.get("a/none").await.map(drop),
        store.head("a/none").await.map(drop),
    ] {
        let missing = missing.unwrap_err();
        assert!(
            missing.is_not_found() && missing.to_string().contains("a/none"),
            "{missing}"
        );
    }

    // Exactly one wins.
    let race = (0..16_u8).map(|n| store.put_if_absent("a/race", Bytes::from(vec![n; 5000])));
    let outcomes: Vec<_> = futures::future::join_all(race)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let winners: Vec<_> = (0..16_u8)
        .filter(|n| outcomes[usize::from(*n)] == Outcome::Created)
        .collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert_eq!(store.get("a/race").await.unwrap(), vec![winners[0]; 5000]);

    // Files, in one piece and in parts.
    for (name, len) in [("small", 10_000), ("large", 35 << 20)] {
        let (from, to) = (scratch.join(name), scratch.join(format!("{name}.back")));
        let bytes = noise(len, 2);
        std::fs::write(&from, &bytes).unwrap();
        let key = format!("files/{name}");
        assert_eq!(store.put_file(&key, &from).await.unwrap(), len as u64);
        assert_eq!(store.get_to_file(&key, &to).await.unwrap(), len as u64);
        assert!(std::fs::read(&to).unwrap() == bytes, "{name} came back changed");
        assert!(
            pieces(store, &key).await == (bytes, true),
            "{name} came in pieces and changed"
        );
        // An existing object is never overwritten, and its contents can be checked.
        let other = scratch.join(format!("{name}.other"));
        std::fs::write(&other, noise(len, 3)).unwrap();
        let put = store.put_file_if_absent(&key, &other).await.unwrap();
        assert_eq!(put, Outcome::AlreadyPresent, "{name}");
        assert!(store.has_file(&key, &from).await.unwrap(), "{name} was replaced");
        assert!(!store.has_file(&key, &other).await.unwrap(), "{name}");
        std::fs::write(&other, noise(len - 1, 2)).unwrap();
        assert!(!store.has_file(&key, &other).await.unwrap(), "{name} is longer");
        let free = format!("once/{name}");
        let put = store.put_file_if_absent(&free, &from).await.unwrap();
        assert_eq!(put, Outcome::Created, "{name}");
        store.delete(&free).await.unwrap();
    }
    let nowhere = scratch.join("nowhere");
    assert!(
        store
            .get_to_file("files/none", &nowhere)
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert!(!nowhere.exists());
    assert_eq!(pieces(store, "files/none").await, (Vec::new(), false));

    // Listings.
    let keys = |found: Vec<ObjectInfo>| found.into_iter().map(|o| (o.key, o.len)).collect::<Vec<_>>();
    let files = [("files/large".to_owned(), 35 << 20), ("files/small".to_owned(), 10_000)];
    assert_eq!(keys(store.list("files/").await.unwrap()), files);
    assert_eq!(store.list("").await.unwrap().len(), 5);
    assert_eq!(store.list_folders("").await.unwrap(), ["a", "files"]);
    assert!(store.list("none/").await.unwrap().is_empty());

    store.delete("a/one").await.unwrap();
    store.delete("a/one").await.unwrap();
    assert!(store.get("a/one").await.unwrap_err().is_not_found());
}
