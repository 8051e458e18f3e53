//! The run itself: events in the order of their times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use rekindle_wire::api::{InstanceState, StartKind};
use rekindle_wire::internal::Placement;
use rekindle_wire::migration::MigrationKind;
use rekindle_wire::{FunctionId, InstanceId, WorkerId};

use super::gateways::{Gateway, Slot};
use super::hosts::{Host, Link, Real};
use super::random::Random;
use super::workload::{Workload, parsed};
use super::{Report, Setup};
use crate::catalog::Known;
use crate::clock::Millis;
use crate::fleet::cost;
use crate::fleet::heat::{Heat, REST};
use crate::fleet::membership::GONE;
use crate::fleet::retire::Floor;
use crate::fleet::sites::{Tier, as_f64};
use crate::fleet::{Fleet, Stage};
use crate::placement::{AVOID_FOR, Ask, Decision, Shortage, place};

const TICK: u64 = 100;
const SECOND: u64 = 1_000;
/// How long a worker is away.
const AWAY: u64 = 60 * SECOND;
/// How long an ask waits.
const WAIT: Millis = Millis(10_000);
/// Time after which a connection to a worker that is cut off is given up; one to a dead process is refused at once.
const CONNECT: u64 = 2_000;
const ATTEMPTS: u32 = 3;
/// Both sides of a move prepare for the first time, then the instance is away for the second.
const MOVE_PREPARES: u64 = 200;
const MOVE_TAKES: u64 = 50;
/// As in the reaper's own evacuation.
const EVACUATE_AT_ONCE: usize = 2;
const EVACUATE_HOT: Millis = Millis(10_000);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
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
struct Request {
    function: usize,
    gateway: usize,
    attempts: u32,
    avoid: Vec<String>,
}

struct QueuedRequest {
    request: Request,
    since: Millis,
}

pub(super) struct World {
    setup: Setup,
    random: Random,
    workload: Workload,
    fleet: Fleet,
    heat: Heat,
    hosts: Vec<Host>,
    host_of: HashMap<WorkerId, usize>,
    function_of: HashMap<FunctionId, usize>,
    gateways: Vec<Gateway>,
    waiting: BTreeMap<usize, VecDeque<QueuedRequest>>,
    /// When the next request comes, milliseconds.
    next_request: f64,
    /// A waiting ask may be served.
    changed: bool,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    now: Millis,
    made: u64,
    report: Report,
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

    fn after(&mut self, ms: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now.0 + ms, self.sequence, event)));
    }

    /// Schedules the event after a random time with this mean, seconds; never if the mean is 0.
    fn after_about(&mut self, mean_s: f64, event: Event) {
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
                self.fleet.drain(&self.hosts[host].id.clone(), true);
                self.after(AWAY, Event::Undrain { host });
                self.after_about(self.setup.drain_every, Event::Drain);
            }
            Event::Undrain { host } => {
                self.fleet.drain(&self.hosts[host].id.clone(), false);
                self.changed = true;
            }
            Event::Leaves { instance } => self.leaves(instance),
            Event::Moved { instance, to } => self.moved(&instance, to),
        }
    }

    /// Handles the requests that have come since the last call.
    fn arrivals(&mut self) {
        while self.next_request <= as_f64(self.now.0) {
            self.next_request += self.random.exponential(1e3 / self.setup.rate);
            let request = Request {
                function: self.workload.popularity.pick(&mut self.random),
                gateway: self.random.below(self.gateways.len()),
                attempts: 0,
                avoid: Vec::new(),
            };
            self.report.requests += 1;
            self.serve(request);
        }
        let wait = self.next_request - as_f64(self.now.0);
        self.after(wait.ceil() as u64, Event::Arrival);
    }

    fn serve(&mut self, request: Request) {
        let gateway = &mut self.gateways[request.gateway];
        if let Some((instance, host)) = gateway.enter(request.function, self.now) {
            self.report.leased += u64::from(self.invoke(host, &instance, request));
            return;
        }
        if self.waiting.contains_key(&request.function) {
            self.wait(request);
        } else if let Some(request) = self.attempt(request) {
            self.wait(request);
        }
    }

    fn wait(&mut self, request: Request) {
        self.report.waited += 1;
        let waiting = QueuedRequest {
            since: self.now,
            request,
        };
        self.waiting
            .entry(waiting.request.function)
            .or_default()
            .push_back(waiting);
    }

    /// Does what [`crate::placing`] does with an ask. Returns the request if it must wait.
    fn attempt(&mut self, request: Request) -> Option<Request> {
        let (function, now) = (request.function, self.now);
        let live = self.workload.functions[function].live.clone();
        let gateway = &self.gateways[request.gateway];
        let ask = Ask {
            gateway: gateway.id.clone(),
            version: None,
            held: gateway.held(function),
            force: None,
            avoid: request.avoid.clone(),
            avoid_until: now.plus(AVOID_FOR),
        };
        let began = Instant::now();
        let decision = place(&self.fleet, &live, &ask, now);
        let (id, begins) = match decision {
            Decision::Use(id) => (id, None),
            Decision::Start { worker, kind } => {
                self.made += 1;
                let id: InstanceId = parsed(&format!("i-{}", self.made));
                self.fleet
                    .add(id.clone(), worker.clone(), &live.spec, kind, Stage::Starting, now);
                (id, Some((worker, kind)))
            }
            Decision::Wait { shortage, free_up } => {
                self.placed(began);
                match free_up {
                    Some(id) => {
                        let retiree = match shortage {
                            Shortage::Memory => self.fleet.step_down(&id),
                            _ => self.fleet.free_up(&id),
                        };
                        if let Some(retiree) = retiree {
                            self.halt(&retiree.instance, retiree.park);
                        }
                    }
                    None if shortage == Shortage::Memory => drop(self.fleet.claim(&live, now)),
                    None => {}
                }
                return Some(request);
            }
            Decision::TooBig { .. } => {
                self.report.refused += 1;
                return None;
            }
        };
        let granted = self.fleet.grant(&id, &ask.gateway, &live, now);
        self.placed(began);
        let Some(placement) = granted else {
            panic!("{}: {id} was chosen and is not there", self.moment());
        };
        let host = self.host_at(&placement.worker_address);
        self.check_granted(&placement, host, request.gateway);
        self.gateways[request.gateway].granted(function, host, &placement, now);
        let tier = begins.is_some().then(|| self.start(host, &id, function));
        if self.invoke(host, &id, request) {
            let count = match (tier, placement.start) {
                (Some(Some(Tier::Template)), _) => &mut self.report.from_template,
                (Some(Some(Tier::Disk)), _) => &mut self.report.from_disk,
                (Some(None), _) => &mut self.report.from_store,
                (None, StartKind::Parked) => &mut self.report.parked,
                (None, _) => &mut self.report.warm,
            };
            *count += 1;
        }
        None
    }

    fn placed(&mut self, began: Instant) {
        self.report.placements += 1;
        self.report.placing_ns += u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// Tells a worker to start an instance. Returns where its snapshot's memory is.
    fn start(&mut self, host: usize, id: &InstanceId, function: usize) -> Option<Tier> {
        let there = &mut self.hosts[host];
        if there.link != Link::Up {
            return None;
        }
        let tier = there.open(function);
        let takes = cost::start(StartKind::Restored, tier, false) * there.slowness(&self.setup);
        let real = Real {
            function,
            state: InstanceState::Starting,
            started: StartKind::Restored,
            in_flight: 0,
            idle_since: self.now,
        };
        there.instances.insert(id.clone(), real);
        let instance = id.clone();
        self.after(takes as u64, Event::Ready { host, instance });
        tier
    }

    /// Sends a request to an instance of which its gateway holds a slot. Returns whether it arrived.
    fn invoke(&mut self, host: usize, id: &InstanceId, mut request: Request) -> bool {
        let there = &mut self.hosts[host];
        let (link, slowness, incarnation) = (there.link, there.slowness(&self.setup), there.incarnation);
        let real = there.instances.get_mut(id).filter(|_| link == Link::Up);
        let real = real.filter(|r| !matches!(r.state, InstanceState::Stopping | InstanceState::Moving));
        let Some(real) = real else {
            // Gone, or out of reach: try elsewhere.
            self.gateways[request.gateway].drop_slot(request.function, id);
            if link == Link::Up {
                self.fleet.forget(id, self.now);
            }
            request.attempts += 1;
            if request.attempts >= ATTEMPTS {
                self.report.lost += 1;
                return false;
            }
            self.report.again += 1;
            request.avoid.push(self.hosts[host].address.clone());
            let after = if link == Link::Cut { CONNECT } else { 1 };
            self.after(after, Event::Again { request });
            return false;
        };
        let until_ready = match real.state {
            InstanceState::Starting => cost::FROM_TEMPLATE,
            InstanceState::Parked => cost::PARKED,
            _ => 0.0,
        };
        if real.state == InstanceState::Parked {
            real.state = InstanceState::Ready;
        }
        real.in_flight += 1;
        there.running += 1;
        let duration = self.workload.functions[request.function].duration(&mut self.random);
        let done = Event::Done {
            host,
            instance: id.clone(),
            gateway: request.gateway,
            function: request.function,
            incarnation,
        };
        self.after((until_ready + duration * slowness) as u64, done);
        true
    }

    fn done(&mut self, host: usize, id: &InstanceId, gateway: usize, function: usize, incarnation: u64) {
        let there = &mut self.hosts[host];
        if there.incarnation != incarnation {
            self.report.lost += 1;
            self.gateways[gateway].drop_slot(function, id);
            return;
        }
        there.running = there.running.saturating_sub(1);
        if there.link == Link::Cut {
            self.report.lost += 1;
        }
        if let Some(real) = there.instances.get_mut(id) {
            real.in_flight = real.in_flight.saturating_sub(1);
            real.idle_since = self.now;
        }
        if self.gateways[gateway].left(function, id, self.now) {
            self.serve_waiting(gateway, function);
        }
    }

    /// Gives a gateway's free slot to one of its own waiting requests.
    fn serve_waiting(&mut self, gateway: usize, function: usize) {
        let Some(queue) = self.waiting.get_mut(&function) else {
            return;
        };
        let Some(at) = queue.iter().position(|w| w.request.gateway == gateway) else {
            return;
        };
        let Some((instance, host)) = self.gateways[gateway].enter(function, self.now) else {
            return;
        };
        let Some(waiting) = queue.remove(at) else { return };
        if queue.is_empty() {
            self.waiting.remove(&function);
        }
        self.report.leased += u64::from(self.invoke(host, &instance, waiting.request));
    }

    fn beat(&mut self, host: usize) {
        if self.hosts[host].link != Link::Up {
            return;
        }
        let beat = self.hosts[host].beat(&self.setup, &self.workload.functions, self.now);
        let (functions, function_of) = (&self.workload.functions, &self.function_of);
        let known = |name: &_, _| match function_of.get(name) {
            Some(n) => Known::Live(functions[*n].live.clone()),
            None => Known::Unknown,
        };
        let stop = self.fleet.heartbeat(&beat, self.now, known);
        let revision = self.fleet.kept_revision(&beat.worker);
        self.hosts[host].heard(revision);
        for id in stop {
            self.remove(host, &id);
        }
    }

    /// Ends an instance on its worker, with what it serves.
    fn remove(&mut self, host: usize, id: &InstanceId) {
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
        for id in self.fleet.to_evacuate(EVACUATE_AT_ONCE, EVACUATE_HOT, now) {
            self.fleet.leave_alone(&id, now.plus(Millis(5_000)));
            if self.fleet.plan_move(&id, None, &MigrationKind::Move).is_ok() {
                self.report.evacuated += 1;
                self.after(MOVE_PREPARES, Event::Leaves { instance: id });
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
    fn halt(&mut self, id: &InstanceId, park: bool) {
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

    /// Like the scheduler's own, except that functions do not take turns.
    fn pump(&mut self) {
        let claimant = self.fleet.claimant().cloned();
        let waits = |name: &FunctionId| self.waiting.contains_key(&self.function_of[name]);
        if let Some(claimant) = claimant.filter(|name| !waits(name)) {
            self.fleet.end_claim(&claimant);
        }
        let functions: Vec<_> = self.waiting.keys().copied().collect();
        for function in functions {
            let Some(mut queue) = self.waiting.remove(&function) else {
                continue;
            };
            while let Some(waiting) = queue.pop_front() {
                let since = waiting.since;
                if let Some(request) = self.attempt(waiting.request) {
                    queue.push_front(QueuedRequest { request, since });
                    break;
                }
                let served = &self.workload.functions[function].live.spec.function;
                self.fleet.end_claim(served);
            }
            if !queue.is_empty() {
                // Asks that could not be placed keep their place before those that came meanwhile.
                let later = self.waiting.remove(&function).unwrap_or_default();
                queue.extend(later);
                self.waiting.insert(function, queue);
            }
        }
    }

    fn give_up(&mut self) {
        let (now, mut refused) = (self.now, 0);
        self.waiting.retain(|_, queue| {
            let before = queue.len();
            queue.retain(|w| now.since(w.since) < WAIT);
            refused += before - queue.len();
            !queue.is_empty()
        });
        self.report.refused += refused as u64;
    }

    fn fail(&mut self) {
        let host = self.random.below(self.hosts.len());
        let there = &mut self.hosts[host];
        if there.link != Link::Up {
            return;
        }
        let cut = self.report.failures % 2 == 1;
        there.link = if cut { Link::Cut } else { Link::Dead };
        there.link_since = self.now;
        self.report.failures += 1;
        if cut {
            self.report.cut_off += 1;
        } else {
            there.restart();
        }
        self.after(AWAY, Event::Back { host });
    }

    fn back(&mut self, host: usize) {
        self.hosts[host].link = Link::Up;
        self.beat(host);
        self.changed = true;
    }

    /// Begins a move once both sides are ready, unless something came in between.
    fn leaves(&mut self, instance: InstanceId) {
        let now = self.now;
        let Some(known) = self.fleet.instances.get(&instance) else {
            return;
        };
        let Some(to) = known.moving.as_ref().map(|m| self.host_of[&m.to]) else {
            return;
        };
        let from = self.host_of[&known.worker];
        let reachable = self.hosts[from].link == Link::Up && self.hosts[to].link == Link::Up;
        if !reachable || !self.fleet.begin_move(&instance, now) {
            return self.fleet.stays(&instance, now);
        }
        let Some(real) = self.hosts[from].instances.get_mut(&instance) else {
            return self.fleet.stays(&instance, now);
        };
        real.state = InstanceState::Moving;
        self.after(MOVE_TAKES, Event::Moved { instance, to });
    }

    fn moved(&mut self, id: &InstanceId, to: usize) {
        let now = self.now;
        let Some(from) = self.fleet.instances.get(id).map(|i| self.host_of[&i.worker]) else {
            return;
        };
        if self.hosts[from].link != Link::Up || self.hosts[to].link != Link::Up {
            if let Some(real) = self.hosts[from].instances.get_mut(id) {
                real.state = InstanceState::Ready;
            }
            return self.fleet.stays(id, now);
        }
        match self.hosts[from].instances.get(id) {
            // Invocations in flight end first.
            Some(real) if real.in_flight > 0 => {
                let instance = id.clone();
                self.after(MOVE_TAKES, Event::Moved { instance, to });
            }
            Some(real) => {
                let real = Real {
                    state: InstanceState::Ready,
                    ..real.clone()
                };
                self.hosts[from].instances.remove(id);
                self.hosts[to].open(real.function);
                self.hosts[to].instances.insert(id.clone(), real);
                let worker = self.hosts[to].id.clone();
                self.fleet.moved(id, &MigrationKind::Move, &worker, now);
                for gateway in &mut self.gateways {
                    gateway.give_back(std::slice::from_ref(id));
                }
                self.changed = true;
            }
            None => drop(self.fleet.forget(id, now)),
        }
    }

    fn host_at(&self, address: &str) -> usize {
        let number = address.rsplit_once(':').and_then(|(_, n)| n.parse().ok());
        number.unwrap_or_default()
    }

    fn moment(&self) -> String {
        format!("seed {}, at {} ms", self.setup.seed, self.now.0)
    }

    /// Checks a granted lease: its worker accepts new instances and has the room, and no other gateway holds it.
    fn check_granted(&self, placement: &Placement, host: usize, to: usize) {
        let id = &placement.instance;
        let Some(instance) = self.fleet.instances.get(id) else {
            return;
        };
        let worker = &self.fleet.workers[&instance.worker];
        assert!(worker.takes_new(), "{}: {id} is on {}", self.moment(), instance.worker);
        let reserved = self.fleet.reserved(&instance.worker);
        assert!(
            reserved <= worker.capacity,
            "{}: {} is over",
            self.moment(),
            instance.worker
        );
        let function = self.function_of[&instance.function];
        for (n, gateway) in self.gateways.iter().enumerate().filter(|(n, _)| *n != to) {
            // A gateway with a slot where the instance was before its move asks there in vain.
            let held = |s: &Slot| s.instance == *id && s.host == host && s.ends > self.now;
            let held = gateway.slots_of(function).any(held);
            assert!(!held, "{}: {id} is gateway {n}'s", self.moment());
        }
    }

    fn check(&mut self) {
        self.report.checks += 1;
        for host in &self.hosts {
            let away = self.now.since(host.link_since);
            if host.link != Link::Up && away > GONE.plus(Millis(SECOND + 2 * TICK)) {
                let there = self.fleet.instances.on(&host.id).count();
                assert_eq!(there, 0, "{}: on {}, which is gone", self.moment(), host.id);
            }
        }
        if !self.now.0.is_multiple_of(10 * SECOND) {
            return;
        }
        for (id, worker) in &self.fleet.workers {
            assert!(
                self.fleet.reserved(id) <= worker.capacity,
                "{}: {id} is over",
                self.moment()
            );
        }
        let mut holders = HashMap::new();
        for (n, gateway) in self.gateways.iter().enumerate() {
            for slot in gateway.leases().filter(|s| s.ends > self.now) {
                let other = holders.insert((slot.instance.clone(), slot.host), n);
                assert_eq!(other, None, "{}: {} is leased twice", self.moment(), slot.instance);
            }
        }
        #[cfg(test)]
        self.fleet.instances.check();
    }
}
