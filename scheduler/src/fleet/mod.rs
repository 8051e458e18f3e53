//! What the scheduler knows of workers and instances right now. Everything is in memory: after a restart the workers'
//! heartbeats restore it. There is no I/O and no clock here: the caller passes the time.
//!
//! An instance's stages:
//!
//! ```text
//!   Preparing ──version live──┐            (booted by a deploy; never leased before its version is live)
//!                             v
//!   Starting ──heartbeat──> Ready ──retire──> Stopping ──> gone
//!       │                     ^                  │
//!       └── first answer ─────┘ <──worker: busy──┘
//!                             ^                  ^
//!                             ├──lease── Parked ─┘      (idle, or started to be parked: frozen on its worker)
//!                             └───────── Moving         (moving to another worker; see [`moves`])
//! ```
//!
//! Independently of its stage, an instance may be leased to one gateway (see [`leases`]). It may also be
//! [`Draining`]: it finishes what it serves, takes nothing new, and goes.

pub(crate) mod cost;
pub(crate) mod heartbeat;
pub(crate) mod heat;
pub(crate) mod incoming;
pub(crate) mod instances;
pub(crate) mod keeping;
pub(crate) mod leases;
pub(crate) mod membership;
pub(crate) mod moves;
pub(crate) mod parked;
pub(crate) mod quota;
pub(crate) mod reservation;
pub(crate) mod retire;
pub(crate) mod ring;
pub(crate) mod sites;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rekindle_retention::Clock;
use rekindle_wire::api::{InstanceInfo, InstanceState, StartKind};
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{Presence, VersionSpec};
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use crate::catalog::NO_VERSION;
use crate::clock::Millis;
use crate::quotas::Quotas;

/// How long the id of a gone instance is remembered, so that a heartbeat already in flight does not bring it back.
const REMEMBER_GONE: Millis = Millis(60_000);
/// How long a started instance may be missing from its worker's heartbeats before it is forgotten.
const UNSEEN: Millis = Millis(10_000);

/// Minimum memory set aside for a parked instance: what the kernel keeps for it is charged nowhere.
pub(crate) const PARKED_LEAST: u64 = 4 << 20;

pub(crate) use instances::Instances;
use keeping::{EarlyStartReason, KeepAliveState};
pub(crate) use membership::Worker;
use retire::InstanceDecision;
use sites::{Site, Zone};

/// A map by id. Every placement looks up several ids.
pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// An instance's stage, as the scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A deploy boots it.
    Preparing,
    /// The worker was asked to start it.
    Starting,
    /// It takes invocations.
    Ready,
    /// The worker checkpoints it.
    Capturing,
    /// It is frozen on its worker, and continues with the next invocation.
    Parked,
    /// It is migrating to another worker.
    Moving,
    /// The worker was asked to stop it.
    Stopping,
}

impl Stage {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Capturing => "capturing",
            Self::Parked => "parked",
            Self::Moving => "moving",
            Self::Stopping => "stopping",
        }
    }
}

/// Why an instance finishes what it serves and takes nothing new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Draining {
    /// No alias names its version.
    NotNamed,
    /// Its version has more than its maximum, or another function needs the room.
    Surplus,
    /// Its worker shows no order for it.
    NotOrdered,
}

/// A lease: the instance's slots belong to one gateway for a while.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) gateway: GatewayId,
    pub(crate) granted_at: Millis,
    pub(crate) expires_at: Millis,
    /// Whether the scheduler wants it back.
    pub(crate) recalled: bool,
    /// Whether the recall ends with its reason: a move, a drain, or the silence of its worker.
    pub(crate) for_now: bool,
    /// Whether the gateway's watch was told of the recall.
    pub(crate) told: bool,
}

/// One running copy of a version.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) function: FunctionId,
    pub(crate) version: VersionNumber,
    pub(crate) worker: WorkerId,
    pub(crate) zone: Zone,
    /// Memory limit, bytes.
    pub(crate) memory: u64,
    /// Maximum number of concurrent invocations.
    pub(crate) slots: u32,
    pub(crate) idle_limit: Millis,
    /// How long it stays parked after the idle limit.
    pub(crate) park_limit: Millis,
    /// Started to be parked, and not used yet.
    pub(crate) to_park: bool,
    /// Its worker could not freeze it.
    pub(crate) cannot_park: bool,
    pub(crate) started: StartKind,
    pub(crate) stage: Stage,
    /// `None` if it may take invocations.
    pub(crate) draining: Option<Draining>,
    /// It is being stopped whatever it does.
    pub(crate) condemned: bool,
    pub(crate) moving: Option<moves::Move>,
    /// Earliest time at which the platform itself may move it.
    pub(crate) move_after: Millis,
    /// It could not move off its draining worker: it finishes there, unless a later attempt succeeds.
    pub(crate) left_behind: bool,
    /// Whether a heartbeat has listed it yet.
    pub(crate) seen: bool,
    /// When it was started, or arrived on its worker.
    pub(crate) created_at: Millis,
    pub(crate) lease: Option<Lease>,
    /// Number of its newest lease, as far as is known.
    pub(crate) lease_number: u64,
    /// Invocations in flight, from the last heartbeat or the return of the lease.
    pub(crate) in_flight: u32,
    /// Whether its lease was returned since the last heartbeat. The next one may have been written before that.
    pub(crate) just_returned: bool,
    pub(crate) last_active: Millis,
    /// Earliest time of the next attempt to retire it, after the worker said it was busy.
    pub(crate) retire_after: Millis,
    pub(crate) memory_now: u64,
    /// Memory beyond `memory_now` that is evicted.
    pub(crate) evicted_now: u64,
    /// The retention policy's record of it.
    pub(crate) keeping: KeepAliveState,
}

impl Instance {
    /// Whether it is unused and unleased, as far as is known here. The worker has the last word.
    pub(crate) fn is_free(&self) -> bool {
        self.lease.is_none() && self.in_flight == 0 && self.is_unused()
    }

    /// Whether it serves nothing, as far as is known here.
    pub(crate) fn is_unused(&self) -> bool {
        self.in_flight == 0 && self.moving.is_none() && matches!(self.stage, Stage::Ready | Stage::Parked)
    }

    /// Whether its source was, or is about to be, told to move it.
    pub(crate) fn has_begun_to_move(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.since.is_some())
    }

    /// Whether it is moving to this worker.
    pub(crate) fn moves_to(&self, worker: &WorkerId) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.to == *worker)
    }

    /// Memory set aside for it on its worker, bytes: its limit, or what it takes while parked.
    pub(crate) fn set_aside(&self) -> u64 {
        match self.stage {
            Stage::Parked => self.memory_now.max(PARKED_LEAST).min(self.memory),
            _ => self.memory,
        }
    }
}

/// All workers and instances.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) instances: Instances,
    /// Limits of namespaces.
    pub(crate) quotas: Quotas,
    /// Workers that an operator wants empty, whether or not they have been heard from.
    drained: BTreeSet<WorkerId>,
    /// Revoked workers.
    expelled: BTreeSet<WorkerId>,
    gone: HashMap<InstanceId, Millis>,
    /// Ended leases whose instance is gone and whose gateway has not been told, each with its expiry.
    ended: BTreeMap<GatewayId, Vec<(InstanceId, Millis)>>,
    /// Number of pool starts that became useful, by version.
    filled: HashMap<(FunctionId, VersionNumber), u64>,
    /// Greedy-dual's clock.
    clock: Clock,
    /// Reservation of a worker for a function that waits for room.
    claims: reservation::Reservation,
    /// Decisions made and not counted yet.
    decided: Vec<InstanceDecision>,
    /// Copies of running instances that somebody has asked for and that are not there yet.
    copies: HashSet<InstanceId>,
}

impl Fleet {
    /// Memory set aside on `worker`, bytes.
    pub(crate) fn reserved(&self, worker: &WorkerId) -> u64 {
        self.instances.sites().get(worker).map_or(0, |site| site.taken.memory)
    }

    /// Whether its worker has the room for a parked instance to continue, and its namespace's quota lets it.
    pub(crate) fn may_go_on(&self, instance: &Instance) -> bool {
        let site = self.instances.sites().get(&instance.worker);
        let site = site.filter(|_| !self.is_kept_from(&instance.function, &instance.worker));
        let fits = |site: &Site| {
            let others = site.taken.memory - instance.set_aside();
            others + instance.memory <= site.facts.as_ref().map_or(0, |f| f.capacity)
        };
        site.is_some_and(fits) && self.quota_lets_go_on(instance)
    }

    /// Whether the worker has an instance of the namespace that was ordered, in any stage, or one is to arrive there.
    /// `None` if that is not known: the worker has not been heard yet, or not for so long that its instances were given
    /// up.
    pub(crate) fn hosts(&self, worker: &WorkerId, namespace: &str) -> Option<bool> {
        let here = self.instances.on(worker).map(|(_, instance)| instance);
        let here = here.filter(|instance| instance.draining != Some(Draining::NotOrdered));
        let moving = self.instances.values().filter(|instance| {
            let to = instance.moving.as_ref().map(|moving| &moving.to);
            to == Some(worker)
        });
        let has_some = here
            .chain(moving)
            .any(|instance| instance.function.namespace() == namespace);
        let is_known = match self.workers.get(worker) {
            _ if self.expelled.contains(worker) => true,
            None => false,
            Some(heard) => !heard.gone || heard.presence == Presence::Left,
        };
        (has_some || is_known).then_some(has_some)
    }

    /// Number of instances of one version, in any stage.
    pub(crate) fn count(&self, function: &FunctionId, version: VersionNumber) -> usize {
        self.instances.of_version(function, version).map_or(0, |v| v.ids.len())
    }

    /// Adds an instance that a worker is about to be asked for.
    pub(crate) fn add(
        &mut self,
        id: InstanceId,
        worker: WorkerId,
        spec: &VersionSpec,
        started: StartKind,
        stage: Stage,
        now: Millis,
    ) {
        let config = &spec.config;
        if stage == Stage::Starting {
            self.instances
                .change_site(&worker, |sites| sites.expect(&worker, cost::work(started), now));
        }
        self.instances.insert(
            id,
            Instance {
                function: spec.function.clone(),
                version: spec.version,
                worker,
                zone: Zone::default(),
                memory: config.memory.0,
                slots: config.concurrency,
                idle_limit: config.idle().into(),
                park_limit: config.park().into(),
                to_park: false,
                cannot_park: false,
                started,
                stage,
                draining: None,
                condemned: false,
                moving: None,
                move_after: Millis(0),
                left_behind: false,
                seen: false,
                created_at: now,
                lease: None,
                lease_number: 0,
                in_flight: 0,
                just_returned: false,
                last_active: now,
                retire_after: Millis(0),
                memory_now: 0,
                evicted_now: 0,
                keeping: KeepAliveState::new(
                    spec.snapshot.is_some(),
                    self.clock,
                    (stage == Stage::Preparing).then_some(EarlyStartReason::Deploy),
                ),
            },
        );
    }

    /// Forgets an instance, and remembers for a minute that it did.
    pub(crate) fn forget(&mut self, id: &InstanceId, now: Millis) -> Option<Instance> {
        self.gone.insert(id.clone(), now);
        let gone = self.instances.remove(id)?;
        if let Some(lease) = gone.lease.as_ref().filter(|lease| lease.expires_at > now) {
            let ended = self.ended.entry(lease.gateway.clone()).or_default();
            ended.push((id.clone(), lease.expires_at));
        }
        if gone.keeping.ahead == Some(EarlyStartReason::Forecast) {
            self.decided.push(InstanceDecision::PrewarmUnused);
        }
        Some(gone)
    }

    /// Forgets an instance that a gateway found gone where it had leased it. One that moves, or has moved since, is
    /// gone only from there.
    pub(crate) fn found_gone(&mut self, id: &InstanceId, gateway: &GatewayId, now: Millis) {
        let leased_by = |i: &Instance| i.lease.as_ref().is_some_and(|lease| lease.gateway == *gateway);
        let instance = self.instances.get(id);
        if instance.is_some_and(|i| !i.has_begun_to_move() && leased_by(i)) {
            self.forget(id, now);
        }
    }

    /// The worker that the instance is on.
    pub(crate) fn worker_of(&self, instance: &InstanceId) -> Option<WorkerId> {
        Some(self.instances.get(instance)?.worker.clone())
    }

    /// Whether the instance was ordered of its worker, which reports it as this one.
    pub(crate) fn is_ordered(&self, worker: &WorkerId, told: &InstanceInfo) -> bool {
        self.instances.get(&told.id).is_some_and(|known| {
            let is_the_same = (&known.worker, &known.function, known.version) == (worker, &told.function, told.version);
            is_the_same && known.draining != Some(Draining::NotOrdered)
        })
    }

    /// Address of the worker that the instance is on.
    pub(crate) fn address_of(&self, instance: &InstanceId) -> Option<String> {
        let site = self.instances.sites().get(&self.instances.get(instance)?.worker)?;
        Some(site.facts.as_ref()?.address.as_ref().to_owned())
    }

    /// Addresses of all live workers.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let alive = self.workers.values().filter(|w| w.alive);
        alive.map(|w| w.address.clone()).collect()
    }

    /// Instances as shown to users, oldest first; of one function or of all.
    pub(crate) fn instance_infos(&self, only: Option<&FunctionId>, now: Millis) -> Vec<InstanceInfo> {
        let wanted = self
            .instances
            .iter()
            .filter(|(_, i)| i.version != NO_VERSION && only.is_none_or(|f| i.function == *f));
        let mut infos: Vec<_> = wanted
            .map(|(id, i)| InstanceInfo {
                id: id.clone(),
                function: i.function.clone(),
                version: i.version,
                worker: i.worker.clone(),
                state: match i.stage {
                    Stage::Preparing | Stage::Starting => InstanceState::Starting,
                    Stage::Ready => InstanceState::Ready,
                    Stage::Capturing => InstanceState::Capturing,
                    Stage::Parked => InstanceState::Parked,
                    Stage::Moving => InstanceState::Moving,
                    Stage::Stopping => InstanceState::Stopping,
                },
                started: i.started,
                in_flight: i.in_flight,
                idle_ms: if i.in_flight > 0 { 0 } else { now.since(i.last_active).0 },
                memory_bytes: i.memory_now,
                evicted_bytes: i.evicted_now,
                lease_number: i.lease_number,
            })
            .collect();
        infos.sort_by(|a, b| a.id.cmp(&b.id));
        infos
    }
}
