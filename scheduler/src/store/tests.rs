//! Each database by itself, closed and opened again: a file, and one on a PostgreSQL server of the tests' own.

use rekindle_wire::api::{Alias, AliasTarget, Canary, CanaryState, PhaseTime, Reused, VersionState};
use rekindle_wire::internal::{Sharers, VersionSpec};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, VersionNumber};

use super::*;
use crate::fixture::{parsed, spec};
use crate::postgres::Postgres;

pub(super) struct TestDatabase {
    database: Database,
    _dir: Option<tempfile::TempDir>,
}

impl TestDatabase {
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
    for place in [Some(TestDatabase::file()), TestDatabase::server()]
        .into_iter()
        .flatten()
    {
        let store = open(&place).await;
        check(store.clone()).await;
        store.close().await;
    }
}

async fn open(place: &TestDatabase) -> Store {
    Store::open(&place.database).await.unwrap()
}

/// Runs each of these on either database.
macro_rules! on_either {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&super::TestDatabase::file()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(place) = super::TestDatabase::server() {
                    super::$name(&place).await;
                }
            })+
        }
    };
}

mod aliases;
mod leader;
mod snapshots;
mod upgrade;

on_either! {
    what_was_stored_is_there_after_a_restart,
    only_the_newest_live_whole_version_of_the_same_folder_is_unchanged,
    functions_are_added_and_deleted_at_once,
    a_version_being_prepared_blocks_another_and_a_delete_and_fails_at_a_restart,
    neither_a_uid_nor_a_version_number_is_given_twice,
    a_database_has_one_id_for_ever,
    the_first_master_key_is_the_databases_until_another_is_set,
    a_wrapped_master_key_is_kept_once_and_changes_with_its_id_alone,
    what_was_counted_is_there_after_a_restart_until_its_function_goes,
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

async fn who_is_revoked_stays_revoked(place: &TestDatabase) {
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

async fn functions_of_one_name_in_two_namespaces_have_nothing_in_common(place: &TestDatabase) {
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
    let runtime = rekindle_wire::function_config::Base::Python;
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
    let wanted = CallQuery {
        limit: 9,
        ..CallQuery::default()
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
            .calls(&CallQuery {
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

async fn what_was_stored_is_there_after_a_restart(place: &TestDatabase) {
    let store = open(place).await;
    assert_eq!(add_live(&store, "hello", None).await, 1);
    assert_eq!(add_live(&store, "hello", None).await, 2);
    store.close().await;
    let store = open(place).await;
    let versions = store.versions(&"hello".parse().unwrap(), 50).await.unwrap();
    assert_eq!(versions.iter().map(|v| v.version.0).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(versions[0].state, VersionState::Live);
    assert_eq!(versions[0].phases[0].ms, 1.5);
    assert_eq!(versions[0].config, parsed("hello"));
    assert_eq!(store.live_specs().await.unwrap().len(), 2);
    assert_eq!(store.newest_versions(&Namespace::default()).await.unwrap().len(), 1);
}

async fn only_the_newest_live_whole_version_of_the_same_folder_is_unchanged(place: &TestDatabase) {
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

async fn functions_are_added_and_deleted_at_once(place: &TestDatabase) {
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

async fn a_version_being_prepared_blocks_another_and_a_delete_and_fails_at_a_restart(place: &TestDatabase) {
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

async fn neither_a_uid_nor_a_version_number_is_given_twice(place: &TestDatabase) {
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

async fn what_was_counted_is_there_after_a_restart_until_its_function_goes(place: &TestDatabase) {
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
    let histogram = |count| rekindle_retention::StoredHistogram {
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

async fn a_database_has_one_id_for_ever(place: &TestDatabase) {
    let store = open(place).await;
    let id = store.platform_id().await.unwrap();
    store.close().await;
    assert_eq!(open(place).await.platform_id().await.unwrap(), id);
    let other = place.another();
    assert_ne!(open(&other).await.platform_id().await.unwrap(), id);
}

async fn the_first_master_key_is_the_databases_until_another_is_set(place: &TestDatabase) {
    let store = open(place).await;
    assert_eq!(store.master_key("a").await.unwrap(), "a");
    assert_eq!(store.master_key("b").await.unwrap(), "a");
    store.set_master_key("b").await.unwrap();
    assert_eq!(store.master_key("a").await.unwrap(), "b");
}

async fn a_wrapped_master_key_is_kept_once_and_changes_with_its_id_alone(place: &TestDatabase) {
    let store = open(place).await;
    assert_eq!(store.known_master_key().await.unwrap(), None);
    let wrapped = |by: &str| rekindle_envelope::WrappedKey {
        by: by.to_owned(),
        cluster: "blue".to_owned(),
        bytes: vec![0, 255, 7],
    };
    store.add_wrapped_key("a", &wrapped("first")).await.unwrap();
    store.add_wrapped_key("b", &wrapped("second")).await.unwrap();
    store.set_wrapped_key("b", &wrapped("third")).await.unwrap();
    store.close().await;
    let store = open(place).await;
    let is = async |by: &str| {
        let known = store.known_master_key().await.unwrap().unwrap();
        assert_eq!((known.id.as_str(), known.wrapped), ("a", Some(wrapped(by))));
    };
    is("first").await;
    store.set_wrapped_key("a", &wrapped("third")).await.unwrap();
    is("third").await;
}

#[test]
fn an_address_is_told_without_its_password() {
    let database: Database = "postgres://me:secret@10.0.0.8:5432/rekindle?password=secret"
        .parse()
        .unwrap();
    assert_eq!(format!("{database:?}"), "postgres at 10.0.0.8:5432/rekindle");
    assert!("mysql://x".parse::<Database>().is_err());
}
