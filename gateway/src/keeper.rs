//! Keeps the leases in order: renews what is used, returns what is not, and hears what the scheduler wants back.

use std::sync::Arc;
use std::time::Duration;

use crate::slots::Slots;

/// The shortest lease is half a second; this leaves it several chances to be renewed.
const TICK: Duration = Duration::from_millis(100);
const WATCH: Duration = Duration::from_secs(20);
/// A report that was lost is told again while its leases last.
const REPORT_AGAIN: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(1);

/// Reports to the scheduler when there is something to tell. Runs until it is dropped.
pub(crate) async fn report(slots: Arc<Slots>) {
    loop {
        // Either is a reason to look; a slot that got free is returned at once.
        let _ = tokio::time::timeout(TICK, slots.returnable.notified()).await;
        // What could not be told is told again; what is held goes on being used, as nobody can say otherwise.
        if let Err(error) = slots.report().await {
            tracing::debug!(%error, "leases could not be reported");
            tokio::time::sleep(REPORT_AGAIN).await;
        }
    }
}

/// Watches for leases that are wanted back. Runs until it is dropped.
pub(crate) async fn watch(slots: Arc<Slots>) {
    loop {
        match slots.scheduler.recalls(&slots.gateway, WATCH).await {
            Ok(answer) => slots.close(&answer.give_back),
            Err(error) => {
                tracing::debug!(%error, "recalls cannot be watched");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
