//! Fixtures of the unit tests: specs, heartbeats, ids.

use rekindle_wire::api::{InstanceInfo, InstanceState, StartKind};
use rekindle_wire::function_config::{self, ByteSize, FunctionConfig};
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{Heartbeat, LayerRef, OrderTicket, VersionSpec};
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::fleet::retire::Floor;
use crate::fleet::{Fleet, Stage};

/// A version's spec with the limits that matter here.
pub(crate) fn spec(name: &str, version: u32, memory: u64, concurrency: u32, max_instances: u32) -> VersionSpec {
    let nothing = LayerRef {
        digest: String::new(),
        tar_bytes: 0,
    };
    let function: FunctionId = name.parse().unwrap();
    VersionSpec {
        version: VersionNumber(version),
        config: FunctionConfig {
            memory: ByteSize(memory),
            concurrency,
            max_instances,
            idle_ms: 4_000,
            ..parsed(function.name())
        },
        function,
        uid: 100_001,
        rootfs: nothing.clone(),
        layer: nothing,
        snapshot: None,
        snapshot_digest: None,
        instruction_sets: InstructionSets::default(),
        reaper: false,
    }
}

/// A plain config.
pub(crate) fn parsed(name: &str) -> FunctionConfig {
    function_config::parse(&format!(
        "name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n"
    ))
    .unwrap()
}

pub(crate) fn live(spec: VersionSpec) -> LiveVersion {
    LiveVersion { spec: spec.into() }
}

pub(crate) fn gateway(n: usize) -> GatewayId {
    format!("g-{n}").parse().unwrap()
}

pub(crate) fn worker(n: usize) -> WorkerId {
    format!("w-{n}").parse().unwrap()
}

/// A heartbeat of worker `n` that lists `instances`.
pub(crate) fn beat(n: usize, incarnation: u64, capacity: u64, instances: Vec<InstanceInfo>) -> Heartbeat {
    Heartbeat {
        levels: rekindle_wire::stats::WorkerLevels::default(),
        worker: worker(n),
        incarnation,
        number: 0,
        address: format!("127.0.0.1:{}", 7_000 + n),
        memory_capacity_bytes: capacity,
        offer: rekindle_wire::internal::HostOffer::default(),
        presence: rekindle_wire::internal::Presence::Serving,
        pressure: rekindle_wire::internal::MemoryPressure::default(),
        kept: None,
        damaged: Vec::new(),
        snapshots: rekindle_wire::internal::SnapshotReport::default(),
        secrets: std::collections::BTreeMap::new(),
        // The scheduler has checked them by then.
        tickets: instances
            .iter()
            .map(|info| (info.id.clone(), OrderTicket(String::new())))
            .collect(),
        instances,
    }
}

/// An instance as its worker reports it.
pub(crate) fn info(id: &InstanceId, spec: &VersionSpec, n: usize, in_flight: u32, idle_ms: u64) -> InstanceInfo {
    InstanceInfo {
        id: id.clone(),
        function: spec.function.clone(),
        version: spec.version,
        worker: worker(n),
        state: InstanceState::Ready,
        started: StartKind::Booted,
        in_flight,
        idle_ms,
        memory_bytes: 1,
        evicted_bytes: 0,
        lease_number: 0,
    }
}

/// A floor of `parked` parked instances.
pub(crate) fn parked(parked: usize) -> Floor {
    Floor { warm: 0, parked }
}

/// A fleet of one worker with `capacity`, heard from at the start.
pub(crate) fn fleet(capacity: u64) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.heartbeat(&beat(0, 1, capacity, Vec::new()), Millis(0), |_, _| {
        crate::catalog::ClaimedVersion::Unknown
    });
    fleet
}

/// Adds a ready instance on worker 0.
pub(crate) fn ready(fleet: &mut Fleet, name: &str, live: &LiveVersion, now: Millis) -> InstanceId {
    let id: InstanceId = name.parse().unwrap();
    fleet.add(id.clone(), worker(0), &live.spec, StartKind::Booted, Stage::Ready, now);
    id
}
