//! The gateway's start and shutdown, and the dispatch of requests to its parts.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse as _;
use futures::future::BoxFuture;
use http::header::{LOCATION, STRICT_TRANSPORT_SECURITY};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use rekindle_identity::{Role, TlsError, Transport};
use rekindle_telemetry::metrics::exposition;
use rekindle_wire::headers::{FORCE_START, PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::{ApiError, ErrorCode, Selector};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::async_calls::{self, Asked, Callbacks, Runner, Targets};
use crate::body::Intake;
use crate::budget::Budget;
use crate::clients::{Clients, Held};
use crate::config::{Config, Paths};
use crate::connection::{self, Answering, Handshakes, Limits, Refusals, Via};
use crate::dispatch::{Call, Dispatch};
use crate::headers::FORWARDED_PROTO;
use crate::host::{self, Host, Hosts, Whose};
use crate::key::KeyHash;
use crate::metrics::{self, Metrics};
use crate::route::{self, By, Route, route};
use crate::routes::Routes;
use crate::scheduler::SchedulerClient;
use crate::slots::Slots;
use crate::tls::{Certificates, CertificatesError, Listeners};
use crate::workers::Workers;
use crate::{admin, headers, keeper, openapi};

/// How long requests may take to finish at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// Owner of an asynchronous invocation that was sent with the admin key.
const ADMIN: &str = "admin";
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cluster token cannot be sent in a header.
    #[error("the cluster token is empty or not plain ASCII: make another")]
    Token,
    /// The gateway's certificate cannot be used.
    #[error("the gateway's connections cannot be guarded")]
    Tls(#[from] TlsError),
    /// There is no certificate to show to clients.
    #[error("clients cannot be served over TLS")]
    Certificates(#[from] CertificatesError),
}

struct Gateway {
    admin_key: KeyHash,
    scheduler: SchedulerClient,
    dispatch: Arc<Dispatch>,
    clients: Arc<Clients>,
    targets: Targets,
    paths: Paths,
    hosts: Hosts,
    redirect: Option<u16>,
    hsts: Option<HeaderValue>,
    certificates: Option<Arc<Certificates>>,
}

/// Runs a gateway on its listeners until `shutdown` resolves. Then it accepts nothing new and gives requests ten
/// seconds to finish.
///
/// # Errors
/// If the configuration cannot be used.
pub fn serve(
    config: Config,
    listeners: impl Into<Listeners>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, Result<(), ServeError>> {
    boxed(config, listeners.into(), Box::pin(shutdown))
}

/// Boxed here, so that the server is compiled once, with this crate, and not with each of its callers.
fn boxed(
    config: Config,
    listeners: Listeners,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), ServeError>> {
    Box::pin(run(config, listeners, shutdown))
}

async fn run(config: Config, listeners: Listeners, shutdown: BoxFuture<'static, ()>) -> Result<(), ServeError> {
    let Listeners { plain, tls } = listeners;
    let mut token = HeaderValue::from_str(&config.cluster_token).map_err(|_| ServeError::Token)?;
    if token.is_empty() {
        return Err(ServeError::Token);
    }
    token.set_sensitive(true);
    let scheduler = SchedulerClient::new(
        &config.scheduler,
        token.clone(),
        config.member.as_deref(),
        config.in_process.clone(),
    )?;
    let slots = Slots::new(scheduler.clone(), config.place_wait);
    let routes = Arc::new(Routes::default());
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
    let measured = metrics::Limits {
        in_flight: config.max_in_flight,
        connections: config.max_connections,
        body_memory_bytes: config.body_memory_bytes,
    };
    metrics.observe(measured, &slots, &in_flight, &room, &intake.memory);
    let (tls, certificates) = match tls {
        None => (None, None),
        Some((listener, files)) => {
            let certificates = Certificates::open(files, &metrics)?;
            let acceptor = certificates.acceptor()?;
            let handshakes = Handshakes {
                acceptor,
                certificates: certificates.clone(),
            };
            (Some((listener, handshakes)), Some(certificates))
        }
    };
    let shown = certificates.clone();
    metrics.observe_certificates(move || shown.as_ref().map(|c| c.expiries()).unwrap_or_default());
    let clients = Clients::new(config.clients.clone());
    let renewing = renewing(&config)?;
    let workers = Workers::new(config.member.as_deref(), config.in_process)?;
    let keepers = [
        tokio::spawn(renewing),
        tokio::spawn(keeper::report(slots.clone())),
        tokio::spawn(keeper::watch(slots.clone())),
        tokio::spawn(keeper::follow(routes.clone(), slots.clone())),
        tokio::spawn(keeper::tell(slots.clone(), metrics.clone())),
        tokio::spawn(keeper::sweep(workers.clone())),
        tokio::spawn(keeper::hang_up(config.member.clone(), workers.clone())),
        tokio::spawn(fresh(certificates.clone(), metrics.clone())),
    ];
    let dispatch = Arc::new(Dispatch {
        slots,
        routes,
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
        hosts: config.hosts,
        redirect: config.redirect,
        hsts: config.hsts.map(headers::hsts),
        certificates,
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
            accepted = accept(&plain, tls.as_ref(), &room) => accepted,
        };
        let Some((stream, peer, handshakes, place)) = accepted else {
            // Most likely out of descriptors: existing connections must end first.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let held = match clients.connect(peer.ip()) {
            Ok(held) => held,
            Err(limit) => {
                metrics.refused(limit.as_str());
                // Over TLS nothing can be sent before the handshake.
                if handshakes.is_none() {
                    refusals.tell(stream, &limit.error());
                }
                continue;
            }
        };
        if handshakes.is_some()
            && let Err(limit) = clients.handshake(peer.ip())
        {
            metrics.refused(limit.as_str());
            continue;
        }
        let (gateway, metrics, ended) = (gateway.clone(), metrics.clone(), ended.clone());
        let serving = connection::serve(gateway, (stream, peer), handshakes, limits, metrics, ended);
        connections.spawn(async move {
            serving.await;
            drop((place, held));
        });
    }
    drop((plain, tls));
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

/// Keeps the gateway's certificate fresh, if it has one, and receives revocations.
fn renewing(config: &Config) -> Result<impl Future<Output = ()> + Send + use<>, TlsError> {
    let transport = Transport::to(Role::Scheduler, config.member.as_deref())?;
    let (member, address, token) = (
        config.member.clone(),
        config.scheduler.clone(),
        config.cluster_token.clone(),
    );
    Ok(async move {
        match member {
            Some(member) => member.keep_current(address, transport, token).await,
            None => std::future::pending().await,
        }
    })
}

/// Loads new certificates, if certificates are used.
async fn fresh(certificates: Option<Arc<Certificates>>, metrics: Arc<Metrics>) {
    match certificates {
        Some(certificates) => certificates.keep_fresh(metrics).await,
        None => std::future::pending().await,
    }
}

/// A connection with its place, and what its handshake needs if it begins with one.
type Accepted = (TcpStream, SocketAddr, Option<Handshakes>, OwnedSemaphorePermit);

async fn accept(
    plain: &TcpListener,
    tls: Option<&(TcpListener, Handshakes)>,
    room: &Arc<Semaphore>,
) -> Option<Accepted> {
    let place = room.clone().acquire_owned().await.ok()?;
    let guarded = async {
        match tls {
            Some((listener, handshakes)) => (listener.accept().await, handshakes),
            None => std::future::pending().await,
        }
    };
    let (accepted, handshakes) = tokio::select! {
        accepted = plain.accept() => (accepted, None),
        (accepted, handshakes) = guarded => (accepted, Some(handshakes.clone())),
    };
    match accepted {
        Ok((stream, peer)) => Some((stream, peer, handshakes, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

impl Answering for Gateway {
    async fn answer(
        &self,
        mut request: Request<Body>,
        via: &Via,
        connection: CancellationToken,
    ) -> (Response<Body>, Option<Arc<Held>>) {
        let request_id = headers::request_id(request.headers());
        if !self.clients.may_speak_for_others(via.peer) {
            headers::strip_forwarded(request.headers_mut());
        }
        if via.certificate.is_some() {
            headers::set(request.headers_mut(), FORWARDED_PROTO, "https");
        }
        let (answered, client) = match self.clients.request(via.peer, request.headers()) {
            Ok(client) => {
                let client = client.map(Arc::new);
                let answered = match headers::check_size(request.headers()) {
                    Ok(()) => self.routed(request, via, &request_id, client.clone(), connection).await,
                    Err(error) => {
                        self.dispatch.metrics.refused("headers");
                        Err(error)
                    }
                };
                (answered, client)
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
        if let (Some(_), Some(hsts)) = (&via.certificate, &self.hsts) {
            out.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        (answer, client)
    }
}

impl Gateway {
    /// Accepts an invocation that is run later.
    async fn later(&self, asked: Asked, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        async_calls::accept(&self.scheduler, &self.dispatch.intake, &self.targets, asked, request).await
    }

    /// The response to a request that does not belong on this connection: its host has another certificate, or it lacks
    /// required TLS.
    fn elsewhere(
        &self,
        request: &Request<Body>,
        host: Option<&Host>,
        via: &Via,
    ) -> Result<Option<Response<Body>>, ApiError> {
        if let (Some(shown), Some(certificates)) = (&via.certificate, &self.certificates) {
            let own = certificates.shown_for(host.and_then(Host::name));
            if own != *shown {
                return Err(ApiError::new(
                    ErrorCode::MisdirectedRequest,
                    "the connection was made to a host with another certificate: make one to this host",
                ));
            }
            return Ok(None);
        }
        let Some(port) = self.redirect else { return Ok(None) };
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let is_local = via.peer.to_canonical().is_loopback() && host.is_none_or(Host::is_loopback);
        let is_health = matches!(request.uri().path(), "/healthz" | "/readyz");
        if is_local || is_health && !matches!(self.hosts.whose(host)?, Whose::Function(_)) {
            return Ok(None);
        }
        let host = host.ok_or_else(|| {
            ApiError::new(
                ErrorCode::BadRequest,
                "this is served over HTTPS alone, and the request names no host to send it to",
            )
        })?;
        let authority = match port {
            443 => host.to_string(),
            port => format!("{host}:{port}"),
        };
        let location = format!("https://{authority}{path}");
        Ok(Some(
            (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)]).into_response(),
        ))
    }

    async fn routed(
        &self,
        request: Request<Body>,
        via: &Via,
        request_id: &str,
        client: Option<Arc<Held>>,
        connection: CancellationToken,
    ) -> Result<Response<Body>, ApiError> {
        let arrived = Instant::now();
        let peer = via.peer;
        let host = host::of(&request)?;
        if let Some(answer) = self.elsewhere(&request, host.as_ref(), via)? {
            return Ok(answer);
        }
        let call = |function, selector: Option<Selector>, path, invocation, force| Call {
            function,
            selector: selector.unwrap_or_default(),
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
        match route(&request, host.as_ref(), peer, &self.hosts)? {
            Route::Function { by, .. } if by != By::Host && self.paths == Paths::Off => Err(ApiError::new(
                ErrorCode::NotFound,
                format!(
                    "functions have no paths here (--no-paths): use the function's host, NAME.{}",
                    self.hosts.shown()
                ),
            )),
            Route::Function {
                name,
                selector,
                path,
                by,
            } => {
                let mut request = request;
                let (name, selector) = match (by, selector) {
                    (By::Host, None) => self.dispatch.routes.of_host(name),
                    (_, selector) => (name, selector),
                };
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
                let own = selector
                    .as_ref()
                    .map_or_else(|| name.to_string(), |s| format!("{name}@{s}"));
                let prefix = (by != By::Host).then(|| headers::set_prefix(request.headers_mut(), &own));
                let call = call(name, selector, path, "http", force);
                let mut answer = self.dispatch.invoke(call, request).await;
                let is_apart = match by {
                    By::Host => false,
                    By::Path => self.paths == Paths::Apart,
                    By::ApiPath => true,
                };
                if let Some(prefix) = prefix.filter(|_| is_apart) {
                    headers::keep_apart(answer.headers_mut(), &prefix);
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
                    headers::keep_apart(answer.headers_mut(), request.uri().path());
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
                    .invoke(call(name, None, "/".to_owned(), "event", force), request)
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
                "the scheduler does not answer: see `rekindle.log` in its data, or its journal",
            )),
        }
    }
}
