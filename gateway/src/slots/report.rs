//! Reports of leases to the scheduler, repeated until received.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rekindle_wire::ApiError;
use rekindle_wire::internal::{LeaseReport, ReturnedLease};
use tokio::sync::{Notify, watch};

use super::Slots;

/// How long an unreceived return is repeated; by then its lease has long run out.
const UNSENT_FOR: Duration = Duration::from_secs(60);
/// How long an ask waits for the scheduler to hear of returned leases.
const REPORTED_WITHIN: Duration = Duration::from_millis(100);

/// Leases that can be returned.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    due: Notify,
    /// How often leases became due, and up to which of these times the scheduler has been told.
    times: AtomicU64,
    reported: watch::Sender<u64>,
}

impl Returns {
    /// Has leases reported that can be returned by now.
    pub(super) fn are_due(&self) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.due.notify_one();
    }

    /// Waits until there are any.
    pub(crate) async fn due(&self) {
        self.due.notified().await;
    }

    /// Waits until the scheduler has been told of all. It may grant one of these leases again; otherwise it would start
    /// another instance.
    pub(super) async fn are_reported(&self) {
        let times = self.times.load(Ordering::Relaxed);
        let mut reported = self.reported.subscribe();
        let _ = tokio::time::timeout(REPORTED_WITHIN, reported.wait_for(|n| *n >= times)).await;
    }
}

impl Slots {
    /// Reports to the scheduler which leases are returned and which are to be renewed, if there are any. What it does
    /// not receive is repeated: a lease counts as renewed, and a return as made, only once it has answered.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) async fn report(self: &Arc<Self>) -> Result<(), ApiError> {
        let asked = Instant::now();
        let times = self.returns.times.load(Ordering::Relaxed);
        let Some((report, returned)) = self.what_to_report(asked) else {
            self.returns.reported.send_replace(times);
            return Ok(());
        };
        let answer = self.scheduler.report(&report).await;
        self.returns.reported.send_replace(times);
        self.scheduler_is_there.store(answer.is_ok(), Ordering::Relaxed);
        match answer {
            Ok(answer) => {
                {
                    let mut functions = self.functions.lock();
                    for instance in report.held.iter().filter(|i| !answer.give_back.contains(i)) {
                        let of_it = functions.iter_mut().find_map(|(function, entry)| {
                            entry.leases.confirm(instance, asked).then_some((function, entry))
                        });
                        // Its recall may have been taken back.
                        if let Some((function, entry)) = of_it {
                            self.hand_out(function, entry);
                        }
                    }
                }
                self.close(&answer.give_back);
                Ok(())
            }
            Err(error) => {
                self.unsent.lock().extend(returned);
                // Invocations that waited for a lease to be confirmed may have it now.
                for (function, entry) in self.functions.lock().iter_mut() {
                    self.hand_out(function, entry);
                }
                Err(error)
            }
        }
    }

    fn what_to_report(&self, now: Instant) -> Option<(LeaseReport, Vec<(ReturnedLease, Instant)>)> {
        let mut returned = std::mem::take(&mut *self.unsent.lock());
        returned.retain(|(_, since)| now.saturating_duration_since(*since) < UNSENT_FOR);
        let (mut held, mut numbers) = (Vec::new(), Vec::new());
        let mut functions = self.functions.lock();
        for function in functions.values_mut() {
            returned.extend(function.leases.give_back(now).into_iter().map(|r| (r, now)));
            for (instance, number) in function.leases.due(now) {
                held.push(instance);
                numbers.push(number);
            }
        }
        functions.retain(|_, f| !f.is_empty());
        drop(functions);
        if returned.is_empty() && held.is_empty() {
            return None;
        }
        let later = |(lease, since): &(ReturnedLease, Instant)| {
            let waited = now.saturating_duration_since(*since).as_millis();
            ReturnedLease {
                idle_ms: lease.idle_ms.saturating_add(u64::try_from(waited).unwrap_or(u64::MAX)),
                ..lease.clone()
            }
        };
        let report = LeaseReport {
            gateway: self.gateway.clone(),
            held,
            numbers,
            returned: returned.iter().map(later).collect(),
        };
        Some((report, returned))
    }

    /// Returns what is not in use when the gateway shuts down: others need not wait for the leases to run out.
    pub(crate) async fn return_all(self: &Arc<Self>) {
        self.functions.lock().values_mut().for_each(|f| f.leases.close_all());
        if let Err(error) = self.report().await {
            tracing::debug!(%error, "leases could not be returned and run out by themselves");
        }
    }
}
