//! Databases of earlier versions.

use super::*;

on_either! {
    what_any_earlier_version_wrote_is_there_after_an_upgrade,
}

async fn what_any_earlier_version_wrote_is_there_after_an_upgrade(place: &TestDatabase) {
    let config = serde_json::to_string(&parsed("hello")).unwrap();
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
        .bind(&config)
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
        assert_eq!(version.config, parsed("hello"), "from {earlier}");
        assert_eq!(store.platform_id().await.unwrap() == "p-old", earlier >= 2);
        let (hello, python) = ("hello".parse().unwrap(), rekindle_wire::function_config::Base::Python);
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
        let known = store.known_master_key().await.unwrap().unwrap();
        assert_eq!((known.id.as_str(), known.wrapped), (key, None));
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
        assert_eq!(
            store.lead("b", "b:1", 1_000).await.unwrap(),
            ElectionOutcome::Won { term }
        );
        store.close().await;
        // Tables of a newer version are left alone.
        let refused = Store::open_as(&place.database, earlier).await;
        assert!(matches!(refused, Err(StoreError::Migrate { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_that_find_an_old_database_at_once_bring_it_up_to_date_once() {
    let Some(place) = TestDatabase::server() else { return };
    // As in the first release.
    Store::open_as(&place.database, 1).await.unwrap().close().await;
    let opened = futures::future::join_all((0..4).map(|_| Store::open(&place.database))).await;
    let stores: Vec<Store> = opened.into_iter().map(Result::unwrap).collect();
    assert_eq!(add_live(&stores[0], "hello", None).await, 1);
    assert_eq!(add_live(&stores[3], "hello", None).await, 2);
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
