//! A worker's orderly end. It announces that it leaves, finishes its requests in flight, and only then stops. Meanwhile
//! the scheduler makes gateways send requests elsewhere; requests that still arrive are served.

use std::time::{Duration, Instant};

use rekindle_wire::internal::Presence;

use super::membership::Membership;
use crate::instance::Instances;
use crate::migration::MigrationSources;

/// Interval between checks.
const TICK: Duration = Duration::from_millis(50);
/// Without a request for this long after the scheduler knows, none is on its way any more.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until nothing is served here any more, at most `limit`; not at all with a limit of zero. A worker that
/// reaches the scheduler is not quiet until the scheduler knows. One that does not reach it serves out its requests.
pub async fn finish(limit: Duration, membership: &Membership, instances: &Instances, sources: &MigrationSources) {
    if limit.is_zero() {
        return;
    }
    membership.become_present(Presence::Leaving);
    instances.drain();
    instances.changed.notify_one();
    let end = Instant::now() + limit;
    let mut quiet_since = None;
    while Instant::now() < end {
        let left = instances.all();
        let told = membership.leaving_is_known();
        // The memory of an instance that has moved on may still be in transit.
        let is_leaving = !sources.is_empty();
        if told && left.is_empty() && !is_leaving {
            return;
        }
        let is_busy = is_leaving || left.iter().any(|i| i.usage.in_flight() > 0);
        let may_get_more = !told && membership.scheduler_is_reached();
        if is_busy || may_get_more {
            quiet_since = None;
        } else if quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
            return;
        }
        tokio::time::sleep(TICK).await;
    }
    tracing::warn!(
        ?limit,
        "requests are cut off: they took longer than a worker waits when it stops"
    );
}
