//! The run itself: events in the order of their times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use rekindle_wire::api::InstanceState;
use rekindle_wire::migration::MigrationKind;
use rekindle_wire::{FunctionId, InstanceId, WorkerId};

use super::gateways::Gateway;
use super::hosts::{Host, Link};
use super::random::Random;
use super::workload::{Workload, parsed};
use super::{Report, Setup};
use crate::catalog::ClaimedVersion;
use crate::clock::Millis;
use crate::fleet::Fleet;
use crate::fleet::heat::{Heat, REST};
use crate::fleet::retire::Floor;

pub(super) const TICK: u64 = 100;
pub(super) const SECOND: u64 = 1_000;
/// How long a worker is away.
pub(super) const AWAY: u64 = 60 * SECOND;
/// How long both sides of a move prepare.
const MOVE_PREPARES: u64 = 200;
/// As in the reaper's own evacuation.
const EVACUATE_AT_ONCE: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Arrival,
    Ready {
        host: usize,
        instance: InstanceId,
    },
    Done {
        host: usize,
        instance: InstanceId,
        gateway: usize,
        function: usize,
        incarnation: u64,
    },
    Again {
        request: Request,
    },
    Beat {
        host: usize,
    },
    Report {
        gateway: usize,
    },
    Tick,
    Fail,
    Back {
        host: usize,
    },
    Drain,
    Undrain {
        host: usize,
    },
    Leaves {
        instance: InstanceId,
    },
    Moved {
        instance: InstanceId,
        to: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) function: usize,
    pub(super) gateway: usize,
    pub(super) attempts: u32,
    pub(super) avoid: Vec<String>,
}

pub(super) struct QueuedRequest {
    pub(super) request: Request,
    pub(super) since: Millis,
}

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) workload: Workload,
    pub(super) fleet: Fleet,
    pub(super) heat: Heat,
    pub(super) hosts: Vec<Host>,
    pub(super) host_of: HashMap<WorkerId, usize>,
    pub(super) function_of: HashMap<FunctionId, usize>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) waiting: BTreeMap<usize, VecDeque<QueuedRequest>>,
    /// When the next request comes, milliseconds.
    pub(super) next_request: f64,
    /// A waiting ask may be served.
    pub(super) changed: bool,
    pub(super) events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(super) sequence: u64,
    pub(super) now: Millis,
    pub(super) made: u64,
    pub(super) report: Report,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let workload = Workload::new(&setup, &mut random);
        let hosts: Vec<_> = (0..setup.workers).map(|n| Host::new(n, &setup)).collect();
        let functions = workload.functions.iter().enumerate();
        let mut world = Self {
            host_of: hosts.iter().enumerate().map(|(n, h)| (h.id.clone(), n)).collect(),
            function_of: functions.map(|(n, f)| (f.live.spec.function.clone(), n)).collect(),
            gateways: (0..setup.gateways)
                .map(|n| Gateway::new(parsed(&format!("g-{n}"))))
                .collect(),
            report: Report {
                seed: setup.seed,
                ..Report::default()
            },
            random,
            workload,
            fleet: Fleet::default(),
            heat: Heat::default(),
            hosts,
            waiting: BTreeMap::new(),
            next_request: 0.0,
            changed: false,
            events: BinaryHeap::new(),
            sequence: 0,
            now: Millis(0),
            made: 0,
            setup,
        };
        // Each at a moment of its own within a second.
        for host in 0..world.hosts.len() {
            world.beat(host);
            let first = world.random.below(1_000) as u64;
            world.after(first, Event::Beat { host });
        }
        for gateway in 0..world.gateways.len() {
            let first = world.random.below(500) as u64;
            world.after(first, Event::Report { gateway });
        }
        world.after(0, Event::Arrival);
        world.after(TICK, Event::Tick);
        world.after_about(world.setup.fail_every, Event::Fail);
        world.after_about(world.setup.drain_every, Event::Drain);
        world
    }

    pub(super) fn run(mut self) -> Report {
        let began = Instant::now();
        let end = self.setup.seconds * SECOND;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end {
                break;
            }
            self.now = Millis(at);
            self.happens(event);
        }
        self.report.instances = self.fleet.instances.len() as u64;
        self.report.real_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.report
    }

    pub(super) fn after(&mut self, ms: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now.0 + ms, self.sequence, event)));
    }

    /// Schedules the event after a random time with this mean, seconds; never if the mean is 0.
    pub(super) fn after_about(&mut self, mean_s: f64, event: Event) {
        if mean_s > 0.0 {
            let ms = self.random.exponential(mean_s * 1e3);
            self.after(ms as u64, event);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrivals(),
            Event::Again { request } => self.serve(request),
            Event::Ready { host, instance } => {
                if let Some(real) = self.hosts[host].instances.get_mut(&instance) {
                    real.state = InstanceState::Ready;
                }
            }
            Event::Done {
                host,
                instance,
                gateway,
                function,
                incarnation,
            } => self.done(host, &instance, gateway, function, incarnation),
            Event::Beat { host } => {
                self.beat(host);
                self.after(SECOND, Event::Beat { host });
            }
            Event::Report { gateway } => {
                self.tell_leases(gateway);
                self.after(SECOND / 2, Event::Report { gateway });
            }
            Event::Tick => {
                self.tick();
                self.after(TICK, Event::Tick);
            }
            Event::Fail => {
                self.fail();
                self.after_about(self.setup.fail_every, Event::Fail);
            }
            Event::Back { host } => self.back(host),
            Event::Drain => {
                let host = self.random.below(self.hosts.len());
                self.report.drains += 1;
                self.fleet.drain(&self.hosts[host].id.clone(), true, self.now);
                self.after(AWAY, Event::Undrain { host });
                self.after_about(self.setup.drain_every, Event::Drain);
            }
            Event::Undrain { host } => {
                self.fleet.drain(&self.hosts[host].id.clone(), false, self.now);
                self.changed = true;
            }
            Event::Leaves { instance } => self.leaves(instance),
            Event::Moved { instance, to } => self.moved(&instance, to),
        }
    }

    pub(super) fn beat(&mut self, host: usize) {
        if self.hosts[host].link != Link::Up {
            return;
        }
        let beat = self.hosts[host].beat(&self.setup, &self.workload.functions, self.now);
        let (functions, function_of) = (&self.workload.functions, &self.function_of);
        let known = |name: &_, _| match function_of.get(name) {
            Some(n) => ClaimedVersion::Live(functions[*n].live.clone()),
            None => ClaimedVersion::Unknown,
        };
        let stop = self.fleet.heartbeat(&beat, self.now, known);
        let revision = self.fleet.kept_revision(&beat.worker);
        self.hosts[host].heard(revision);
        for id in stop {
            self.remove(host, &id);
        }
    }

    /// Ends an instance on its worker, with what it serves.
    pub(super) fn remove(&mut self, host: usize, id: &InstanceId) {
        let there = &mut self.hosts[host];
        if let Some(real) = there.instances.remove(id) {
            there.running = there.running.saturating_sub(real.in_flight);
        }
    }

    fn tell_leases(&mut self, gateway: usize) {
        let now = self.now;
        let report = self.gateways[gateway].report(now);
        let (give_back, _) = self.fleet.report(&report, now);
        self.gateways[gateway].renewed(&give_back, now);
        self.changed |= !report.returned.is_empty();
    }

    fn tick(&mut self) {
        let now = self.now;
        self.changed |= self.fleet.expire_leases(now) > 0;
        self.changed |= self.fleet.note_silence(now);
        for id in self.fleet.to_evacuate(EVACUATE_AT_ONCE, now) {
            self.fleet.leave_alone(&id, now.plus(Millis(5_000)));
            if self.fleet.plan_move(&id, None, &MigrationKind::Move).is_ok() {
                self.report.evacuated += 1;
                self.after(MOVE_PREPARES, Event::Leaves { instance: id });
            } else {
                self.fleet.leave_behind(&id);
            }
        }
        for retiree in self.fleet.due(now, |_, _| Floor::default()) {
            self.halt(&retiree.instance, retiree.park);
        }
        if now.0.is_multiple_of(SECOND) {
            for relief in self.heat.look(&self.fleet, self.setup.rebalance_at, now) {
                self.fleet.leave_alone(&relief.instance, now.plus(REST));
                if self
                    .fleet
                    .plan_move(&relief.instance, Some(&relief.to), &MigrationKind::Move)
                    .is_ok()
                {
                    self.report.rebalanced += 1;
                    self.after(
                        MOVE_PREPARES,
                        Event::Leaves {
                            instance: relief.instance,
                        },
                    );
                }
            }
            if now.0 > self.setup.seconds * SECOND / 4 {
                let up = self.hosts.iter().filter(|h| h.link == Link::Up);
                self.report.sample(up.map(|h| h.busy));
            }
        }
        for gateway in &mut self.gateways {
            let recalled = self.fleet.untold_recalls(&gateway.id);
            gateway.give_back(&recalled);
        }
        if std::mem::take(&mut self.changed) {
            self.pump();
        }
        self.give_up();
        self.check();
    }

    /// Does what [`crate::reaper`] and the worker do with an instance that is due.
    pub(super) fn halt(&mut self, id: &InstanceId, park: bool) {
        let now = self.now;
        let Some(host) = self.fleet.instances.get(id).map(|i| self.host_of[&i.worker]) else {
            return;
        };
        let there = &mut self.hosts[host];
        if there.link != Link::Up {
            return self.fleet.kept(id, false, now);
        }
        match there.instances.get_mut(id) {
            Some(real) if real.in_flight > 0 || real.state == InstanceState::Starting => self.fleet.kept(id, true, now),
            Some(real) if park => {
                real.state = InstanceState::Parked;
                self.fleet.parked(id);
            }
            _ => {
                there.instances.remove(id);
                drop(self.fleet.forget(id, now));
            }
        }
        self.changed = true;
    }
}
