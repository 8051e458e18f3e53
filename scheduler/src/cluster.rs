//! What the scheduler knows of the cluster, in memory.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_wire::FunctionId;
use rekindle_wire::api::Canary;

use crate::catalog::{Catalog, LiveVersion};
use crate::fleet::Fleet;
use crate::fleet::heat::Heat;
use crate::fleet::parked::Pools;
use crate::retention::Retention;
use crate::shares::Shares;
use crate::traffic::TrafficCounts;
use crate::waiting::Queue;

/// What it knows, under one lock.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pub(crate) fleet: Fleet,
    pub(crate) catalog: Catalog,
    pub(crate) queue: Queue,
    pub(crate) pools: Pools,
    pub(crate) heat: Heat,
    pub(crate) traffic: TrafficCounts,
    pub(crate) retention: Retention,
    /// Canaries that are not over.
    pub(crate) canaries: BTreeMap<FunctionId, Canary>,
    pub(crate) shares: Shares,
    /// Functions with a scheduled run shortly.
    pub(crate) upcoming: BTreeSet<FunctionId>,
}

impl ClusterState {
    /// Whether an instance of the version is to stand by for a scheduled run. It is restored: a boot takes too long.
    pub(crate) fn is_upcoming(&self, live: &LiveVersion) -> bool {
        live.spec.snapshot.is_some() && self.upcoming.contains(&live.spec.function)
    }

    /// Forgets a canary that is over. Returns whether there was one.
    pub(crate) fn end_canary(&mut self, function: &FunctionId) -> bool {
        self.shares.end(function);
        self.canaries.remove(function).is_some()
    }
}
