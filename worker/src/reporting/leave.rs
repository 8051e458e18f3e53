//! A worker's orderly end. It announces that it leaves, finishes its requests in flight, and only then stops. Meanwhile
//! the scheduler makes gateways send requests elsewhere; requests that still arrive are served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rekindle_wire::internal::Presence;

use crate::worker::Worker;

/// Interval between checks.
const TICK: Duration = Duration::from_millis(50);
/// Without a request for this long after the scheduler knows, none is on its way any more.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until nothing is served here any more, at most as long as the worker's configuration says. A worker that
/// reaches the scheduler is not quiet until the scheduler knows. One that does not reach it serves out its requests.
pub async fn finish(worker: &Arc<Worker>) {
    if worker.config.leave_limit.is_zero() {
        return;
    }
    *worker.presence.lock() = Presence::Leaving;
    worker.draining.store(true, Ordering::Relaxed);
    worker.changed.notify_one();
    let end = Instant::now() + worker.config.leave_limit;
    let mut quiet_since = None;
    while Instant::now() < end {
        let instances = worker.all_instances();
        let told = worker.leaving_is_known.load(Ordering::Relaxed);
        // The memory of an instance that has moved on may still be in transit.
        let is_leaving = !worker.migration_sources.is_empty();
        if told && instances.is_empty() && !is_leaving {
            return;
        }
        let is_busy = is_leaving || instances.iter().any(|i| i.usage.in_flight() > 0);
        let may_get_more = !told && worker.scheduler_is_reached.load(Ordering::Relaxed);
        if is_busy || may_get_more {
            quiet_since = None;
        } else if quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
            return;
        }
        tokio::time::sleep(TICK).await;
    }
    tracing::warn!(limit = ?worker.config.leave_limit, "requests are cut off: they took longer than a worker waits when it stops");
}
