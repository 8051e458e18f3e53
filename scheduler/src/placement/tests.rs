//! The decision's rules one by one, and then whether they hold under any sequence of events.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rekindle_wire::api::InstanceState;
use rekindle_wire::internal::{Heartbeat, LeaseReport, ReturnedLease};
use rekindle_wire::migration::MigrationKind;
use rekindle_wire::processor::InstructionSets;

use super::*;
use crate::catalog::Known;
use crate::fixture::{beat, fleet, gateway, info, live, parked, ready, spec, worker};

fn ask(n: usize) -> Ask {
    Ask {
        gateway: gateway(n),
        version: None,
        held: Vec::new(),
        force: None,
        avoid: Vec::new(),
        avoid_until: NOW,
    }
}

const NOW: Millis = Millis(100_000);

#[test]
fn a_ready_instance_is_used_before_a_new_one_is_started() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = fleet(100);
    fleet.note_silence(Millis(0));
    let old = ready(&mut fleet, "i-old", &hello, Millis(1));
    let recent = ready(&mut fleet, "i-recent", &hello, Millis(2));
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), Decision::Use(recent.clone()));
    fleet.grant(&recent, &gateway(0), &hello, Millis(3));
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), Decision::Use(old.clone()));
    fleet.grant(&old, &gateway(0), &hello, Millis(3));
    let start = Decision::Start {
        worker: worker(0),
        kind: StartKind::Booted,
    };
    assert_eq!(place(&fleet, &hello, &ask(0), Millis(3)), start);
}

#[test]
fn a_version_with_a_snapshot_is_restored() {
    let mut s = spec("hello", 1, 10, 1, 5);
    s.snapshot = Some("s-1".parse().unwrap());
    let decision = place(&fleet(100), &live(s), &ask(0), Millis(1));
    let Decision::Start { kind, .. } = decision else {
        panic!("{decision:?}")
    };
    assert_eq!(kind, StartKind::Restored);
}

/// The instruction sets of a processor with these flags.
fn sets(flags: &str) -> InstructionSets {
    InstructionSets::of_cpuinfo(&format!("flags : {flags}\n"))
}

#[test]
fn a_host_that_lacks_an_instruction_set_of_the_snapshot_s_is_not_chosen_and_boots_where_no_other_has_room() {
    let mut s = spec("hello", 1, 10, 1, 5);
    (s.snapshot, s.instruction_sets) = (Some("s-1".parse().unwrap()), sets("avx avx512f"));
    let hello = live(s);
    let mut fleet = Fleet::default();
    // One with the most room that lacks it, one that has it, and one that does not say.
    for (n, capacity, has) in [(0, 1_000, "avx"), (1, 15, "avx avx512f gfni")] {
        let mut beat = beat(n, 1, capacity, Vec::new());
        beat.offer.instruction_sets = sets(has);
        fleet.heartbeat(&beat, NOW, |_, _| Known::Unknown);
    }
    let started = |fleet: &Fleet, force| {
        let ask = Ask { force, ..ask(0) };
        match place(fleet, &hello, &ask, NOW) {
            Decision::Start { worker, kind } => Some((worker, kind)),
            _ => None,
        }
    };
    assert_eq!(started(&fleet, None), Some((worker(1), StartKind::Restored)));
    assert_eq!(
        started(&fleet, Some(StartKind::Booted)).map(|(_, kind)| kind),
        Some(StartKind::Booted)
    );
    fleet.drain(&worker(1), true);
    assert_eq!(started(&fleet, None), Some((worker(0), StartKind::Booted)));
    assert_eq!(
        started(&fleet, Some(StartKind::Restored)),
        None,
        "who asks for a restore waits for one"
    );
    // A worker of an earlier version does not report them.
    fleet.heartbeat(&beat(2, 1, 15, Vec::new()), NOW, |_, _| Known::Unknown);
    assert_eq!(started(&fleet, None), Some((worker(2), StartKind::Restored)));
}

#[test]
fn an_instance_moves_to_no_host_that_lacks_an_instruction_set_of_its_own() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = Fleet::default();
    for (n, capacity, has) in [(0, 100, "avx avx2"), (1, 1_000, "avx"), (2, 50, "avx avx2 gfni")] {
        let mut beat = beat(n, 1, capacity, Vec::new());
        beat.offer.instruction_sets = sets(has);
        fleet.heartbeat(&beat, NOW, |_, _| Known::Unknown);
    }
    let id = ready(&mut fleet, "i-1", &hello, NOW);
    let named = fleet
        .plan_move(&id, Some(&worker(1)), &MigrationKind::Move)
        .unwrap_err();
    assert!(named.message.contains("lacks avx2"), "{named:?}");
    assert_eq!(fleet.plan_move(&id, None, &MigrationKind::Move).unwrap().to, worker(2));
}

#[test]
fn an_instance_of_an_older_version_is_not_used() {
    let old = live(spec("hello", 1, 10, 1, 5));
    let new = live(spec("hello", 2, 10, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-old", &old, Millis(1));
    fleet.switch(&old.spec.function, |version| version == new.spec.version);
    assert!(matches!(
        place(&fleet, &new, &ask(0), Millis(1)),
        Decision::Start { .. }
    ));
    assert_eq!(
        fleet
            .due(Millis(2), |_, _| parked(0))
            .first()
            .map(|r| r.instance.clone()),
        Some(id)
    );
}

#[test]
fn a_function_at_its_maximum_waits() {
    let hello = live(spec("hello", 1, 10, 1, 1));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    fleet.grant(&id, &gateway(0), &hello, Millis(1));
    let mut other = ask(1);
    let decision = place(&fleet, &hello, &other, Millis(2));
    // Another gateway's unused lease is what could be freed.
    let wait = Decision::Wait {
        shortage: Shortage::Instances,
        free_up: Some(id),
    };
    assert_eq!(decision, wait);
    other.force = Some(StartKind::Booted);
    assert_eq!(place(&fleet, &hello, &other, Millis(2)), wait);
}

#[test]
fn a_full_worker_gives_up_its_least_recently_used_instance_that_nobody_uses() {
    let idle = live(spec("idle", 1, 40, 1, 5));
    let busy = live(spec("busy", 1, 40, 1, 5));
    let wanted = live(spec("wanted", 1, 40, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-idle", &idle, Millis(5));
    let used = ready(&mut fleet, "i-busy", &busy, Millis(1));
    fleet.grant(&used, &gateway(0), &busy, Millis(1));
    let decision = place(&fleet, &wanted, &ask(0), Millis(6));
    assert_eq!(
        decision,
        Decision::Wait {
            shortage: Shortage::Memory,
            free_up: Some(id.clone())
        }
    );
    assert!(fleet.free_up(&id).is_some());
    fleet.forget(&id, Millis(7));
    assert!(matches!(
        place(&fleet, &wanted, &ask(0), Millis(7)),
        Decision::Start { .. }
    ));
}

#[test]
fn a_function_larger_than_every_worker_is_told_so() {
    let decision = place(&fleet(100), &live(spec("big", 1, 101, 1, 1)), &ask(0), Millis(1));
    assert_eq!(decision, Decision::TooBig { largest: 100 });
}

#[test]
fn a_silent_worker_gets_nothing() {
    let mut fleet = fleet(100);
    let hello = live(spec("hello", 1, 10, 1, 5));
    ready(&mut fleet, "i-a", &hello, Millis(1));
    assert!(fleet.note_silence(NOW));
    let decision = place(&fleet, &hello, &ask(0), NOW);
    assert_eq!(
        decision,
        Decision::Wait {
            shortage: Shortage::Workers,
            free_up: None
        }
    );
}

#[test]
fn a_lease_whose_answer_was_lost_is_granted_again_to_the_same_gateway_only() {
    let hello = live(spec("hello", 1, 10, 1, 1));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(1));
    // An idle time of 4 s makes leases of 2 s; a longer one shows the rule.
    fleet.grant(&id, &gateway(0), &hello, Millis(1));
    fleet.instances.get_mut(&id).unwrap().lease.as_mut().unwrap().expires_at = NOW;
    let soon = Millis(1).plus(LOST_ANSWER);
    let later = soon.plus(Millis(1));
    assert!(matches!(place(&fleet, &hello, &ask(0), soon), Decision::Wait { .. }));
    assert_eq!(place(&fleet, &hello, &ask(0), later), Decision::Use(id.clone()));
    assert!(matches!(place(&fleet, &hello, &ask(1), later), Decision::Wait { .. }));
    let knows = Ask {
        held: vec![id],
        ..ask(0)
    };
    assert!(matches!(place(&fleet, &hello, &knows, later), Decision::Wait { .. }));
}

#[test]
fn a_worker_that_was_not_reached_is_passed_over_while_there_is_another() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let mut fleet = fleet(100);
    let id = ready(&mut fleet, "i-a", &hello, Millis(0));
    let unreached = Ask {
        avoid: vec![fleet.workers[&worker(0)].address.clone()],
        avoid_until: NOW.plus(AVOID_FOR),
        ..ask(0)
    };
    assert_eq!(
        place(&fleet, &hello, &unreached, NOW),
        Decision::Use(id.clone()),
        "there is no other"
    );
    fleet.heartbeat(&beat(1, 1, 100, Vec::new()), NOW, |_, _| Known::Unknown);
    let elsewhere = place(&fleet, &hello, &unreached, NOW);
    assert!(matches!(elsewhere, Decision::Start { worker: w, .. } if w == worker(1)));
    let later = unreached.avoid_until;
    assert_eq!(place(&fleet, &hello, &unreached, later), Decision::Use(id));
}

#[test]
fn a_worker_short_of_disk_or_memory_is_the_last_resort() {
    let hello = live(spec("hello", 1, 10, 1, 5));
    let short_of: [fn(&mut Heartbeat, bool); 2] = [
        |said, short| said.levels.disk_free_bytes = Some(if short { 0 } else { 1 << 40 }),
        |said, short| said.pressure.full = Some(if short { 50.0 } else { 0.0 }),
    ];
    for short_of in short_of {
        let mut fleet = fleet(100);
        let say = |n: usize, short: bool, fleet: &mut crate::fleet::Fleet| {
            let mut said = beat(n, 1, 100, Vec::new());
            short_of(&mut said, short);
            fleet.heartbeat(&said, NOW, |_, _| Known::Unknown);
            place(fleet, &hello, &ask(0), NOW)
        };
        let on =
            |decision: &Decision, n: usize| matches!(decision, Decision::Start { worker: w, .. } if *w == worker(n));
        assert!(on(&say(0, true, &mut fleet), 0), "there is no other");
        assert!(on(&say(1, false, &mut fleet), 1));
        say(0, false, &mut fleet);
        assert!(on(&say(1, true, &mut fleet), 0));
    }
    // Of the two, the one short of memory is preferred.
    for (disk, memory) in [(0, 1), (1, 0)] {
        let mut fleet = fleet(100);
        for (n, short_of) in [(disk, short_of[0]), (memory, short_of[1])] {
            let mut said = beat(n, 1, 100, Vec::new());
            short_of(&mut said, true);
            fleet.heartbeat(&said, NOW, |_, _| Known::Unknown);
        }
        let placed = place(&fleet, &hello, &ask(0), NOW);
        assert!(matches!(placed, Decision::Start { worker: w, .. } if w == worker(memory)));
    }
}

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
        6 => (0..3_usize, 0..2_usize, any::<bool>()).prop_map(|(function, gateway, force)| Event::Ask { function, gateway, force }),
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
type Real = (LiveVersion, InstanceState, u32);

/// The fleet, and what really runs on the workers.
struct World {
    fleet: Fleet,
    now: Millis,
    versions: Vec<LiveVersion>,
    /// For each worker: its incarnation, and what runs on it.
    truth: Vec<(u64, BTreeMap<InstanceId, Real>)>,
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
                Some(l) if l.spec.version == v => Known::Live(l.clone()),
                Some(l) => Known::Older(l.clone()),
                None => Known::Unknown,
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
                            let going_on = |i: &mut Real| {
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
        let ask = Ask {
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
                assert!(placement.slots + others <= version.spec.manifest.concurrency);
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
                count <= spec.manifest.max_instances as usize,
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
