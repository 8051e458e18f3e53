//! The worker's HTTP interface, which `rekindle_wire::interface::worker` defines.

mod migration;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method};
use rekindle_identity::{Caller, Listener, Role, TlsError, Transport};
use rekindle_wire::api::InstanceObjects;
use rekindle_wire::headers::{CLUSTER_TOKEN, bearer};
use rekindle_wire::interface::{Call, Operation, Params, Routes, version, worker};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, SnapshotKey};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use crate::config::WorkerConfig;
use crate::criu::probe;
use crate::errors::unavailable;
use crate::instance::parking::Parking;
use crate::instance::{gone, objects};
use crate::reporting::{heartbeat, leave};
use crate::startup::{StartError, start};
use crate::worker::Worker;

/// How long a placement on this worker waits for the first response to a heartbeat, and the interval of checks.
const KNOWN_LIMIT: Duration = Duration::from_secs(3);
const KNOWN_LOOK: Duration = Duration::from_millis(20);

/// Maximum size of a message. Orders carry secrets.
const BODY_MAX: usize = 8 << 20;

/// Number of a log's lines that are read if no number is asked for.
const TAIL_DEFAULT: usize = 100;

/// Why a worker does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It could not start.
    #[error("start the worker")]
    Start(#[from] StartError),
    /// Its certificate cannot be used.
    #[error("guard the worker's connections")]
    Tls(#[source] TlsError),
    /// The client for calls to the scheduler cannot be created.
    #[error("make the connection to the scheduler")]
    Client(#[source] reqwest::Error),
    /// Calls of functions cannot be taken.
    #[error("take calls of functions")]
    Calls(#[source] io::Error),
    /// Its listener failed.
    #[error("serve the worker's interface")]
    Listen(#[source] io::Error),
}

/// Runs a worker until `shutdown`, then stops every instance.
///
/// # Errors
/// Returns an error when the worker cannot start or its listener fails.
pub fn serve(
    config: WorkerConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, Result<(), ServeError>> {
    boxed(config, listener, Box::pin(shutdown))
}

/// Boxed here, so that the server is compiled once, with this crate, and not with each of its callers.
fn boxed(
    config: WorkerConfig,
    listener: TcpListener,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), ServeError>> {
    Box::pin(run(config, listener, shutdown))
}

async fn run(config: WorkerConfig, listener: TcpListener, shutdown: BoxFuture<'static, ()>) -> Result<(), ServeError> {
    let client = heartbeat::client().map_err(ServeError::Client)?;
    let member = config.member.clone();
    let client = Transport::new(client, member.as_deref(), Role::Scheduler).map_err(ServeError::Tls)?;
    let listener = Listener::new(listener, member.as_deref()).map_err(ServeError::Listen)?;
    let worker = start(config, client.clone()).await?;
    let adopting = Arc::clone(&worker);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = adopting.layers.adopt() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "layers that are here from before are not counted");
        }
    });
    let reporter = Arc::clone(&worker.reporter);
    let beating = tokio::spawn(async move { reporter.run().await });
    let filled = Arc::clone(&worker);
    let filling = tokio::spawn(async move {
        // The probe comes first, so that all sandboxes of the pool are prestarted.
        probe::ahead(&filled.criu).await;
        Arc::clone(&filled.pool).keep_filled().await;
    });
    let renewing = member.map(|member| {
        let (url, token) = (&worker.reporter.scheduler_url, &worker.token);
        let address = url.split_once("://").map_or(url.as_str(), |(_, address)| address);
        tokio::spawn(member.keep_current(address.to_owned(), client.clone(), token.clone()))
    });
    let calls = worker.network.as_ref().and_then(|network| network.take_call_listener());
    let calling = match calls {
        None => None,
        Some(listener) => {
            let serving = Arc::clone(&worker.function_calls).serve(listener);
            Some(tokio::spawn(serving.map_err(ServeError::Calls)?))
        }
    };
    let router = router(Arc::clone(&worker));
    let (invoked, others) = (Arc::clone(&worker), rekindle_identity::inside(router.clone()));
    let _registered = worker.in_process.open(&worker.address, move |request| {
        if !request.uri().path().starts_with("/invoke/") {
            return others(request);
        }
        let worker = Arc::clone(&invoked);
        Box::pin(async move { invoke_instance(State(worker), request).await.into_response() })
    });
    let stopping = Arc::clone(&worker);
    listener
        .serve(router, async move {
            shutdown.await;
            let Worker {
                membership,
                instances,
                migration_sources,
                ..
            } = &*stopping;
            leave::finish(stopping.leave_limit, membership, instances, migration_sources).await;
            stopping.stop_all().await;
        })
        .await;
    beating.abort();
    filling.abort();
    if let Some(renewing) = renewing {
        renewing.abort();
    }
    if let Some(calling) = calling {
        calling.abort();
    }
    worker.stop_all().await;
    worker.reporter.report_stopped().await;
    Ok(())
}

fn routes() -> Routes<Arc<Worker>> {
    let routes = Routes::default()
        .on(start_instance)
        .on(stop_instance)
        .on(read_objects)
        .on(park_instance)
        .on(set_secrets)
        .on(delete_function)
        .raw::<worker::Prepare, _, _>(prepare_version)
        .raw::<worker::ReadLogs, _, _>(read_logs);
    migration::routes(routes)
}

fn router(worker: Arc<Worker>) -> Router {
    routes()
        .into_router()
        .route("/invoke/{instance}", any(invoke_instance))
        .route("/invoke/{instance}/", any(invoke_instance))
        .route("/invoke/{instance}/{*path}", any(invoke_instance))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&worker), authenticate))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .with_state(worker)
}

/// Returns the roles that may call a path, by its template. Each call also needs the token.
fn may_call(method: &Method, path: &str) -> &'static [Role] {
    match Operation::find(worker::WORKER, method, path) {
        Some(operation) => operation.callers,
        None if path.starts_with("/invoke/") => &[Role::Gateway],
        None => &[Role::Scheduler],
    }
}

async fn authenticate(State(worker): State<Arc<Worker>>, request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    let info = extensions.get::<ConnectInfo<Caller>>();
    // Every listener sets the caller; a request without one comes from a stranger.
    let caller = info.map_or(&Caller::Stranger, |ConnectInfo(caller)| caller);
    let path = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if !caller.is_one_of(may_call(request.method(), path)) {
        let path = request.uri().path();
        tracing::warn!(caller = caller.described(), path, "a call was refused");
        let message = format!("{} may not call {path} of a worker", caller.described());
        return ApiError::new(ErrorCode::Unauthorized, message).into_response();
    }
    let given = request.headers().get(CLUSTER_TOKEN).map(|v| blake3::hash(v.as_bytes()));
    // Hashes of equal length are compared in constant time.
    if given != Some(blake3::hash(worker.token.as_bytes())) {
        return ApiError::new(
            ErrorCode::Unauthorized,
            "the cluster token is missing or wrong: give all roles the same --token-file",
        )
        .into_response();
    }
    match version::check(request.headers(), Role::Worker) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Returns the metrics, for a scraper that sends the cluster's token as its bearer token.
async fn metrics(State(worker): State<Arc<Worker>>, headers: HeaderMap) -> Response {
    let given = bearer(&headers).or_else(|| headers.get(CLUSTER_TOKEN).map(HeaderValue::as_bytes));
    if given.map(blake3::hash) != Some(blake3::hash(worker.token.as_bytes())) {
        let fix = "this needs the cluster's token: send \"Authorization: Bearer TOKEN\"";
        return ApiError::new(ErrorCode::Unauthorized, fix).into_response();
    }
    let (kind, text) = rekindle_telemetry::metrics::exposition(&worker.metrics.registry, &headers);
    ([kind], text).into_response()
}

/// Rejects a placement on a worker of which no scheduler had heard since its start, once one has. It was meant for the
/// process before, and is forgotten with everything that ran there.
async fn check_known(worker: &Worker) -> Result<(), ApiError> {
    if worker.membership.is_known() {
        return Ok(());
    }
    until_known(worker).await;
    let why = "this worker has been started anew: try again";
    Err(ApiError::new(ErrorCode::Unavailable, why))
}

/// Waits briefly until a scheduler has heard of this worker.
async fn until_known(worker: &Worker) {
    let end = Instant::now() + KNOWN_LIMIT;
    while !worker.membership.is_known() && Instant::now() < end {
        tokio::time::sleep(KNOWN_LOOK).await;
    }
}

async fn start_instance(worker: Arc<Worker>, call: Call<worker::Start>) -> Result<(), ApiError> {
    check_known(&worker).await?;
    // An order without one may be older than the last: only a deploy says that there is none any more.
    if let Some(key) = &call.body.snapshot_key {
        hold_key(&worker, &call.body.spec.function, Some(key));
    }
    worker.starter.accept(call.body, &call.head.headers).map(drop)
}

/// Holds the key that came with an order, in place of an earlier one.
fn hold_key(worker: &Worker, function: &FunctionId, key: Option<&SnapshotKey>) {
    worker.keys.set(function.namespace(), key);
}

async fn stop_instance(worker: Arc<Worker>, call: Call<worker::Stop>) -> Result<(), ApiError> {
    let worker::Stop { id, if_idle } = call.at;
    let Some(instance) = worker.instances.get(&id) else {
        return Ok(());
    };
    let if_idle = if_idle.unwrap_or(false);
    if if_idle && !instance.retire_if_idle() {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("instance {id} is serving a request"),
        ));
    }
    instance.stop(if if_idle { "it was idle" } else { "asked for" }).await;
    worker.instances.remove_this(&instance);
    Ok(())
}

async fn read_objects(worker: Arc<Worker>, call: Call<worker::ReadObjects>) -> Result<InstanceObjects, ApiError> {
    let instance = worker.instances.get(&call.at.id).ok_or_else(gone)?;
    objects::of(&instance).await
}

async fn park_instance(worker: Arc<Worker>, call: Call<worker::Park>) -> Result<(), ApiError> {
    let id = call.at.id;
    let instance = worker.instances.get(&id).ok_or_else(gone)?;
    // It is completed even if the scheduler goes away in the middle.
    let parked = tokio::spawn(
        async move {
            let parked = instance.park().await;
            worker.instances.changed.notify_one();
            parked
        }
        .in_current_span(),
    );
    match parked.await.unwrap_or(Parking::Gone) {
        Parking::Parked => Ok(()),
        Parking::Gone => Err(gone()),
        Parking::Busy => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("instance {id} is serving a request"),
        )),
        Parking::Failed(e) => Err(unavailable("park the instance", &e)),
    }
}

async fn set_secrets(worker: Arc<Worker>, call: Call<worker::SetSecrets>) -> Result<(), ApiError> {
    let instance = worker.instances.get(&call.at.id).ok_or_else(gone)?;
    instance.change_secrets(call.body).await
}

async fn invoke_instance(State(worker): State<Arc<Worker>>, request: Request) -> Result<Response, ApiError> {
    // The path is passed on byte for byte, so the router's decoded path is not used.
    let whole = request
        .uri()
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let (id, path) = target(whole)?;
    Arc::clone(&worker.invoker).invoke(id, path, request).await
}

/// Returns the instance and the function's own path in `/invoke/{instance}/{path}`. A path without an instance is not
/// `instance_gone`: that would make the gateway give up a healthy instance.
fn target(whole: &str) -> Result<(InstanceId, String), ApiError> {
    let malformed = || {
        ApiError::new(
            ErrorCode::BadRequest,
            format!("{whole:?} names no instance: the path is /invoke/INSTANCE/PATH"),
        )
    };
    let rest = whole.strip_prefix("/invoke/").ok_or_else(malformed)?;
    let split = rest.find(['/', '?']).unwrap_or(rest.len());
    let (id, path) = rest.split_at(split);
    let id: InstanceId = id.parse().map_err(|_| malformed())?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    Ok((id, format!("{slash}{path}")))
}

async fn prepare_version(State(worker): State<Arc<Worker>>, call: Call<worker::Prepare>) -> Response {
    if let Err(error) = check_known(&worker).await {
        return error.into_response();
    }
    hold_key(&worker, &call.body.function, call.body.snapshot_key.as_ref());
    let (events, received) = tokio::sync::mpsc::channel(16);
    let span = tracing::info_span!("prepare", "rekindle.role" = "worker", function = %call.body.function);
    rekindle_telemetry::set_parent(&span, &call.head.headers);
    tokio::spawn(Arc::clone(&worker.preparer).prepare(call.body, events).instrument(span));
    lines(ReceiverStream::new(received))
}

async fn read_logs(State(worker): State<Arc<Worker>>, Params(wanted): Params<worker::ReadLogs>) -> Response {
    let failed = |e| unavailable("read the logs", &e).into_response();
    let tail = wanted.tail.unwrap_or(TAIL_DEFAULT);
    if wanted.follow.unwrap_or(false) {
        worker
            .logs
            .follow(&wanted.function, tail)
            .await
            .map_or_else(failed, lines)
    } else {
        let past = worker.logs.read(&wanted.function, tail).await;
        past.map_or_else(failed, |past| lines(futures::stream::iter(past)))
    }
}

async fn delete_function(worker: Arc<Worker>, call: Call<worker::RemoveFunction>) -> Result<(), ApiError> {
    // It is completed even if the scheduler goes away in the middle: nothing asks for it again.
    let removed = tokio::spawn(remove_function(worker, call.at.name).in_current_span());
    removed
        .await
        .map_err(|e| unavailable("remove what there is of the function", &e))?
}

async fn remove_function(worker: Arc<Worker>, name: FunctionId) -> Result<(), ApiError> {
    let all = worker.instances.all();
    let stopping = all.into_iter().filter(|instance| instance.spec.function == name);
    let stopping = stopping.map(async |instance| {
        instance.stop("its function was deleted").await;
        worker.instances.remove_this(&instance);
    });
    futures::future::join_all(stopping).await;
    // The snapshots of its instances and of earlier versions.
    let forgetting = Arc::clone(&worker);
    let function = name.clone();
    // The last user of a template gives its memory back.
    let forgotten = tokio::task::spawn_blocking(move || forgetting.snapshots.forget_function(&function));
    forgotten
        .await
        .map_err(|e| unavailable("let go of its snapshots", &e))?;
    worker.metrics.forget(&name);
    worker
        .logs
        .delete(&name)
        .await
        .map_err(|e| unavailable("delete the logs", &e))
}

/// Builds a body with one JSON object a line.
fn lines<T: serde::Serialize>(items: impl futures::Stream<Item = T> + Send + 'static) -> Response {
    let bytes = items.map(|item| {
        let mut line = serde_json::to_vec(&item).map_err(io::Error::other)?;
        line.push(b'\n');
        Ok::<_, io::Error>(Bytes::from(line))
    });
    let mut response = Body::from_stream(bytes).into_response();
    let kind = http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use rekindle_wire::interface::Endpoint as _;

    use super::*;

    #[test]
    fn a_path_is_passed_on_byte_for_byte() {
        let at = |whole: &str| target(whole).map(|(id, path)| (id.to_string(), path));
        assert_eq!(
            at("/invoke/i-abc/a%2Fb?c"),
            Ok(("i-abc".to_owned(), "/a%2Fb?c".to_owned()))
        );
        assert_eq!(at("/invoke/i-abc?c"), Ok(("i-abc".to_owned(), "/?c".to_owned())));
        assert_eq!(at("/invoke/i-abc"), Ok(("i-abc".to_owned(), "/".to_owned())));
    }

    #[test]
    fn what_a_worker_may_ask_of_another_is_what_a_move_needs() {
        let of = |operation: &Operation| (operation.path, may_call(&operation.method, operation.path));
        for operation in [
            worker::PrepareTarget::OPERATION,
            worker::SendImages::OPERATION,
            worker::ReadPage::OPERATION,
            worker::EndSource::OPERATION,
        ] {
            assert_eq!(of(&operation).1, [Role::Worker], "{}", operation.path);
        }
        for operation in [
            worker::PrepareSource::OPERATION,
            worker::CancelSource::OPERATION,
            worker::PerformMigration::OPERATION,
            worker::ExpectTarget::OPERATION,
            worker::Start::OPERATION,
            worker::Prepare::OPERATION,
        ] {
            assert_eq!(of(&operation).1, [Role::Scheduler], "{}", operation.path);
        }
        assert_eq!(may_call(&Method::GET, ""), [Role::Scheduler]);
        assert_eq!(may_call(&Method::GET, "/invoke/{instance}/{*path}"), [Role::Gateway]);
    }

    #[test]
    fn every_operation_of_the_interface_is_served() {
        let paths = |all: &[Operation]| {
            let all = all.iter().map(|o| (o.path, o.method.to_string()));
            all.collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(paths(routes().operations()), paths(worker::WORKER));
    }

    #[test]
    fn a_name_that_is_no_instances_is_a_bad_request_and_not_an_instance_that_is_gone() {
        for whole in ["/invoke/i-abc*", "/invoke//x", "/other"] {
            assert_eq!(target(whole).map_err(|e| e.code), Err(ErrorCode::BadRequest), "{whole}");
        }
    }
}
