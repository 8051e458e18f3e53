//! Parks and retires instances. Ten times a second it looks for instances that are idle for too long, belong to a
//! version no longer live, or are on a worker short of memory. It asks their workers to stop those that are idle there
//! too. It also notices leases that have run out and workers that have gone silent.

use std::time::Duration;

use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::evacuation::evacuate;
use crate::fleet::retire::Floor;
use crate::placing::{pump, pump_waiting_for_migrations, retire};
use crate::pools::refill;
use crate::state::Scheduler;

/// Accuracy to which an idle time of one second is kept.
const TICK: Duration = Duration::from_millis(100);
/// A longer interval between two looks means that this process was suspended, not that workers were silent.
const STALL: Millis = Millis(1_000);

/// Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looked = scheduler.now();
    loop {
        tick.tick().await;
        let (due, room) = {
            let mut state = scheduler.state();
            let now = scheduler.now();
            let pause = now.since(looked);
            looked = now;
            if pause > STALL {
                state.fleet.forgive(pause);
            }
            let expired = state.fleet.expire_leases(now);
            let silent = state.fleet.note_silence(now);
            scheduler.metrics.leases_expired(expired);
            evacuate(&scheduler, &mut state, now);
            let ClusterState {
                fleet,
                catalog,
                traffic,
                retention,
                upcoming,
                ..
            } = &mut *state;
            retention.look(fleet, catalog, traffic, now);
            let floor = |function: &_, version| {
                let mut floor = retention.floor(catalog, function, version, now);
                // One that was restored for a scheduled run stays until that has come.
                let restores = |live: LiveVersion| live.spec.snapshot.is_some();
                let is_upcoming =
                    upcoming.contains(function) && catalog.serving(function, version).is_some_and(restores);
                floor.parked = floor.parked.max(usize::from(is_upcoming));
                floor
            };
            let mut due = fleet.due(now, floor);
            due.extend(fleet.relieve(now, |function, version| Floor::given(catalog, function, version)));
            scheduler.metrics.decided(fleet.take_decided());
            if silent {
                scheduler.recalls.notify_waiters();
            }
            (due, expired > 0 || silent)
        };
        for retiree in due {
            retire(&scheduler, retiree);
        }
        match room {
            true => pump(&scheduler),
            // Who waits for an instance that moves does so for a time.
            false => pump_waiting_for_migrations(&scheduler),
        }
        refill(&scheduler);
    }
}
