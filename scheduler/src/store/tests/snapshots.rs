//! Which snapshots are kept, and for how long.

use super::*;

on_either! {
    a_deleted_function_leaves_what_nobody_else_uses,
    old_versions_go_but_not_the_one_that_serves_nor_one_under_way,
    digests_of_snapshots_are_kept_until_they_are_lost,
    a_shared_snapshot_is_kept_as_long_as_one_of_its_versions,
}

async fn digests_of_snapshots_are_kept_until_they_are_lost(place: &TestDatabase) {
    let store = open(place).await;
    let (name, runtime) = ("hello".parse().unwrap(), rekindle_wire::function_config::Base::Python);
    add_live(&store, "hello", Some("s-1")).await;
    let mut spec = store.live_specs().await.unwrap().remove(0);
    assert_eq!(spec.snapshot_digest, None, "of a version that was deployed before");
    spec.snapshot_digest = Some("ab".to_owned());
    store.keep_digest(&spec).await.unwrap();
    let named = |digest: &str| rekindle_wire::internal::RuntimeSnapshot {
        snapshot: "s-2".parse().unwrap(),
        rootfs: spec.rootfs.clone(),
        digest: Some(digest.to_owned()),
    };
    let all = Sharers::Namespace("default");
    for digest in ["cd", "ef"] {
        store.keep_runtime_snapshot(runtime, all, &named(digest)).await.unwrap();
    }
    store
        .keep_runtime_snapshot(runtime, Sharers::Function(&name), &named("01"))
        .await
        .unwrap();
    store.close().await;

    let store = open(place).await;
    assert_eq!(store.live_specs().await.unwrap(), [spec.clone()]);
    let own = Sharers::Function(&name);
    let kept = async |sharers| store.runtime_snapshot(runtime, sharers).await.unwrap();
    assert_eq!(kept(all).await, Some(named("ef")));
    assert_eq!(kept(own).await, Some(named("01")));
    let team = Sharers::Namespace("team");
    assert_eq!(kept(team).await, None, "another namespace shares nothing");
    // A digest that comes late does not bring a lost snapshot back.
    let mut lost = spec.clone();
    (lost.snapshot, lost.snapshot_digest) = (None, None);
    let lose = async |snapshot: &str| {
        let snapshot = snapshot.parse().unwrap();
        store.lose_snapshot(&lost, &snapshot, "damaged").await.unwrap();
    };
    lose("s-0").await;
    let renewed = rekindle_wire::internal::VersionSpec {
        snapshot: Some("s-0".parse().unwrap()),
        ..spec.clone()
    };
    store.keep_digest(&renewed).await.unwrap();
    assert_eq!(
        store.live_specs().await.unwrap(),
        [spec.clone()],
        "what was renewed stays"
    );
    lose("s-1").await;
    store.keep_digest(&spec).await.unwrap();
    assert_eq!(store.live_specs().await.unwrap(), [lost]);
    store.delete_function(&name, 7).await.unwrap();
    assert_eq!(kept(own).await, None);
    assert_eq!(kept(all).await, Some(named("ef")), "it is every function's");
}

async fn a_shared_snapshot_is_kept_as_long_as_one_of_its_versions(place: &TestDatabase) {
    let store = open(place).await;
    let name: FunctionId = "hello".parse().unwrap();
    let source = |code: &'static str, reused: Option<u32>| Source {
        key: "sources/a",
        code: Some(code),
        bytes: None,
        reused: reused.map(|version| Reused {
            version: VersionNumber(version),
            snapshot: true,
        }),
    };
    let ready = async |number: u32| {
        let mut spec = spec("hello", number, 10, 1, 1);
        spec.snapshot = Some("s-1".parse().unwrap());
        store.set_live(&spec, None, None, &[], true).await.unwrap()
    };
    let add = async |source| {
        store
            .add_version(&name, &parsed("hello"), source, 7)
            .await
            .unwrap()
            .info
    };
    add(source("aa", None)).await;
    assert!(ready(1).await);
    let of_code = async |version, code: &str| store.of_code(&name, VersionNumber(version), code).await.unwrap();
    assert_eq!(of_code(1, "ab").await, None);
    assert_eq!(of_code(1, "aa").await.unwrap().reused, None);
    let added = add(source("aa", Some(1))).await;
    assert_eq!(of_code(2, "aa").await, None, "it cannot serve yet");
    assert!(ready(2).await);
    assert_eq!(of_code(2, "aa").await.unwrap().reused, added.reused);
    assert_eq!(
        store.source_key(&name, VersionNumber(2)).await.unwrap().as_deref(),
        Some("sources/a")
    );

    let of_snapshot = async || {
        store
            .kept()
            .await
            .unwrap()
            .into_iter()
            .filter_map(|v| v.spec?.snapshot)
            .count()
    };
    assert_eq!(of_snapshot().await, 2);
    add_live(&store, "hello", None).await;
    let removed = store.remove_too_old(1).await.unwrap();
    assert_eq!(removed, [(name.clone(), VersionNumber(1))], "the second served before");
    assert_eq!(of_snapshot().await, 1);
    // What it was to share is gone.
    let late = add(source("aa", Some(1))).await;
    assert!(!ready(late.version.0).await);
    assert_eq!(store.fail_unfinished().await.unwrap(), 1);
    let left = store.delete_function(&name, 7).await.unwrap().unwrap();
    assert_eq!(left.snapshots, ["s-1".parse().unwrap()]);
    assert_eq!(left.source_keys, ["sources/a", "sources/hello"]);
}

async fn a_deleted_function_leaves_what_nobody_else_uses(place: &TestDatabase) {
    let store = open(place).await;
    add_live(&store, "a", Some("s-1")).await;
    add_live(&store, "a", Some("s-2")).await;
    let shared = store
        .add_version(&"b".parse().unwrap(), &parsed("b"), "sources/a", 7)
        .await
        .unwrap();
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

async fn old_versions_go_but_not_the_one_that_serves_nor_one_under_way(place: &TestDatabase) {
    let store = open(place).await;
    let name: FunctionId = "a".parse().unwrap();
    for _ in 0..3 {
        add_live(&store, "a", Some("s-1")).await;
    }
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    for _ in 0..3 {
        let failed = store
            .add_version(&"a".parse().unwrap(), &parsed("a"), "sources/a", 7)
            .await
            .unwrap()
            .info
            .version;
        store.set_failed(&name, failed, &error, &[]).await.unwrap();
    }
    add_live(&store, "b", None).await;
    let old = |versions: Vec<(FunctionId, VersionNumber)>| -> Vec<u32> {
        let mut numbers: Vec<_> = versions.into_iter().map(|(_, v)| v.0).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(
        old(store.too_old(2).await.unwrap()),
        [1, 4],
        "those that failed are counted apart"
    );
    assert_eq!(store.too_old(10).await.unwrap(), []);
    // The seventh is in preparation: it is among the newest, and is kept however few those are. The third serves.
    store
        .add_version(&"a".parse().unwrap(), &parsed("a"), "sources/a", 7)
        .await
        .unwrap();
    assert_eq!(
        old(store.remove_too_old(1).await.unwrap()),
        [1, 4, 5],
        "a rollback goes to the second"
    );
    assert_eq!(store.remove_too_old(1).await.unwrap(), []);
    let kept = store.kept().await.unwrap();
    let mut kept: Vec<_> = kept
        .iter()
        .map(|k| (k.function.as_str(), k.version.0, k.spec.is_some()))
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, [("a", 2, true), ("a", 3, true), ("a", 7, false), ("b", 1, true)]);
}
