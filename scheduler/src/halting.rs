//! Has workers stop and park instances.

use std::time::Duration;

use rekindle_wire::InstanceId;

use crate::fleet::retire::Retiree;
use crate::state::Scheduler;
use crate::worker::StopOutcome;

/// Pause before a worker is asked again to stop an instance.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Asks a worker to stop or park an instance if it is idle. The fleet already counts it as stopping.
pub(crate) async fn retire(here: &Scheduler, retiree: Retiree) {
    let Retiree {
        instance,
        address,
        park: to_park,
    } = retiree;
    if to_park {
        return park(here, &instance, &address).await;
    }
    let stopped = here.workers.stop(&address, &instance, true).await;
    let mut state = here.state();
    let now = here.now();
    match stopped {
        Ok(StopOutcome::Done | StopOutcome::Gone) => drop(state.fleet.forget(&instance, now)),
        Ok(StopOutcome::Busy) => state.fleet.kept(&instance, true, now),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%instance, error, "an idle instance could not be stopped");
            state.fleet.kept(&instance, false, now);
        }
    }
}

async fn park(here: &Scheduler, instance: &InstanceId, address: &str) {
    let halted = here.workers.park(address, instance).await;
    let mut state = here.state();
    let now = here.now();
    match halted {
        Ok(StopOutcome::Done) => state.fleet.parked(instance),
        Ok(StopOutcome::Gone) => drop(state.fleet.forget(instance, now)),
        Ok(StopOutcome::Busy) => state.fleet.kept(instance, true, now),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%instance, error, "an idle instance could not be parked");
            state.fleet.kept(instance, false, now);
            if let Some(mut instance) = state.fleet.instances.get_mut(instance) {
                instance.cannot_park = true;
            }
        }
    }
}

/// Stops an instance whatever it does, and repeats that until it is gone. Only then is its memory no longer set aside.
/// Until then nothing is sent to it. It also counts as gone if its worker is silent or does not list it.
pub(crate) async fn kill(here: &Scheduler, instance: &InstanceId) {
    loop {
        let Some(address) = here.state().fleet.condemn(instance) else {
            return;
        };
        match here.workers.stop(&address, instance, false).await {
            Ok(_) => {
                drop(here.state().fleet.forget(instance, here.now()));
                return;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%instance, error, "an instance could not be stopped; trying again");
            }
        }
        tokio::time::sleep(KILL_AGAIN).await;
    }
}
