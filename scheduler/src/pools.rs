//! Keeps as many instances of each live version parked as its `min_parked` says: restored ahead of any request, and frozen.

use rekindle_wire::api::StartKind;
use rekindle_wire::internal::StartInstance;
use rekindle_wire::{FunctionName, InstanceId, VersionNumber};

use crate::catalog::Catalog;
use crate::fleet::Stage;
use crate::placement::roomiest;
use crate::placing::pump;
use crate::state::{Memory, Scheduler};

/// How many of a version stay parked; none of one that is not live.
pub(crate) fn min_parked(catalog: &Catalog, function: &FunctionName, version: VersionNumber) -> usize {
    let live = catalog.live(function).filter(|live| live.spec.version == version);
    live.map_or(0, |live| live.spec.manifest.min_parked as usize)
}

/// Starts the next instance of each pool that lacks one, where there is room.
pub(crate) fn refill(scheduler: &Scheduler) {
    let mut starts = Vec::new();
    {
        let mut memory = scheduler.memory();
        let Memory {
            fleet, catalog, pools, ..
        } = &mut *memory;
        let now = scheduler.now();
        let kept = |function: &_, version| min_parked(catalog, function, version) > 0;
        fleet.keep_filled(kept);
        pools.keep(kept);
        for live in catalog.pooled() {
            let manifest = &live.spec.manifest;
            let pooled = fleet.pooled(&live);
            let full = fleet.count(&live.spec.function, live.spec.version) >= manifest.max_instances as usize;
            if pooled >= manifest.min_parked as usize || full {
                continue;
            }
            let Ok(worker) = roomiest(fleet, &live, |_| true) else {
                continue;
            };
            if !pools.may_start(&live, fleet.filled_of(&live), now) {
                continue;
            }
            let id = InstanceId::generate();
            let kind = StartKind::Restored;
            fleet.add(id.clone(), worker, &live.spec, kind, Stage::Starting, now);
            if let Some(instance) = fleet.instances.get_mut(&id) {
                instance.to_park = true;
            }
            let Some(address) = fleet.address_of(&id) else { continue };
            let start = StartInstance {
                instance: id,
                start: kind,
                park: true,
                spec: (*live.spec).clone(),
            };
            starts.push((address, start));
        }
    }
    for (address, start) in starts {
        let here = scheduler.clone();
        scheduler.tasks.spawn(async move {
            let Err(error) = here.workers.start(&address, &start).await else { return };
            let id = &start.instance;
            tracing::warn!(instance = %id, error = &error as &dyn std::error::Error, "an instance to be parked could not be started");
            drop(here.memory().fleet.forget(id, here.now()));
            pump(&here);
        });
    }
}
