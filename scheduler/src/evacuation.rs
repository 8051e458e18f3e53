//! Evacuates draining workers: instances in use migrate to other workers with their state, a few at a time. Instances
//! that were not used lately are retired instead, as anywhere. Until its turn comes, an instance takes invocations as
//! before, and from then on they wait for it ([`crate::fleet::incoming`]).

use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::migration::move_off;
use crate::state::Scheduler;

/// Number of instances that leave a worker at once: each makes its requests wait, and takes some of the worker's
/// processors.
const AT_ONCE: usize = 2;
/// How long an instance that could not move is left alone: it finishes what it serves.
const PAUSE: Millis = Millis(5_000);

/// Starts moves off draining workers. Call it before unused instances are retired.
pub(crate) fn evacuate(scheduler: &Scheduler, state: &mut ClusterState, now: Millis) {
    for instance in state.fleet.to_evacuate(AT_ONCE, now) {
        move_off(
            scheduler,
            state,
            "draining",
            (instance, None),
            now.plus(PAUSE),
            |_, _| {},
        );
    }
}
