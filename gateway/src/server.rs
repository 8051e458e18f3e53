//! The gateway's configuration, start and end, and which part of it a request goes to.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{HeaderName, HeaderValue, Request, Response};
use rekindle_identity::{Member, Role, TlsError, Transport};
use rekindle_relay::Doors;
use rekindle_telemetry::metrics::exposition;
use rekindle_wire::headers::{FORCE_START, PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::async_calls::{self, Asked, CallbackAllow, Callbacks, Runner, Targets};
use crate::body::Intake;
use crate::budget::Budget;
use crate::clients::{ClientLimits, Clients, Held};
use crate::connection::{self, Answering, Limits, Refusals};
use crate::dispatch::{Call, Dispatch};
use crate::key::KeyHash;
use crate::metrics::Metrics;
use crate::pace::MinRate;
use crate::route::{self, By, Route, route};
use crate::scheduler::SchedulerClient;
use crate::slots::Slots;
use crate::workers::Workers;
use crate::{admin, headers, keeper, openapi};

/// How long requests may take to finish when the gateway is told to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// Whose an asynchronous invocation is that was sent with the admin key.
const ADMIN: &str = "admin";
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What functions have below `/function/`, where they share a host and so, to a browser, an origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Paths {
    /// Paths, and pages that a browser keeps apart from those of other functions.
    #[default]
    Apart,
    /// Paths, and pages that may read each other's.
    Trusted,
    /// None: functions are reached by their hosts.
    Off,
}

/// How to run a gateway.
#[derive(Clone)]
pub struct Config {
    /// Where the scheduler listens, `host:port`; of several that share a database, all, with commas between.
    pub scheduler: String,
    /// The cluster's secret.
    pub cluster_token: String,
    /// The admin key's hash.
    pub admin_key: KeyHash,
    /// Invocations in flight at most; more are answered 503.
    pub max_in_flight: usize,
    /// The largest request body of an invocation, bytes; more is answered 413.
    pub max_body_bytes: u64,
    /// How long an invocation may wait for a slot.
    pub place_wait: Duration,
    /// Client connections at most; more wait to be accepted.
    pub max_connections: usize,
    /// What one client may have of these.
    pub clients: ClientLimits,
    /// Memory that requests' bodies may take together, bytes; of what would take more is answered 503.
    pub body_memory_bytes: u64,
    /// How long a client may take over a request's head, from its first byte; longer is answered 408.
    pub head_limit: Duration,
    /// The slowest that a client may send a body, which is answered 408, or take an answer, which is cut off.
    pub min_rate: MinRate,
    /// Asynchronous invocations run at once at most; they count as in flight.
    pub async_in_flight: usize,
    /// Where callbacks may go to that a caller without a key names, and networks that they may go to although they are private.
    pub callback_allow: Vec<CallbackAllow>,
    /// What functions have below `/function/`.
    pub paths: Paths,
    /// Its certificate, where the cluster has an authority.
    pub member: Option<Arc<Member>>,
    /// Where workers of its own process take invocations.
    pub doors: Doors,
}

impl Config {
    /// A configuration with the defaults: 4096 invocations in flight, bodies of 32 MiB, ten seconds for a slot, 16384
    /// connections, 128 asynchronous invocations, no private network for callbacks, 256 MiB for bodies, ten seconds for a head, and the defaults of
    /// [`ClientLimits`] and [`MinRate`].
    pub fn new(scheduler: impl Into<String>, cluster_token: impl Into<String>, admin_key: KeyHash) -> Self {
        Self {
            scheduler: scheduler.into(),
            cluster_token: cluster_token.into(),
            admin_key,
            max_in_flight: 4_096,
            max_body_bytes: 32 << 20,
            place_wait: Duration::from_secs(10),
            max_connections: 16_384,
            clients: ClientLimits::default(),
            body_memory_bytes: 256 << 20,
            head_limit: Duration::from_secs(10),
            min_rate: MinRate::default(),
            async_in_flight: 128,
            callback_allow: Vec::new(),
            paths: Paths::default(),
            member: None,
            doors: Doors::default(),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("Config")
            .field("scheduler", &self.scheduler)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("place_wait", &self.place_wait)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

/// Why a gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cluster token cannot be sent in a header.
    #[error("the cluster token is empty or not plain ASCII: make another")]
    Token,
    /// Its certificate cannot be used.
    #[error("the gateway's connections cannot be guarded")]
    Tls(#[from] TlsError),
}

struct Gateway {
    admin_key: KeyHash,
    scheduler: SchedulerClient,
    dispatch: Arc<Dispatch>,
    clients: Arc<Clients>,
    targets: Targets,
    paths: Paths,
}

/// Runs a gateway on `listener` until `shutdown` resolves. Then it accepts nothing new and gives requests ten seconds to finish.
///
/// # Errors
/// When the configuration cannot be used.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let mut token = HeaderValue::from_str(&config.cluster_token).map_err(|_| ServeError::Token)?;
    if token.is_empty() {
        return Err(ServeError::Token);
    }
    token.set_sensitive(true);
    let scheduler = SchedulerClient::new(
        &config.scheduler,
        token.clone(),
        config.member.as_deref(),
        config.doors.clone(),
    )?;
    let slots = Slots::new(scheduler.clone(), config.place_wait);
    let (in_flight, room) = (
        Arc::new(Semaphore::new(config.max_in_flight)),
        Arc::new(Semaphore::new(config.max_connections)),
    );
    let metrics = Arc::new(Metrics::new());
    let intake = Intake {
        rate: config.min_rate,
        memory: Budget::new(config.body_memory_bytes),
        early: Arc::new(Semaphore::new(config.max_in_flight.div_ceil(4))),
        metrics: metrics.clone(),
    };
    metrics.observe(&config, &slots, &in_flight, &room, &intake.memory);
    let clients = Clients::new(config.clients.clone());
    let renewing = renewing(&config)?;
    let workers = Workers::new(config.member.as_deref(), config.doors)?;
    let keepers = [
        tokio::spawn(renewing),
        tokio::spawn(keeper::report(slots.clone())),
        tokio::spawn(keeper::watch(slots.clone())),
        tokio::spawn(keeper::tell(slots.clone(), metrics.clone())),
        tokio::spawn(keeper::sweep(workers.clone())),
    ];
    let dispatch = Arc::new(Dispatch {
        slots,
        workers,
        token,
        in_flight,
        max_body: config.max_body_bytes,
        intake,
        metrics: metrics.clone(),
    });
    let targets = Targets::allowing(&config.callback_allow);
    let callbacks = Callbacks::new(targets.clone());
    let runner = Runner::new(
        dispatch.clone(),
        callbacks,
        config.async_in_flight.min(config.max_in_flight),
    );
    let running = [tokio::spawn(runner.clone().run()), tokio::spawn(runner.clone().renew())];
    let gateway = Arc::new(Gateway {
        admin_key: config.admin_key,
        scheduler,
        dispatch,
        clients: clients.clone(),
        targets,
        paths: config.paths,
    });
    let limits = Limits {
        head: config.head_limit,
        rate: config.min_rate,
    };
    let refusals = Refusals::default();
    let (ending, ended) = watch::channel(());
    let connections = TaskTracker::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, peer, place)) = accepted else {
            // Out of descriptors, most likely: existing connections must end first.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let held = match clients.connect(peer.ip()) {
            Ok(held) => held,
            Err(limit) => {
                metrics.refused(limit.as_str());
                refusals.tell(stream, &limit.error());
                continue;
            }
        };
        let serving = connection::serve(gateway.clone(), (stream, peer), limits, metrics.clone(), ended.clone());
        connections.spawn(async move {
            serving.await;
            drop((place, held));
        });
    }
    drop(listener);
    drop(ending);
    connections.close();
    let (connected, ()) = tokio::join!(
        tokio::time::timeout(SHUTDOWN_LIMIT, connections.wait()),
        runner.end(SHUTDOWN_LIMIT)
    );
    if connected.is_err() {
        tracing::warn!(connections = connections.len(), "requests were cut off at the end");
    }
    for keeper in keepers.into_iter().chain(running) {
        keeper.abort();
    }
    keeper::tell_last(&gateway.dispatch.slots, &gateway.dispatch.metrics).await;
    drop(tokio::time::timeout(Duration::from_secs(1), gateway.dispatch.slots.return_all()).await);
    Ok(())
}

/// Keeps the gateway's certificate fresh, if it has one.
fn renewing(config: &Config) -> Result<impl Future<Output = ()> + Send + use<>, TlsError> {
    let transport = Transport::to(Role::Scheduler, config.member.as_deref())?;
    let (member, address, token) = (
        config.member.clone(),
        config.scheduler.clone(),
        config.cluster_token.clone(),
    );
    Ok(async move {
        match member {
            Some(member) => member.keep_renewed(address, transport, token).await,
            None => std::future::pending().await,
        }
    })
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

impl Answering for Gateway {
    async fn answer(
        &self,
        request: Request<Body>,
        peer: IpAddr,
        connection: CancellationToken,
    ) -> (Response<Body>, Option<Arc<Held>>) {
        let request_id = headers::request_id(request.headers());
        let (answered, client) = match self.clients.request(peer, request.headers()) {
            Ok(client) => {
                let client = client.map(Arc::new);
                let routed = self.routed(request, peer, &request_id, client.clone(), connection);
                (routed.await, client)
            }
            Err(limit) => {
                self.dispatch.metrics.refused(limit.as_str());
                (Err(limit.error()), None)
            }
        };
        let mut answer = answered.unwrap_or_else(|error| error.with_request_id(&request_id).into_response());
        let out = answer.headers_mut();
        out.remove(HeaderName::from_static(PLATFORM_ERROR));
        if !out.contains_key(REQUEST_ID) {
            headers::set(out, REQUEST_ID, &request_id);
        }
        (answer, client)
    }
}

impl Gateway {
    /// Takes an invocation in that is run later.
    async fn later(&self, asked: Asked, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        async_calls::accept(&self.scheduler, &self.dispatch.intake, &self.targets, asked, request).await
    }

    async fn routed(
        &self,
        request: Request<Body>,
        peer: IpAddr,
        request_id: &str,
        client: Option<Arc<Held>>,
        connection: CancellationToken,
    ) -> Result<Response<Body>, ApiError> {
        let arrived = Instant::now();
        let call = |function, path, invocation, force| Call {
            function,
            path,
            invocation,
            force,
            request_id: request_id.to_owned(),
            peer,
            arrived,
            connection,
            client,
            attempt: None,
        };
        let asked = |function, path, invocation, owner| Asked {
            function,
            path,
            invocation,
            request_id: request_id.to_owned(),
            peer,
            owner,
        };
        match route(&request)? {
            Route::Function { by: By::Path, .. } if self.paths == Paths::Off => Err(ApiError::new(
                ErrorCode::NotFound,
                "functions have no paths here (--no-paths): use the function's host, NAME.localhost",
            )),
            Route::Function { name, path, by } => {
                let mut request = request;
                let force = route::forced(request.headers())?;
                if force.is_some() {
                    self.admin_key.check(request.headers()).map_err(|e| {
                        ApiError::new(e.code, format!("{}; {FORCE_START} is for its holder only", e.message))
                    })?;
                }
                if self.admin_key.is_sent(request.headers()) {
                    // The function must not learn the platform's key.
                    request.headers_mut().remove(http::header::AUTHORIZATION);
                }
                let mut answer = self.dispatch.invoke(call(name, path, "http", force), request).await;
                if by == By::Path && self.paths == Paths::Apart {
                    headers::keep_apart(answer.headers_mut());
                }
                Ok(answer)
            }
            Route::Later { name, path } => {
                let mut request = request;
                let owner = self.admin_key.is_sent(request.headers()).then_some(ADMIN);
                if owner.is_some() {
                    request.headers_mut().remove(http::header::AUTHORIZATION);
                }
                self.later(asked(name, path, "http", owner), request).await
            }
            Route::Result { id } => {
                let result = async_calls::result(&self.scheduler, &id, request.uri().query(), request_id).await;
                let mut answer = result?;
                if self.paths != Paths::Trusted {
                    headers::keep_apart(answer.headers_mut());
                }
                Ok(answer)
            }
            Route::Invocation { name, asynchronous } => {
                let mut request = request;
                self.admin_key.check(request.headers())?;
                let force = route::forced(request.headers())?;
                request.headers_mut().remove(http::header::AUTHORIZATION);
                if asynchronous {
                    let asked = asked(name, "/".to_owned(), "event", Some(ADMIN));
                    return self.later(asked, request).await;
                }
                Ok(self
                    .dispatch
                    .invoke(call(name, "/".to_owned(), "event", force), request)
                    .await)
            }
            Route::Admin => {
                self.admin_key.check(request.headers())?;
                Ok(admin::pass_on(&self.scheduler, request, request_id).await)
            }
            Route::Metrics => {
                self.admin_key.check(request.headers())?;
                let (kind, text) = exposition(&self.dispatch.metrics.registry, request.headers());
                Ok(([kind], text).into_response())
            }
            Route::OpenApi => Ok(Json(openapi::document()).into_response()),
            Route::Health => Ok("ok".into_response()),
            Route::Ready if self.scheduler.is_ready().await => Ok("ok".into_response()),
            Route::Ready => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the scheduler does not answer: see its log",
            )),
        }
    }
}
