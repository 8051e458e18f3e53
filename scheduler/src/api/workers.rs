//! Lists workers, and drains one.

use rekindle_wire::api::WorkerInfo;
use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{DrainWorker, ListWorkers, UndrainWorker};
use rekindle_wire::{ApiError, ErrorCode, WorkerId};

use crate::evacuation::evacuate;
use crate::placing::pump;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

pub(super) async fn list(scheduler: Scheduler, _: Call<ListWorkers>) -> Result<Vec<WorkerInfo>, Refused> {
    Ok(scheduler.state().fleet.worker_infos(scheduler.now()))
}

/// The worker takes nothing new from now on, and its idle instances go. The answer does not wait for that.
pub(super) async fn drain(scheduler: Scheduler, call: Call<DrainWorker>) -> Result<WorkerInfo, Refused> {
    set_drained(&scheduler, &call.at.name, true).await
}

pub(super) async fn undrain(scheduler: Scheduler, call: Call<UndrainWorker>) -> Result<WorkerInfo, Refused> {
    set_drained(&scheduler, &call.at.name, false).await
}

async fn set_drained(scheduler: &Scheduler, name: &str, drained: bool) -> Result<WorkerInfo, Refused> {
    let id = the_worker(scheduler, name)?;
    // Stored first: what was answered survives a restart.
    let stored = scheduler.store.set_drained(&id, drained, unix_s()).await;
    stored.map_err(from_store)?;
    tracing::info!(worker = %id, drained, "a worker is to be emptied, or no longer");
    let info = {
        let mut state = scheduler.state();
        let now = scheduler.now();
        state.fleet.drain(&id, drained, now);
        // Before waiting asks can evict it to start another elsewhere.
        evacuate(scheduler, &mut state, now);
        state.fleet.worker_info(&id, scheduler.now())
    };
    scheduler.recalls.notify_waiters();
    pump(scheduler);
    info.ok_or_else(|| unknown(name))
}

/// The worker that the name refers to.
pub(super) fn the_worker(scheduler: &Scheduler, name: &str) -> Result<WorkerId, ApiError> {
    let called = scheduler.state().fleet.workers_called(name);
    match &called[..] {
        [] => Err(unknown(name)),
        [one] => Ok(one.clone()),
        several => {
            let ids: Vec<&str> = several.iter().map(WorkerId::as_str).collect();
            let message = format!(
                "\"{name}\" is the host of several workers: say which of {}",
                ids.join(", ")
            );
            Err(ApiError::new(ErrorCode::BadRequest, message))
        }
    }
}

fn unknown(name: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("no worker is called \"{name}\": `fn workers` lists them, by id, address and host"),
    )
}
