//! A worker without sandboxes. What an invocation does is said by its path:
//!
//! - `/` and others: the request told as JSON
//! - `/slow/MS`, `/hang`, `/throw`, `/crash`
//! - `/stall`: a chunk, then nothing
//! - `/echo`: the body, as it comes
//! - `/trickle/MS`: a chunk, and the end after a while
//! - `/flood`: chunks without end
//! - `/swallow`: reads the body and answers its length
//! - `/later/MS`: the same, after a while

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::{Json, Router};
use futures::StreamExt as _;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rekindle_wire::api::{InstanceInfo, InstanceState, LogLine, LogStream, StartKind, VersionState};
use rekindle_wire::headers::{CLUSTER_TOKEN, FUNCTION_ERROR, LEASE};
use rekindle_wire::internal::{
    Heartbeat, HeartbeatResponse, LayerRef, OrderTicket, PrepareEvent, PrepareRequest, StartInstance, VersionSpec,
};
use rekindle_wire::lease::Fence;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, VersionNumber, WorkerId};
use serde_json::json;
use tokio::net::TcpListener;

use crate::harness::TOKEN;

pub(crate) struct Running {
    function: FunctionId,
    version: VersionNumber,
    started: StartKind,
    ready_at: Instant,
    in_flight: u32,
    last: Instant,
    fence: Fence,
    ticket: Option<OrderTicket>,
}

pub(crate) struct Inner {
    pub(crate) id: WorkerId,
    address: String,
    scheduler: String,
    capacity: u64,
    pub(crate) instances: Mutex<HashMap<InstanceId, Running>>,
    /// Starts asked for, in order.
    pub(crate) starts: Mutex<Vec<StartInstance>>,
    pub(crate) prepared: Mutex<Vec<PrepareRequest>>,
    pub(crate) removed: Mutex<Vec<FunctionId>>,
    pub(crate) start_delay_ms: AtomicU64,
    pub(crate) prepare_hangs: AtomicBool,
    pub(crate) prepare_fails: AtomicBool,
    /// It has no room on its disk to prepare anything.
    pub(crate) disk_is_full: AtomicBool,
    /// It has no room for a snapshot.
    pub(crate) has_no_room: AtomicBool,
    /// It says that versions are another user's.
    pub(crate) lies: AtomicBool,
    /// Restores end as boots.
    pub(crate) falls_back: AtomicBool,
    pub(crate) silent: AtomicBool,
    /// A version whose invocations all fail.
    pub(crate) fails: Mutex<Option<VersionNumber>>,
    pub(crate) invocations: AtomicUsize,
    /// Invocations whose answer nobody waited for.
    pub(crate) cancelled: AtomicUsize,
    /// The most invocations that were in one instance at once.
    pub(crate) most_at_once: AtomicUsize,
    /// Invocations that were turned away, as their lease was over.
    pub(crate) fenced: AtomicUsize,
    /// How many invocations are still to be refused for being one too many.
    pub(crate) busy: AtomicUsize,
    /// The revisions of secrets that it reports.
    pub(crate) revisions: Mutex<BTreeMap<InstanceId, u64>>,
    /// Instances for which it was sent secrets.
    pub(crate) given: Mutex<BTreeSet<InstanceId>>,
}

/// Ends when dropped.
pub(crate) struct PlayedWorker {
    pub(crate) inner: Arc<Inner>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl std::ops::Deref for PlayedWorker {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Drop for PlayedWorker {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl PlayedWorker {
    pub(crate) async fn start(scheduler: &str, capacity: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Arc::new(Inner {
            id: WorkerId::generate(),
            address: listener.local_addr().unwrap().to_string(),
            scheduler: scheduler.to_owned(),
            capacity,
            instances: Mutex::default(),
            starts: Mutex::default(),
            prepared: Mutex::default(),
            removed: Mutex::default(),
            start_delay_ms: AtomicU64::new(0),
            prepare_hangs: AtomicBool::new(false),
            prepare_fails: AtomicBool::new(false),
            disk_is_full: AtomicBool::new(false),
            has_no_room: AtomicBool::new(false),
            lies: AtomicBool::new(false),
            falls_back: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            fails: Mutex::default(),
            invocations: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            fenced: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            revisions: Mutex::default(),
            given: Mutex::default(),
        });
        let router = Router::new()
            .route("/instances", post(start))
            .route("/instances/{id}", delete(stop))
            .route("/instances/{id}/secrets", put(set_secrets))
            .route("/prepare", post(prepare))
            .route("/logs/{function}", get(logs))
            .route("/functions/{name}", delete(remove))
            .route("/invoke/{instance}/", any(invoke))
            .route("/invoke/{instance}/{*path}", any(invoke))
            .layer(axum::middleware::from_fn(check_token))
            .with_state(inner.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let beating = tokio::spawn(beat(inner.clone()));
        Self {
            inner,
            tasks: vec![serving, beating],
        }
    }
}

impl PlayedWorker {
    /// Lets nobody connect any more; it goes on reporting to the scheduler.
    pub(crate) async fn unplug(&mut self) {
        let serving = self.tasks.remove(0);
        serving.abort();
        drop(serving.await);
    }
}

impl Inner {
    pub(crate) fn running(&self) -> usize {
        self.instances.lock().len()
    }

    /// Has an instance from now on.
    pub(crate) fn add(
        &self,
        id: InstanceId,
        function: FunctionId,
        version: VersionNumber,
        started: StartKind,
        ticket: Option<OrderTicket>,
    ) {
        let delay = Duration::from_millis(self.start_delay_ms.load(Ordering::SeqCst));
        let running = Running {
            function,
            version,
            started,
            ready_at: Instant::now() + delay,
            in_flight: 0,
            last: Instant::now(),
            fence: Fence::default(),
            ticket,
        };
        self.instances.lock().insert(id, running);
    }

    fn tickets(&self) -> BTreeMap<InstanceId, OrderTicket> {
        let instances = self.instances.lock();
        let shown = instances
            .iter()
            .filter_map(|(id, i)| Some((id.clone(), i.ticket.clone()?)));
        shown.collect()
    }

    fn infos(&self) -> Vec<InstanceInfo> {
        let instances = self.instances.lock();
        let one = |(id, i): (&InstanceId, &Running)| InstanceInfo {
            id: id.clone(),
            function: i.function.clone(),
            version: i.version,
            worker: self.id.clone(),
            state: if i.ready_at <= Instant::now() {
                InstanceState::Ready
            } else {
                InstanceState::Starting
            },
            started: i.started,
            in_flight: i.in_flight,
            idle_ms: if i.in_flight > 0 {
                0
            } else {
                i.last.elapsed().as_millis() as u64
            },
            memory_bytes: 1,
            evicted_bytes: 0,
            lease_number: i.fence.number(),
        };
        instances.iter().map(one).collect()
    }
}

async fn beat(worker: Arc<Inner>) {
    let client = reqwest::Client::new();
    loop {
        if !worker.silent.load(Ordering::SeqCst) {
            let beat = Heartbeat {
                kept: None,
                levels: rekindle_wire::stats::WorkerLevels::default(),
                worker: worker.id.clone(),
                incarnation: 1,
                number: 0,
                address: worker.address.clone(),
                memory_capacity_bytes: worker.capacity,
                offer: rekindle_wire::internal::HostOffer::default(),
                presence: rekindle_wire::internal::Presence::Serving,
                pressure: rekindle_wire::internal::MemoryPressure::default(),
                damaged: Vec::new(),
                snapshots: rekindle_wire::internal::SnapshotReport::default(),
                secrets: worker.revisions.lock().clone(),
                tickets: worker.tickets(),
                instances: worker.infos(),
            };
            let url = format!("http://{}/internal/heartbeat", worker.scheduler);
            let sent = client.post(url).header(CLUSTER_TOKEN, TOKEN).json(&beat).send().await;
            if let Ok(answer) = sent
                && let Ok(answer) = answer.json::<HeartbeatResponse>().await
            {
                let mut instances = worker.instances.lock();
                answer.stop.iter().for_each(|id| drop(instances.remove(id)));
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn check_token(request: Request, next: axum::middleware::Next) -> Response {
    if request.headers().get(CLUSTER_TOKEN).is_none_or(|t| t != TOKEN) {
        return ApiError::new(ErrorCode::Unauthorized, "no token").into_response();
    }
    next.run(request).await
}

async fn start(State(worker): State<Arc<Inner>>, Json(start): Json<StartInstance>) -> StatusCode {
    let spec = &start.spec;
    let (function, ticket) = (spec.function.clone(), start.ticket.clone());
    worker.add(start.instance.clone(), function, spec.version, start.start, ticket);
    worker.starts.lock().push(start);
    StatusCode::ACCEPTED
}

async fn set_secrets(State(worker): State<Arc<Inner>>, Path(id): Path<InstanceId>) -> StatusCode {
    worker.given.lock().insert(id);
    StatusCode::NO_CONTENT
}

async fn stop(
    State(worker): State<Arc<Inner>>,
    Path(id): Path<InstanceId>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let mut instances = worker.instances.lock();
    let if_idle = query.get("if_idle").is_some_and(|v| v == "true");
    match instances.get(&id) {
        None => ApiError::new(ErrorCode::NotFound, "no such instance").into_response(),
        Some(i) if if_idle && i.in_flight > 0 => ApiError::new(ErrorCode::Conflict, "busy").into_response(),
        Some(_) => {
            instances.remove(&id);
            StatusCode::NO_CONTENT.into_response()
        }
    }
}

async fn prepare(State(worker): State<Arc<Inner>>, Json(request): Json<PrepareRequest>) -> Response {
    worker.prepared.lock().push(request.clone());
    let layer = LayerRef {
        digest: "00".to_owned(),
        tar_bytes: 1,
    };
    let spec = VersionSpec {
        function: request.function.clone(),
        version: request.version,
        uid: request.uid + u32::from(worker.lies.load(Ordering::SeqCst)),
        rootfs: layer.clone(),
        layer,
        snapshot: request
            .config
            .snapshot
            .then(|| format!("s-{}-{}", request.function.as_str().replace('.', "-"), request.version))
            .map(|id| id.parse().unwrap()),
        snapshot_digest: None,
        instruction_sets: InstructionSets::default(),
        reaper: false,
        config: request.config,
    };
    let mut events = vec![
        PrepareEvent::Phase {
            phase: VersionState::Building,
        },
        PrepareEvent::Phase {
            phase: VersionState::Booting,
        },
    ];
    let hangs = worker.prepare_hangs.load(Ordering::SeqCst);
    if worker.prepare_fails.load(Ordering::SeqCst) {
        let error = ApiError::new(ErrorCode::BootFailed, "main.py: no such file");
        events.push(PrepareEvent::Failed { error });
    } else if worker.disk_is_full.load(Ordering::SeqCst) {
        let error = ApiError::new(
            ErrorCode::Unavailable,
            "keep the uploaded folder: no space left on device",
        );
        events.push(PrepareEvent::Failed { error });
    } else if !hangs {
        worker.add(
            request.instance,
            spec.function.clone(),
            spec.version,
            StartKind::Booted,
            request.ticket,
        );
        let no_room = worker.has_no_room.load(Ordering::SeqCst);
        events.push(PrepareEvent::Done {
            spec,
            snapshot: None,
            runtime_snapshot: None,
            snapshot_error: no_room.then(|| "snapshot the function: no space left on device".to_owned()),
            no_room,
        });
    }
    let lines = events
        .into_iter()
        .map(|e| Ok::<_, Infallible>(serde_json::to_string(&e).unwrap() + "\n"));
    let lines = futures::stream::iter(lines);
    if hangs {
        return Body::from_stream(lines.chain(futures::stream::pending())).into_response();
    }
    Body::from_stream(lines).into_response()
}

async fn logs(
    State(worker): State<Arc<Inner>>,
    Path(_): Path<FunctionId>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let line = |text: &str, unix_ms| {
        let line = LogLine {
            unix_ms,
            instance: "i-1".parse().unwrap(),
            version: VersionNumber(1),
            stream: LogStream::Stdout,
            text: format!("{text} of {}", worker.id),
        };
        Ok::<_, Infallible>(Bytes::from(serde_json::to_string(&line).unwrap() + "\n"))
    };
    // Lines of several workers interleave by time.
    let nudge = i64::from(worker.address.as_bytes().last().copied().unwrap_or(0));
    let lines = futures::stream::iter([line("first", 1_000 + nudge), line("last", 2_000 + nudge)]);
    if query.get("follow").is_some_and(|f| f == "true") {
        return Body::from_stream(lines.chain(futures::stream::pending())).into_response();
    }
    Body::from_stream(lines).into_response()
}

async fn remove(State(worker): State<Arc<Inner>>, Path(name): Path<FunctionId>) -> StatusCode {
    worker.instances.lock().retain(|_, i| i.function != name);
    worker.removed.lock().push(name);
    StatusCode::NO_CONTENT
}

/// An invocation in flight; one that is dropped unfinished was cancelled.
struct InFlight {
    worker: Arc<Inner>,
    instance: InstanceId,
    finished: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.finished {
            self.worker.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(i) = self.worker.instances.lock().get_mut(&self.instance) {
            i.in_flight -= 1;
            i.last = Instant::now();
        }
    }
}

async fn invoke(State(worker): State<Arc<Inner>>, request: Request) -> Response {
    let whole = request.uri().path().strip_prefix("/invoke/").unwrap().to_owned();
    let (instance, path) = whole.split_once('/').unwrap();
    let path = format!("/{path}");
    let instance: InstanceId = instance.parse().unwrap();
    let refuse = |n: usize| n.checked_sub(1);
    if worker
        .busy
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse)
        .is_ok()
    {
        return ApiError::new(ErrorCode::InstanceBusy, "busy").into_response();
    }
    let (ready_at, version) = match worker.instances.lock().get_mut(&instance) {
        None => return ApiError::new(ErrorCode::InstanceGone, "gone").into_response(),
        Some(i) => {
            let lease = request.headers().get(LEASE).unwrap().to_str().unwrap();
            if !i.fence.admits(lease) {
                worker.fenced.fetch_add(1, Ordering::SeqCst);
                return ApiError::new(ErrorCode::LeaseEnded, "over").into_response();
            }
            i.in_flight += 1;
            worker.most_at_once.fetch_max(i.in_flight as usize, Ordering::SeqCst);
            (i.ready_at, i.version)
        }
    };
    let in_flight = InFlight {
        worker: worker.clone(),
        instance,
        finished: false,
    };
    worker.invocations.fetch_add(1, Ordering::SeqCst);
    let cold = ready_at > Instant::now();
    tokio::time::sleep_until(ready_at.into()).await;
    let mut response = act(&path, request).await;
    if *worker.fails.lock() == Some(version) {
        response = http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if cold {
        response
            .headers_mut()
            .insert("server-timing", "restore;dur=12.5, function;dur=1.0".parse().unwrap());
        if worker.falls_back.load(Ordering::SeqCst) {
            response.headers_mut().insert("x-fn-start", "booted".parse().unwrap());
        }
    }
    let (parts, body) = response.into_parts();
    // The invocation is over with its body.
    let stream = body.into_data_stream().chain(futures::stream::once(async move {
        let mut over = in_flight;
        over.finished = true;
        Ok(Bytes::new())
    }));
    Response::from_parts(parts, Body::from_stream(stream))
}

async fn swallow(request: Request) -> Response {
    match request.into_body().collect().await {
        Ok(body) => body.to_bytes().len().to_string().into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

async fn act(path: &str, request: Request) -> Response {
    if let Some(ms) = path.strip_prefix("/slow/") {
        tokio::time::sleep(Duration::from_millis(ms.parse().unwrap())).await;
        return told(path, &request);
    }
    if let Some(ms) = path.strip_prefix("/later/") {
        tokio::time::sleep(Duration::from_millis(ms.parse().unwrap())).await;
        return swallow(request).await;
    }
    if let Some(value) = path.strip_prefix("/cookie/") {
        // What it was sent, backwards, so that it is not found by who looks for it.
        let backwards = |name: &str| {
            let value = request.headers().get(name).map_or("", |v| v.to_str().unwrap());
            value.chars().rev().collect::<String>()
        };
        let told = json!({ "authorization": backwards("authorization"), "cookie": backwards("cookie") });
        let mut answer = Json(told).into_response();
        let cookie = format!("id={value}").parse().unwrap();
        answer.headers_mut().insert("set-cookie", cookie);
        return answer;
    }
    if let Some(ms) = path.strip_prefix("/trickle/") {
        let pause = Duration::from_millis(ms.parse().unwrap());
        let begun = futures::stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"begun")) });
        let ended = futures::stream::once(async move {
            tokio::time::sleep(pause).await;
            Ok(Bytes::from_static(b"ended"))
        });
        return Body::from_stream(begun.chain(ended)).into_response();
    }
    match path {
        "/flood" => {
            let chunk = Bytes::from(vec![b'x'; 64 << 10]);
            Body::from_stream(futures::stream::repeat_with(move || Ok::<_, Infallible>(chunk.clone()))).into_response()
        }
        "/hang" => std::future::pending().await,
        "/stall" => {
            let chunk = Ok::<_, Infallible>(Bytes::from_static(b"begun"));
            Body::from_stream(futures::stream::once(async { chunk }).chain(futures::stream::pending())).into_response()
        }
        "/echo" => request.into_body().into_response(),
        "/swallow" => swallow(request).await,
        "/throw" => {
            let thrown = json!({"errorType": "ValueError", "errorMessage": "no such order", "trace": []});
            ([(FUNCTION_ERROR, "1")], Json(thrown)).into_response()
        }
        // Of an asynchronous invocation, the first attempt fails.
        "/second-time" => match request.headers().get("x-fn-async-attempt") {
            Some(attempt) if attempt == "1" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            _ => told(path, &request),
        },
        "/crash" => ApiError::new(ErrorCode::FunctionCrashed, "killed by SIGSEGV").into_response(),
        "/late" => ApiError::new(ErrorCode::FunctionTimeout, "too late").into_response(),
        "/policy" => ([("content-security-policy", "default-src 'self'")], "page").into_response(),
        "/leaky" => (
            [
                ("x-rekindle-secret", "1"),
                ("x-fn-start", "parked"),
                ("connection", "close"),
                ("x-own", "kept"),
            ],
            "ok",
        )
            .into_response(),
        _ => told(path, &request),
    }
}

fn told(path: &str, request: &Request) -> Response {
    let headers: &HeaderMap = request.headers();
    let headers: HashMap<_, _> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
    Json(json!({
        "method": request.method().as_str(),
        "path": path,
        "query": request.uri().query(),
        "headers": headers,
    }))
    .into_response()
}
