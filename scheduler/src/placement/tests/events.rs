//! Random events: no sequence of them breaks a limit.

use super::*;

/// One thing that can happen.
#[derive(Debug, Clone)]
enum Event {
    Ask {
        function: usize,
        gateway: usize,
        force: bool,
    },
    Return {
        nth: usize,
        served: bool,
    },
    Beat {
        worker: usize,
    },
    Ready {
        nth: usize,
    },
    Busy {
        nth: usize,
        invocations: u32,
    },
    WorkerRestarts {
        worker: usize,
    },
    InstanceDies {
        nth: usize,
    },
    Deploy {
        function: usize,
    },
    TimePasses {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..3_usize, 0..2_usize, any::<bool>())
            .prop_map(|(function, gateway, force)| Event::Ask { function, gateway, force }),
        3 => (0..50_usize, any::<bool>()).prop_map(|(nth, served)| Event::Return { nth, served }),
        2 => (0..2_usize).prop_map(|worker| Event::Beat { worker }),
        3 => (0..50_usize).prop_map(|nth| Event::Ready { nth }),
        2 => (0..50_usize, 0..4_u32).prop_map(|(nth, invocations)| Event::Busy { nth, invocations }),
        1 => (0..2_usize).prop_map(|worker| Event::WorkerRestarts { worker }),
        1 => (0..50_usize).prop_map(|nth| Event::InstanceDies { nth }),
        1 => (0..3_usize).prop_map(|function| Event::Deploy { function }),
        2 => (1..3_000_u64).prop_map(|ms| Event::TimePasses { ms }),
    ]
}

const CAPACITY: [u64; 2] = [100 << 20, 70 << 20];

/// An instance as it really is: its version, its state, its invocations.
type ActualInstance = (LiveVersion, InstanceState, u32);

/// The fleet, and what really runs on the workers.
struct World {
    fleet: Fleet,
    now: Millis,
    versions: Vec<LiveVersion>,
    /// For each worker: its incarnation, and what runs on it.
    truth: Vec<(u64, BTreeMap<InstanceId, ActualInstance>)>,
    made: usize,
}

impl World {
    fn new() -> Self {
        let versions = vec![
            live(spec("one-slot", 1, 30 << 20, 1, 3)),
            live(spec("three-slots", 1, 20 << 20, 3, 2)),
            live(spec("large", 1, 90 << 20, 2, 4)),
        ];
        let truth = vec![(1, BTreeMap::new()), (1, BTreeMap::new())];
        let mut world = Self {
            fleet: Fleet::default(),
            now: Millis(10_000),
            versions,
            truth,
            made: 0,
        };
        world.beat(0);
        world.beat(1);
        world
    }

    fn nth(&self, n: usize) -> Option<InstanceId> {
        let mut ids: Vec<_> = self.fleet.instances.keys().cloned().collect();
        ids.sort();
        (!ids.is_empty()).then(|| ids[n % ids.len()].clone())
    }

    fn beat(&mut self, n: usize) {
        let (incarnation, instances) = &self.truth[n];
        let infos = instances
            .iter()
            .map(|(id, (v, state, in_flight))| {
                let mut i = info(id, &v.spec, n, *in_flight, 0);
                i.state = *state;
                i
            })
            .collect();
        let beat = beat(n, *incarnation, CAPACITY[n], infos);
        let versions = self.versions.clone();
        let stop = self.fleet.heartbeat(&beat, self.now, |f, v| {
            match versions.iter().find(|l| l.spec.function == *f) {
                Some(l) if l.spec.version == v => ClaimedVersion::Live(l.clone()),
                Some(l) => ClaimedVersion::Older(l.clone()),
                None => ClaimedVersion::Unknown,
            }
        });
        for id in stop {
            self.truth[n].1.remove(&id);
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Ask {
                function,
                gateway: g,
                force,
            } => self.ask(function, g, force),
            Event::Return { nth, served } => {
                let leased = self
                    .nth(nth)
                    .and_then(|id| Some((id.clone(), self.fleet.instances[&id].lease.clone()?)));
                if let Some((instance, lease)) = leased {
                    let returned = ReturnedLease {
                        instance,
                        served,
                        idle_ms: 0,
                        stuck: false,
                        busy: 0,
                    };
                    let report = LeaseReport {
                        gateway: lease.gateway,
                        held: Vec::new(),
                        numbers: Vec::new(),
                        returned: vec![returned],
                    };
                    self.fleet.report(&report, self.now);
                }
            }
            Event::Beat { worker } => self.beat(worker),
            Event::Ready { nth } | Event::Busy { nth, .. } | Event::InstanceDies { nth } => {
                let Some(id) = self.nth(nth) else { return };
                for (_, instances) in &mut self.truth {
                    match event {
                        Event::Ready { .. } => {
                            instances.entry(id.clone()).and_modify(|i| i.1 = InstanceState::Ready);
                        }
                        Event::Busy { invocations, .. } => {
                            // An invocation thaws a parked one.
                            let going_on = |i: &mut ActualInstance| {
                                i.2 = *invocations;
                                if i.1 == InstanceState::Parked && i.2 > 0 {
                                    i.1 = InstanceState::Ready;
                                }
                            };
                            let leased = self.fleet.instances.get(&id).is_some_and(|i| i.lease.is_some());
                            instances.entry(id.clone()).and_modify(|i| {
                                if leased || i.1 != InstanceState::Parked {
                                    going_on(i)
                                }
                            });
                        }
                        _ => drop(instances.remove(&id)),
                    }
                }
            }
            Event::WorkerRestarts { worker } => {
                self.truth[worker].0 += 1;
                self.truth[worker].1.clear();
                self.beat(worker);
            }
            Event::Deploy { function } => {
                let mut spec = (*self.versions[function].spec).clone();
                spec.version.0 += 1;
                let (name, version) = (spec.function.clone(), spec.version);
                self.versions[function] = live(spec);
                self.fleet.switch(&name, |named| named == version);
            }
            Event::TimePasses { ms } => {
                self.now = self.now.plus(Millis(ms));
                // Both workers keep reporting: silence has a test of its own.
                self.beat(0);
                self.beat(1);
                self.fleet.expire_leases(self.now);
                for retiree in self.fleet.due(self.now, |_, _| parked(1)) {
                    match retiree.park {
                        true => self.park(&retiree.instance),
                        false => self.stop(&retiree.instance),
                    }
                }
            }
        }
    }

    /// What a worker does when asked to stop an instance if it is idle.
    fn stop(&mut self, id: &InstanceId) {
        let busy = self.truth.iter().any(|(_, i)| i.get(id).is_some_and(|i| i.2 > 0));
        if busy {
            self.fleet.kept(id, true, self.now);
        } else {
            self.truth.iter_mut().for_each(|(_, i)| drop(i.remove(id)));
            self.fleet.forget(id, self.now);
        }
    }

    /// What a worker does when asked to park an instance if it is idle.
    fn park(&mut self, id: &InstanceId) {
        let real = self.truth.iter_mut().find_map(|(_, i)| i.get_mut(id));
        match real {
            Some((_, state, 0)) => {
                *state = InstanceState::Parked;
                self.fleet.parked(id);
            }
            Some(_) => self.fleet.kept(id, true, self.now),
            None => drop(self.fleet.forget(id, self.now)),
        }
    }

    fn ask(&mut self, function: usize, g: usize, force: bool) {
        let version = self.versions[function].clone();
        let held = self.fleet.instances.iter();
        let held = held.filter(|(_, i)| i.lease.as_ref().is_some_and(|l| l.gateway == gateway(g)));
        let ask = SlotRequest {
            gateway: gateway(g),
            held: held.map(|(id, _)| id.clone()).collect(),
            force: force.then_some(StartKind::Booted),
            ..ask(g)
        };
        match place(&self.fleet, &version, &ask, self.now) {
            Decision::Use(id) => {
                let instance = &self.fleet.instances[&id];
                assert_eq!(instance.version, version.spec.version);
                assert!(instance.draining.is_none(), "a draining instance was used");
                assert!(
                    instance.lease.as_ref().is_none_or(|l| l.expires_at <= self.now),
                    "an instance was leased twice"
                );
                let placement = self.fleet.grant(&id, &gateway(g), &version, self.now).unwrap();
                let others = self.fleet.instances[&id].in_flight;
                assert!(placement.slots + others <= version.spec.config.concurrency);
            }
            Decision::Start { worker: w, kind } => {
                let usable = self.fleet.instances.values().any(|i| {
                    i.function == version.spec.function
                        && i.version == version.spec.version
                        && i.is_free()
                        && i.draining.is_none()
                        && self.fleet.may_go_on(i)
                });
                assert!(force || !usable, "an instance was started while another stood ready");
                self.made += 1;
                let id: InstanceId = format!("i-{}", self.made).parse().unwrap();
                self.fleet
                    .add(id.clone(), w.clone(), &version.spec, kind, Stage::Starting, self.now);
                self.fleet.grant(&id, &gateway(g), &version, self.now);
                let n = usize::from(w == worker(1));
                self.truth[n].1.insert(id, (version, InstanceState::Starting, 0));
            }
            Decision::Wait { free_up, .. } => {
                if let Some(retiree) = free_up.and_then(|id| self.fleet.free_up(&id)) {
                    self.stop(&retiree.instance);
                }
            }
            Decision::TooBig { .. } | Decision::OverQuota(_) => {}
        }
    }

    fn check(&self) {
        self.fleet.instances.check();
        for (n, capacity) in CAPACITY.iter().enumerate() {
            assert!(
                self.fleet.reserved(&worker(n)) <= *capacity,
                "worker {n} has promised more memory than it has"
            );
        }
        for version in &self.versions {
            let spec = &version.spec;
            let count = self.fleet.count(&spec.function, spec.version);
            assert!(
                count <= spec.config.max_instances as usize,
                "{} has {count} instances",
                spec.function
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_a_limit(events in proptest::collection::vec(event(), 1..120)) {
        let mut world = World::new();
        for event in &events {
            world.apply(event);
            world.check();
        }
    }
}
