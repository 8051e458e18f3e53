//! A worker: what its interface serves.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rekindle_relay::InProcessRoles;
use rekindle_snapshotter::Keyring;

use crate::calls::FunctionCalls;
use crate::criu::Criu;
use crate::deploy::prepare::Preparer;
use crate::host::network::Network;
use crate::host::sandbox::pool::SandboxPool;
use crate::idle::IdleMemory;
use crate::instance::Instances;
use crate::instance::invoke::Invoker;
use crate::instance::start::Starter;
use crate::layers::Layers;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::migration::{MigrationSources, MigrationTargets};
use crate::reporting::heartbeat::Reporter;
use crate::reporting::membership::Membership;
use crate::snapshots::Snapshots;

pub(crate) struct Worker {
    /// Address at which gateways and the scheduler reach it.
    pub(crate) address: String,
    /// The cluster's secret.
    pub(crate) token: String,
    /// How long it may finish requests in flight when it is asked to stop.
    pub(crate) leave_limit: Duration,
    /// Where it receives invocations from a gateway in its own process.
    pub(crate) in_process: InProcessRoles,
    pub(crate) instances: Arc<Instances>,
    pub(crate) starter: Arc<Starter>,
    pub(crate) invoker: Arc<Invoker>,
    /// Makes versions ready to serve.
    pub(crate) preparer: Arc<Preparer>,
    /// Instances that migrate to other hosts.
    pub(crate) migration_sources: Arc<MigrationSources>,
    /// Instances that migrate here.
    pub(crate) migration_targets: Arc<MigrationTargets>,
    /// Keys of namespaces whose snapshots are encrypted.
    pub(crate) keys: Keyring,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) layers: Arc<Layers>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) reporter: Arc<Reporter>,
    /// What it and the scheduler know of each other.
    pub(crate) membership: Arc<Membership>,
    pub(crate) criu: Arc<Criu>,
    /// Sandboxes created ahead.
    pub(crate) pool: Arc<SandboxPool>,
    /// Network egress of sandboxes, if there is any.
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) function_calls: Arc<FunctionCalls>,
    /// Where idle memory goes.
    pub(crate) idle: Arc<IdleMemory>,
    /// Held so that CRIU's breakpoints are immediate.
    pub(crate) _breakpoints: Option<OwnedFd>,
}

/// Number of instances that are stopped at once.
const STOPPED_AT_ONCE: usize = 64;

impl Worker {
    /// Stops everything, for shutdown.
    pub(crate) async fn stop_all(&self) {
        self.instances.drain();
        self.logs.end_follows();
        let all = futures::stream::iter(self.instances.all());
        let stopping = all.for_each_concurrent(STOPPED_AT_ONCE, async |instance| {
            instance.stop("the worker is shutting down").await;
        });
        stopping.await;
        let (pool, network, idle) = (Arc::clone(&self.pool), self.network.clone(), Arc::clone(&self.idle));
        let layers = Arc::clone(&self.layers);
        let close = move || {
            pool.close();
            if let Some(network) = network {
                network.stop();
            }
            idle.stop();
            // Nothing runs any more that has them.
            layers.unmount();
        };
        // The task does not panic, so the only possible failure is the shutdown of the runtime.
        let _ = tokio::task::spawn_blocking(close).await;
    }
}
