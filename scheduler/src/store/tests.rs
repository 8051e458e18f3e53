//! Each database by itself, closed and opened again: a file, and one on a PostgreSQL server of the tests' own.

use rekindle_wire::api::{Alias, AliasTarget, Canary, CanaryState, PhaseTime, Reused, VersionState};
use rekindle_wire::internal::{Sharers, VersionSpec};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, VersionNumber};

use super::*;
use crate::fixture::{parsed, spec};
use crate::postgres::Postgres;

/// Location of a test's database.
pub(super) struct Place {
    database: Database,
    _dir: Option<tempfile::TempDir>,
}

impl Place {
    fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            database: Database::File(dir.path().join("scheduler.db")),
            _dir: Some(dir),
        }
    }

    /// `None` if PostgreSQL is not installed. One server serves all tests of this process.
    fn server() -> Option<Self> {
        static SERVER: std::sync::OnceLock<Option<Postgres>> = std::sync::OnceLock::new();
        let server = SERVER.get_or_init(Postgres::start).as_ref()?;
        Some(Self {
            database: Database::Postgres(server.database()),
            _dir: None,
        })
    }

    /// Another place of the same kind.
    fn another(&self) -> Self {
        match self.database {
            Database::File(_) => Self::file(),
            Database::Postgres(_) => Self::server().unwrap(),
        }
    }
}

/// Runs the check with a store of every kind.
pub(super) async fn each_database(check: impl AsyncFn(Store)) {
    for place in [Some(Place::file()), Place::server()].into_iter().flatten() {
        let store = open(&place).await;
        check(store.clone()).await;
        store.close().await;
    }
}

async fn open(place: &Place) -> Store {
    Store::open(&place.database).await.unwrap()
}

/// Runs each of these on either database.
macro_rules! on_either {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&super::Place::file()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(place) = super::Place::server() {
                    super::$name(&place).await;
                }
            })+
        }
    };
}

on_either! {
    what_any_earlier_version_wrote_is_there_after_an_upgrade,
    one_of_several_leads_until_it_is_silent_or_steps_down,
    what_was_stored_is_there_after_a_restart,
    only_the_newest_live_whole_version_of_the_same_folder_is_unchanged,
    functions_are_added_and_deleted_at_once,
    a_version_being_prepared_blocks_another_and_a_delete_and_fails_at_a_restart,
    neither_a_uid_nor_a_version_number_is_given_twice,
    a_deleted_function_leaves_what_nobody_else_uses,
    a_rollback_goes_to_the_version_that_served_before_and_outlives_a_restart,
    what_an_alias_names_must_be_there_and_able_to_serve,
    old_versions_go_but_not_the_one_that_serves_nor_one_under_way,
    a_database_has_one_id_for_ever,
    the_first_master_key_is_the_databases_until_another_is_set,
    what_was_counted_is_there_after_a_restart_until_its_function_goes,
    digests_of_snapshots_are_kept_until_they_are_lost,
    a_shared_snapshot_is_kept_as_long_as_one_of_its_versions,
    a_canary_outlives_a_restart_and_is_over_with_whatever_else_sets_live,
    who_is_revoked_stays_revoked,
    functions_of_one_name_in_two_namespaces_have_nothing_in_common,
}

pub(super) async fn add_live(store: &Store, name: &str, snapshot: Option<&str>) -> u32 {
    let added = store
        .add_version(&name.parse().unwrap(), &parsed(name), &format!("sources/{name}"), 7)
        .await
        .unwrap();
    let mut spec = spec(name, added.info.version.0, 10, 1, 1);
    spec.snapshot = snapshot.map(|s| s.parse().unwrap());
    let phases = [PhaseTime {
        phase: VersionState::Building,
        ms: 1.5,
    }];
    store.set_live(&spec, None, None, &phases, true).await.unwrap();
    added.info.version.0
}

async fn digests_of_snapshots_are_kept_until_they_are_lost(place: &Place) {
    let store = open(place).await;
    let (name, runtime) = ("hello".parse().unwrap(), rekindle_wire::manifest::Base::Python);
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
    store.lose_snapshot(&lost, "damaged").await.unwrap();
    store.keep_digest(&spec).await.unwrap();
    assert_eq!(store.live_specs().await.unwrap(), [lost]);
    store.delete_function(&name, 7).await.unwrap();
    assert_eq!(kept(own).await, None);
    assert_eq!(kept(all).await, Some(named("ef")), "it is every function's");
}

async fn a_shared_snapshot_is_kept_as_long_as_one_of_its_versions(place: &Place) {
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

async fn a_canary_outlives_a_restart_and_is_over_with_whatever_else_sets_live(place: &Place) {
    let store = open(place).await;
    let name: FunctionId = "hello".parse().unwrap();
    for _ in 0..2 {
        add_live(&store, "hello", None).await;
    }
    let mut canary = Canary {
        from: VersionNumber(2),
        to: VersionNumber(3),
        steps: "10,50".parse().unwrap(),
        step_s: 60,
        step: 0,
        since_unix_ms: 7,
        state: CanaryState::Growing,
        why: None,
        looks: 0,
        looked_unix_ms: 7,
        checks: Vec::new(),
    };
    let refused = store.begin_canary(&name, &canary).await.unwrap();
    assert!(matches!(refused, Err(NotNamed::NoVersion { .. })), "{refused:?}");
    let added = store
        .add_version(&name, &parsed("hello"), "sources/b", 7)
        .await
        .unwrap();
    let third = spec("hello", added.info.version.0, 10, 1, 1);
    let ready = store.set_live(&third, None, None, &[], Serves::Share(&canary)).await;
    assert!(ready.unwrap());
    store.close().await;

    let store = open(place).await;
    let open = async || store.open_canaries().await.unwrap();
    assert_eq!(open().await, [(name.clone(), canary.clone())]);
    let live = async || {
        let aliases = store.aliases(&name).await.unwrap().into_iter();
        aliases.filter(|alias| alias.name.is_live()).collect::<Vec<_>>()
    };
    assert_eq!(live().await, [canary.alias()]);
    canary.looks = 1;
    store.note_canary(&name, &canary).await.unwrap();
    canary.step = 1;
    assert!(store.move_canary(&name, &canary).await.unwrap().unwrap());
    assert_eq!(
        (open().await, live().await),
        (vec![(name.clone(), canary.clone())], vec![canary.alias()])
    );
    let mut back = canary.clone();
    back.state = CanaryState::RolledBack;
    assert!(store.move_canary(&name, &back).await.unwrap().unwrap());
    assert_eq!(store.canary(&name).await.unwrap(), Some(back));
    assert_eq!(
        (open().await, live().await),
        (vec![], vec![Alias::of(AliasName::live(), VersionNumber(2))])
    );
    // Not to the third version, which was worse.
    let rolled_back = store.roll_back(&name, None, |_| None).await.unwrap().unwrap();
    assert_eq!(rolled_back.to, VersionNumber(1));

    store.begin_canary(&name, &canary).await.unwrap().unwrap();
    store
        .roll_back(&name, Some(VersionNumber(2)), |_| None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(store.canary(&name).await.unwrap().unwrap().state, CanaryState::Replaced);
    canary.step = 0;
    assert!(!store.move_canary(&name, &canary).await.unwrap().unwrap(), "it is over");
    store.note_canary(&name, &canary).await.unwrap();
    assert_eq!(
        store.canary(&name).await.unwrap().unwrap().step,
        1,
        "nothing of it is written"
    );
    store.delete_function(&name, 7).await.unwrap();
    assert_eq!(store.canary(&name).await.unwrap(), None);
}

async fn who_is_revoked_stays_revoked(place: &Place) {
    use rekindle_identity::{Peer, Role};
    let peer = |role, name: &str| Peer {
        role,
        name: name.to_owned(),
    };
    let (worker, gateway) = (peer(Role::Worker, "w-1"), peer(Role::Gateway, "w-1"));
    let store = open(place).await;
    assert_eq!(store.revocations().await.unwrap(), []);
    for (peer, now) in [(&worker, 7), (&gateway, 8), (&worker, 9)] {
        store.revoke(peer, now).await.unwrap();
    }
    store.close().await;
    let all = open(place).await.revocations().await.unwrap();
    assert_eq!(all, [(worker, 7), (gateway, 8)]);
}

async fn functions_of_one_name_in_two_namespaces_have_nothing_in_common(place: &Place) {
    let store = open(place).await;
    let ids: [FunctionId; 2] = ["hello", "hello.team"].map(|id| id.parse().unwrap());
    let [own, other] = &ids;
    let nowhere = store.add_version(other, &parsed("hello"), "sources/b", 7).await;
    assert!(nowhere.is_err(), "there is no such namespace");
    sqlx::query("INSERT INTO namespaces (name, created_unix_s) VALUES ('team', 7)")
        .execute(&store.writes)
        .await
        .unwrap();
    let namespaces = store.namespaces().await.unwrap();
    assert_eq!(namespaces, ["default", "team"].map(|name| name.parse().unwrap()).into());
    let runtime = rekindle_wire::manifest::Base::Python;
    let named = |id: &str| rekindle_wire::internal::RuntimeSnapshot {
        snapshot: id.parse().unwrap(),
        rootfs: spec("hello", 1, 10, 1, 1).rootfs,
        digest: None,
    };
    let snapshots = ["s-1", "s-2"];
    let of = |traffic: u64| {
        let stats = rekindle_wire::stats::StartStats {
            answered: traffic,
            ..Default::default()
        };
        rekindle_wire::stats::Traffic::from([("warm".to_owned(), stats)])
    };
    for (n, (id, snapshot)) in ids.iter().zip(snapshots).enumerate() {
        let source = format!("sources/{n}");
        let added = store.add_version(id, &parsed("hello"), &source, 7).await.unwrap();
        assert_eq!((&added.info.function, added.info.version), (id, VersionNumber(1)));
        let spec = VersionSpec {
            function: id.clone(),
            snapshot: Some(snapshot.parse().unwrap()),
            ..spec("hello", 1, 10, 1, 1)
        };
        store.set_live(&spec, None, None, &[], true).await.unwrap();
        assert!(store.unchanged(id, &source).await.unwrap().is_some());
        store
            .keep_runtime_snapshot(runtime, Sharers::Function(id), &named(snapshot))
            .await
            .unwrap();
        store
            .note_usage(&[(None, id.clone(), of(n as u64))], &[], &[])
            .await
            .unwrap();
        let call = super::calls::tests::new(id.as_str(), Some("key"), 0);
        assert_eq!(store.add_call(&call).await.unwrap(), None, "the other's key is another");
    }
    let listed = store.newest_versions(&"team".parse().unwrap()).await.unwrap();
    assert_eq!(listed.iter().map(|v| &v.function).collect::<Vec<_>>(), [other]);
    let functions = store.functions().await.unwrap();
    assert_eq!(functions.iter().map(|(id, _)| id).collect::<Vec<_>>(), [own, other]);
    assert_ne!(functions[0].1, functions[1].1, "each has a user of its own");
    assert_eq!(store.call_queues().await.unwrap().len(), 2);
    let wanted = Wanted {
        limit: 9,
        ..Wanted::default()
    };
    for (scope, found) in [
        ("*", vec![other, own]),
        ("*.team", vec![other]),
        ("*.default", vec![own]),
        ("hello.team", vec![other]),
        ("nobody", vec![]),
    ] {
        let scope = Some(scope.parse().unwrap());
        let mut calls = store
            .calls(&Wanted {
                scope,
                ..wanted.clone()
            })
            .await
            .unwrap();
        calls.sort_by_key(|call| call.function == *own);
        assert_eq!(calls.iter().map(|call| &call.function).collect::<Vec<_>>(), found);
    }

    let left = store.delete_function(own, 7).await.unwrap().unwrap();
    assert_eq!(left.snapshots, ["s-1".parse().unwrap()]);
    assert_eq!(store.versions(own, 9).await.unwrap(), []);
    assert_eq!(store.versions(other, 9).await.unwrap().len(), 1);
    let kept = async |id: &FunctionId| store.runtime_snapshot(runtime, Sharers::Function(id)).await.unwrap();
    assert_eq!(kept(own).await, None);
    assert_eq!(kept(other).await, Some(named("s-2")));
    assert_eq!(store.invocation_counts().await.unwrap(), [(None, other.clone(), of(1))]);
    let claimed = store.claim_calls(other, 9, "g-1", 50, 90).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert!(
        store.claim_calls(own, 9, "g-1", 50, 90).await.unwrap().is_empty(),
        "given up"
    );
}

async fn what_was_stored_is_there_after_a_restart(place: &Place) {
    let store = open(place).await;
    assert_eq!(add_live(&store, "hello", None).await, 1);
    assert_eq!(add_live(&store, "hello", None).await, 2);
    store.close().await;
    let store = open(place).await;
    let versions = store.versions(&"hello".parse().unwrap(), 50).await.unwrap();
    assert_eq!(versions.iter().map(|v| v.version.0).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(versions[0].state, VersionState::Live);
    assert_eq!(versions[0].phases[0].ms, 1.5);
    assert_eq!(versions[0].manifest, parsed("hello"));
    assert_eq!(store.live_specs().await.unwrap().len(), 2);
    assert_eq!(store.newest_versions(&Namespace::default()).await.unwrap().len(), 1);
}

async fn only_the_newest_live_whole_version_of_the_same_folder_is_unchanged(place: &Place) {
    let store = open(place).await;
    let (name, other) = ("hello".parse().unwrap(), "other".parse().unwrap());
    let unchanged = async |key: &str| store.unchanged(&name, key).await.unwrap().map(|v| v.version.0);
    assert_eq!(unchanged("sources/hello").await, None);
    assert_eq!(add_live(&store, "hello", None).await, 1);
    assert_eq!(add_live(&store, "other", None).await, 1);
    assert_eq!(unchanged("sources/hello").await, Some(1));
    assert_eq!(unchanged("sources/other").await, None, "another function's folder");
    assert_eq!(store.unchanged(&other, "sources/hello").await.unwrap(), None);
    // Another folder, in preparation.
    let next = store
        .add_version(&"hello".parse().unwrap(), &parsed("hello"), "sources/next", 8)
        .await
        .unwrap();
    assert_eq!(unchanged("sources/hello").await, None, "no longer the newest");
    assert_eq!(unchanged("sources/next").await, None, "not live yet");
    let spec = spec("hello", next.info.version.0, 10, 1, 1);
    store
        .set_live(&spec, None, Some("criu failed"), &[], true)
        .await
        .unwrap();
    assert_eq!(unchanged("sources/next").await, None, "a snapshot may be had this time");
}

async fn functions_are_added_and_deleted_at_once(place: &Place) {
    let store = open(place).await;
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

async fn a_version_being_prepared_blocks_another_and_a_delete_and_fails_at_a_restart(place: &Place) {
    let store = open(place).await;
    let name = "hello".parse().unwrap();
    let added = store
        .add_version(&"hello".parse().unwrap(), &parsed("hello"), "sources/a", 7)
        .await
        .unwrap();
    store
        .set_state(&name, added.info.version, VersionState::Building, &[])
        .await
        .unwrap();
    let again = store
        .add_version(&"hello".parse().unwrap(), &parsed("hello"), "sources/b", 8)
        .await;
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
            .add_version(&"hello".parse().unwrap(), &parsed("hello"), "sources/b", 8)
            .await
            .unwrap()
            .info
            .version
            .0,
        2
    );
}

async fn neither_a_uid_nor_a_version_number_is_given_twice(place: &Place) {
    let store = open(place).await;
    let first = store
        .add_version(&"a".parse().unwrap(), &parsed("a"), "sources/a", 7)
        .await
        .unwrap();
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    let name = "a".parse().unwrap();
    store.set_failed(&name, first.info.version, &error, &[]).await.unwrap();
    let other = store
        .add_version(&"b".parse().unwrap(), &parsed("b"), "sources/b", 7)
        .await
        .unwrap();
    assert!(store.delete_function(&name, 0).await.unwrap().is_some());
    let again = store
        .add_version(&"a".parse().unwrap(), &parsed("a"), "sources/a", 7)
        .await
        .unwrap();
    assert_eq!((first.uid, other.uid), (100_001, 100_002));
    assert_eq!(again.uid, 100_003);
    assert_eq!(again.info.version.0, 2);
}

async fn a_deleted_function_leaves_what_nobody_else_uses(place: &Place) {
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

async fn old_versions_go_but_not_the_one_that_serves_nor_one_under_way(place: &Place) {
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

async fn a_rollback_goes_to_the_version_that_served_before_and_outlives_a_restart(place: &Place) {
    let store = open(place).await;
    let name: FunctionId = "a".parse().unwrap();
    let back = async |store: &Store, to: Option<u32>| {
        let done = store.roll_back(&name, to.map(VersionNumber), |_| None).await.unwrap();
        done.map(|done| (done.from.iter().map(|t| t.version.0).collect::<Vec<_>>(), done.to.0))
    };
    assert_eq!(back(&store, None).await, Err(NotNamed::NoFunction));
    add_live(&store, "a", Some("s-1")).await;
    assert_eq!(back(&store, None).await, Err(NotNamed::NothingBefore));
    for snapshot in ["s-2", "s-3"] {
        add_live(&store, "a", Some(snapshot)).await;
    }
    assert_eq!(back(&store, None).await, Ok((vec![3], 2)));
    store.close().await;

    let store = open(place).await;
    let live = |version| (name.clone(), Alias::of(AliasName::live(), VersionNumber(version)));
    assert_eq!(store.all_aliases().await.unwrap(), [live(2)]);
    assert_eq!(back(&store, None).await, Ok((vec![2], 3)), "the third served before");
    assert_eq!(back(&store, Some(1)).await, Ok((vec![3], 1)));
    assert_eq!(back(&store, None).await, Ok((vec![1], 3)));
    assert_eq!(back(&store, Some(3)).await, Err(NotNamed::Serves(VersionNumber(3))));
    // Of two that share the invocations, the newcomer is rolled back.
    let shared = alias("live", &[(2, 10), (3, 90)]);
    assert_eq!(store.set_alias(&name, &shared).await.unwrap(), Ok(()));
    assert_eq!(back(&store, None).await, Ok((vec![2, 3], 3)));
    // A version without traffic has not served.
    let added = store.add_version(&name, &parsed("a"), "sources/a", 7).await.unwrap();
    let ready = spec("a", added.info.version.0, 10, 1, 1);
    store.set_live(&ready, None, None, &[], false).await.unwrap();
    assert_eq!(store.aliases(&name).await.unwrap(), [live(3).1]);
    assert_eq!(back(&store, None).await, Ok((vec![3], 2)));
    assert_eq!(back(&store, Some(4)).await, Ok((vec![2], 4)));
    store.delete_function(&name, 7).await.unwrap().unwrap();
    assert_eq!(store.all_aliases().await.unwrap(), []);
}

async fn what_an_alias_names_must_be_there_and_able_to_serve(place: &Place) {
    let store = open(place).await;
    let name: FunctionId = "a".parse().unwrap();
    for _ in 0..4 {
        add_live(&store, "a", None).await;
    }
    let set = async |named: Alias| store.set_alias(&name, &named).await.unwrap();
    assert_eq!(set(alias("next", &[(1, 1)])).await, Ok(()));
    assert_eq!(
        store.remove_too_old(1).await.unwrap().len(),
        1,
        "an alias names the first, and a rollback goes to the third"
    );
    let missing = |version: u32, was_there| {
        let version = VersionNumber(version);
        Err(NotNamed::NoVersion { version, was_there })
    };
    assert_eq!(set(alias("next", &[(1, 1), (2, 1)])).await, missing(2, true));
    assert_eq!(set(alias("next", &[(5, 1)])).await, missing(5, false));
    assert_eq!(set(alias("next", &[(0, 1)])).await, missing(0, false));
    let failed = store
        .add_version(&name, &parsed("a"), "sources/a", 7)
        .await
        .unwrap()
        .info
        .version;
    let error = ApiError::new(ErrorCode::BuildFailed, "no");
    store.set_failed(&name, failed, &error, &[]).await.unwrap();
    let state = "failed".to_owned();
    let cannot = Err(NotNamed::CannotServe { version: failed, state });
    assert_eq!(set(alias("next", &[(5, 1)])).await, cannot);
    let all = store.aliases(&name).await.unwrap();
    assert_eq!(
        all,
        [alias("live", &[(4, 100)]), alias("next", &[(1, 1)])],
        "nothing has changed"
    );
}

fn alias(name: &str, targets: &[(u32, u32)]) -> Alias {
    let targets = targets.iter().map(|(version, weight)| AliasTarget {
        version: VersionNumber(*version),
        weight: *weight,
    });
    Alias {
        name: name.parse().unwrap(),
        targets: targets.collect(),
    }
}

async fn what_was_counted_is_there_after_a_restart_until_its_function_goes(place: &Place) {
    let store = open(place).await;
    add_live(&store, "hello", None).await;
    let traffic = |answered| {
        let stats = rekindle_wire::stats::StartStats {
            answered,
            errors: [("5xx".to_owned(), 1)].into(),
            latencies: [(1_000, answered), (u64::MAX, 1)].into(),
            ..Default::default()
        };
        rekindle_wire::stats::Traffic::from([("warm".to_owned(), stats)])
    };
    let (one, two) = (
        rekindle_wire::ids::GatewayId::generate(),
        rekindle_wire::ids::GatewayId::generate(),
    );
    let of = |gateway: Option<&rekindle_wire::ids::GatewayId>, name: &str, answered| {
        (gateway.cloned(), name.parse().unwrap(), traffic(answered))
    };
    let histogram = |count| rekindle_retention::Noted {
        bin_ms: 60_000,
        counts: [(5, count)].into(),
        beyond: 1,
        far: vec![300],
    };
    let name: FunctionId = "hello".parse().unwrap();
    let counts = [
        of(Some(&one), "hello", 1),
        of(Some(&two), "hello", 2),
        of(None, "gone", 9),
    ];
    store
        .note_usage(
            &counts,
            &[],
            &[(name.clone(), histogram(1)), ("gone".parse().unwrap(), histogram(1))],
        )
        .await
        .unwrap();
    // The first has ended meanwhile.
    store
        .note_usage(
            &[of(None, "hello", 1), of(Some(&two), "hello", 4)],
            &[one],
            &[(name.clone(), histogram(2))],
        )
        .await
        .unwrap();
    store.close().await;
    let store = open(place).await;
    let mut read = store.invocation_counts().await.unwrap();
    read.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(read, [of(None, "hello", 1), of(Some(&two), "hello", 4)]);
    assert_eq!(store.idle_times().await.unwrap(), [(name.clone(), histogram(2))]);
    store.delete_function(&name, 0).await.unwrap().unwrap();
    assert_eq!(store.invocation_counts().await.unwrap(), []);
    assert_eq!(store.idle_times().await.unwrap(), []);
}

async fn a_database_has_one_id_for_ever(place: &Place) {
    let store = open(place).await;
    let id = store.platform_id().await.unwrap();
    store.close().await;
    assert_eq!(open(place).await.platform_id().await.unwrap(), id);
    let other = place.another();
    assert_ne!(open(&other).await.platform_id().await.unwrap(), id);
}

async fn the_first_master_key_is_the_databases_until_another_is_set(place: &Place) {
    let store = open(place).await;
    assert_eq!(store.master_key("a").await.unwrap(), "a");
    assert_eq!(store.master_key("b").await.unwrap(), "a");
    store.set_master_key("b").await.unwrap();
    assert_eq!(store.master_key("a").await.unwrap(), "b");
}

async fn one_of_several_leads_until_it_is_silent_or_steps_down(place: &Place) {
    let store = open(place).await;
    let lead = async |holder: &str, hold_ms| store.lead(holder, &format!("{holder}:1"), hold_ms).await.unwrap();
    let own = |term| Led::Own { term };
    assert_eq!(lead("a", 60_000).await, own(1));
    assert_eq!(lead("b", 60_000).await, Led::By { address: "a:1".into() });
    assert_eq!(lead("a", 60_000).await, own(1), "it says so again");
    store.step_down("b").await.unwrap();
    assert_eq!(lead("b", 60_000).await, Led::By { address: "a:1".into() });
    store.step_down("a").await.unwrap();
    assert_eq!(lead("b", -1).await, own(2));
    assert_eq!(lead("a", 60_000).await, own(3), "b was silent for too long");
}

async fn what_any_earlier_version_wrote_is_there_after_an_upgrade(place: &Place) {
    let manifest = serde_json::to_string(&parsed("hello")).unwrap();
    let worker: rekindle_wire::WorkerId = "w-1".parse().unwrap();
    for earlier in 1..dialect::MIGRATIONS.len() {
        let place = place.another();
        let old = Store::open_as(&place.database, earlier).await.unwrap();
        // Rows in the tables of each schema version, by the version that created them.
        let rows = [
            (1, "INSERT INTO functions (name, created_unix_s) VALUES ('hello', 7)"),
            (1, "INSERT INTO version_numbers (name, last) VALUES ('hello', 3)"),
            (
                1,
                "INSERT INTO workers (id, address, incarnation, since_unix_s) VALUES ('w-1', 'a:1', '9', 7)",
            ),
            (1, "INSERT INTO functions (name, created_unix_s) VALUES ('gone', 7)"),
            (1, "DELETE FROM functions WHERE name = 'gone'"),
            (2, "INSERT INTO platform (id) VALUES ('p-old')"),
            (
                4,
                "INSERT INTO drained_workers (worker, since_unix_s) VALUES ('w-1', 7)",
            ),
            (
                5,
                "INSERT INTO leader (one, holder, address, until_unix_ms, term) VALUES (1, 'a', 'a:1', 7, 12)",
            ),
            (
                6,
                "INSERT INTO invocation_counts (function_id, gateway, counts) \
                 SELECT id, '', '{\"warm\": {\"answered\": 2, \"latencies\": {}}}' FROM functions",
            ),
            (
                6,
                "INSERT INTO idle_times (function_id, histogram) \
                 SELECT id, '{\"bin_ms\": 60000, \"counts\": {\"5\": 1}, \"beyond\": 1, \"far\": []}' FROM functions",
            ),
            (7, "INSERT INTO master_key (one, id) VALUES (1, 'key')"),
            (
                8,
                "INSERT INTO runtime_snapshots (runtime, function, named) VALUES \
                 ('python', '', '{\"snapshot\": \"s-2\", \"rootfs\": {\"digest\": \"\", \"tar_bytes\": 0}}'), \
                 ('python', 'hello', '{\"snapshot\": \"s-3\", \"rootfs\": {\"digest\": \"\", \"tar_bytes\": 0}}')",
            ),
            (
                9,
                "INSERT INTO renewals (function_id, number, reason, why, since_unix_s, due_unix_s, attempts) \
                 SELECT id, 3, 'asked', 'why', 7, 7, 1 FROM functions",
            ),
            (
                9,
                "INSERT INTO replaced_snapshots (snapshot, function_id, since_unix_s) SELECT 's-1', id, 7 FROM \
                functions",
            ),
            (
                10,
                "INSERT INTO revocations (role, name, since_unix_s) VALUES ('worker', 'w-9', 7)",
            ),
        ];
        for (_, statement) in rows.iter().filter(|(from, _)| *from <= earlier) {
            sqlx::query(*statement).execute(&old.writes).await.unwrap();
        }
        sqlx::query(
            "INSERT INTO versions (function_id, number, state, created_unix_s, manifest, source_key, phases) \
             SELECT id, 3, 'failed', 7, $1, 'sources/a', '[]' FROM functions",
        )
        .bind(&manifest)
        .execute(&old.writes)
        .await
        .unwrap();
        let call = super::calls::tests::new("hello", Some("key"), 7);
        if earlier >= 3 {
            // With a credential as it was stored before credentials were sealed.
            let request = call
                .request
                .replace(r#""headers":[]"#, r#""headers":[["authorization","Bearer a"]]"#);
            sqlx::query(
                "INSERT INTO async_calls (id, function, state, idempotency_key, digest, accepted_unix_ms, due_unix_ms, \
                 expires_unix_ms, max_attempts, attempts, failures, request, body, bytes, callback_attempts) \
                 VALUES ($1, 'hello', 'queued', 'key', 'd', 7, 7, 1007, 3, 0, 0, $2, $3, 9, 0)",
            )
            .bind(call.id.as_str())
            .bind(&request)
            .bind(&b"body"[..])
            .execute(&old.writes)
            .await
            .unwrap();
        }
        old.close().await;
        let store = open(&place).await;
        let version = store
            .version(&"hello".parse().unwrap(), VersionNumber(3))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(version.manifest, parsed("hello"), "from {earlier}");
        assert_eq!(store.platform_id().await.unwrap() == "p-old", earlier >= 2);
        let (hello, python) = ("hello".parse().unwrap(), rekindle_wire::manifest::Base::Python);
        let new = store
            .add_version(&"new".parse().unwrap(), &parsed("new"), "sources/new", 7)
            .await;
        assert_eq!(new.unwrap().uid, 100_003, "no number is given twice");
        assert_eq!(add_live(&store, "hello", None).await, 4);
        let counts = store.invocation_counts().await.unwrap();
        assert_eq!(counts.first().map(|(_, of, _)| of), (earlier >= 6).then_some(&hello));
        let idle = store.idle_times().await.unwrap();
        assert_eq!(idle.first().map(|(of, _)| of), (earlier >= 6).then_some(&hello));
        let key = if earlier >= 7 { "key" } else { "new key" };
        assert_eq!(store.master_key("new key").await.unwrap(), key);
        let all = Sharers::Namespace("default");
        for (sharers, snapshot) in [(all, "s-2"), (Sharers::Function(&hello), "s-3")] {
            let named = store.runtime_snapshot(python, sharers).await.unwrap();
            let named = named.map(|named| named.snapshot.to_string());
            assert_eq!(named.as_deref(), (earlier >= 8).then_some(snapshot));
        }
        let renewing = store.renewing().await.unwrap();
        assert_eq!(renewing.first(), (earlier >= 9).then_some(&(hello, VersionNumber(3))));
        let replaced = store.replaced().await.unwrap();
        assert_eq!(replaced.first(), (earlier >= 9).then_some(&("s-1".parse().unwrap(), 7)));
        assert_eq!(store.revocations().await.unwrap().len(), usize::from(earlier >= 10));
        let queues = store.call_queues().await.unwrap();
        assert_eq!(queues.len(), usize::from(earlier >= 3), "from {earlier}");
        if earlier >= 3 {
            assert!(store.add_call(&call).await.unwrap().is_some(), "its id is known");
            let claimed = store.claim_calls(&call.function, 9, "g-1", 7, 90).await.unwrap();
            let (old, sealed) = (&claimed[0].call, &claimed[0].request_sealed);
            assert_eq!((&old.id, old.body.0.as_ref(), sealed), (&call.id, &b"body"[..], &None));
            assert_eq!(
                old.request.headers.0,
                [("authorization".to_owned(), "Bearer a".to_owned())]
            );
            let mut another = super::calls::tests::new("hello", Some("key"), 8);
            assert_eq!(
                store.add_call(&another).await.unwrap(),
                None,
                "a key without an owner is nobody's"
            );
            another.id = rekindle_wire::CallId::generate();
            assert!(store.add_call(&another).await.unwrap().is_some());
        }
        assert_eq!(store.drained().await.unwrap().contains(&worker), earlier >= 4);
        let term = if earlier >= 5 { 13 } else { 1 };
        assert_eq!(store.lead("b", "b:1", 1_000).await.unwrap(), Led::Own { term });
        store.close().await;
        // Tables of a newer version are left alone.
        let refused = Store::open_as(&place.database, earlier).await;
        assert!(matches!(refused, Err(StoreError::Migrate { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_that_find_an_old_database_at_once_bring_it_up_to_date_once() {
    let Some(place) = Place::server() else { return };
    // As in the first release.
    Store::open_as(&place.database, 1).await.unwrap().close().await;
    let opened = futures::future::join_all((0..4).map(|_| Store::open(&place.database))).await;
    let stores: Vec<Store> = opened.into_iter().map(Result::unwrap).collect();
    assert_eq!(add_live(&stores[0], "hello", None).await, 1);
    assert_eq!(add_live(&stores[3], "hello", None).await, 2);
}

/// The old leader was suspended while another took over, and continues with what it was about to write.
#[tokio::test]
async fn who_was_replaced_writes_no_more() {
    let Some(place) = Place::server() else { return };
    let (old, new, other) = (open(&place).await, open(&place).await, open(&place).await);
    let worker: rekindle_wire::WorkerId = "w-1".parse().unwrap();
    let own = |term| Led::Own { term };
    assert_eq!(old.lead(old.holder(), "a:1", -1).await.unwrap(), own(1));
    old.take_over().await.unwrap();
    old.set_drained(&worker, true, 7).await.unwrap();
    assert_eq!(new.lead(new.holder(), "b:1", 60_000).await.unwrap(), own(2));
    new.take_over().await.unwrap();
    let refused = old.set_drained(&worker, false, 7).await.unwrap_err();
    assert!(matches!(refused, StoreError::Statement { .. }), "{refused:?}");
    assert!(new.drained().await.unwrap().contains(&worker));
    // A standby is connected again at once.
    let by = Led::By { address: "b:1".into() };
    assert_eq!(other.lead(other.holder(), "c:1", 60_000).await.unwrap(), by);
}

/// It won the lead and could not take over in time: the lead is another's for a while, and may be its own later.
#[tokio::test]
async fn who_could_not_take_the_lead_up_stands_by_again() {
    let Some(place) = Place::server() else { return };
    let (late, other) = (open(&place).await, open(&place).await);
    let own = |term| Led::Own { term };
    assert_eq!(late.lead(late.holder(), "a:1", -1).await.unwrap(), own(1));
    late.take_over().await.unwrap();
    assert_eq!(other.lead(other.holder(), "b:1", -1).await.unwrap(), own(2));
    other.take_over().await.unwrap();
    // Its connections are gone, and it is not the holder.
    late.has_not_led();
    assert_eq!(late.lead(late.holder(), "a:1", 60_000).await.unwrap(), own(3));
    late.take_over().await.unwrap();
    late.set_drained(&"w-1".parse().unwrap(), true, 7).await.unwrap();
}

/// Digests of the released migrations, by which existing databases were made.
const RELEASED: [&str; 6] = [
    "a3487ceed1d8f5da",
    "6e4cd6a0026bf858",
    "6612bfbbc4ff8e3a",
    "90b0a12d7bbdea70",
    "ae02875df942f25d",
    "811c69c17cab87c6",
];

/// A released migration never changes: existing databases were made by it.
#[test]
fn released_migrations_are_as_they_were() {
    let digests = dialect::MIGRATIONS.map(|(_, _, sql)| blake3::hash(sql.as_bytes()).to_hex()[..16].to_owned());
    assert_eq!(digests[..RELEASED.len()], RELEASED);
}

#[test]
fn an_address_is_told_without_its_password() {
    let database: Database = "postgres://me:secret@10.0.0.8:5432/rekindle?password=secret"
        .parse()
        .unwrap();
    assert_eq!(format!("{database:?}"), "postgres at 10.0.0.8:5432/rekindle");
    assert!("mysql://x".parse::<Database>().is_err());
}
