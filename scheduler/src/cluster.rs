//! What the scheduler knows of the cluster, in memory.

use std::collections::BTreeMap;

use rekindle_wire::FunctionId;
use rekindle_wire::api::Canary;

use crate::catalog::Catalog;
use crate::fleet::Fleet;
use crate::fleet::heat::Heat;
use crate::fleet::parked::Pools;
use crate::retention::Retention;
use crate::shares::Shares;
use crate::traffic::Traffics;
use crate::waiting::Queue;

/// What it knows, under one lock.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pub(crate) fleet: Fleet,
    pub(crate) catalog: Catalog,
    pub(crate) queue: Queue,
    pub(crate) pools: Pools,
    pub(crate) heat: Heat,
    pub(crate) traffic: Traffics,
    pub(crate) retention: Retention,
    /// Canaries that are not over.
    pub(crate) canaries: BTreeMap<FunctionId, Canary>,
    pub(crate) shares: Shares,
}

impl ClusterState {
    /// Forgets a canary that is over. Returns whether there was one.
    pub(crate) fn end_canary(&mut self, function: &FunctionId) -> bool {
        self.shares.end(function);
        self.canaries.remove(function).is_some()
    }
}
