//! `POST /v1/functions`: a folder becomes a new version.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::StatusCode;
use rekindle_wire::api::VersionInfo;
use rekindle_wire::{ApiError, ErrorCode};

use super::{Refused, from_store};
use crate::objects::source_key;
use crate::prepare::{self, chain};
use crate::state::{DEPLOYS_MAX, Scheduler, unix_s};
use crate::upload;

/// Takes the folder as `.tar.gz` and answers 202 with the version, which is then prepared.
pub(super) async fn deploy(
    State(scheduler): State<Scheduler>,
    body: Body,
) -> Result<(StatusCode, Json<VersionInfo>), Refused> {
    // Before the upload, which is the larger part of the work.
    let place = scheduler.deploys.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(
            ErrorCode::Throttled,
            format!("{DEPLOYS_MAX} deploys are under way: wait for them (`fn list`), and deploy again"),
        )
    })?;
    let upload = upload::receive(body, &scheduler.config.spool).await?;
    let key = source_key(&upload.digest);
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
