//! The description of the admin API, as OpenAPI. The functions below are never called. They carry the descriptions, and
//! each stands for a handler of the scheduler or the gateway.

#![allow(dead_code, reason = "only their annotations are used")]

use rekindle_wire::ApiError;
use rekindle_wire::api::{
    CollectRequest, Collected, FunctionDetail, FunctionSummary, InstanceInfo, LogLine, MigrateRequest, Migration,
    Revocation, RevokeRequest, Status, VersionInfo, WorkerInfo,
};
use rekindle_wire::asynchronous::{AcceptedCall, AsyncCall, Changed};
use rekindle_wire::stats::{FunctionStats, Stats};
use utoipa::openapi::Required;
use utoipa::openapi::path::{ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// The document served at `/v1/openapi.json`.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rekindle",
        description = "Functions that are restored instead of booted. Everything under /v1/ but this document needs the admin key \
                       (`Authorization: Bearer KEY`). Errors are `{code, message, request_id}`; \
                       docs/reference/errors/ has a page per code.",
    ),
    paths(
        deploy, list_functions, describe_function, delete_function, describe_version, renew_snapshot, logs, invoke,
        status, list_instances, stop_instance, migrate_instance, list_workers, drain_worker, undrain_worker, revoke,
        list_revocations, collect, openapi, call_function, call_function_below, call_later, call_later_below,
        call_result, list_calls, show_call,
        remove_call, retry_call, retry_calls, metrics, scheduler_metrics, worker_metrics, stats, function_stats, health, ready,
    ),
    components(schemas(LogLine, ApiError)),
    modifiers(&AdminKey, &Namespaces),
    tags(
        (name = "functions", description = "Deploying, describing, deleting"),
        (name = "invocations", description = "Calling functions"),
        (name = "platform", description = "What runs, and whether it does"),
    ),
)]
struct Document;

struct AdminKey;

impl Modify for AdminKey {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The admin key, which `fn up` makes at its first start"))
            .build();
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("admin_key", SecurityScheme::Http(scheme));
    }
}

/// Describes every path of functions in any namespace, besides its short form for the default one.
struct Namespaces;

impl Modify for Namespaces {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let described = "the namespace; `namespace_not_found` (404) if there is none of that name";
        let parameter = ParameterBuilder::new()
            .name("namespace")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(described))
            .schema(Some(Object::with_type(Type::String)))
            .build();
        let paths = &mut openapi.paths.paths;
        let of_functions = paths.iter().filter_map(|(path, item)| {
            let rest = path.strip_prefix("/v1/functions")?;
            let mut item = item.clone();
            for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
                let parameters = operation.parameters.get_or_insert_default();
                parameters.push(parameter.clone().into());
                operation.operation_id = operation.operation_id.take().map(|id| id + "_in_namespace");
            }
            Some((format!("/v1/namespaces/{{namespace}}/functions{rest}"), item))
        });
        let of_functions: Vec<_> = of_functions.collect();
        paths.extend(of_functions);
    }
}

/// Deploy a folder
///
/// The body is a `.tar.gz` of the function's folder with `fn.toml` at its top level, at most 256 MiB. The version is
/// prepared after the response: poll it until its state is `live` or `failed`. It serves invocations once it is live;
/// until then the previous version does.
#[utoipa::path(
    post, path = "/v1/functions", tag = "functions", security(("admin_key" = [])),
    params(("if_changed" = Option<bool>, Query, description = "make no new version of a folder that the newest, live version was made of")),
    request_body(content = Vec<u8>, content_type = "application/gzip", description = "the folder"),
    responses(
        (status = 200, description = "with `if_changed`: nothing has changed, and this is the newest version", body = VersionInfo),
        (status = 202, description = "accepted", body = VersionInfo),
        (status = 400, description = "`invalid_manifest` with the line and the fix, or `bad_request`", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 409, description = "`conflict`: a version of the function is being prepared", body = ApiError),
        (status = 413, description = "`too_large`", body = ApiError),
        (status = 429, description = "`throttled`: 32 deploys are under way", body = ApiError),
        (status = 503, description = "`unavailable`: the object store or the scheduler does not answer", body = ApiError),
    ),
)]
fn deploy() {}

/// List functions
#[utoipa::path(
    get, path = "/v1/functions", tag = "functions", security(("admin_key" = [])),
    responses(
        (status = 200, description = "every function of the namespace, by name", body = Vec<FunctionSummary>),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn list_functions() {}

/// Describe a function
#[utoipa::path(
    get, path = "/v1/functions/{name}", tag = "functions", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the function")),
    responses(
        (status = 200, description = "its versions, newest first, and its instances", body = FunctionDetail),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
    ),
)]
fn describe_function() {}

/// Delete a function
///
/// Stops its instances and removes all its versions and their snapshots.
#[utoipa::path(
    delete, path = "/v1/functions/{name}", tag = "functions", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the function")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 409, description = "`conflict`: a version of it is being prepared", body = ApiError),
    ),
)]
fn delete_function() {}

/// Describe a version
#[utoipa::path(
    get, path = "/v1/functions/{name}/versions/{version}", tag = "functions", security(("admin_key" = [])),
    params(
        ("name" = String, Path, description = "the function"),
        ("version" = u32, Path, description = "its number"),
    ),
    responses(
        (status = 200, description = "the version", body = VersionInfo),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
    ),
)]
fn describe_version() {}

/// Renew a snapshot
///
/// Renews the live version's snapshot in the background. The old one serves meanwhile, and running instances continue.
/// The version's `renewal` shows the progress.
#[utoipa::path(
    post, path = "/v1/functions/{name}/snapshot/renew", tag = "functions", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the function")),
    responses(
        (status = 202, description = "the version, with its `renewal`", body = VersionInfo),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 409, description = "`conflict`: nothing of it is live, or it has no snapshot", body = ApiError),
    ),
)]
fn renew_snapshot() {}

/// Read a function's log
#[utoipa::path(
    get, path = "/v1/functions/{name}/logs", tag = "functions", security(("admin_key" = [])),
    params(
        ("name" = String, Path, description = "the function"),
        ("tail" = Option<usize>, Query, description = "lines from the end, 100 when absent, at most 10000"),
        ("follow" = Option<bool>, Query, description = "keep the answer open and send new lines as they are written"),
    ),
    responses(
        (status = 200, description = "one JSON object a line, oldest first", body = LogLine, content_type = "application/x-ndjson"),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 503, description = "`unavailable`: no worker is connected", body = ApiError),
    ),
)]
fn logs() {}

/// Invoke a function with an event
///
/// The body is the event. The response is the function's own.
#[utoipa::path(
    post, path = "/v1/functions/{name}/invocations", tag = "invocations", security(("admin_key" = [])),
    params(
        ("name" = String, Path, description = "the function"),
        ("x-fn-force-start" = Option<String>, Header, description = "`booted` or `restored`: start a fresh instance this way"),
        ("async" = Option<bool>, Query, description = "run it later: see `/async-function/{name}`"),
    ),
    request_body(content = Vec<u8>, content_type = "application/json", description = "the event"),
    responses(
        (status = 200, description = "what the function answered; headers x-request-id, x-fn-start, x-fn-instance, server-timing"),
        (status = 202, description = "with `async=true`: it is kept, and run later", body = AcceptedCall),
        (status = 400, description = "`bad_request`: a start that is not possible", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 413, description = "`too_large`", body = ApiError),
        (status = 429, description = "`throttled`, with Retry-After", body = ApiError),
        (status = 502, description = "`function_error`, `invalid_response`, `function_crashed`, \
                                      `function_out_of_memory`, `boot_failed`, `restore_failed` \
                                      or `snapshot_lost`", body = ApiError),
        (status = 503, description = "`no_capacity` or `unavailable`, with Retry-After", body = ApiError),
        (status = 504, description = "`function_timeout`", body = ApiError),
    ),
)]
fn invoke() {}

/// The platform as a whole
#[utoipa::path(
    get, path = "/v1/status", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "workers, functions, instances", body = Status),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn status() {}

/// List instances
#[utoipa::path(
    get, path = "/v1/instances", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "every instance, oldest first", body = Vec<InstanceInfo>),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn list_instances() {}

/// Stop an instance
///
/// Requests in it end with it.
#[utoipa::path(
    delete, path = "/v1/instances/{id}", tag = "platform", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the instance")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
        (status = 503, description = "`unavailable`: its worker does not answer", body = ApiError),
    ),
)]
fn stop_instance() {}

/// List workers
#[utoipa::path(
    get, path = "/v1/workers", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "every worker that was heard of within the hour, by id", body = Vec<WorkerInfo>),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn list_workers() {}

/// Drain a worker
///
/// The worker is given nothing new, its idle instances go, and gateways send elsewhere; requests in it finish. The
/// response does not wait for that: the worker is empty when its state is `drained`. The setting lasts until it is
/// undone, whatever is restarted.
#[utoipa::path(
    put, path = "/v1/workers/{name}/drain", tag = "platform", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the worker's id, its address with or without the port, or its host's name")),
    responses(
        (status = 200, description = "the worker as it is now", body = WorkerInfo),
        (status = 400, description = "`bad_request`: several workers are called that", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
    ),
)]
fn drain_worker() {}

/// Use a worker again
#[utoipa::path(
    delete, path = "/v1/workers/{name}/drain", tag = "platform", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the worker's id, its address with or without the port, or its host's name")),
    responses(
        (status = 200, description = "the worker as it is now", body = WorkerInfo),
        (status = 400, description = "`bad_request`: several workers are called that", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
    ),
)]
fn undrain_worker() {}

/// Revoke a member of the cluster
///
/// Its certificate, and any that it got in the meantime, is refused by all roles from then on, and connections with it
/// are closed. A worker's instances are gone, and its host cannot join again under that name. A revocation cannot be
/// undone.
#[utoipa::path(
    post, path = "/v1/revocations", tag = "platform", security(("admin_key" = [])),
    request_body = RevokeRequest,
    responses(
        (status = 200, description = "who is revoked, and since when", body = Revocation),
        (status = 400, description = "`bad_request`: no member, or a cluster without an authority", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 409, description = "`conflict`: too many are", body = ApiError),
    ),
)]
fn revoke() {}

/// List revoked members
#[utoipa::path(
    get, path = "/v1/revocations", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "all of them, the oldest first", body = [Revocation]),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn list_revocations() {}

/// Move an instance
///
/// Moves it to another worker with its memory, or makes a copy there. Invocations wait meanwhile and continue there.
/// The response comes when it runs there. Until then it may continue where it was, and after any error except
/// `migration_lost` it does.
#[utoipa::path(
    post, path = "/v1/instances/{id}/migrate", tag = "platform", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the instance")),
    request_body = MigrateRequest,
    responses(
        (status = 200, description = "it runs there", body = Migration),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`: no such instance or worker", body = ApiError),
        (status = 409, description = "`conflict`: it is starting, stopping or moving, or an invocation in it did not end in time", body = ApiError),
        (status = 502, description = "`migration_lost`: it is gone", body = ApiError),
        (status = 503, description = "`no_capacity`: the worker has no room, or there is no other; `unavailable`: a worker does not answer", body = ApiError),
    ),
)]
fn migrate_instance() {}

/// Remove unneeded objects
///
/// Removes old versions beyond those kept, and snapshots, chunks, layers and uploaded folders that no version needs.
/// The platform also does this automatically. It may take minutes; a client that goes away does not stop it.
#[utoipa::path(
    post, path = "/v1/collections", tag = "platform", security(("admin_key" = [])),
    request_body(content = CollectRequest, description = "whether only to count"),
    responses(
        (status = 200, description = "what was removed", body = Collected),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 409, description = "`conflict`: one is under way, or the object store is another scheduler's", body = ApiError),
        (status = 503, description = "`unavailable`: the object store does not answer", body = ApiError),
    ),
)]
fn collect() {}

/// This document
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "platform",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json")),
)]
fn openapi() {}

/// Call a function
///
/// Any method. Also at the host `{name}.localhost`, with any path.
#[utoipa::path(
    get, path = "/function/{name}", tag = "invocations",
    params(("name" = String, Path, description = "the function: `NAME`, or `NAME.NAMESPACE`")),
    responses(
        (status = 200, description = "what the function answered"),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 413, description = "`too_large`", body = ApiError),
        (status = 429, description = "`throttled`, with Retry-After", body = ApiError),
        (status = 502, description = "the function failed; see the code", body = ApiError),
        (status = 503, description = "`no_capacity` or `unavailable`, with Retry-After", body = ApiError),
        (status = 504, description = "`function_timeout`", body = ApiError),
    ),
)]
fn call_function() {}

/// Call a function at a path
///
/// Any method. The path reaches the function byte for byte.
#[utoipa::path(
    get, path = "/function/{name}/{path}", tag = "invocations",
    params(
        ("name" = String, Path, description = "the function: `NAME`, or `NAME.NAMESPACE`"),
        ("path" = String, Path, description = "the path below it; may contain slashes"),
    ),
    responses(
        (status = 200, description = "what the function answered"),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 502, description = "the function failed; see the code", body = ApiError),
        (status = 504, description = "`function_timeout`", body = ApiError),
    ),
)]
fn call_function_below() {}

/// Call a function later
///
/// Any method. The response comes once the call is stored durably. The call is then run at least once, and retried if
/// it fails (docs/reference/async.md). At most 1 MiB of body.
#[utoipa::path(
    post, path = "/async-function/{name}", tag = "invocations",
    params(
        ("name" = String, Path, description = "the function: `NAME`, or `NAME.NAMESPACE`"),
        ("idempotency-key" = Option<String>, Header, description = "1 to 200 visible characters: sent again with it, the call is run once"),
        ("x-callback-url" = Option<String>, Header, description = "where to post what comes of it"),
    ),
    responses(
        (status = 202, description = "it is kept; headers x-fn-async-id, location", body = AcceptedCall),
        (status = 400, description = "`bad_request`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
        (status = 409, description = "`conflict`: the idempotency key was another request's", body = ApiError),
        (status = 413, description = "`too_large`", body = ApiError),
        (status = 429, description = "`throttled`: its queue is full", body = ApiError),
        (status = 503, description = "`unavailable`: nothing was kept, or it is not known", body = ApiError),
    ),
)]
fn call_later() {}

/// Call a function later at a path
#[utoipa::path(
    post, path = "/async-function/{name}/{path}", tag = "invocations",
    params(
        ("name" = String, Path, description = "the function: `NAME`, or `NAME.NAMESPACE`"),
        ("path" = String, Path, description = "the path below it; may contain slashes"),
    ),
    responses(
        (status = 202, description = "it is kept", body = AcceptedCall),
        (status = 404, description = "`function_not_found`", body = ApiError),
    ),
)]
fn call_later_below() {}

/// Get the result of an asynchronous call
///
/// Whoever knows its id may ask. Header x-fn-async-state: `queued`, `running`, `done`, `dead`. Responses are kept for a
/// day.
#[utoipa::path(
    get, path = "/async-results/{id}", tag = "invocations",
    params(
        ("id" = String, Path, description = "the call"),
        ("wait" = Option<u64>, Query, description = "seconds to wait for its end, at most 30"),
    ),
    responses(
        (status = 200, description = "what the function answered, with its own status and headers"),
        (status = 202, description = "it has not ended"),
        (status = 404, description = "`not_found`: no such call, or it is forgotten", body = ApiError),
        (status = 413, description = "`too_large`: the answer's body was over 1 MiB and is not kept", body = ApiError),
        (status = 502, description = "of a call that was given up: the error of its last attempt", body = ApiError),
        (status = 504, description = "`expired` or `function_timeout`, of a call that was given up", body = ApiError),
    ),
)]
fn call_result() {}

/// List asynchronous calls
#[utoipa::path(
    get, path = "/v1/async", tag = "invocations", security(("admin_key" = [])),
    params(
        ("function" = Option<String>, Query, description = "only this function's: `NAME`, or `NAME.NAMESPACE`"),
        ("state" = Option<String>, Query, description = "only those that are `queued`, `running`, `done` or `dead`"),
        ("before" = Option<String>, Query, description = "only those older than this call: the last one of the page before"),
        ("limit" = Option<u32>, Query, description = "how many, 100 when absent, at most 1000"),
    ),
    responses(
        (status = 200, description = "newest first", body = Vec<AsyncCall>),
        (status = 400, description = "`bad_request`", body = ApiError),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn list_calls() {}

/// Describe an asynchronous call
#[utoipa::path(
    get, path = "/v1/async/{id}", tag = "invocations", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the call")),
    responses(
        (status = 200, description = "where it stands", body = AsyncCall),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
    ),
)]
fn show_call() {}

/// Delete an asynchronous call
///
/// A waiting call is not run any more.
#[utoipa::path(
    delete, path = "/v1/async/{id}", tag = "invocations", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the call")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
        (status = 409, description = "`conflict`: it runs", body = ApiError),
    ),
)]
fn remove_call() {}

/// Queue a dead letter again
#[utoipa::path(
    post, path = "/v1/async/{id}/retry", tag = "invocations", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the call")),
    responses(
        (status = 200, description = "it waits, as if it came now", body = AsyncCall),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
        (status = 409, description = "`conflict`: it is no dead letter", body = ApiError),
    ),
)]
fn retry_call() {}

/// Queue all dead letters of a function again
#[utoipa::path(
    post, path = "/v1/functions/{name}/async/retry", tag = "invocations", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the function")),
    responses(
        (status = 200, description = "how many", body = Changed),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn retry_calls() {}

/// The gateway's metrics
///
/// For Prometheus. OpenMetrics, with exemplars, if `Accept` names `application/openmetrics-text`.
#[utoipa::path(
    get, path = "/metrics", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "Prometheus' text format, or OpenMetrics", body = String, content_type = "text/plain"),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn metrics() {}

/// The scheduler's metrics
#[utoipa::path(
    get, path = "/v1/metrics", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "as `/metrics`", body = String, content_type = "text/plain"),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn scheduler_metrics() {}

/// A worker's metrics
#[utoipa::path(
    get, path = "/v1/workers/{id}/metrics", tag = "platform", security(("admin_key" = [])),
    params(("id" = String, Path, description = "the worker")),
    responses(
        (status = 200, description = "as `/metrics`", body = String, content_type = "text/plain"),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`not_found`", body = ApiError),
        (status = 503, description = "`unavailable`: it does not answer", body = ApiError),
    ),
)]
fn worker_metrics() {}

/// The platform in numbers
///
/// Counts of all gateways together since their start, by function and start kind; how full the workers' pools and
/// caches are.
#[utoipa::path(
    get, path = "/v1/stats", tag = "platform", security(("admin_key" = [])),
    responses(
        (status = 200, description = "workers and functions", body = Stats),
        (status = 401, description = "`unauthorized`", body = ApiError),
    ),
)]
fn stats() {}

/// A function in numbers
#[utoipa::path(
    get, path = "/v1/functions/{name}/stats", tag = "functions", security(("admin_key" = [])),
    params(("name" = String, Path, description = "the function")),
    responses(
        (status = 200, description = "its invocations by start kind, its instances, its snapshot", body = FunctionStats),
        (status = 401, description = "`unauthorized`", body = ApiError),
        (status = 404, description = "`function_not_found`", body = ApiError),
    ),
)]
fn function_stats() {}

/// Whether the gateway is alive
#[utoipa::path(get, path = "/healthz", tag = "platform", responses((status = 200, description = "it does")))]
fn health() {}

/// Whether the gateway can serve
#[utoipa::path(
    get, path = "/readyz", tag = "platform",
    responses(
        (status = 200, description = "the scheduler answers"),
        (status = 503, description = "`unavailable`: it does not", body = ApiError),
    ),
)]
fn ready() {}
