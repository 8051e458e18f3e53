//! Requests: they come, are placed and served, or wait.

use std::time::Instant;

use rekindle_wire::api::{InstanceState, StartKind};
use rekindle_wire::{FunctionId, InstanceId};

use super::hosts::{ActualInstance, Link};
use super::workload::parsed;
use super::world::{Event, QueuedRequest, Request, World};
use crate::clock::Millis;
use crate::fleet::Stage;
use crate::fleet::cost;
use crate::fleet::sites::{Tier, as_f64};
use crate::placement::{AVOID_FOR, Decision, Shortage, SlotRequest, place};

/// How long an ask waits.
const WAIT: Millis = Millis(10_000);
/// Time after which a connection to a worker that is cut off is given up; one to a dead process is refused at once.
const CONNECT: u64 = 2_000;
const ATTEMPTS: u32 = 3;

impl World {
    /// Handles the requests that have come since the last call.
    pub(super) fn arrivals(&mut self) {
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

    pub(super) fn serve(&mut self, request: Request) {
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

    pub(super) fn wait(&mut self, request: Request) {
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
    pub(super) fn attempt(&mut self, request: Request) -> Option<Request> {
        let (function, now) = (request.function, self.now);
        let live = self.workload.functions[function].live.clone();
        let gateway = &self.gateways[request.gateway];
        let ask = SlotRequest {
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
            Decision::TooBig { .. } | Decision::OverQuota(_) => {
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

    pub(super) fn placed(&mut self, began: Instant) {
        self.report.placements += 1;
        self.report.placing_ns += u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// Tells a worker to start an instance. Returns where its snapshot's memory is.
    pub(super) fn start(&mut self, host: usize, id: &InstanceId, function: usize) -> Option<Tier> {
        let there = &mut self.hosts[host];
        if there.link != Link::Up {
            return None;
        }
        let tier = there.open(function);
        let takes = cost::start(StartKind::Restored, tier, false) * there.slowness(&self.setup);
        let real = ActualInstance {
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
    pub(super) fn invoke(&mut self, host: usize, id: &InstanceId, mut request: Request) -> bool {
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

    pub(super) fn done(&mut self, host: usize, id: &InstanceId, gateway: usize, function: usize, incarnation: u64) {
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
    pub(super) fn serve_waiting(&mut self, gateway: usize, function: usize) {
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

    pub(super) fn host_at(&self, address: &str) -> usize {
        let number = address.rsplit_once(':').and_then(|(_, n)| n.parse().ok());
        number.unwrap_or_default()
    }

    /// Like the scheduler's own, except that functions do not take turns.
    pub(super) fn pump(&mut self) {
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

    pub(super) fn give_up(&mut self) {
        let (now, mut refused) = (self.now, 0);
        self.waiting.retain(|_, queue| {
            let before = queue.len();
            queue.retain(|w| now.since(w.since) < WAIT);
            refused += before - queue.len();
            !queue.is_empty()
        });
        self.report.refused += refused as u64;
    }
}
