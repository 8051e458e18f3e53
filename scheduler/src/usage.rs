//! Stores what was observed of functions' calls, at intervals: how many there were, how long they took, and how long
//! functions were idle between them. It also stores when keys were used last. A scheduler that starts knows what the
//! previous one had learned, except for the last seconds of one that was killed.

use std::time::Duration;

use crate::cluster::ClusterState;
use crate::state::Scheduler;
use crate::store::StoreError;

/// Interval between two writes.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum number of functions in one transaction, which holds others up for some tens of milliseconds. Counts of
/// gateways that were added up are always written together.
const MOST: usize = 1_000;
/// Maximum number of transactions in a row.
const ROUNDS: u32 = 50;
/// Limit of the last write.
const LAST_LIMIT: Duration = Duration::from_secs(2);

/// Loads what was stored.
pub(crate) async fn read(scheduler: &Scheduler) -> Result<(), StoreError> {
    let (counts, histories) = (
        scheduler.store.invocation_counts().await?,
        scheduler.store.idle_times().await?,
    );
    let mut state = scheduler.state();
    state.traffic.read(counts);
    state.retention.read(histories);
    Ok(())
}

/// Writes until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut failing = false;
    loop {
        tokio::time::sleep(EVERY).await;
        match note(&scheduler).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what was counted cannot be written down; trying again");
            }
            Err(_) => {}
        }
    }
}

/// Writes the rest when the scheduler shuts down.
pub(crate) async fn note_last(scheduler: &Scheduler) {
    match tokio::time::timeout(LAST_LIMIT, note(scheduler)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "what was counted last is not written down");
        }
        Err(_) => tracing::warn!("what was counted last is not written down: the database takes too long"),
    }
}

/// Writes what has changed.
async fn note(scheduler: &Scheduler) -> Result<(), StoreError> {
    let _alone = scheduler.noting.lock().await;
    let used = scheduler.keys.take_used();
    if let Err(error) = scheduler.store.note_keys_used(&used).await {
        scheduler.keys.not_noted(used);
        return Err(error);
    }
    for _ in 0..ROUNDS {
        let (counts, folded, learned) = {
            let mut state = scheduler.state();
            let ClusterState { traffic, retention, .. } = &mut *state;
            let (counts, folded) = traffic.take_changed(MOST);
            (counts, folded, retention.take_learned(MOST))
        };
        if counts.is_empty() && folded.is_empty() && learned.is_empty() {
            break;
        }
        let noted = scheduler.store.note_usage(&counts, &folded, &learned).await;
        if noted.is_err() {
            let mut state = scheduler.state();
            state.traffic.not_noted(counts, folded);
            state.retention.not_noted(learned);
            return noted;
        }
    }
    Ok(())
}
