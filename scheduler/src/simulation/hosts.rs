//! The workers of a simulation as they really are: what runs on them, what they keep, how busy they are.

use std::collections::{BTreeMap, VecDeque};

use rekindle_wire::api::{InstanceInfo, InstanceState, StartKind};
use rekindle_wire::internal::{
    Heartbeat, HostOffer, MemoryPressure, OrderTicket, Presence, RESTORABLE_MAX, RestorableSnapshots,
};
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::stats::WorkerLevels;
use rekindle_wire::{InstanceId, SnapshotId, WorkerId};

use super::Setup;
use super::workload::{Function, parsed};
use crate::clock::Millis;
use crate::fleet::PARKED_LEAST;
use crate::fleet::sites::Tier;

/// Number of templates that a worker keeps open.
const TEMPLATES: usize = 200;
/// Number of snapshots whose chunks it keeps.
const CACHED: usize = RESTORABLE_MAX;
/// Weight that a report gives to what was seen since the last, a second before.
const FRESH: f64 = 0.2;

/// An instance as it really is.
#[derive(Debug, Clone)]
pub(super) struct ActualInstance {
    pub(super) function: usize,
    pub(super) state: InstanceState,
    pub(super) started: StartKind,
    pub(super) in_flight: u32,
    pub(super) idle_since: Millis,
}

/// Whether a worker can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    /// It keeps running, but cannot be reached.
    Cut,
    /// Its processes are gone.
    Dead,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: WorkerId,
    pub(super) address: String,
    zone: String,
    pub(super) link: Link,
    pub(super) link_since: Millis,
    pub(super) incarnation: u64,
    pub(super) instances: BTreeMap<InstanceId, ActualInstance>,
    /// Invocations being served.
    pub(super) running: u32,
    pub(super) busy: f64,
    templates: VecDeque<usize>,
    cached: VecDeque<usize>,
    revision: u64,
    known_revision: u64,
}

impl Host {
    pub(super) fn new(n: usize, setup: &Setup) -> Self {
        Self {
            id: parsed(&format!("w-{n}")),
            address: format!("10.0.0.1:{n}"),
            zone: format!("zone-{}", n % setup.zones.max(1)),
            link: Link::Up,
            link_since: Millis(0),
            incarnation: 1,
            instances: BTreeMap::new(),
            running: 0,
            busy: 0.0,
            templates: VecDeque::new(),
            cached: VecDeque::new(),
            revision: 1,
            known_revision: 0,
        }
    }

    /// Restores a function's snapshot. Returns where its memory was. The worker then has the template open, and what it
    /// displaces stays on the disk.
    pub(super) fn open(&mut self, function: usize) -> Option<Tier> {
        let found = |list: &mut VecDeque<usize>| {
            let at = list.iter().position(|f| *f == function);
            at.is_some_and(|at| list.remove(at).is_some())
        };
        let (open, cached) = (found(&mut self.templates), found(&mut self.cached));
        self.templates.push_back(function);
        if !open {
            self.revision += 1;
            if self.templates.len() > TEMPLATES {
                self.cached.extend(self.templates.pop_front());
            }
            if self.cached.len() > CACHED {
                self.cached.pop_front();
            }
        }
        match (open, cached) {
            (true, _) => Some(Tier::Template),
            (false, true) => Some(Tier::Disk),
            (false, false) => None,
        }
    }

    /// How much longer work takes here than on an idle worker.
    pub(super) fn slowness(&self, setup: &Setup) -> f64 {
        (f64::from(self.running + 1) / f64::from(setup.cpus)).max(1.0)
    }

    /// Restarts the worker after its process was killed.
    pub(super) fn restart(&mut self) {
        self.incarnation += 1;
        self.instances.clear();
        self.running = 0;
        self.templates.clear();
        self.cached.clear();
        (self.revision, self.known_revision) = (1, 0);
    }

    pub(super) fn beat(&mut self, setup: &Setup, functions: &[Function], now: Millis) -> Heartbeat {
        let share = (f64::from(self.running) / f64::from(setup.cpus)).min(1.0);
        self.busy += (share - self.busy) * FRESH;
        let infos = self.instances.iter().map(|(id, real)| {
            let spec = &functions[real.function].live.spec;
            InstanceInfo {
                id: id.clone(),
                function: spec.function.clone(),
                version: spec.version,
                worker: self.id.clone(),
                state: real.state,
                started: real.started,
                in_flight: real.in_flight,
                idle_ms: now.since(real.idle_since).0,
                memory_bytes: match real.state {
                    InstanceState::Parked => PARKED_LEAST,
                    _ => spec.config.memory.0 / 2,
                },
                evicted_bytes: 0,
                lease_number: 0,
            }
        });
        let names = |list: &VecDeque<usize>| -> Vec<SnapshotId> {
            let mut names: Vec<_> = list
                .iter()
                .filter_map(|f| functions[*f].live.spec.snapshot.clone())
                .collect();
            names.sort_unstable();
            names
        };
        Heartbeat {
            worker: self.id.clone(),
            incarnation: self.incarnation,
            number: 0,
            address: self.address.clone(),
            memory_capacity_bytes: setup.memory,
            offer: HostOffer {
                host: String::new(),
                cpus: setup.cpus,
                instances_max: 0,
                zone: self.zone.clone(),
                labels: BTreeMap::new(),
                instruction_sets: InstructionSets::default(),
            },
            presence: Presence::Serving,
            // The scheduler has checked them by then.
            tickets: self
                .instances
                .keys()
                .map(|id| (id.clone(), OrderTicket(String::new())))
                .collect(),
            instances: infos.collect(),
            levels: WorkerLevels {
                busy: self.busy,
                ..WorkerLevels::default()
            },
            pressure: MemoryPressure::default(),
            secrets: BTreeMap::new(),
            kept: (self.revision != self.known_revision).then(|| RestorableSnapshots {
                revision: self.revision,
                templates: names(&self.templates),
                cached: names(&self.cached),
            }),
            damaged: Vec::new(),
            snapshots: rekindle_wire::internal::SnapshotReport::default(),
        }
    }

    /// Applies the scheduler's answer.
    pub(super) fn heard(&mut self, kept_revision: u64) {
        self.known_revision = kept_revision;
    }
}
