//! Moves what is in use off a worker that runs hot, by live migration: [`Heat`](crate::fleet::heat::Heat) says what and where to.

use std::time::Duration;

use rekindle_wire::migration::Way;

use crate::fleet::Millis;
use crate::fleet::heat::REST;
use crate::migration::{SETTLE, execute};
use crate::state::{Memory, Scheduler};

/// How often to look; workers report as often.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// Runs until it is dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        relieve(&scheduler, &mut scheduler.memory(), scheduler.now());
    }
}

fn relieve(scheduler: &Scheduler, memory: &mut Memory, now: Millis) {
    let hot_at = scheduler.config.rebalance_at;
    for relief in memory.heat.look(&memory.fleet, hot_at, now) {
        let instance = relief.instance;
        // Not tried again before that, whatever comes of it.
        memory.fleet.leave_alone(&instance, now.plus(REST));
        let planned = match memory.fleet.plan_move(&instance, Some(&relief.to), &Way::Move) {
            Ok(planned) => planned,
            Err(error) => {
                tracing::info!(%instance, %error, "it cannot move off its hot worker");
                continue;
            }
        };
        let here = scheduler.clone();
        scheduler.tasks.spawn(async move {
            let from = planned.from.clone();
            let moved = execute(&here, planned, Way::Move, SETTLE).await;
            here.metrics.rebalanced(moved.is_ok());
            match moved {
                Ok(moved) => tracing::info!(%instance, %from, to = %moved.to, "moved off a hot worker"),
                Err(error) => tracing::warn!(%instance, %from, %error, "not moved off a hot worker"),
            }
        });
    }
}
