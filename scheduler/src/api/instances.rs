//! What runs now.

use rekindle_wire::api::{InstanceInfo, InstanceObjects, Migration, Status};
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{
    ListInstances, MigrateInstance, ReadFunctionObjects, ReadInstanceObjects, ReadStatus, StopInstance,
};
use rekindle_wire::{ApiError, ErrorCode, InstanceId};

use super::named;
use super::workers::the_worker;
use crate::fleet::Instance;
use crate::migration::migrate as migrate_to;
use crate::placing::pump;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;

pub(super) async fn status(scheduler: Scheduler, _: Call<ReadStatus>) -> Result<Status, Refused> {
    let functions = scheduler.store.functions().await.map_err(from_store)?;
    let state = scheduler.state();
    Ok(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        workers: state.fleet.worker_infos(scheduler.now()),
        functions: u32::try_from(functions.len()).unwrap_or(u32::MAX),
        instances: state.fleet.instance_infos(None, scheduler.now()),
    })
}

pub(super) async fn list(scheduler: Scheduler, _: Call<ListInstances>) -> Result<Vec<InstanceInfo>, Refused> {
    Ok(scheduler.state().fleet.instance_infos(None, scheduler.now()))
}

/// Moves an instance to another worker, or a copy of it. Answers when it has arrived.
pub(super) async fn migrate(scheduler: Scheduler, call: Call<MigrateInstance>) -> Result<Migration, Refused> {
    let (id, request) = (call.at.id, call.body);
    let to = request
        .to
        .as_deref()
        .map(|name| the_worker(&scheduler, name))
        .transpose()?;
    migrate_to(&scheduler, &id, to.as_ref(), &request).await
}

fn address_of(scheduler: &Scheduler, id: &InstanceId) -> Result<String, ApiError> {
    let found = scheduler.state().fleet.address_of(id);
    let none = || format!("no instance {id} is running: `fn status` lists them");
    found.ok_or_else(|| ApiError::new(ErrorCode::NotFound, none()))
}

/// What an instance has from the kernel.
pub(super) async fn objects(scheduler: Scheduler, call: Call<ReadInstanceObjects>) -> Result<InstanceObjects, Refused> {
    look(&scheduler, &call.at.id).await
}

/// The same of an instance of this function, and of no other's.
pub(super) async fn objects_of(
    scheduler: Scheduler,
    call: Call<ReadFunctionObjects>,
) -> Result<InstanceObjects, Refused> {
    let id = call.at.id;
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let is_its_own = |i: &Instance| i.function == name;
    if !scheduler.state().fleet.instances.get(&id).is_some_and(is_its_own) {
        let message = format!("{name} has no instance {id}: `fn describe {name}` lists them");
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    look(&scheduler, &id).await
}

async fn look(scheduler: &Scheduler, id: &InstanceId) -> Result<InstanceObjects, Refused> {
    let address = address_of(scheduler, id)?;
    let read = scheduler.workers.objects(&address, id).await;
    read.map_err(|e| ApiError::new(ErrorCode::Unavailable, format!("{e}: try again")))
}

/// Stops an instance, whatever it serves.
pub(super) async fn stop(scheduler: Scheduler, call: Call<StopInstance>) -> Result<(), Refused> {
    let id = call.at.id;
    let address = address_of(&scheduler, &id)?;
    scheduler
        .workers
        .stop(&address, &id, false)
        .await
        .map_err(|e| ApiError::new(ErrorCode::Unavailable, format!("{e}: try again")))?;
    scheduler.state().fleet.forget(&id, scheduler.now());
    scheduler.recalls.notify_waiters();
    pump(&scheduler);
    Ok(())
}
