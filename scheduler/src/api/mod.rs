//! The scheduler's HTTP interface: `/v1/…` for users, forwarded by a gateway that checked the key; `/internal/…`
//! for gateways and workers. Every call must carry the cluster's token.

mod calls;
mod collections;
mod deploy;
mod functions;
mod instances;
mod internal;
mod logs;
pub(crate) mod members;
mod metrics;
pub(crate) mod revocations;
mod stats;
mod workers;

use axum::RequestPartsExt as _;
use axum::Router;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use http::HeaderValue;
use http::request::Parts;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, FunctionName, Namespace, headers};
use serde::Deserialize;
use tracing::Instrument as _;

use crate::prepare::chain;
use crate::state::Scheduler;
use crate::store::StoreError;

/// Heartbeats list every instance of a worker.
const BODY_MAX: usize = 8 << 20;

/// All routes.
pub(crate) fn router(scheduler: Scheduler) -> Router {
    let of_functions = PREFIXES.into_iter().map(functions_below);
    let rest = of_functions
        .fold(Router::new(), Router::merge)
        .route("/v1/status", get(instances::status))
        .route("/v1/instances", get(instances::list))
        .route("/v1/instances/{id}", delete(instances::stop))
        .route("/v1/workers", get(workers::list))
        .route("/v1/workers/{name}/drain", put(workers::drain).delete(workers::undrain))
        .route("/v1/async", get(calls::list))
        .route("/v1/async/{id}", get(calls::show).delete(calls::remove))
        .route("/v1/async/{id}/retry", post(calls::retry))
        .route("/internal/async/calls", post(calls::accept))
        .route("/internal/async/claims", post(calls::claim))
        .route("/internal/async/renewals", post(calls::renew))
        .route("/internal/async/outcomes", post(calls::end))
        .route("/internal/async/callbacks", post(calls::end_callback))
        .route("/internal/async/results/{id}", get(calls::result))
        .route("/v1/instances/{id}/migrate", post(instances::migrate))
        .route("/v1/revocations", get(revocations::list).post(revocations::revoke))
        .route("/internal/revocations", get(revocations::news))
        .route("/v1/collections", post(collections::collect))
        .route("/internal/placements", post(internal::placements))
        .route("/internal/leases", post(internal::leases))
        .route("/internal/recalls", get(internal::recalls))
        .route("/internal/heartbeat", post(internal::heartbeat))
        .route("/internal/renew", post(members::renew))
        .layer(DefaultBodyLimit::max(BODY_MAX));
    rest.fallback(async || ApiError::new(ErrorCode::NotFound, "no such path: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                ErrorCode::BadRequest,
                "no such method on this path: see /v1/openapi.json",
            )
        })
        .route("/v1/stats", get(stats::all))
        .route("/internal/traffic", post(stats::traffic))
        .route("/v1/metrics", get(metrics::own))
        .route("/v1/workers/{id}/metrics", get(metrics::of_worker))
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

/// What the paths of functions begin with: in the default namespace, and in any.
const PREFIXES: [&str; 2] = ["/v1", "/v1/namespaces/{namespace}"];

/// The routes of functions.
fn functions_below(prefix: &str) -> Router<Scheduler> {
    let all = format!("{prefix}/functions");
    let one = format!("{all}/{{name}}");
    // The deploy enforces its own limit.
    let deploy = post(deploy::deploy).layer(DefaultBodyLimit::disable());
    Router::new()
        .route(&all, deploy.get(functions::list))
        .route(&one, get(functions::detail).delete(functions::delete))
        .route(&format!("{one}/versions/{{version}}"), get(functions::version))
        .route(&format!("{one}/logs"), get(logs::logs))
        .route(&format!("{one}/snapshot/renew"), post(functions::renew_snapshot))
        .route(&format!("{one}/async/retry"), post(calls::retry_dead))
        .route(&format!("{one}/stats"), get(stats::one))
}

/// The namespace that a path names, which exists.
struct InNamespace(Namespace);

impl FromRequestParts<Scheduler> for InNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, scheduler: &Scheduler) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Params {
            #[serde(default)]
            namespace: Namespace,
        }
        let Path(Params { namespace }) = parts.extract().await.map_err(bad_path)?;
        scheduler.state().catalog.check_namespace(namespace.as_str())?;
        Ok(Self(namespace))
    }
}

/// The function that a path names, in a namespace that exists.
struct Named(FunctionId);

impl FromRequestParts<Scheduler> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, scheduler: &Scheduler) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Params {
            name: FunctionName,
        }
        let InNamespace(namespace) = InNamespace::from_request_parts(parts, scheduler).await?;
        let Path(Params { name }) = parts.extract().await.map_err(bad_path)?;
        Ok(Self(FunctionId::new(&namespace, &name)))
    }
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
    if let Err(refused) = members::check(&scheduler, &request) {
        return refused.into_response();
    }
    let path = request.uri().path();
    let span = match path {
        "/internal/heartbeat"
        | "/internal/leases"
        | "/internal/recalls"
        | "/internal/revocations"
        | "/internal/traffic"
        | "/internal/async/claims"
        | "/internal/async/renewals"
        | "/internal/async/outcomes"
        | "/internal/async/callbacks" => {
            return next.run(request).await;
        }
        "/internal/placements" => tracing::info_span!(
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
    next.run(request).instrument(span).await
}

/// An error on its way to the user.
pub(crate) type Refused = ApiError;

pub(crate) use functions::unknown as unknown_function;

fn bad_json(rejection: JsonRejection) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, rejection.body_text())
}

fn bad_path(rejection: PathRejection) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, rejection.body_text())
}

fn bad_query(rejection: QueryRejection) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, rejection.body_text())
}

pub(crate) fn from_store(error: StoreError) -> ApiError {
    match error {
        StoreError::Busy(name) => ApiError::new(
            ErrorCode::Conflict,
            format!("a version of {name} is being prepared: wait for it (`fn describe {name}`) and try again"),
        ),
        error => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the scheduler's database failed"
            );
            ApiError::new(
                ErrorCode::Internal,
                format!("{}: see the scheduler's log", chain(&error)),
            )
        }
    }
}
