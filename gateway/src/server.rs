//! The gateway's start, its connections, and its shutdown.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use rekindle_identity::{Role, TlsError, Transport};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::async_calls::{Callbacks, Runner, Targets};
use crate::body::Intake;
use crate::budget::Budget;
use crate::callers::Callers;
use crate::clients::Clients;
use crate::config::Config;
use crate::connection::{self, Handshakes, Limits, Refusals};
use crate::dispatch::Dispatch;
use crate::function_calls::FunctionCalls;
use crate::gateway::Gateway;
use crate::keys::Keys;
use crate::metrics::{self, Metrics};
use crate::quotas::Quotas;
use crate::routes::Routes;
use crate::scheduler::SchedulerClient;
use crate::slots::Slots;
use crate::tls::{Certificates, CertificatesError, Listeners};
use crate::tokens::{Identities, Tokens};
use crate::usage::{self, Usage};
use crate::workers::Workers;
use crate::{headers, keeper};

/// How long requests may take to finish at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cluster token cannot be sent in a header.
    #[error("the cluster token is empty or not plain ASCII: put another into the file of --token-file")]
    Token,
    /// The gateway's certificate cannot be used.
    #[error("the gateway's connections cannot be guarded")]
    Tls(#[from] TlsError),
    /// Calls of functions cannot be listened for.
    #[error("calls of functions cannot be taken")]
    Functions(#[source] std::io::Error),
    /// There is no certificate to show to clients.
    #[error("clients cannot be served over TLS")]
    Certificates(#[from] CertificatesError),
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
    let Listeners { plain, tls, functions } = listeners;
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
    let keys = Arc::new(Keys::new(config.admin_key));
    let quotas = Arc::new(Quotas::default());
    let usage = Arc::new(Usage::default());
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
            let handshakes = Handshakes {
                certificates: certificates.clone(),
            };
            (Some((listener, handshakes)), Some(certificates))
        }
    };
    let shown = certificates.clone();
    metrics.observe_certificates(move || shown.as_ref().map(|c| c.expiries()).unwrap_or_default());
    let clients = Clients::new(
        config.clients.clone(),
        u32::try_from(config.max_in_flight).unwrap_or(u32::MAX),
    );
    let renewing = renewing(&config)?;
    let workers = Workers::new(config.member.as_deref(), config.in_process.clone())?;
    let keepers = [
        tokio::spawn(renewing),
        tokio::spawn(keeper::report(slots.clone())),
        tokio::spawn(keeper::watch(slots.clone())),
        tokio::spawn(keeper::follow(routes.clone(), slots.clone())),
        tokio::spawn(keeper::follow_keys(keys.clone(), slots.clone())),
        tokio::spawn(keeper::tell(
            slots.clone(),
            metrics.clone(),
            routes.clone(),
            keys.clone(),
            quotas.clone(),
            config.functions_at.clone(),
        )),
        tokio::spawn(usage::report(usage.clone(), scheduler.clone(), slots.gateway.clone())),
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
        usage,
    });
    let targets = Targets::allowing(&config.callback_allow);
    let callbacks = Callbacks::new(targets.clone());
    let runner = Runner::new(
        dispatch.clone(),
        callbacks,
        config.async_in_flight.min(config.max_in_flight),
    );
    let running = [tokio::spawn(runner.clone().run()), tokio::spawn(runner.clone().renew())];
    let identities = Identities::new(&config.identities, &metrics);
    let gateway = Arc::new(Gateway {
        callers: Callers::new(
            keys,
            identities,
            &config.identities,
            certificates
                .as_ref()
                .is_some_and(|certificates| certificates.ask_clients()),
        ),
        tokens: Tokens::new(&config.token_issuers, &metrics),
        quotas,
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
    let function_calls = match &config.functions_at {
        None => None,
        Some(address) => {
            let opened = FunctionCalls::open(
                &gateway,
                address,
                functions,
                config.member.as_deref(),
                &config.in_process,
            );
            Some(opened.map_err(ServeError::Functions)?)
        }
    };
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
    let calls_end = async {
        if let Some(calls) = function_calls {
            calls.end(SHUTDOWN_LIMIT).await;
        }
    };
    let (connected, (), ()) = tokio::join!(
        tokio::time::timeout(SHUTDOWN_LIMIT, connections.wait()),
        runner.end(SHUTDOWN_LIMIT),
        calls_end,
    );
    if connected.is_err() {
        tracing::warn!(connections = connections.len(), "requests were cut off at the end");
    }
    for keeper in keepers.into_iter().chain(running) {
        keeper.abort();
    }
    let Dispatch {
        slots,
        metrics,
        routes,
        usage,
        ..
    } = &*gateway.dispatch;
    usage::report_last(usage, &gateway.scheduler, &slots.gateway).await;
    keeper::tell_last(slots, metrics, routes, &gateway.callers.keys).await;
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
