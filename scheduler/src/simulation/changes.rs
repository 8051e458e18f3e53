//! Workers that fail and come back, and instances that move.

use rekindle_wire::InstanceId;
use rekindle_wire::api::InstanceState;
use rekindle_wire::migration::MigrationKind;

use super::hosts::{ActualInstance, Link};
use super::world::{AWAY, Event, World};

/// How long an instance is away when it moves.
const MOVE_TAKES: u64 = 50;

impl World {
    pub(super) fn fail(&mut self) {
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

    pub(super) fn back(&mut self, host: usize) {
        self.hosts[host].link = Link::Up;
        self.beat(host);
        self.changed = true;
    }

    /// Begins a move once both sides are ready, unless something came in between.
    pub(super) fn leaves(&mut self, instance: InstanceId) {
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

    pub(super) fn moved(&mut self, id: &InstanceId, to: usize) {
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
                let real = ActualInstance {
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
}
