//! What the scheduler knows of the cluster, in memory.

use crate::catalog::Catalog;
use crate::fleet::Fleet;
use crate::fleet::heat::Heat;
use crate::fleet::parked::Pools;
use crate::retention::Retention;
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
}
