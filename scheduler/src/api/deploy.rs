//! `POST /v1/functions`: a folder becomes a new version, unless it is to become one only if it has changed.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use http::StatusCode;
use rekindle_wire::api::VersionInfo;
use rekindle_wire::{ApiError, ErrorCode, FunctionName};
use serde::Deserialize;

use super::{Refused, bad_query, from_store};
use crate::objects::source_key;
use crate::prepare::{self, chain};
use crate::state::{DEPLOYS_MAX, Scheduler, unix_s};
use crate::upload;

#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    if_changed: bool,
}

/// Takes the folder as `.tar.gz` and answers 202 with the version, which is then prepared; 200 with the newest version if only a
/// changed folder is wanted and this one is what that version was made of.
pub(super) async fn deploy(
    State(scheduler): State<Scheduler>,
    wanted: Result<Query<Wanted>, QueryRejection>,
    body: Body,
) -> Result<(StatusCode, Json<VersionInfo>), Refused> {
    let Query(wanted) = wanted.map_err(bad_query)?;
    // Before the upload, which is the larger part of the work.
    let place = scheduler.deploys.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(
            ErrorCode::Throttled,
            format!("{DEPLOYS_MAX} deploys are under way: wait for them (`fn list`), and deploy again"),
        )
    })?;
    let upload = upload::receive(body, &scheduler.config.spool).await?;
    check_name(&scheduler, &upload.manifest.name).await?;
    let key = source_key(&upload.digest);
    if wanted.if_changed {
        let name = &upload.manifest.name;
        if let Some(version) = scheduler.store.unchanged(name, &key).await.map_err(from_store)? {
            return Ok((StatusCode::OK, Json(version)));
        }
    }
    // A delete must not take the folder for one that nobody uses.
    let nobody_deletes = scheduler.sources.read().await;
    // Before the version is written down: a version always has its source.
    let stored = scheduler.objects.put_file(&key, upload.file.path()).await;
    stored.map_err(|e| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("{}: check that the object store answers, and deploy again", chain(&e)),
        )
    })?;
    let version = scheduler
        .store
        .add_version(&upload.manifest, &key, unix_s())
        .await
        .map_err(from_store)?;
    drop(nobody_deletes);
    let info = version.info.clone();
    prepare::begin(&scheduler, version, key, place);
    Ok((StatusCode::ACCEPTED, Json(info)))
}

/// Refuses new functions a name with `--`, which is kept for what a host may name beside a function. Those that have one keep it.
async fn check_name(scheduler: &Scheduler, name: &FunctionName) -> Result<(), Refused> {
    if !name.as_str().contains("--") || !scheduler.store.versions(name, 1).await.map_err(from_store)?.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidManifest,
        format!(
            "{name} has two hyphens in a row, which names of new functions may not have: write one (name in fn.toml)"
        ),
    ))
}
