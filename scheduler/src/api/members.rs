//! Which role may call what, and how hosts become members: with a token first, later with the certificate itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request};
use http::Extensions;
use rekindle_identity::{Caller, CertificateIssuer, Join, JoinResponse, MEMBERSHIP, RenewCertificate, Role};
use rekindle_wire::interface::scheduler::SCHEDULER;
use rekindle_wire::interface::{Call, Operation, Routes};
use rekindle_wire::{ApiError, ErrorCode};

use crate::config::Config;
use crate::refusal::Refused;
use crate::state::Scheduler;

/// A token and a certificate request.
const JOIN_MAX: usize = 16 << 10;

/// The roles that may send a request, apart from the token that each carries.
fn may_send(request: &Request) -> &'static [Role] {
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("", MatchedPath::as_str);
    let all = [SCHEDULER, MEMBERSHIP];
    let found = all.iter().find_map(|all| Operation::find(all, request.method(), path));
    // Users have shown a key to a gateway.
    found.map_or(&[Role::Gateway], |operation| operation.callers)
}

/// The peer that made the connection of a request with these extensions.
pub(super) fn caller(of: &Extensions) -> Caller {
    let info = of.get::<ConnectInfo<Caller>>();
    // Every listener sets it; a request without it is a stranger's.
    info.map_or(Caller::Stranger, |ConnectInfo(caller)| caller.clone())
}

/// Refuses a caller without the role that the path requires, and one revoked since it connected.
pub(super) fn check(scheduler: &Scheduler, request: &Request) -> Result<(), Refused> {
    let (caller, path) = (caller(request.extensions()), request.uri().path());
    if let (Caller::Member(peer), Some(issuing)) = (&caller, &scheduler.config.issuing) {
        issuing.refuse_revoked(peer)?;
    }
    let roles = may_send(request);
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
    let state = Arc::new(JoinState {
        issuing: config.issuing.clone(),
        cluster_token: config.cluster_token.clone(),
    });
    let routes = Routes::default().on(join);
    routes
        .into_router()
        .layer(DefaultBodyLimit::max(JOIN_MAX))
        .with_state(state)
}

/// What a host joins with.
struct JoinState {
    issuing: Option<Arc<CertificateIssuer>>,
    cluster_token: String,
}

async fn join(state: Arc<JoinState>, call: Call<Join>) -> Result<JoinResponse, Refused> {
    let issuing = state.issuing.as_ref().ok_or_else(no_authority)?;
    issuing.join(&call.body, &state.cluster_token)
}

pub(super) async fn renew(scheduler: Scheduler, call: Call<RenewCertificate>) -> Result<JoinResponse, Refused> {
    let issuing = scheduler.config.issuing.as_ref().ok_or_else(no_authority)?;
    let caller = caller(&call.head.extensions);
    issuing.renew(&caller, &call.body, &scheduler.config.cluster_token)
}

pub(super) fn no_authority() -> ApiError {
    ApiError::new(
        ErrorCode::BadRequest,
        "this cluster has no authority: `fn cluster init` on the scheduler's host makes one",
    )
}
