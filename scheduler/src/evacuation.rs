//! Instances that are in use leave a worker that drains: they move to others with what they hold, a few at a time. What nobody has used lately is
//! let go instead, as it is anywhere.

use crate::fleet::Millis;
use crate::migration::move_off;
use crate::state::{ClusterState, Scheduler};

/// Instances that leave a worker at once: each makes its requests wait, and takes some of the worker's processors.
const AT_ONCE: usize = 2;
/// What was used within this is moved.
const HOT: Millis = Millis(10_000);
/// How long one that could not move is left alone: it finishes what it serves.
const PAUSE: Millis = Millis(5_000);

/// Has instances of draining workers move. Call it before those that nobody uses are retired.
pub(crate) fn evacuate(scheduler: &Scheduler, state: &mut ClusterState, now: Millis) {
    for instance in state.fleet.to_evacuate(AT_ONCE, HOT, now) {
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
