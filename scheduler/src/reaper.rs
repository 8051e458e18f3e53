//! Parks and retires instances. Ten times a second it looks for instances that are idle for too long, belong to a
//! version no longer live, or are on a worker short of memory. It asks their workers to stop those that are idle there
//! too. It also notices leases that have run out and workers that have gone silent.

use std::time::Duration;

use rekindle_wire::InstanceId;

use crate::evacuation::evacuate;
use crate::fleet::Millis;
use crate::fleet::retire::Retiree;
use crate::placing::pump;
use crate::pools::refill;
use crate::retention::Floor;
use crate::state::{ClusterState, Scheduler};
use crate::worker::Halted;

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
                ..
            } = &mut *state;
            retention.look(fleet, catalog, traffic, now);
            let floor = |function: &_, version| retention.floor(catalog, function, version, now);
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
        if room {
            pump(&scheduler);
        }
        refill(&scheduler);
    }
}

/// Asks a worker to stop or park an instance if it is idle. The fleet already counts it as stopping.
pub(crate) fn retire(scheduler: &Scheduler, retiree: Retiree) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        let Retiree {
            instance,
            address,
            park: to_park,
        } = retiree;
        if to_park {
            return park(&here, &instance, &address).await;
        }
        let stopped = here.workers.stop(&address, &instance, true).await;
        {
            let mut state = here.state();
            let now = here.now();
            match stopped {
                Ok(Halted::Done | Halted::Gone) => drop(state.fleet.forget(&instance, now)),
                Ok(Halted::Busy) => state.fleet.kept(&instance, true, now),
                Err(error) => {
                    tracing::warn!(%instance, error = &error as &dyn std::error::Error, "an idle instance could not be stopped");
                    state.fleet.kept(&instance, false, now);
                }
            }
        }
        pump(&here);
    });
}

async fn park(here: &Scheduler, instance: &InstanceId, address: &str) {
    let halted = here.workers.park(address, instance).await;
    {
        let mut state = here.state();
        let now = here.now();
        match halted {
            Ok(Halted::Done) => state.fleet.parked(instance),
            Ok(Halted::Gone) => drop(state.fleet.forget(instance, now)),
            Ok(Halted::Busy) => state.fleet.kept(instance, true, now),
            Err(error) => {
                tracing::warn!(%instance, error = &error as &dyn std::error::Error, "an idle instance could not be parked");
                state.fleet.kept(instance, false, now);
                if let Some(mut instance) = state.fleet.instances.get_mut(instance) {
                    instance.cannot_park = true;
                }
            }
        }
    }
    pump(here);
}

/// Pause before a worker is asked again to stop an instance.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Stops an instance whatever it does, and repeats that until it is gone. Only then is its memory no longer set aside.
/// Until then nothing is sent to it. It also counts as gone if its worker is silent or does not list it.
pub(crate) fn kill(scheduler: &Scheduler, instance: InstanceId) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        loop {
            let Some(address) = here.state().fleet.condemn(&instance) else {
                break;
            };
            match here.workers.stop(&address, &instance, false).await {
                Ok(_) => {
                    drop(here.state().fleet.forget(&instance, here.now()));
                    break;
                }
                Err(error) => {
                    tracing::warn!(%instance, error = &error as &dyn std::error::Error, "an instance could not be stopped; trying again");
                }
            }
            tokio::time::sleep(KILL_AGAIN).await;
        }
        pump(&here);
    });
}
