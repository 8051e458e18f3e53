//! The scheduler's HTTP interface: `/v1/…` for users, forwarded by a gateway that checked the caller's key;
//! `/internal/…` for gateways and workers. Every call must carry the cluster's token.

mod access;
mod audit;
mod calls;
mod collections;
mod deploy;
mod functions;
mod instances;
mod internal;
mod logs;
pub(crate) mod members;
mod metrics;
mod quotas;
mod releases;
pub(crate) mod revocations;
mod schedules;
mod secrets;
mod sources;
mod stats;
mod usage;
mod workers;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::HeaderValue;
use rekindle_identity::{AwaitRevocations, Role};
use rekindle_wire::interface::scheduler::{
    AwaitKeys, AwaitRecalls, AwaitRoutes, Beat, ClaimCalls, EndCall, EndCallback, Place, RenewCalls, ReportLeases,
    ReportTraffic, ReportUsage,
};
use rekindle_wire::interface::users::{
    Deploy, ReadLogs, ReadSchedulerMetrics, ReadWorkerMetrics, ReportSources, SetSecret,
};
use rekindle_wire::interface::{Endpoint as _, Operation, Routes, version};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, FunctionName, Namespace, headers};
use tracing::Instrument as _;

use crate::audit::Change;
use crate::state::Scheduler;

/// Heartbeats list every instance of a worker.
const BODY_MAX: usize = 8 << 20;

/// Operations that are called all the time, whatever is asked of the platform.
const UNTRACED: [Operation; 13] = [
    AwaitKeys::OPERATION,
    AwaitRoutes::OPERATION,
    Beat::OPERATION,
    ReportLeases::OPERATION,
    AwaitRecalls::OPERATION,
    AwaitRevocations::OPERATION,
    ReportTraffic::OPERATION,
    ReportUsage::OPERATION,
    ClaimCalls::OPERATION,
    RenewCalls::OPERATION,
    EndCall::OPERATION,
    EndCallback::OPERATION,
    ReportSources::OPERATION,
];

pub(crate) fn router(scheduler: Scheduler) -> Router {
    for_users(for_roles())
        .into_router()
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .fallback(async || ApiError::new(ErrorCode::NotFound, "no such path: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                ErrorCode::BadRequest,
                "no such method on this path: see /v1/openapi.json",
            )
        })
        .layer(from_fn_with_state(scheduler.clone(), admit))
        .route(
            "/metrics",
            get(metrics::own).layer(from_fn_with_state(scheduler.clone(), admit_scraper)),
        )
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(async || "leads"))
        .with_state(scheduler.clone())
        .merge(members::joining(&scheduler.config))
}

/// The operations for gateways and workers.
fn for_roles() -> Routes<Scheduler> {
    Routes::default()
        .on(internal::placements)
        .on(internal::leases)
        .on(internal::recalls)
        .on(internal::routes)
        .on(access::keys)
        .on(internal::heartbeat)
        .on(internal::hosts)
        .on(stats::traffic)
        .on(usage::report)
        .on(calls::accept)
        .on(calls::claim)
        .on(calls::renew)
        .on(calls::end)
        .on(calls::end_callback)
        .on(calls::result)
        .on(members::renew)
        .on(revocations::news)
}

/// The operations for users, after `others`.
fn for_users(others: Routes<Scheduler>) -> Routes<Scheduler> {
    others
        // The deploy enforces its own limit.
        .sized::<Deploy, _, _>(DefaultBodyLimit::disable(), deploy::deploy)
        .on(deploy::check)
        .on(functions::list)
        .on(functions::detail)
        .on(functions::delete)
        .on(functions::version)
        .on(functions::files)
        .on(releases::versions)
        .on(releases::roll_back)
        .on(releases::aliases)
        .on(releases::set_alias)
        .on(releases::remove_alias)
        .on(functions::renew_snapshot)
        .raw::<ReadLogs, _, _>(logs::logs)
        .on(stats::one)
        .on(calls::retry_dead)
        .on(schedules::list)
        .on(schedules::pause)
        .on(schedules::resume)
        .on(schedules::run)
        .on(sources::list)
        .on(sources::report)
        .on(secrets::list)
        .raw::<SetSecret, _, _>(secrets::set)
        .on(secrets::remove)
        .on(access::create_key)
        .on(access::list_keys)
        .on(access::revoke_key)
        .on(access::add_rule)
        .on(access::list_rules)
        .on(access::remove_rule)
        .on(access::list_namespaces)
        .on(access::create_namespace)
        .on(access::encrypt_namespace)
        .on(access::remove_namespace)
        .on(quotas::read)
        .on(quotas::set)
        .on(quotas::clear)
        .on(usage::read)
        .on(audit::read)
        .on(instances::status)
        .on(stats::all)
        .on(instances::list)
        .on(instances::objects)
        .on(instances::objects_of)
        .on(instances::stop)
        .on(instances::migrate)
        .on(workers::list)
        .on(workers::drain)
        .on(workers::undrain)
        .raw::<ReadWorkerMetrics, _, _>(metrics::of_worker)
        .raw::<ReadSchedulerMetrics, _, _>(metrics::own)
        .on(revocations::revoke)
        .on(revocations::list)
        .on(collections::collect)
        .on(calls::list)
        .on(calls::show)
        .on(calls::remove)
        .on(calls::retry)
}

/// The namespace that a request names, which exists.
fn known(scheduler: &Scheduler, named: Option<Namespace>) -> Result<Namespace, ApiError> {
    let namespace = named.unwrap_or_default();
    scheduler.state().catalog.check_namespace(namespace.as_str())?;
    Ok(namespace)
}

/// The function that a request names, in a namespace that exists.
fn named(scheduler: &Scheduler, name: &FunctionName, namespace: Option<Namespace>) -> Result<FunctionId, ApiError> {
    Ok(FunctionId::new(&known(scheduler, namespace)?, name))
}

/// Checks the cluster's token, which a scraper sends as its bearer token.
async fn admit_scraper(State(scheduler): State<Scheduler>, request: Request, next: Next) -> Response {
    if is_token(&scheduler, headers::bearer(request.headers())) {
        return next.run(request).await;
    }
    ApiError::new(
        ErrorCode::Unauthorized,
        "this needs the cluster's token: send \"Authorization: Bearer TOKEN\"",
    )
    .into_response()
}

fn is_token(scheduler: &Scheduler, sent: Option<&[u8]>) -> bool {
    // Comparing digests takes the same time wherever the difference lies.
    let expected = blake3::hash(scheduler.config.cluster_token.as_bytes());
    sent.is_some_and(|token| blake3::hash(token) == expected)
}

/// Checks the token and opens the request's span.
async fn admit(State(scheduler): State<Scheduler>, request: Request, next: Next) -> Response {
    let sent = request.headers().get(headers::CLUSTER_TOKEN);
    if !is_token(&scheduler, sent.map(HeaderValue::as_bytes)) {
        return ApiError::new(
            ErrorCode::Unauthorized,
            "this is the scheduler, which only gateways and workers of its cluster may call: use a gateway's address",
        )
        .into_response();
    }
    let admitted =
        members::check(&scheduler, &request).and_then(|()| version::check(request.headers(), Role::Scheduler));
    if let Err(refused) = admitted {
        return refused.into_response();
    }
    let path = request.uri().path();
    let span = match path {
        path if UNTRACED.iter().any(|operation| operation.path == path) => return next.run(request).await,
        path if path == Place::OPERATION.path => tracing::info_span!(
            "placement",
            otel.kind = "server",
            rekindle.role = "scheduler",
            faas.invoked_name = tracing::field::Empty,
            rekindle.instance = tracing::field::Empty,
            rekindle.start = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            error.type = tracing::field::Empty,
        ),
        _ => tracing::info_span!(
            "admin",
            otel.name = format!("{} {path}", request.method()),
            otel.kind = "server",
            rekindle.role = "scheduler",
        ),
    };
    rekindle_telemetry::set_parent(&span, request.headers());
    let change = Change::of(&request);
    let answering = next.run(request).instrument(span);
    match change {
        Some(change) => change.make(&scheduler, answering).await,
        None => answering.await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rekindle_identity::{Join, MEMBERSHIP};
    use rekindle_wire::interface::scheduler::SCHEDULER;
    use rekindle_wire::interface::users::{ADMIN, FUNCTIONS};

    use super::*;

    #[test]
    fn every_operation_of_the_interface_is_served_and_no_other() {
        let paths = |all: &[Operation]| {
            let all = all.iter().map(|o| (o.path, o.method.to_string()));
            all.collect::<BTreeSet<_>>()
        };
        let routes = for_users(for_roles());
        // A scheduler that stands by lets hosts join too, so that is served apart.
        let others = MEMBERSHIP.iter().filter(|o| **o != Join::OPERATION).cloned();
        let defined: Vec<_> = [SCHEDULER, FUNCTIONS, ADMIN]
            .concat()
            .into_iter()
            .chain(others)
            .collect();
        assert_eq!(paths(routes.operations()), paths(&defined));
    }
}
