//! Deploys: make a new version from a folder, or only if the folder has changed.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::StatusCode;
use rekindle_wire::api::{Alias, VersionInfo};
use rekindle_wire::interface::Params;
use rekindle_wire::interface::users::Deploy;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId};

use super::known;
use crate::clock::unix_s;
use crate::cluster::ClusterState;
use crate::objects::source_key;
use crate::prepare;
use crate::refusal::{Refused, chain, from_store};
use crate::releases;
use crate::state::{DEPLOYS_MAX, Scheduler};
use crate::upload;

/// Takes the folder as `.tar.gz` and answers 202 with the version, which is then prepared. If the request is for a
/// changed folder only, and the newest version was made from this one, it answers 200 with that version, which serves.
pub(super) async fn deploy(
    State(scheduler): State<Scheduler>,
    Params(wanted): Params<Deploy>,
    body: Body,
) -> Result<(StatusCode, Json<VersionInfo>), Refused> {
    let namespace = known(&scheduler, wanted.namespace)?;
    let traffic = wanted.traffic.unwrap_or(true);
    // Before the upload, which is the larger part of the work.
    let place = scheduler.deploys.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(
            ErrorCode::Throttled,
            format!("{DEPLOYS_MAX} deploys are under way: wait for them (`fn list`), and deploy again"),
        )
    })?;
    let upload = upload::receive(body, &scheduler.config.spool).await?;
    let function = FunctionId::new(&namespace, &upload.manifest.name);
    check_name(&scheduler, &function).await?;
    let key = source_key(&upload.digest);
    if wanted.if_changed.unwrap_or(false)
        && let Some(version) = scheduler.store.unchanged(&function, &key).await.map_err(from_store)?
    {
        let serves_alone = |state: &ClusterState| {
            let mut aliases = state.catalog.aliases(&function);
            let live = aliases.find(|alias| alias.name.is_live());
            live.is_some_and(|live| matches!(&*live.targets, [only] if only.version == version.version))
        };
        let is_alone = serves_alone(&scheduler.state());
        if traffic && !is_alone {
            // It was deployed without traffic, rolled back, or shares invocations with another.
            releases::set(&scheduler, &function, Alias::of(AliasName::live(), version.version)).await?;
        }
        return Ok((StatusCode::OK, Json(version)));
    }
    // A delete must not mistake the folder for an unused one.
    let nobody_deletes = scheduler.sources.read().await;
    // Before the version is recorded: a version always has its source.
    let stored = scheduler.objects.put_file(&key, upload.file.path()).await;
    stored.map_err(|e| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("{}: check that the object store answers, and deploy again", chain(&e)),
        )
    })?;
    let version = scheduler
        .store
        .add_version(&function, &upload.manifest, &key, unix_s())
        .await
        .map_err(from_store)?;
    drop(nobody_deletes);
    let info = version.info.clone();
    prepare::begin(&scheduler, version, key, place, traffic);
    Ok((StatusCode::ACCEPTED, Json(info)))
}

/// Refuses names with `--` for new functions: they are reserved for what a host name may carry in addition to a
/// function. Existing functions with such a name keep it.
async fn check_name(scheduler: &Scheduler, name: &FunctionId) -> Result<(), Refused> {
    if !name.name().contains("--") || !scheduler.store.versions(name, 1).await.map_err(from_store)?.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidManifest,
        format!(
            "{name} has two hyphens in a row, which names of new functions may not have: write one (name in fn.toml)"
        ),
    ))
}
