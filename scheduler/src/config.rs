//! How to run a scheduler.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_envelope::MasterKey;
use rekindle_identity::CertificateIssuer;
use rekindle_relay::InProcessRoles;
use rekindle_wire::api::Quota;
use rekindle_wire::internal::Sharing;

use crate::collection::collector::CollectionSettings;
use crate::objects::ObjectStore;
use crate::store::Database;

/// How to run a scheduler.
#[derive(Clone)]
pub struct Config {
    /// Database of functions, versions and asynchronous invocations.
    pub database: Database,
    /// Address at which others reach this scheduler, `host:port`. Standby schedulers report it while this one leads.
    /// Used only with a shared database.
    pub address: String,
    /// Directory for uploads while they are received; it must exist.
    pub spool: PathBuf,
    /// The cluster's secret, which every caller must send.
    pub cluster_token: String,
    /// Encrypts the secrets in the database. Schedulers that share a database need the same key.
    pub master_key: MasterKey,
    /// Store of uploaded folders and snapshots.
    pub objects: Arc<dyn ObjectStore>,
    /// When to remove unneeded objects from the store.
    pub collecting: CollectionSettings,
    /// Which versions begin as the same snapshot of their runtime.
    pub sharing: Sharing,
    /// Bin width in which functions' idle times are counted. All times for which instances are kept are multiples of
    /// it.
    pub idle_bin: Duration,
    /// Share of its processors in use from which a worker counts as hot, so that instances move off it; 0 for never.
    pub rebalance_at: f64,
    /// Limits of namespaces for which none were set, but for the default one.
    pub quota: Quota,
    /// In-process transports to roles of the same process.
    pub in_process: InProcessRoles,
    /// The cluster's authority; without one, roles speak plain HTTP with the token alone.
    pub issuing: Option<Arc<CertificateIssuer>>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("Config")
            .field("database", &self.database)
            .field("spool", &self.spool)
            .finish_non_exhaustive()
    }
}
