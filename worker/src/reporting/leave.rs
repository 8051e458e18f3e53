//! A worker's orderly end: it says that it leaves, finishes what it serves, and only then stops. The scheduler has gateways send elsewhere
//! meanwhile; what is still sent here is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rekindle_wire::internal::Presence;

use crate::worker::Worker;

/// How often to look.
const TICK: Duration = Duration::from_millis(50);
/// With no request in it for so long after the scheduler knows, none is on its way any more.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until nothing is served here any more, at most as long as the worker's configuration says. Until the scheduler knows, a worker that
/// reaches it is not quiet; one that does not reach it serves out what it has.
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
        // The memory of what has moved on may still be on its way.
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
