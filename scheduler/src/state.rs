//! State shared by all parts of the scheduler. One lock guards everything in memory: its critical sections are short
//! and never wait.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rekindle_identity::TlsError;
use tokio::sync::{Notify, OwnedSemaphorePermit, RwLock, Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::access::table::Keys;
use crate::async_calls::progress::Calls;
use crate::audit::budget::Budget;
use crate::catalog::Catalog;
use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::collection::collector::Collector;
use crate::config::Config;
use crate::followed::RevisionTracker;
use crate::metering::today::Metering;
use crate::metrics::Metrics;
use crate::objects::ObjectStore;
use crate::orders::Orders;
use crate::quotas::{Build, Builds};
use crate::renewal::renewals::Renewals;
use crate::retention::Retention;
use crate::schedules::known::Schedules;
use crate::seals::vault::NamespaceKeys;
use crate::secrets::vault::Secrets;
use crate::sources::known::Sources;
use crate::store::Store;
use crate::upload::places::UploadPermits;
use crate::worker::WorkerClient;

/// Number of versions prepared at once; the rest wait their turn.
const PREPARED_AT_ONCE: usize = 2;
/// Maximum number of deploys in progress, including those that wait their turn.
pub(crate) const DEPLOYS_MAX: usize = 32;

/// Maximum number of folders that are read at once to list their files. Reading one takes as much as an upload does.
const READINGS_MAX: usize = 2;

/// A deploy's place among those in progress, of all namespaces and of its own.
pub(crate) type DeployPlace = (OwnedSemaphorePermit, Build);

/// The scheduler. Cloned into every handler and task.
pub(crate) type Scheduler = Arc<SchedulerState>;

/// What every handler and task of a scheduler that leads works with.
pub(crate) struct SchedulerState {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) workers: WorkerClient,
    /// Signalled when a lease is recalled.
    pub(crate) recalls: Notify,
    /// Number of revoked cluster members.
    pub(crate) revoked: watch::Sender<u64>,
    pub(crate) collector: Collector,
    pub(crate) renewals: Renewals,
    pub(crate) metrics: Metrics,
    pub(crate) calls: Calls,
    /// Held while changes are taken and written. So they are written in the order in which they were taken, and a
    /// shutdown waits for a write in progress.
    pub(crate) noting: tokio::sync::Mutex<()>,
    /// Held while an alias is changed in the database and then in memory, so that both see the same order.
    pub(crate) releasing: tokio::sync::Mutex<()>,
    /// What gateways know of aliases.
    pub(crate) routes: RevisionTracker,
    pub(crate) keys: Keys,
    /// How much may be written into the audit log.
    pub(crate) audit: Budget,
    pub(crate) secrets: Secrets,
    pub(crate) seals: NamespaceKeys,
    pub(crate) schedules: Schedules,
    /// What readers say of sources.
    pub(crate) sources_read: Sources,
    pub(crate) preparing: Semaphore,
    pub(crate) deploys: Arc<Semaphore>,
    pub(crate) orders: Orders,
    /// Folders of versions that are being read.
    pub(crate) readings: Arc<Semaphore>,
    /// Deploys in progress, by namespace.
    pub(crate) builds: Builds,
    /// What is used today.
    pub(crate) metering: Metering,
    /// Deploys whose folder is still being uploaded, by namespace.
    pub(crate) uploads: UploadPermits,
    /// Held for reading while an uploaded folder has no version yet, and for writing while one is removed.
    pub(crate) sources: RwLock<()>,
    /// Tasks that outlive the request that started them. A shutdown waits for them briefly.
    pub(crate) tasks: TaskTracker,
    state: Mutex<ClusterState>,
    started: Instant,
}

/// The object store with what these keys open.
fn opened(objects: Arc<dyn ObjectStore>, seals: &NamespaceKeys) -> Arc<dyn ObjectStore> {
    objects.opening(&seals.ring).unwrap_or(objects)
}

impl SchedulerState {
    pub(crate) fn new(
        config: Config,
        store: Store,
        catalog: Catalog,
        (secrets, seals, keys, schedules, orders): (Secrets, NamespaceKeys, Keys, Schedules, Orders),
    ) -> Result<Scheduler, TlsError> {
        let metrics = Metrics::new();
        let settings = rekindle_retention::Settings { bin: config.idle_bin };
        Ok(Arc::new(Self {
            objects: opened(metrics.measured(&config.objects), &seals),
            workers: WorkerClient::new(
                &config.cluster_token,
                config.issuing.as_deref(),
                config.in_process.clone(),
            )?,
            config,
            store,
            recalls: Notify::new(),
            revoked: watch::Sender::new(0),
            collector: Collector::default(),
            renewals: Renewals::default(),
            metrics,
            calls: Calls::default(),
            noting: tokio::sync::Mutex::default(),
            releasing: tokio::sync::Mutex::default(),
            routes: RevisionTracker::default(),
            keys,
            audit: Budget::default(),
            secrets,
            seals,
            schedules,
            sources_read: Sources::default(),
            preparing: Semaphore::new(PREPARED_AT_ONCE),
            deploys: Arc::new(Semaphore::new(DEPLOYS_MAX)),
            orders,
            readings: Arc::new(Semaphore::new(READINGS_MAX)),
            builds: Builds::default(),
            metering: Metering::default(),
            uploads: UploadPermits::default(),
            sources: RwLock::new(()),
            tasks: TaskTracker::new(),
            state: Mutex::new(ClusterState {
                catalog,
                retention: Retention::new(settings),
                ..ClusterState::default()
            }),
            started: Instant::now(),
        }))
    }

    /// The cluster's state. Never hold the lock across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock()
    }

    /// The current time on the scheduler's own clock.
    pub(crate) fn now(&self) -> Millis {
        self.started.elapsed().into()
    }
}
