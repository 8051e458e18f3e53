//! Moves instances in use off a hot worker by live migration. [`Heat`](crate::fleet::heat::Heat) chooses the instance
//! and the target.

use std::time::Duration;

use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::fleet::heat::REST;
use crate::migration::move_off;
use crate::state::Scheduler;

/// How often to look; workers report as often.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        relieve(&scheduler, &mut scheduler.state(), scheduler.now());
    }
}

fn relieve(scheduler: &Scheduler, state: &mut ClusterState, now: Millis) {
    let hot_at = scheduler.config.rebalance_at;
    for relief in state.heat.look(&state.fleet, hot_at, now) {
        let going = (relief.instance, Some(&relief.to));
        let told = |here: &Scheduler, moved| here.metrics.rebalanced(moved);
        move_off(scheduler, state, "hot", going, now.plus(REST), told);
    }
}
