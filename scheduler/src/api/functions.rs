//! Functions: listing, describing, deleting.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rekindle_wire::api::{FunctionDetail, FunctionSummary, VersionFiles, VersionInfo};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::error::chain;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::users::{
    DeleteFunction, DescribeFunction, DescribeVersion, ListFiles, ListFunctions, RenewSnapshot,
};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, VersionNumber};

use super::{known, named};
use crate::objects::ObjectError;
use crate::placing::pump;
use crate::refusal::{Refused, from_store, unknown_function};
use crate::releases;
use crate::renewal;
use crate::state::Scheduler;
use crate::upload::look_through;

/// How long the files of other versions may take to be listed first.
const READING_WAIT: Duration = Duration::from_secs(20);
const VERSIONS_SHOWN: u32 = 50;
/// Pause before each further attempt to remove an object.
const DELETE_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// Number of snapshots of a deleted function that are removed from the store at once.
const REMOVED_AT_ONCE: usize = 8;
/// How long a delete waits for what is removed from workers and the store. The rest goes in the background.
const CLEANING_WAIT: Duration = Duration::from_secs(10);

pub(super) async fn list(scheduler: Scheduler, call: Call<ListFunctions>) -> Result<Vec<FunctionSummary>, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    let newest = scheduler.store.newest_versions(&namespace).await.map_err(from_store)?;
    Ok(newest.iter().map(|v| summary(&scheduler, v)).collect())
}

pub(super) async fn detail(scheduler: Scheduler, call: Call<DescribeFunction>) -> Result<FunctionDetail, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let versions = scheduler
        .store
        .versions(&name, VERSIONS_SHOWN)
        .await
        .map_err(from_store)?;
    let newest = versions.first().ok_or_else(|| unknown_function(&name))?;
    let canary = scheduler.store.canary(&name).await.map_err(from_store)?;
    Ok(FunctionDetail {
        canary,
        summary: summary(&scheduler, newest),
        instances: scheduler.state().fleet.instance_infos(Some(&name), scheduler.now()),
        versions,
    })
}

pub(super) async fn version(scheduler: Scheduler, call: Call<DescribeVersion>) -> Result<VersionInfo, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let number = call.at.version;
    let version = scheduler.store.version(&name, number).await.map_err(from_store)?;
    version.ok_or_else(|| no_version(&name, number))
}

/// Lists the files of the folder that a version was made of, which is read from the object store.
pub(super) async fn files(scheduler: Scheduler, call: Call<ListFiles>) -> Result<VersionFiles, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let version = call.at.version;
    let key = scheduler.store.source_key(&name, version).await.map_err(from_store)?;
    let key = key.ok_or_else(|| no_version(&name, version))?;
    // Places of their own: whoever may read must not keep others from deploying.
    let place = tokio::time::timeout(READING_WAIT, Arc::clone(&scheduler.readings).acquire_owned()).await;
    let place = place.map_err(|_| {
        ApiError::new(
            ErrorCode::Throttled,
            "the files of other versions are being listed: try again in a moment",
        )
    })?;
    let unread = |error: &dyn std::error::Error| {
        let message = format!(
            "the folder of version {version} of {name} cannot be read: {}",
            chain(error)
        );
        ApiError::new(ErrorCode::Unavailable, message)
    };
    let dir = tempfile::tempdir_in(&scheduler.config.spool).map_err(|e| unread(&e))?;
    let path = dir.path().join("source.tar.gz");
    scheduler.objects.get_file(&key, &path).await.map_err(|e| unread(&e))?;
    let archive = std::fs::File::open(&path).map_err(|e| unread(&e))?;
    // The work goes on if the caller goes away, and keeps its place.
    let folder = tokio::task::spawn_blocking(move || {
        let _place = place;
        look_through(archive)
    });
    let folder = folder.await;
    let folder = folder.map_err(|e| unread(&e))?.map_err(|e| unread(&e))?;
    Ok(VersionFiles {
        version,
        files: folder.files,
    })
}

fn no_version(function: &FunctionId, version: VersionNumber) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("function {function} has no version {version}: `fn describe {function}` lists them"),
    )
}

/// Requests a new snapshot of the live version.
pub(super) async fn renew_snapshot(scheduler: Scheduler, call: Call<RenewSnapshot>) -> Result<VersionInfo, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    renewal::ask(&scheduler, &name).await
}

/// Removes a function: from placement first, then its instances, its rows, and its objects in the store.
pub(super) async fn delete(scheduler: Scheduler, call: Call<DeleteFunction>) -> Result<(), Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    // The rows go first: what is left after a crash in between is garbage, not half a function.
    let leftovers = scheduler
        .store
        .delete_function(&name, unix_ms())
        .await
        .map_err(from_store)?;
    let leftovers = leftovers.ok_or_else(|| unknown_function(&name))?;
    let addresses = {
        let mut state = scheduler.state();
        state.catalog.remove(&name);
        scheduler.metrics.forget(name.as_str());
        scheduler.schedules.forget(&name);
        state.traffic.forget(&name);
        state.end_canary(&name);
        let now = scheduler.now();
        let ids: Vec<_> = state
            .fleet
            .instance_infos(Some(&name), now)
            .into_iter()
            .map(|i| i.id)
            .collect();
        for id in ids {
            state.fleet.forget(&id, now);
        }
        state.fleet.addresses()
    };
    releases::announce(&scheduler);
    let here = scheduler.clone();
    // In a task of its own: it must not stop half-way because the client went away.
    let cleaning = scheduler.tasks.spawn(async move {
        for address in addresses {
            if let Err(error) = here.workers.remove_function(&address, &name).await {
                // The worker stops them when its next heartbeat is answered.
                tracing::warn!(
                    %name, error = &error as &dyn std::error::Error,
                    "a worker could not remove a deleted function at once"
                );
            }
        }
        pump(&here);
        let removals = futures::stream::iter(&leftovers.snapshots);
        removals
            .for_each_concurrent(REMOVED_AT_ONCE, async |snapshot| {
                if let Err(error) = insist(|| here.objects.delete_snapshot(snapshot)).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%name, %snapshot, error, "a deleted function's snapshot stays in the store");
                }
            })
            .await;
        for key in &leftovers.source_keys {
            delete_source(&here, key).await;
        }
        // Its chunks and layers, which others may share.
        here.collector.note_deleted();
    });
    // The function is gone already. Many versions have more in the store than a client waits for.
    drop(tokio::time::timeout(CLEANING_WAIT, cleaning).await);
    Ok(())
}

/// Removes an uploaded folder that no version uses. A deploy of the same folder stores it before its version is
/// recorded; until then nothing here may check for users.
async fn delete_source(scheduler: &Scheduler, key: &str) {
    let _nobody_deploys = scheduler.sources.write().await;
    match scheduler.store.uses_source(key).await {
        Ok(true) => {}
        Ok(false) => {
            if let Err(error) = insist(|| scheduler.objects.delete(key)).await {
                tracing::warn!(
                    key,
                    error = &error as &dyn std::error::Error,
                    "a deleted function's source stays in the store"
                );
            }
        }
        Err(error) => {
            tracing::warn!(
                key,
                error = &error as &dyn std::error::Error,
                "whether a source is used cannot be told: it stays in the store"
            );
        }
    }
}

/// Tries a few times. What is not removed now is left to the next collection.
async fn insist<F>(attempt: impl Fn() -> F) -> Result<(), ObjectError>
where
    F: Future<Output = Result<(), ObjectError>>,
{
    for pause in DELETE_PAUSES {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(
                error = &error as &dyn std::error::Error,
                "an object could not be removed; trying again"
            ),
        }
        tokio::time::sleep(pause).await;
    }
    attempt().await
}

fn summary(scheduler: &Scheduler, newest: &VersionInfo) -> FunctionSummary {
    let state = scheduler.state();
    let live = state.catalog.live(&newest.function);
    // The live version is described; before any is live, the deployed one.
    let config = live.as_ref().map_or(&newest.config, |l| &l.spec.config);
    let instances = state.fleet.instance_infos(Some(&newest.function), scheduler.now());
    FunctionSummary {
        name: newest.function.clone(),
        live: live.as_ref().map(|l| l.spec.version),
        newest: newest.version,
        state: newest.state,
        runtime: config.runtime,
        base: config.image.is_none().then_some(config.base),
        image: config.image.clone(),
        memory_bytes: config.memory.0,
        instances: u32::try_from(instances.len()).unwrap_or(u32::MAX),
        path: format!("/function/{}", newest.function),
    }
}
