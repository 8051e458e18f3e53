//! Asynchronous invocations in each database: claims, fences, endings, expiry.

use rekindle_wire::asynchronous::{CallState, Encoded, Headers, InvocationKind, StoredRequest, StoredResponse};
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId};

use super::*;
use crate::store::tests::each_database;

mod posts;

pub(crate) fn new(function: &str, key: Option<&str>, now: i64) -> NewRow {
    let request = StoredRequest {
        method: "POST".into(),
        path: "/".into(),
        invocation: InvocationKind::Http,
        headers: Headers::default(),
        request_id: "r-1".into(),
        peer: "127.0.0.1".parse().unwrap(),
    };
    NewRow {
        id: CallId::generate(),
        function: function.parse().unwrap(),
        idempotency_key: key.map(str::to_owned),
        owner: "request:o".into(),
        digest: "d".into(),
        accepted_unix_ms: now,
        expires_unix_ms: now + 1_000,
        max_attempts: 3,
        request: serde_json::to_string(&request).unwrap(),
        request_sealed: None,
        body: vec![0, 255, 7],
        callback: None,
        on_success: None,
        on_failure: None,
    }
}

fn answer(body: &'static [u8]) -> StoredResponse {
    StoredResponse {
        status: 200,
        headers: Headers::default(),
        body: Encoded(body.into()),
        body_dropped: false,
    }
}

fn no() -> ApiError {
    ApiError::new(ErrorCode::FunctionError, "no")
}

async fn state(store: &Store, id: &CallId) -> Option<CallState> {
    store.call(id).await.unwrap().map(|c| c.call.state)
}

/// Makes the function, before any call.
async fn has_function(store: &Store, name: &str) {
    sqlx::query("INSERT INTO functions (name, created_unix_s) VALUES ($1, 0)")
        .bind(name)
        .execute(&store.writes)
        .await
        .unwrap();
}

fn hello() -> FunctionId {
    "hello".parse().unwrap()
}

#[tokio::test]
async fn a_call_is_claimed_once_in_the_order_of_its_due_time_and_its_answer_is_kept() {
    each_database(async |store| {
        let (later, first) = (new("hello", None, 20), new("hello", None, 10));
        for call in [&later, &first] {
            assert_eq!(store.add_call(call).await.unwrap(), None);
        }
        assert!(
            store
                .claim_calls(&"other".parse().unwrap(), 9, "g-1", 50, 90)
                .await
                .unwrap()
                .is_empty()
        );
        assert!(
            store.claim_calls(&hello(), 9, "g-1", 5, 90).await.unwrap().is_empty(),
            "none is due"
        );
        let claimed = store.claim_calls(&hello(), 1, "g-1", 50, 90).await.unwrap();
        assert_eq!(
            (&claimed[0].call.id, claimed[0].call.attempt, claimed.len()),
            (&first.id, 1, 1)
        );
        assert_eq!(claimed[0].call.body.0.as_ref(), [0, 255, 7]);
        assert_eq!(
            store.claim_calls(&hello(), 9, "g-2", 50, 90).await.unwrap()[0].call.id,
            later.id
        );
        let done = CallDisposition::Done {
            answer: answer(b"yes\0"),
        };
        assert!(store.end_call(&first.id, 1, &done, None, 60).await.unwrap());
        assert!(
            !store.end_call(&first.id, 1, &done, None, 60).await.unwrap(),
            "it is over"
        );
        let result = store.call_with_answer(&first.id).await.unwrap().unwrap().result();
        assert_eq!((result.state, result.answer), (CallState::Done, Some(answer(b"yes\0"))));
        let queues = store.call_queues().await.unwrap();
        assert_eq!(
            (
                queues.len(),
                queues[0].1.queued,
                queues[0].1.running,
                queues[0].1.oldest_unix_ms
            ),
            (1, 0, 1, 20)
        );
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_sent_again_since_nobody_answered_is_kept_once() {
    each_database(async |store| {
        let call = new("hello", None, 10);
        assert_eq!(store.add_call(&call).await.unwrap(), None);
        let same = EarlierCall {
            id: call.id.clone(),
            digest: "d".to_owned(),
        };
        assert_eq!(store.add_call(&call).await.unwrap(), Some(same));
        assert_eq!(store.call_queues().await.unwrap()[0].1.queued, 1);
        // Without a key nothing else makes two calls the same.
        assert_eq!(store.add_call(&new("hello", None, 10)).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn who_comes_late_with_an_older_attempt_changes_nothing() {
    each_database(async |store| {
        let call = new("hello", None, 0);
        store.add_call(&call).await.unwrap();
        store.claim_calls(&hello(), 1, "g-1", 0, 10).await.unwrap();
        store.renew_calls("g-1", &[(call.id.clone(), 1)], 20).await.unwrap();
        store.renew_calls("g-2", &[(call.id.clone(), 1)], 99).await.unwrap();
        assert!(store.release_lost_calls(19).await.unwrap().is_empty(), "it was renewed");
        assert_eq!(store.release_lost_calls(20).await.unwrap(), [hello()]);
        // It is not claimed yet: a late answer spares the second attempt, a late failure does not count twice.
        let again = CallDisposition::Again {
            due_unix_ms: 5,
            counts: true,
            error: Some(no()),
        };
        assert!(!store.end_call(&call.id, 1, &again, None, 21).await.unwrap());
        assert_eq!(
            store.claim_calls(&hello(), 1, "g-2", 30, 40).await.unwrap()[0]
                .call
                .attempt,
            2
        );
        for late in [
            CallDisposition::Done { answer: answer(b"") },
            CallDisposition::Dead {
                answer: None,
                error: no(),
            },
        ] {
            assert!(!store.end_call(&call.id, 1, &late, None, 31).await.unwrap(), "{late:?}");
        }
        assert!(store.end_call(&call.id, 2, &again, None, 32).await.unwrap());
        let known = store.call(&call.id).await.unwrap().unwrap();
        assert_eq!(
            (known.call.state, known.call.failures, known.call.due_unix_ms),
            (CallState::Queued, 1, Some(5))
        );
        store.claim_calls(&hello(), 1, "g-2", 33, 40).await.unwrap();
        store.release_lost_calls(40).await.unwrap();
        assert!(
            store
                .end_call(&call.id, 3, &CallDisposition::Done { answer: answer(b"") }, None, 41)
                .await
                .unwrap()
        );
    })
    .await;
}

#[tokio::test]
async fn a_key_names_one_call_of_a_function_until_that_is_forgotten() {
    each_database(async |store| {
        let first = new("hello", Some("k"), 0);
        assert_eq!(store.add_call(&first).await.unwrap(), None);
        let earlier = store.add_call(&new("hello", Some("k"), 1)).await.unwrap().unwrap();
        assert_eq!((earlier.id, earlier.digest.as_str()), (first.id.clone(), "d"));
        assert_eq!(store.add_call(&new("other", Some("k"), 1)).await.unwrap(), None);
        assert!(store.remove_call(&first.id).await.unwrap());
        assert_eq!(store.add_call(&new("hello", Some("k"), 2)).await.unwrap(), None);
        for _ in 0..2 {
            assert_eq!(
                store.add_call(&new("hello", None, 2)).await.unwrap(),
                None,
                "no key is not the same key"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_too_old_or_has_lost_its_function_dies_and_can_be_queued_anew() {
    each_database(async |store| {
        has_function(&store, "hello").await;
        has_function(&store, "gone").await;
        let (old, of_gone) = (new("hello", None, 0), new("gone", None, 0));
        for call in [&old, &of_gone] {
            store.add_call(call).await.unwrap();
        }
        let mut tx = store.begin("test").await.unwrap();
        Store::abandon_calls(&mut tx, &of_gone.function, &no(), 5)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        assert_eq!(state(&store, &of_gone.id).await, Some(CallState::Dead));
        assert!(store.expire_calls(999, &no()).await.unwrap().is_empty());
        assert_eq!(store.expire_calls(1_000, &no()).await.unwrap(), [hello()]);
        assert_eq!(state(&store, &old.id).await, Some(CallState::Dead));
        assert!(store.retry_call(&old.id, 5_000).await.unwrap());
        assert!(!store.retry_call(&old.id, 5_000).await.unwrap(), "it waits already");
        let again = store.call(&old.id).await.unwrap().unwrap();
        assert_eq!(
            (again.call.accepted_unix_ms, again.expires_unix_ms, again.call.error),
            (5_000, 6_000, None)
        );
        assert_eq!(store.retry_dead_calls(&of_gone.function, 5_000).await.unwrap(), 1);
        assert_eq!(store.retry_dead_calls(&of_gone.function, 5_000).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn dead_calls_of_a_deleted_function_or_namespace_reach_no_other_of_its_name() {
    each_database(async |store| {
        let team = "team".parse().unwrap();
        store.add_namespace(&team, 0).await.unwrap();
        let of_team = NewRow {
            function: "hello.team".parse().unwrap(),
            ..new("hello", None, 999)
        };
        let of_default = new("hello", None, 999);
        for call in [&of_team, &of_default] {
            store.add_call(call).await.unwrap();
        }
        store.expire_calls(9_999, &no()).await.unwrap();
        let retried = async || {
            let one = store.retry_call(&of_default.id, 5_000).await.unwrap();
            (one, store.retry_dead_calls(&hello(), 5_000).await.unwrap())
        };
        assert_eq!(retried().await, (false, 0), "there is no function of that name");
        sqlx::query("INSERT INTO functions (name, created_unix_s) VALUES ('hello', 1)")
            .execute(&store.writes)
            .await
            .unwrap();
        assert_eq!(retried().await, (false, 0), "the function was made later");
        assert_eq!(state(&store, &of_default.id).await, Some(CallState::Dead));
        assert!(store.remove_namespace(&team, &[], &[]).await.unwrap());
        assert_eq!(state(&store, &of_team.id).await, None);
    })
    .await;
}

#[tokio::test]
async fn what_ended_long_ago_is_forgotten_and_what_is_too_much_the_oldest_first() {
    each_database(async |store| {
        let mut ids = Vec::new();
        for at in 0..4 {
            let call = new("hello", None, at);
            store.add_call(&call).await.unwrap();
            store.claim_calls(&hello(), 1, "g-1", 50, 90).await.unwrap();
            store
                .end_call(
                    &call.id,
                    1,
                    &CallDisposition::Done {
                        answer: answer(b"0123456789"),
                    },
                    None,
                    at,
                )
                .await
                .unwrap();
            ids.push(call.id);
        }
        let waits = new("hello", None, 0);
        store.add_call(&waits).await.unwrap();
        assert_eq!(
            store.forget_calls("done", 0, i64::MAX, i64::MAX).await.unwrap().calls,
            1
        );
        assert_eq!(
            store.forget_calls("done", -1, i64::MAX, 2 * 522).await.unwrap().calls,
            1
        );
        assert_eq!(
            (state(&store, &ids[1]).await, state(&store, &ids[2]).await),
            (None, Some(CallState::Done))
        );
        assert_eq!(state(&store, &waits.id).await, Some(CallState::Queued));
        let listed = store
            .calls(&CallQuery {
                limit: 9,
                ..CallQuery::default()
            })
            .await
            .unwrap();
        assert_eq!(
            listed.iter().map(|c| c.id.clone()).collect::<Vec<_>>(),
            [waits.id, ids[3].clone(), ids[2].clone()]
        );
    })
    .await;
}

#[tokio::test]
async fn one_functions_answers_evict_no_others() {
    each_database(async |store| {
        let answered = async |function: &str, at: i64| {
            let call = new(function, None, at);
            store.add_call(&call).await.unwrap();
            store.claim_calls(&call.function, 1, "g-1", 50, 90).await.unwrap();
            let done = CallDisposition::Done {
                answer: answer(b"0123456789"),
            };
            assert!(store.end_call(&call.id, 1, &done, None, at).await.unwrap());
            call.id
        };
        let calm = answered("calm", 1).await;
        let mut busy = Vec::new();
        for at in 2..8 {
            busy.push(answered("busy", at).await);
        }
        let row = 10 + 512;
        let kept = async || {
            let mut kept = 0;
            for id in &busy {
                kept += usize::from(state(&store, id).await.is_some());
            }
            (state(&store, &calm).await.is_some(), kept)
        };
        // Its own bound first.
        assert_eq!(store.forget_calls("done", 0, 4 * row, 9 * row).await.unwrap().calls, 2);
        assert_eq!(kept().await, (true, 4));
        assert_eq!(state(&store, &busy[1]).await, None, "the oldest go first");
        // Then the bound of all, at the cost of the function with the most, though the other's is the oldest.
        assert_eq!(store.forget_calls("done", 0, 4 * row, 3 * row).await.unwrap().calls, 2);
        assert_eq!(kept().await, (true, 2));
        assert_eq!(store.forget_calls("done", 0, 4 * row, row).await.unwrap().calls, 2);
    })
    .await;
}

#[tokio::test]
async fn an_owners_key_is_not_anothers() {
    each_database(async |store| {
        let first = new("hello", Some("k"), 0);
        let another = NewRow {
            owner: "request:p".into(),
            ..new("hello", Some("k"), 1)
        };
        assert_eq!(store.add_call(&first).await.unwrap(), None);
        assert_eq!(store.earlier_call(&another).await.unwrap(), None);
        assert_eq!(store.add_call(&another).await.unwrap(), None);
        let again = NewRow {
            owner: "request:p".into(),
            ..new("hello", Some("k"), 2)
        };
        assert_eq!(store.add_call(&again).await.unwrap().unwrap().id, another.id);
    })
    .await;
}

#[tokio::test]
async fn what_is_sealed_of_a_request_goes_with_its_answer_and_stays_with_a_dead_letter() {
    each_database(async |store| {
        let sealed_of = async |id: &CallId| {
            let row: (Option<Vec<u8>>, Option<Vec<u8>>) =
                sqlx::query_as("SELECT request_sealed, answer_sealed FROM async_calls WHERE id = $1")
                    .bind(id.as_str())
                    .fetch_one(&store.pool)
                    .await
                    .unwrap();
            row
        };
        let sealed = |function| NewRow {
            request_sealed: Some(vec![1, 2]),
            ..new(function, None, 0)
        };
        has_function(&store, "dead").await;
        let (done, dead) = (sealed("done"), sealed("dead"));
        for call in [&done, &dead] {
            store.add_call(call).await.unwrap();
            let claimed = store.claim_calls(&call.function, 1, "g-1", 50, 90).await.unwrap();
            assert_eq!(claimed[0].request_sealed.as_deref(), Some(&[1, 2][..]));
        }
        let ended = CallDisposition::Done { answer: answer(b"") };
        assert!(store.end_call(&done.id, 1, &ended, Some(&[3]), 60).await.unwrap());
        assert_eq!(sealed_of(&done.id).await, (None, Some(vec![3])));
        let read = store.call_with_answer(&done.id).await.unwrap().unwrap();
        assert_eq!(read.answer_sealed.as_deref(), Some(&[3][..]));
        let ended = CallDisposition::Dead {
            answer: Some(answer(b"")),
            error: no(),
        };
        assert!(store.end_call(&dead.id, 1, &ended, Some(&[4]), 60).await.unwrap());
        assert_eq!(sealed_of(&dead.id).await, (Some(vec![1, 2]), Some(vec![4])));
        assert!(store.retry_call(&dead.id, 70).await.unwrap());
        assert_eq!(sealed_of(&dead.id).await, (Some(vec![1, 2]), None));
    })
    .await;
}

#[tokio::test]
async fn a_callback_is_due_with_the_calls_end_and_is_handed_out_with_the_answer() {
    each_database(async |store| {
        let call = NewRow {
            callback: Some("http://example.com/".into()),
            ..new("hello", None, 0)
        };
        store.add_call(&call).await.unwrap();
        store.claim_calls(&hello(), 1, "g-1", 0, 90).await.unwrap();
        assert!(!store.has_posts().await.unwrap());
        store
            .end_call(&call.id, 1, &CallDisposition::Done { answer: answer(b"yes") }, None, 10)
            .await
            .unwrap();
        assert!(store.has_posts().await.unwrap());
        assert!(store.claim_callbacks(9, 9, 50).await.unwrap().is_empty());
        let due = store.claim_callbacks(9, 10, 50).await.unwrap().remove(0);
        assert_eq!(due.row.call.callback.clone().unwrap().attempts, 1);
        assert_eq!(due.result().answer, Some(answer(b"yes")));
        assert!(
            store.claim_callbacks(9, 49, 99).await.unwrap().is_empty(),
            "it is being posted"
        );
        assert!(
            store
                .end_post(CallNotification::Callback, &call.id, (1, None), Some(60), Some("no"))
                .await
                .unwrap()
        );
        assert_eq!(store.claim_callbacks(9, 60, 99).await.unwrap().len(), 1);
        assert!(
            !store
                .end_post(CallNotification::Callback, &call.id, (1, None), None, None)
                .await
                .unwrap(),
            "the second attempt is on its way"
        );
        assert!(
            store
                .end_post(CallNotification::Callback, &call.id, (2, None), None, None)
                .await
                .unwrap()
        );
        assert!(!store.has_posts().await.unwrap());
        let known = store.call(&call.id).await.unwrap().unwrap();
        assert_eq!(known.call.callback.unwrap().state, "delivered");
    })
    .await;
}

#[tokio::test]
async fn a_destination_is_due_with_the_calls_end_and_the_request_is_kept_until_it_is_told() {
    each_database(async |store| {
        has_function(&store, "hello").await;
        let (url, audit) = ("https://example.com/done", "audit");
        let call = || NewRow {
            on_success: Some(url.parse().unwrap()),
            on_failure: Some(audit.parse().unwrap()),
            ..new("hello", None, 0)
        };
        let (good, bad) = (call(), call());
        for call in [&good, &bad] {
            store.add_call(call).await.unwrap();
            store.claim_calls(&hello(), 1, "g-1", 0, 90).await.unwrap();
        }
        assert!(!store.has_posts().await.unwrap());
        let size = |id: CallId| {
            let store = store.clone();
            async move { store.call(&id).await.unwrap().unwrap().call.bytes }
        };
        let request = size(good.id.clone()).await;
        let done = CallDisposition::Done { answer: answer(b"yes") };
        store.end_call(&good.id, 1, &done, None, 10).await.unwrap();
        let dead = CallDisposition::Dead {
            answer: None,
            error: no(),
        };
        store.end_call(&bad.id, 1, &dead, None, 10).await.unwrap();
        assert!(store.has_posts().await.unwrap());
        assert!(store.claim_events(true, 9, 9, 50).await.unwrap().is_empty());
        let [posted] = &store.claim_events(true, 9, 10, 50).await.unwrap()[..] else {
            panic!("one goes to an address")
        };
        assert_eq!((posted.to.to_string().as_str(), posted.attempt), (url, 1));
        assert_eq!(
            (&posted.body[..], posted.request.method.as_str()),
            (&[0, 255, 7][..], "POST")
        );
        assert_eq!(posted.stored.clone().result().answer, Some(answer(b"yes")));
        let [queued] = &store.claim_events(false, 9, 10, 50).await.unwrap()[..] else {
            panic!("one goes to a function")
        };
        assert_eq!(
            (&queued.stored.row.call.id, queued.to.to_string().as_str()),
            (&bad.id, audit)
        );
        assert!(
            store.claim_events(true, 9, 49, 99).await.unwrap().is_empty(),
            "it is being told"
        );

        let end = async |id: &CallId, attempt, again, error| {
            store
                .end_post(CallNotification::Event, id, (attempt, None), again, error)
                .await
                .unwrap()
        };
        assert!(end(&good.id, 1, Some(60), Some("no")).await);
        assert_eq!(size(good.id.clone()).await, request + 3);
        assert_eq!(store.claim_events(true, 9, 60, 99).await.unwrap()[0].attempt, 2);
        assert!(!end(&good.id, 1, None, None).await, "the second attempt is on its way");
        assert!(end(&good.id, 2, None, None).await);
        assert_eq!(size(good.id.clone()).await, request);
        assert!(end(&bad.id, 1, None, Some("no such function")).await);
        assert!(!store.has_posts().await.unwrap());
        let told = async |id| store.call(id).await.unwrap().unwrap().call.destination;
        assert_eq!(told(&good.id).await.unwrap().state, "delivered");
        assert_eq!(told(&bad.id).await.unwrap().state, "failed");

        // It ends once more, and its destination is told of that.
        assert!(store.retry_call(&bad.id, 70).await.unwrap());
        assert_eq!(told(&bad.id).await, None);
        store.claim_calls(&hello(), 1, "g-1", 70, 90).await.unwrap();
        store.end_call(&bad.id, 2, &dead, None, 80).await.unwrap();
        let again = store.claim_events(false, 9, 80, 99).await.unwrap();
        assert_eq!((again.len(), &again[0].body[..]), (1, &[0, 255, 7][..]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_claim_at_once_get_each_call_once() {
    each_database(async |store| {
        for _ in 0..60 {
            store.add_call(&new("hello", None, 0)).await.unwrap();
        }
        let claimers = (0..6).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut own = Vec::new();
                loop {
                    let some = store.claim_calls(&hello(), 4, &format!("g-{n}"), 1, 90).await.unwrap();
                    if some.is_empty() && store.call_queues().await.unwrap()[0].1.queued == 0 {
                        return own;
                    }
                    own.extend(some.into_iter().map(|c| c.call.id));
                }
            })
        });
        let mut all: Vec<CallId> = Vec::new();
        for claimer in futures::future::join_all(claimers).await {
            all.extend(claimer.unwrap());
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 60);
    })
    .await;
}
