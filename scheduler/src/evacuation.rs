//! Instances that are in use leave a worker that drains: they move to others with what they hold, a few at a time. What nobody has used lately is
//! let go instead, as it is anywhere.

use rekindle_wire::migration::Way;

use crate::fleet::Millis;
use crate::migration::{SETTLE, execute};
use crate::state::{Memory, Scheduler};

/// Instances that leave a worker at once: each makes its requests wait, and takes some of the worker's processors.
const AT_ONCE: usize = 2;
/// What was used within this is moved.
const HOT: Millis = Millis(10_000);
/// How long one that could not move is left alone: it finishes what it serves.
const PAUSE: Millis = Millis(5_000);

/// Has instances of draining workers move. Call it before those that nobody uses are retired.
pub(crate) fn evacuate(scheduler: &Scheduler, memory: &mut Memory, now: Millis) {
    for instance in memory.fleet.to_evacuate(AT_ONCE, HOT, now) {
        // Not tried again before that, whatever comes of it.
        memory.fleet.leave_alone(&instance, now.plus(PAUSE));
        let planned = match memory.fleet.plan_move(&instance, None, &Way::Move) {
            Ok(planned) => planned,
            Err(error) => {
                tracing::info!(%instance, %error, "it cannot move off its draining worker, and finishes there");
                continue;
            }
        };
        let here = scheduler.clone();
        scheduler.tasks.spawn(async move {
            match execute(&here, planned, Way::Move, SETTLE).await {
                Ok(moved) => tracing::info!(%instance, to = %moved.to, "moved off a draining worker"),
                Err(error) => tracing::warn!(%instance, %error, "not moved off a draining worker: it finishes there"),
            }
        });
    }
}
