//! State shared by all parts of the scheduler. One lock guards everything in memory: its critical sections are short
//! and never wait.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use rekindle_identity::TlsError;
use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::async_calls::Calls;
use crate::catalog::Catalog;
use crate::collection::Collector;
use crate::fleet::heat::Heat;
use crate::fleet::parked::Pools;
use crate::fleet::{Fleet, Millis};
use crate::metrics::Metrics;
use crate::objects::ObjectStore;
use crate::renewal::Renewals;
use crate::retention::Retention;
use crate::server::Config;
use crate::store::Store;
use crate::traffic::Traffics;
use crate::usage::Noting;
use crate::waiting::Queue;
use crate::worker::WorkerClient;

/// Number of versions prepared at once; the rest wait their turn.
const PREPARED_AT_ONCE: usize = 2;
/// Maximum number of deploys in progress, including those that wait their turn.
pub(crate) const DEPLOYS_MAX: usize = 32;

/// What the scheduler knows of the cluster, in memory.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pub(crate) fleet: Fleet,
    pub(crate) catalog: Catalog,
    pub(crate) queue: Queue,
    pub(crate) pools: Pools,
    pub(crate) heat: Heat,
    pub(crate) traffic: Traffics,
    pub(crate) retention: Retention,
}

/// The scheduler. Cloned into every handler and task.
pub(crate) type Scheduler = Arc<Shared>;

pub(crate) struct Shared {
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
    pub(crate) noting: Noting,
    pub(crate) preparing: Semaphore,
    pub(crate) deploys: Arc<Semaphore>,
    /// Held for reading while an uploaded folder has no version yet, and for writing while one is removed.
    pub(crate) sources: RwLock<()>,
    /// Tasks that outlive the request that started them. A shutdown waits for them briefly.
    pub(crate) tasks: TaskTracker,
    state: Mutex<ClusterState>,
    started: Instant,
}

impl Shared {
    pub(crate) fn new(config: Config, store: Store, catalog: Catalog) -> Result<Scheduler, TlsError> {
        let metrics = Metrics::new();
        let settings = rekindle_retention::Settings { bin: config.idle_bin };
        let scheduler = Arc::new(Self {
            objects: metrics.measured(&config.objects),
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
            noting: Noting::default(),
            preparing: Semaphore::new(PREPARED_AT_ONCE),
            deploys: Arc::new(Semaphore::new(DEPLOYS_MAX)),
            sources: RwLock::new(()),
            tasks: TaskTracker::new(),
            state: Mutex::new(ClusterState {
                catalog,
                retention: Retention::new(settings),
                ..ClusterState::default()
            }),
            started: Instant::now(),
        });
        crate::metrics::observe(&scheduler.metrics.registry, &Arc::downgrade(&scheduler));
        Ok(scheduler)
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

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}
