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
use crate::state::{Scheduler, unix_s};
use crate::upload;

/// Takes the folder as `.tar.gz` and answers 202 with the version, which is then prepared.
pub(super) async fn deploy(
    State(scheduler): State<Scheduler>,
    body: Body,
) -> Result<(StatusCode, Json<VersionInfo>), Refused> {
    let upload = upload::receive(body, &scheduler.config.spool).await?;
    let key = source_key(&upload.digest);
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
    let info = version.info.clone();
    prepare::begin(&scheduler, version, key);
    Ok((StatusCode::ACCEPTED, Json(info)))
}
