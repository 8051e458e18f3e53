//! Which role may call what, and how hosts become members: `POST /join` with a token, `POST /internal/renew` with the
//! certificate itself.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::routing::post;
use axum::{Json, Router};
use rekindle_identity::{Caller, Issuing, JoinAnswer, JoinRequest, RenewRequest, Role};
use rekindle_wire::{ApiError, ErrorCode};

use super::{Refused, bad_json};
use crate::server::Config;
use crate::state::Scheduler;

/// A token and a certificate request.
const JOIN_MAX: usize = 16 << 10;

/// The roles that may call a path, apart from the token that each call carries.
fn may_call(path: &str) -> &'static [Role] {
    match path {
        "/internal/heartbeat" => &[Role::Worker],
        "/internal/renew" | "/internal/revocations" => &[Role::Worker, Role::Gateway],
        // Users, who have shown the admin key to a gateway; and a gateway's own calls.
        _ => &[Role::Gateway],
    }
}

/// The peer that made a request's connection.
pub(super) fn caller(request: &Request) -> Caller {
    let info = request.extensions().get::<ConnectInfo<Caller>>();
    // Every listener sets it; a request without it is a stranger's.
    info.map_or(Caller::Stranger, |ConnectInfo(caller)| caller.clone())
}

/// Refuses a caller without the role that the path requires, and one revoked since it connected.
pub(super) fn check(scheduler: &Scheduler, request: &Request) -> Result<(), Refused> {
    let (caller, path) = (caller(request), request.uri().path());
    if let (Caller::Member(peer), Some(issuing)) = (&caller, &scheduler.config.issuing)
        && issuing.member().revoked().has(peer)
    {
        return Err(ApiError::new(ErrorCode::Unauthorized, format!("the {peer} is revoked")));
    }
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

/// The routes by which hosts join. They need nothing but the authority, so a standby scheduler admits hosts too: the
/// token may have been made on its machine.
pub(crate) fn joining(config: &Config) -> Router {
    let doorkeeper = Arc::new((config.issuing.clone(), config.cluster_token.clone()));
    Router::new()
        .route("/join", post(join).layer(DefaultBodyLimit::max(JOIN_MAX)))
        .with_state(doorkeeper)
}

type Doorkeeper = Arc<(Option<Arc<Issuing>>, String)>;

async fn join(
    State(doorkeeper): State<Doorkeeper>,
    asked: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<Json<JoinAnswer>, Refused> {
    let Json(asked) = asked.map_err(bad_json)?;
    let (issuing, cluster_token) = &*doorkeeper;
    let issuing = issuing.as_ref().ok_or_else(no_authority)?;
    issuing.join(&asked, cluster_token).map(Json)
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

pub(super) fn no_authority() -> ApiError {
    ApiError::new(
        ErrorCode::BadRequest,
        "this cluster has no authority: `fn cluster init` on the scheduler's host makes one",
    )
}
