//! Which role may call what, and how hosts become members: `POST /join` with a token, `POST /internal/renew` with the certificate itself.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Request, State};
use rekindle_identity::{Caller, JoinAnswer, JoinRequest, RenewRequest, Role};
use rekindle_wire::{ApiError, ErrorCode};

use super::{Refused, bad_json};
use crate::state::Scheduler;

/// Who may call a path, apart from the token that each call carries.
fn may_call(path: &str) -> &'static [Role] {
    match path {
        "/internal/heartbeat" => &[Role::Worker],
        "/internal/renew" => &[Role::Worker, Role::Gateway],
        // Users, who have shown the admin key to a gateway; and a gateway's own calls.
        _ => &[Role::Gateway],
    }
}

/// Who made the connection of a request.
pub(super) fn caller(request: &Request) -> Caller {
    let info = request.extensions().get::<ConnectInfo<Caller>>();
    // Every listener tells; a request without is nobody's.
    info.map_or(Caller::Stranger, |ConnectInfo(caller)| caller.clone())
}

/// Refuses who has not the role that the path is for.
pub(super) fn check(request: &Request) -> Result<(), Refused> {
    let (caller, path) = (caller(request), request.uri().path());
    let roles = may_call(path);
    if caller.is_one_of(roles) {
        return Ok(());
    }
    let names: Vec<&str> = roles.iter().map(|r| r.as_str()).collect();
    tracing::warn!(caller = caller.described(), path, "a call was refused");
    Err(ApiError::new(
        ErrorCode::Unauthorized,
        format!(
            "{} may not call {path}: that is for a {}",
            caller.described(),
            names.join(" or a ")
        ),
    ))
}

/// Refuses a worker that speaks for another.
pub(super) fn check_worker(caller: &Caller, id: &str) -> Result<(), Refused> {
    if caller.may_be_worker(id) {
        return Ok(());
    }
    let message = format!(
        "{} may not report for worker {id}: its certificate is another's",
        caller.described()
    );
    Err(ApiError::new(ErrorCode::Unauthorized, message))
}

pub(super) async fn join(
    State(scheduler): State<Scheduler>,
    asked: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<Json<JoinAnswer>, Refused> {
    let Json(asked) = asked.map_err(bad_json)?;
    let issuing = scheduler.config.issuing.as_ref().ok_or_else(no_authority)?;
    issuing.join(&asked, &scheduler.config.cluster_token).map(Json)
}

pub(super) async fn renew(
    State(scheduler): State<Scheduler>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Result<Json<RenewRequest>, JsonRejection>,
) -> Result<Json<JoinAnswer>, Refused> {
    let Json(asked) = asked.map_err(bad_json)?;
    let issuing = scheduler.config.issuing.as_ref().ok_or_else(no_authority)?;
    issuing
        .renew(&caller, &asked, &scheduler.config.cluster_token)
        .map(Json)
}

fn no_authority() -> ApiError {
    ApiError::new(
        ErrorCode::BadRequest,
        "this cluster has no authority: `fn cluster init` on the scheduler's host makes one",
    )
}
