//! What a host restores arriving instances with.

use std::sync::Arc;

use super::super::peer::Peers;
use crate::criu::Criu;
use crate::host::start_limiter::StartLimiter;
use crate::instance::isolate::Isolator;
use crate::instance::{Instances, Supervisor};
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

/// What a host restores arriving instances with.
pub struct TargetHost {
    /// CRIU on this host.
    pub criu: Arc<Criu>,
    /// Limits how many starts use the processors at once.
    pub start_limiter: Arc<StartLimiter>,
    /// The workers that instances come from.
    pub peers: Peers,
    /// All instances.
    pub instances: Arc<Instances>,
    /// Watches over those that run.
    pub supervisor: Arc<Supervisor>,
    /// Takes the sandboxes.
    pub isolator: Arc<Isolator>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Where incoming migrations are counted.
    pub metrics: Arc<Metrics>,
}
