//! One of several schedulers leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

on_either! {
    one_of_several_leads_until_it_is_silent_or_steps_down,
}

async fn one_of_several_leads_until_it_is_silent_or_steps_down(place: &TestDatabase) {
    let store = open(place).await;
    let lead = async |holder: &str, hold_ms| store.lead(holder, &format!("{holder}:1"), hold_ms).await.unwrap();
    let own = |term| ElectionOutcome::Won { term };
    assert_eq!(lead("a", 60_000).await, own(1));
    assert_eq!(
        lead("b", 60_000).await,
        ElectionOutcome::LedBy { address: "a:1".into() }
    );
    assert_eq!(lead("a", 60_000).await, own(1), "it says so again");
    store.step_down("b").await.unwrap();
    assert_eq!(
        lead("b", 60_000).await,
        ElectionOutcome::LedBy { address: "a:1".into() }
    );
    store.step_down("a").await.unwrap();
    assert_eq!(lead("b", -1).await, own(2));
    assert_eq!(lead("a", 60_000).await, own(3), "b was silent for too long");
}

/// The old leader was suspended while another took over, and continues with what it was about to write.
#[tokio::test]
async fn who_was_replaced_writes_no_more() {
    let Some(place) = TestDatabase::server() else { return };
    let (old, new, other) = (open(&place).await, open(&place).await, open(&place).await);
    let worker: rekindle_wire::WorkerId = "w-1".parse().unwrap();
    let own = |term| ElectionOutcome::Won { term };
    assert_eq!(old.lead(old.holder(), "a:1", -1).await.unwrap(), own(1));
    old.take_over().await.unwrap();
    old.set_drained(&worker, true, 7).await.unwrap();
    assert_eq!(new.lead(new.holder(), "b:1", 60_000).await.unwrap(), own(2));
    new.take_over().await.unwrap();
    let refused = old.set_drained(&worker, false, 7).await.unwrap_err();
    assert!(matches!(refused, StoreError::Statement { .. }), "{refused:?}");
    assert!(new.drained().await.unwrap().contains(&worker));
    // A standby is connected again at once.
    let by = ElectionOutcome::LedBy { address: "b:1".into() };
    assert_eq!(other.lead(other.holder(), "c:1", 60_000).await.unwrap(), by);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_during_which_another_takes_the_lead_goes_on() {
    let Some(place) = TestDatabase::server() else { return };
    let leader = open(&place).await;
    let led = leader.lead(leader.holder(), "a:1", 60_000).await.unwrap();
    assert_eq!(led, ElectionOutcome::Won { term: 1 });
    // Who starts waits for this table, and is ended there.
    let mut tx = leader.begin("hold a table").await.unwrap();
    let lock = "LOCK TABLE master_key IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *tx).await.unwrap();
    let (database, starts) = (place.database.clone(), Arc::new(AtomicU32::default()));
    let counted = Arc::clone(&starts);
    let start = tokio::spawn(async move {
        despite_another_taking_the_lead(|| async {
            counted.fetch_add(1, Ordering::Relaxed);
            Store::open(&database).await?.master_key("a key").await
        })
        .await
    });
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waits)
        .fetch_one(&leader.pool)
        .await
        .unwrap()
        == 0
    {
        assert!(!start.is_finished(), "it does not wait");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    leader.take_over().await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(start.await.unwrap().unwrap(), "a key");
    assert_eq!(starts.load(Ordering::Relaxed), 2);
}

/// It won the lead and could not take over in time: the lead is another's for a while, and may be its own later.
#[tokio::test]
async fn who_could_not_take_the_lead_up_stands_by_again() {
    let Some(place) = TestDatabase::server() else { return };
    let (late, other) = (open(&place).await, open(&place).await);
    let own = |term| ElectionOutcome::Won { term };
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
