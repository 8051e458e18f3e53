//! The database on a file of its own, closed and opened again.

use rekindle_wire::api::{PhaseTime, VersionState};
use rekindle_wire::{ApiError, ErrorCode, VersionNumber};

use super::*;
use crate::fixture::{parsed, spec};

async fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(&dir.path().join("scheduler.db")).await.unwrap()
}

/// Does this with a store of every kind.
pub(super) async fn each_database(check: impl AsyncFn(Store)) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    check(store.clone()).await;
    store.close().await;
}

async fn add_live(store: &Store, name: &str, snapshot: Option<&str>) -> u32 {
    let added = store
        .add_version(&parsed(name), &format!("sources/{name}"), 7)
        .await
        .unwrap();
    let mut spec = spec(name, added.info.version.0, 10, 1, 1);
    spec.snapshot = snapshot.map(|s| s.parse().unwrap());
    let phases = [PhaseTime {
        phase: VersionState::Building,
        ms: 1.5,
    }];
    store.set_live(&spec, None, None, &phases).await.unwrap();
    added.info.version.0
}

#[tokio::test]
async fn what_was_stored_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    assert_eq!(add_live(&store, "hello", None).await, 1);
    assert_eq!(add_live(&store, "hello", None).await, 2);
    store.close().await;
    let store = open(&dir).await;
    let versions = store.versions(&"hello".parse().unwrap(), 50).await.unwrap();
    assert_eq!(versions.iter().map(|v| v.version.0).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(versions[0].state, VersionState::Live);
    assert_eq!(versions[0].phases[0].ms, 1.5);
    assert_eq!(versions[0].manifest, parsed("hello"));
    assert_eq!(store.live_specs().await.unwrap().len(), 2);
    assert_eq!(store.newest_versions().await.unwrap().len(), 1);
}

#[tokio::test]
async fn only_the_newest_live_whole_version_of_the_same_folder_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let (name, other) = ("hello".parse().unwrap(), "other".parse().unwrap());
    let unchanged = async |key: &str| store.unchanged(&name, key).await.unwrap().map(|v| v.version.0);
    assert_eq!(unchanged("sources/hello").await, None);
    assert_eq!(add_live(&store, "hello", None).await, 1);
    assert_eq!(add_live(&store, "other", None).await, 1);
    assert_eq!(unchanged("sources/hello").await, Some(1));
    assert_eq!(unchanged("sources/other").await, None, "another function's folder");
    assert_eq!(store.unchanged(&other, "sources/hello").await.unwrap(), None);
    // Another folder, under way.
    let next = store.add_version(&parsed("hello"), "sources/next", 8).await.unwrap();
    assert_eq!(unchanged("sources/hello").await, None, "no longer the newest");
    assert_eq!(unchanged("sources/next").await, None, "not live yet");
    let spec = spec("hello", next.info.version.0, 10, 1, 1);
    store.set_live(&spec, None, Some("criu failed"), &[]).await.unwrap();
    assert_eq!(unchanged("sources/next").await, None, "a snapshot may be had this time");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_are_added_and_deleted_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let rounds = (0..4).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let name = format!("hello-{n}");
            for _ in 0..25 {
                add_live(&store, &name, None).await;
                assert!(store.uses_source(&format!("sources/{name}")).await.unwrap());
                let left = store.delete_function(&name.parse().unwrap(), 0).await.unwrap();
                assert_eq!(left.unwrap().source_keys, [format!("sources/{name}")]);
            }
        })
    });
    for round in futures::future::join_all(rounds).await {
        round.unwrap();
    }
}

#[tokio::test]
async fn a_version_being_prepared_blocks_another_and_a_delete_and_fails_at_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let name = "hello".parse().unwrap();
    let added = store.add_version(&parsed("hello"), "sources/a", 7).await.unwrap();
    store
        .set_state(&name, added.info.version, VersionState::Building, &[])
        .await
        .unwrap();
    let again = store.add_version(&parsed("hello"), "sources/b", 8).await;
    assert!(matches!(again, Err(StoreError::Busy(_))), "{again:?}");
    assert!(matches!(
        store.delete_function(&name, 0).await,
        Err(StoreError::Busy(_))
    ));
    assert_eq!(store.fail_unfinished().await.unwrap(), 1);
    let version = store.version(&name, VersionNumber(1)).await.unwrap().unwrap();
    assert_eq!(version.state, VersionState::Failed);
    let error = version.error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("deploy again"), "{error}");
    assert_eq!(
        store
            .add_version(&parsed("hello"), "sources/b", 8)
            .await
            .unwrap()
            .info
            .version
            .0,
        2
    );
}

#[tokio::test]
async fn neither_a_uid_nor_a_version_number_is_given_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let first = store.add_version(&parsed("a"), "sources/a", 7).await.unwrap();
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    let name = "a".parse().unwrap();
    store.set_failed(&name, first.info.version, &error, &[]).await.unwrap();
    let other = store.add_version(&parsed("b"), "sources/b", 7).await.unwrap();
    assert!(store.delete_function(&name, 0).await.unwrap().is_some());
    let again = store.add_version(&parsed("a"), "sources/a", 7).await.unwrap();
    assert_eq!((first.uid, other.uid), (100_001, 100_002));
    assert_eq!(again.uid, 100_003);
    assert_eq!(again.info.version.0, 2);
}

#[tokio::test]
async fn a_deleted_function_leaves_what_nobody_else_uses() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    add_live(&store, "a", Some("s-1")).await;
    add_live(&store, "a", Some("s-2")).await;
    let shared = store.add_version(&parsed("b"), "sources/a", 7).await.unwrap();
    let left = store.delete_function(&"a".parse().unwrap(), 0).await.unwrap().unwrap();
    assert_eq!(left.snapshots, ["s-1".parse().unwrap(), "s-2".parse().unwrap()]);
    assert!(left.source_keys.is_empty(), "b uses the same upload");
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    store
        .set_failed(&shared.info.function, shared.info.version, &error, &[])
        .await
        .unwrap();
    let left = store.delete_function(&"b".parse().unwrap(), 0).await.unwrap().unwrap();
    assert_eq!(left.source_keys, ["sources/a"]);
    assert_eq!(store.delete_function(&"b".parse().unwrap(), 0).await.unwrap(), None);
    assert!(store.functions().await.unwrap().is_empty());
}

#[tokio::test]
async fn old_versions_go_but_not_the_one_that_serves_nor_one_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let name: rekindle_wire::FunctionName = "a".parse().unwrap();
    for _ in 0..3 {
        add_live(&store, "a", Some("s-1")).await;
    }
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    for _ in 0..3 {
        let failed = store
            .add_version(&parsed("a"), "sources/a", 7)
            .await
            .unwrap()
            .info
            .version;
        store.set_failed(&name, failed, &error, &[]).await.unwrap();
    }
    add_live(&store, "b", None).await;
    let old = |versions: Vec<(rekindle_wire::FunctionName, VersionNumber)>| -> Vec<u32> {
        let mut numbers: Vec<_> = versions.into_iter().map(|(_, v)| v.0).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(old(store.too_old(2).await.unwrap()), [1, 2, 4], "the third serves");
    assert_eq!(store.too_old(10).await.unwrap(), []);
    // The seventh is under way: it is among the newest, and is kept however few that are.
    store.add_version(&parsed("a"), "sources/a", 7).await.unwrap();
    assert_eq!(old(store.remove_too_old(1).await.unwrap()), [1, 2, 4, 5, 6]);
    assert_eq!(store.remove_too_old(1).await.unwrap(), []);
    let kept = store.kept().await.unwrap();
    let mut kept: Vec<_> = kept
        .iter()
        .map(|k| (k.function.as_str(), k.version.0, k.spec.is_some()))
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, [("a", 3, true), ("a", 7, false), ("b", 1, true)]);
}

#[tokio::test]
async fn a_database_has_one_id_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let id = store.platform_id().await.unwrap();
    store.close().await;
    assert_eq!(open(&dir).await.platform_id().await.unwrap(), id);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(open(&other).await.platform_id().await.unwrap(), id);
}
