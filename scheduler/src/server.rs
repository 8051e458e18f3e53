//! The scheduler's start and shutdown.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rekindle_envelope::KeyId;
use rekindle_identity::{CertificateIssuer, Listener};
use rekindle_wire::clock::unix_s;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::access::table::Keys;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::leadership::Leadership;
use crate::orders::Orders;
use crate::quotas::Quotas;
use crate::schedules::known::Schedules;
use crate::seals::vault::NamespaceKeys;
use crate::secrets::vault::Secrets;
use crate::standby_gate::{self, StandbyGate};
use crate::state::{Scheduler, SchedulerState};
use crate::store::{Store, StoreError, despite_another_taking_the_lead};
use crate::{
    api, async_calls, audit, canary, collection, digests, metering, metrics, reaper, rebalancing, renewal, schedules,
    usage,
};

/// How long requests and tasks may take to finish at shutdown. A version being prepared is not waited for: it is marked
/// failed at the next start.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// How often a standby scheduler reads the list of revoked members.
const HEAR_EVERY: Duration = Duration::from_secs(1);

/// Why a scheduler could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cluster token cannot be sent in a header.
    #[error("the cluster token is empty or not plain ASCII: put another into the file of --token-file")]
    Token,
    /// The scheduler's certificate cannot be used.
    #[error("connections to workers cannot be guarded")]
    Tls(#[source] rekindle_identity::TlsError),
    /// The database cannot be used.
    #[error("the scheduler's database cannot be used")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database holds secrets that another master key encrypted.
    #[error(
        "the database's secrets were encrypted with master key {known}, and the one given is {own}: copy the \
         master.key of another of its schedulers here, or name it with --master-key"
    )]
    MasterKey {
        /// The database's master key.
        known: String,
        /// The configured master key.
        own: KeyId,
    },
    /// The database's master key is wrapped by a key service, and was not had from it.
    #[error(
        "the database's master key is wrapped by the key service's key {by}, and the one given is {own}: say \
         --master-key-kms {by}"
    )]
    Wrapped {
        /// Name of the service's key.
        by: String,
        /// The configured master key.
        own: KeyId,
    },
    /// The leader could not renew its lead in time: another may lead by now.
    #[error("leadership was lost, since the database did not answer in time: start again to stand by")]
    Deposed,
    /// The listener failed.
    #[error("the scheduler's listener failed")]
    Listen(#[source] std::io::Error),
}

/// Runs a scheduler on `listener` until `shutdown` resolves. Then it accepts nothing new and finishes within five
/// seconds. A scheduler that shares its database stands by until it leads.
///
/// # Errors
/// If the configuration or the database cannot be used, or the lead is lost.
pub fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, Result<(), ServeError>> {
    boxed(config, listener, Box::pin(shutdown))
}

/// Boxed here, so that the server is compiled once, with this crate, and not with each of its callers.
fn boxed(
    config: Config,
    listener: TcpListener,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), ServeError>> {
    Box::pin(run(config, listener, shutdown))
}

async fn run(config: Config, listener: TcpListener, shutdown: BoxFuture<'static, ()>) -> Result<(), ServeError> {
    if config.cluster_token.is_empty() || http::HeaderValue::from_str(&config.cluster_token).is_err() {
        return Err(ServeError::Token);
    }
    let store = despite_another_taking_the_lead(|| open_store(&config)).await?;
    let leadership = Leadership::new(store.clone(), &config.address);
    let front = Arc::new(StandbyGate::new(api::members::joining(&config)));
    let mut led = None;
    if !store.is_shared() {
        led = Some(begin(config.clone(), store.clone(), &front).await?);
    }
    let (ending, mut ended) = tokio::sync::watch::channel(false);
    let (issuing, in_process, address) = (
        config.issuing.clone(),
        config.in_process.clone(),
        config.address.clone(),
    );
    let listener = Listener::new(listener, issuing.as_ref().map(|i| &**i.member())).map_err(ServeError::Listen)?;
    let renewing = tokio::spawn(async move {
        match issuing {
            Some(issuing) => issuing.keep_renewed().await,
            None => std::future::pending().await,
        }
    });
    let hearing = tokio::spawn(hear_revoked(config.issuing.clone(), store.clone()));
    let router = standby_gate::router(front.clone());
    let _registered = in_process.open(&address, rekindle_identity::inside(router.clone()));
    let serving = listener.serve(router, async move {
        shutdown.await;
        let _ = ending.send(true);
    });
    let leading = async {
        if led.is_none() {
            leadership.win(&front).await;
            // The lead is renewed meanwhile: there may be much to read.
            tokio::select! {
                begun = begin(config, store.clone(), &front) => led = Some(begun?),
                () = leadership.keep() => return Err(ServeError::Deposed),
            }
        }
        leadership.keep().await;
        Err(ServeError::Deposed)
    };
    let mut serving = std::pin::pin!(serving);
    // A future that has completed must not be polled again.
    let served = tokio::select! {
        () = &mut serving => Some(Ok(())),
        // Another scheduler leads: work in progress here must stop.
        lost = leading => Some(lost),
        _ = ended.wait_for(|e| *e) => None,
    };
    if let Some(led) = &led {
        // Otherwise waits for leases and work, and followed logs, would delay the shutdown.
        led.scheduler.recalls.notify_waiters();
        led.scheduler.calls.end_waits();
    }
    let result = match served {
        // With no connection open the server completes as soon as it is told to stop.
        Some(Ok(())) => {
            finish(std::future::ready(()), led.as_ref()).await;
            Ok(())
        }
        Some(result) => result,
        // It remains the leader for whatever it does until the end.
        None => tokio::select! {
            () = leadership.keep(), if led.is_some() => Err(ServeError::Deposed),
            () = finish(serving, led.as_ref()) => Ok(()),
        },
    };
    if result.is_err() {
        front.resign();
    }
    renewing.abort();
    hearing.abort();
    if let Some(led) = led {
        led.end().await;
    }
    // A database that is away would be waited for.
    if result.is_ok() {
        leadership.step_down().await;
        store.close().await;
    }
    result
}

/// Keeps a standby's list of revoked members current from the database, since a standby lets hosts join too. Runs until
/// dropped.
async fn hear_revoked(issuing: Option<Arc<CertificateIssuer>>, store: Store) {
    let Some(issuing) = issuing.filter(|_| store.is_shared()) else {
        return;
    };
    loop {
        match store.revocations().await {
            Ok(all) => issuing.member().revoked().add(all.into_iter().map(|(peer, _)| peer)),
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "who is revoked cannot be read"
                );
            }
        }
        tokio::time::sleep(HEAR_EVERY).await;
    }
}

/// Opens the database, whose master key is the configured one.
async fn open_store(config: &Config) -> Result<Store, ServeError> {
    let store = Store::open(&config.database).await.map_err(unusable)?;
    agree_on_master_key(&store, config.master_key.id()).await?;
    Ok(store)
}

/// Ensures that one master key encrypts what the database holds. A database shared by several schedulers keeps the
/// first one's key, and so does one that holds it wrapped. Another database in a file continues with a new key: if the
/// key file is lost, there is nowhere to copy it from.
async fn agree_on_master_key(store: &Store, own: KeyId) -> Result<(), ServeError> {
    let known = store.master_key(&own.to_string()).await.map_err(unusable)?;
    if known == own.to_string() {
        return Ok(());
    }
    let wrapped = store.known_master_key().await.map_err(unusable)?;
    if let Some(wrapped) = wrapped.and_then(|known| known.wrapped) {
        return Err(ServeError::Wrapped { by: wrapped.by, own });
    }
    if store.is_shared() {
        return Err(ServeError::MasterKey { known, own });
    }
    tracing::warn!(
        known,
        %own,
        "the master key is another than before: credentials of asynchronous invocations that wait cannot be read any \
         more"
    );
    store.set_master_key(&own.to_string()).await.map_err(unusable)
}

/// Waits for requests in flight, and writes the last counts.
async fn finish(serving: impl Future<Output = ()>, led: Option<&LeadingScheduler>) {
    // Whatever is not done by then is cut off.
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, serving).await;
    if let Some(led) = led {
        usage::note_last(&led.scheduler).await;
    }
}

fn unusable(error: StoreError) -> ServeError {
    ServeError::Store(Box::new(error))
}

struct LeadingScheduler {
    scheduler: Scheduler,
    tasks: Vec<JoinHandle<()>>,
}

/// Reads the stored state and starts to accept requests.
async fn begin(config: Config, store: Store, front: &StandbyGate) -> Result<LeadingScheduler, ServeError> {
    let unfinished = store.fail_unfinished().await.map_err(unusable)?;
    if unfinished > 0 {
        tracing::warn!(
            unfinished,
            "versions that were being prepared when the scheduler ended are marked failed"
        );
    }
    let mut catalog = Catalog::new(store.namespaces().await.map_err(unusable)?);
    for spec in store.live_specs().await.map_err(unusable)? {
        catalog.add(spec);
    }
    for (function, alias) in store.all_aliases().await.map_err(unusable)? {
        catalog.set_alias(&function, alias);
    }
    let drained = store.drained().await.map_err(unusable)?;
    let canaries = store.open_canaries().await.map_err(unusable)?;
    let secrets = Secrets::read(&store, config.master_key.clone())
        .await
        .map_err(unusable)?;
    let seals = NamespaceKeys::read(&store, config.master_key.clone())
        .await
        .map_err(unusable)?;
    let rules = store.access_rules().await.map_err(unusable)?;
    let keys = Keys::new(store.keys().await.map_err(unusable)?, rules);
    let known = Schedules::read(&store).await.map_err(unusable)?;
    let quotas = Quotas::new(store.quotas().await.map_err(unusable)?, config.quota);
    let orders = Orders::new(
        &config.master_key,
        store.tickets_since(unix_s()).await.map_err(unusable)?,
    );
    let kept = (secrets, seals, keys, known, orders);
    let scheduler = SchedulerState::new(config, store, catalog, kept).map_err(ServeError::Tls)?;
    for (function, open) in canaries {
        canary::load(&scheduler, function, open);
    }
    metrics::observe::observe(&scheduler.metrics.registry, &Arc::downgrade(&scheduler));
    {
        let mut state = scheduler.state();
        state.fleet.set_drained(drained);
        state.fleet.quotas = quotas;
    }
    if let Some(issuing) = scheduler.config.issuing.clone() {
        let taken = api::revocations::take_in(&scheduler, &issuing).await;
        taken.map_err(|e| ServeError::Store(e.into()))?;
    }
    usage::read(&scheduler).await.map_err(unusable)?;
    metering::read(&scheduler).await.map_err(unusable)?;
    let tasks = vec![
        tokio::spawn(reaper::run(scheduler.clone())),
        tokio::spawn(rebalancing::run(scheduler.clone())),
        tokio::spawn(collection::run(scheduler.clone())),
        tokio::spawn(async_calls::run(scheduler.clone())),
        tokio::spawn(async_calls::destinations::run(scheduler.clone())),
        tokio::spawn(usage::run(scheduler.clone())),
        tokio::spawn(digests::complete(scheduler.clone())),
        tokio::spawn(renewal::run(scheduler.clone())),
        tokio::spawn(canary::run(scheduler.clone())),
        tokio::spawn(schedules::run(scheduler.clone())),
        tokio::spawn(audit::run(scheduler.clone())),
        tokio::spawn(metering::run(scheduler.clone())),
    ];
    front.lead(api::router(scheduler.clone()));
    Ok(LeadingScheduler { scheduler, tasks })
}

impl LeadingScheduler {
    async fn end(self) {
        for task in self.tasks {
            task.abort();
        }
        self.scheduler.tasks.close();
        drop(tokio::time::timeout(Duration::from_millis(200), self.scheduler.tasks.wait()).await);
    }
}
