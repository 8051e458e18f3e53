//! Who is told of ends, in which order, and what is forgotten.

use super::super::endings::ForgottenCalls;
use super::*;

/// A call of the function that was answered at this time, and whose destination is a function.
async fn told_of(store: &Store, function: &str, at: i64) -> CallId {
    let call = NewRow {
        on_success: Some("audit".parse().unwrap()),
        ..new(function, None, at)
    };
    store.add_call(&call).await.unwrap();
    store.claim_calls(&call.function, 1, "g-1", 900, 990).await.unwrap();
    let done = CallDisposition::Done { answer: answer(b"yes") };
    assert!(store.end_call(&call.id, 1, &done, None, at).await.unwrap());
    call.id
}

fn ids(due: &[DueEvent]) -> Vec<&CallId> {
    due.iter().map(|one| &one.stored.row.call.id).collect()
}

#[tokio::test]
async fn a_namespaces_many_ends_do_not_hold_up_anothers() {
    each_database(async |store| {
        let mut busy = Vec::new();
        for at in 0..20 {
            busy.push(told_of(&store, "hello.busy", at).await);
        }
        let calm = told_of(&store, "hello.calm", 30).await;
        let due = store.claim_events(false, 4, 100, 200).await.unwrap();
        assert_eq!(due.len(), 4);
        assert!(ids(&due).contains(&&calm), "{:?}", ids(&due));
        assert!(
            busy[..3].iter().all(|id| ids(&due).contains(&id)),
            "the oldest go first"
        );
        assert_eq!(store.claim_events(false, 32, 100, 200).await.unwrap().len(), 17);
        assert!(store.claim_events(true, 32, 300, 400).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_end_that_cannot_be_read_keeps_nobody_else_from_being_told() {
    each_database(async |store| {
        let (bad, good) = (told_of(&store, "hello", 1).await, told_of(&store, "hello", 2).await);
        sqlx::query("UPDATE async_calls SET request = '{' WHERE id = $1")
            .bind(bad.as_str())
            .execute(&store.writes)
            .await
            .unwrap();
        let due = store.claim_events(false, 9, 100, 200).await.unwrap();
        assert_eq!(ids(&due), [&good]);
        let state: Option<String> = sqlx::query_scalar("SELECT destination_state FROM async_calls WHERE id = $1")
            .bind(bad.as_str())
            .fetch_one(&store.pool)
            .await
            .unwrap();
        assert_eq!(state.as_deref(), Some("failed"));
        let end = (1, due[0].stored.row.call.finished_unix_ms);
        assert!(
            store
                .end_post(CallNotification::Event, &good, end, None, None)
                .await
                .unwrap()
        );
        assert!(!store.has_posts().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_late_report_of_one_end_settles_no_other() {
    each_database(async |store| {
        has_function(&store, "hello").await;
        let call = NewRow {
            on_failure: Some("audit".parse().unwrap()),
            callback: Some("https://example.com/".into()),
            ..new("hello", None, 0)
        };
        store.add_call(&call).await.unwrap();
        let dead = CallDisposition::Dead {
            answer: None,
            error: no(),
        };
        for (attempt, at) in [(1, 10), (2, 80)] {
            store.claim_calls(&hello(), 1, "g-1", at, at + 9).await.unwrap();
            assert!(store.end_call(&call.id, attempt, &dead, None, at).await.unwrap());
            let due = store.claim_events(false, 9, at, at + 50).await.unwrap();
            assert_eq!((due[0].attempt, due[0].stored.row.call.finished_unix_ms), (1, Some(at)));
            assert_eq!(store.claim_callbacks(9, at, at + 50).await.unwrap().len(), 1);
            if attempt == 1 {
                assert!(store.retry_call(&call.id, 70).await.unwrap());
            }
        }
        for post in [CallNotification::Event, CallNotification::Callback] {
            let told = async |end| store.end_post(post, &call.id, (1, end), None, None).await.unwrap();
            assert!(!told(Some(10)).await, "{post:?}: that was the first end");
            assert!(told(Some(80)).await, "{post:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn ends_of_which_somebody_is_to_be_told_are_forgotten_last_and_not_in_silence() {
    each_database(async |store| {
        let waits = told_of(&store, "hello", 1).await;
        for at in 2..5 {
            let call = new("hello", None, at);
            store.add_call(&call).await.unwrap();
            store.claim_calls(&hello(), 1, "g-1", 900, 990).await.unwrap();
            let done = CallDisposition::Done { answer: answer(b"yes") };
            assert!(store.end_call(&call.id, 1, &done, None, at).await.unwrap());
        }
        let forgotten = store.forget_calls("done", 0, 2_000, i64::MAX).await.unwrap();
        assert!(forgotten.calls > 0 && forgotten.untold.is_empty(), "{forgotten:?}");
        assert_eq!(state(&store, &waits).await, Some(CallState::Done));
        let all = store.forget_calls("done", 0, 0, i64::MAX).await.unwrap();
        assert_eq!(all.untold, [(hello(), CallNotification::Event)]);
        assert_eq!(all.calls + forgotten.calls, 4);
        assert_eq!(
            store.forget_calls("done", 0, 0, 0).await.unwrap(),
            ForgottenCalls::default()
        );
    })
    .await;
}
