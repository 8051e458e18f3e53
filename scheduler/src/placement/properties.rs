//! Properties of a decision in any cluster: random workers, zones, loads, instances and snapshots, with some workers
//! draining or silent.

use proptest::prelude::*;
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::{LeaseReport, RestorableSnapshots, ReturnedLease};

use super::start::{CheapestWorker, cheapest};
use super::*;
use crate::catalog::ClaimedVersion;
use crate::fixture::{beat, gateway, live, spec, worker};
use crate::fleet::cost;
use crate::fleet::membership::SILENCE;
use crate::fleet::sites::Tier;

/// Later than any heartbeat of the clusters here.
const NOW: Millis = Millis(1_000);

#[derive(Debug, Clone)]
struct Host {
    capacity: u64,
    zone: u8,
    busy: f64,
    cpus: u32,
    drained: bool,
    silent: bool,
    template: bool,
    cached: bool,
}

#[derive(Debug, Clone)]
struct PlacedInstance {
    function: usize,
    host: usize,
    leased: bool,
    stage: usize,
}

#[derive(Debug, Clone)]
struct Cluster {
    hosts: Vec<Host>,
    placed: Vec<PlacedInstance>,
}

fn host() -> impl Strategy<Value = Host> {
    let odd = || prop::bool::weighted(0.15);
    let kept = (any::<bool>(), any::<bool>());
    (20..200_u64, 0..3_u8, 0.0..1.2_f64, 1..16_u32, odd(), odd(), kept).prop_map(
        |(capacity, zone, busy, cpus, drained, silent, (template, cached))| Host {
            capacity,
            zone,
            busy,
            cpus,
            drained,
            silent,
            template,
            cached,
        },
    )
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let hosts = proptest::collection::vec(host(), 1..14);
    let placed = (0..2_usize, 0..14_usize, any::<bool>(), 0..4_usize);
    let placed = placed.prop_map(|(function, host, leased, stage)| PlacedInstance {
        function,
        host,
        leased,
        stage,
    });
    (hosts, proptest::collection::vec(placed, 0..30)).prop_map(|(hosts, placed)| Cluster { hosts, placed })
}

fn snapshot() -> SnapshotId {
    "s-1".parse().unwrap()
}

fn functions() -> Vec<LiveVersion> {
    let with_snapshot = |name, memory| {
        let mut spec = spec(name, 1, memory, 2, 20);
        spec.snapshot = Some(snapshot());
        live(spec)
    };
    vec![with_snapshot("small", 10), with_snapshot("large", 45)]
}

impl Cluster {
    /// The fleet, with its workers heard from in this order.
    fn fleet(&self, order: impl Iterator<Item = usize>) -> Fleet {
        let mut fleet = Fleet::default();
        for n in order {
            let host = &self.hosts[n];
            let mut beat = beat(n, 1, host.capacity, Vec::new());
            beat.offer.zone = host.zone.to_string();
            beat.offer.cpus = host.cpus;
            beat.levels.busy = host.busy;
            let is = |there: bool| there.then(snapshot).into_iter().collect();
            beat.kept = Some(RestorableSnapshots {
                revision: 1,
                templates: is(host.template),
                cached: is(host.cached),
            });
            fleet.heartbeat(&beat, NOW, |_, _| ClaimedVersion::Unknown);
            fleet.drain(&worker(n), host.drained, Millis(NOW.0 + 60_000));
            if host.silent {
                fleet.workers.get_mut(&worker(n)).unwrap().last_heartbeat = Millis(0);
            }
        }
        let functions = functions();
        for (n, placed) in self.placed.iter().enumerate() {
            let (version, at) = (&functions[placed.function], placed.host % self.hosts.len());
            let room = fleet.instances.sites().get(&worker(at)).map_or(0, |s| s.room());
            if room < version.memory() {
                continue;
            }
            let stage = [Stage::Ready, Stage::Parked, Stage::Starting, Stage::Stopping][placed.stage];
            let id: InstanceId = format!("i-{n}").parse().unwrap();
            fleet.add(id.clone(), worker(at), &version.spec, StartKind::Restored, stage, NOW);
            if placed.leased {
                fleet.grant(&id, &gateway(1), version, NOW);
            }
        }
        fleet.note_silence(NOW.plus(SILENCE));
        fleet.instances.check();
        fleet
    }
}

fn ask() -> SlotRequest {
    SlotRequest {
        gateway: gateway(0),
        version: None,
        held: Vec::new(),
        force: None,
        avoid: Vec::new(),
        avoid_until: Millis(0),
    }
}

/// Room that a worker has left, counted anew.
fn room(fleet: &Fleet, id: &WorkerId) -> u64 {
    let here = fleet.instances.values().filter(|i| i.worker == *id);
    let capacity = fleet.workers[id].capacity;
    capacity.saturating_sub(here.map(Instance::set_aside).sum())
}

fn best(fleet: &Fleet, version: &LiveVersion, now: Millis) -> Option<CheapestWorker> {
    cheapest(fleet, version, StartKind::Restored, now, |_| true).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_cluster_has_the_same_answer_however_it_was_told_of(cluster in cluster()) {
        let hosts = cluster.hosts.len();
        let (fleet, other) = (cluster.fleet(0..hosts), cluster.fleet((0..hosts).rev()));
        let now = NOW.plus(SILENCE);
        for version in functions() {
            let decision = place(&fleet, &version, &ask(), now);
            prop_assert_eq!(&decision, &place(&fleet, &version, &ask(), now));
            prop_assert_eq!(&decision, &place(&other, &version, &ask(), now));
        }
    }

    #[test]
    fn nothing_goes_where_there_is_no_room_or_to_a_worker_that_takes_nothing_new(cluster in cluster()) {
        let fleet = cluster.fleet(0..cluster.hosts.len());
        let now = NOW.plus(SILENCE);
        let takes_new = |id: &WorkerId| fleet.workers[id].takes_new();
        for version in functions() {
            let fits = |id: &&WorkerId| takes_new(id) && room(&fleet, id) >= version.memory();
            match place(&fleet, &version, &ask(), now) {
                Decision::Start { worker, .. } => prop_assert!(fits(&&worker)),
                Decision::Use(id) => {
                    let instance = &fleet.instances[&id];
                    let is_free = instance.lease.as_ref().is_none_or(|l| l.expires_at <= now);
                    prop_assert!((takes_new(&instance.worker) || fleet.awaits_its_move(instance)) && is_free);
                    let more = instance.memory - instance.set_aside();
                    prop_assert!(more <= room(&fleet, &instance.worker));
                }
                // Room is found if there is any, though not every worker is examined.
                Decision::Wait { shortage: Shortage::Memory, free_up } => {
                    prop_assert_eq!(fleet.workers.keys().find(fits), None);
                    prop_assert!(free_up.is_none_or(|id| takes_new(&fleet.instances[&id].worker)));
                }
                Decision::Wait { shortage: Shortage::Workers, .. } => {
                    prop_assert!(!fleet.workers.keys().any(takes_new));
                }
                Decision::Wait { shortage: Shortage::Instances, .. } => {
                    prop_assert!(fleet.count(&version.spec.function, version.spec.version) >= 20);
                }
                Decision::Wait { shortage: Shortage::Migration, .. } => prop_assert!(false, "nothing moves"),
                Decision::Wait { shortage: Shortage::Quota(_), .. } | Decision::OverQuota(_) => {
                    prop_assert!(false, "there are no quotas");
                }
                Decision::TooBig { largest } => {
                    let largest_now = fleet.workers.values().filter(|w| w.takes_new()).map(|w| w.capacity).max();
                    prop_assert_eq!(Some(largest), largest_now);
                    prop_assert!(largest < version.memory());
                }
            }
        }
    }

    /// With few holders each is examined: none of them is cheaper than the choice. What is near is passed over only for
    /// something cheaper.
    #[test]
    fn what_is_near_is_taken_until_it_costs_more_than_elsewhere(cluster in cluster()) {
        let fleet = cluster.fleet(0..cluster.hosts.len());
        let now = NOW.plus(SILENCE);
        for version in functions() {
            let Some(chosen) = best(&fleet, &version, now) else { continue };
            let holders = fleet.instances.sites().holders(&snapshot());
            let holders: Vec<_> = holders.into_iter().flatten().map(|(_, (w, tier))| (w.clone(), *tier)).collect();
            if holders.len() > 6 {
                continue;
            }
            for (holder, tier) in &holders {
                let only = cheapest(&fleet, &version, StartKind::Restored, now, |w| w == holder);
                if let Ok(only) = only {
                    prop_assert!(chosen.cost <= only.cost, "{holder} has it for {} and not {}", only.cost, chosen.cost);
                    prop_assert!(*tier != Tier::Template || only.cost >= cost::FROM_TEMPLATE);
                }
            }
            // With no difference in load, room and zone, the tier decides.
            let even = Cluster {
                hosts: cluster
                    .hosts
                    .iter()
                    .map(|h| Host { capacity: 1_000, zone: 0, busy: 0.1, drained: false, silent: false, ..h.clone() })
                    .collect(),
                placed: Vec::new(),
            };
            let even = even.fleet(0..cluster.hosts.len());
            let Some(chosen) = best(&even, &version, now) else { continue };
            let tier_of = |w: &WorkerId| holders.iter().find(|(h, _)| h == w).map(|(_, tier)| *tier);
            let nearest = holders.iter().map(|(_, tier)| *tier).min();
            prop_assert_eq!(tier_of(&chosen.worker), nearest);
        }
    }

    /// An unleased idle instance on a worker that is not busy is taken, and never the same instance twice.
    #[test]
    fn a_lease_is_not_granted_again_while_it_lasts_and_is_after(cluster in cluster()) {
        let mut fleet = cluster.fleet(0..cluster.hosts.len());
        let now = NOW.plus(SILENCE);
        for version in functions() {
            let mut taken = Vec::new();
            for n in 0..40 {
                let ask = SlotRequest { gateway: gateway(n % 3), held: taken.clone(), ..ask() };
                let Decision::Use(id) = place(&fleet, &version, &ask, now) else { break };
                prop_assert!(!taken.contains(&id), "{id} is leased already");
                fleet.grant(&id, &ask.gateway, &version, now);
                fleet.instances.check();
                taken.push(id);
            }
            let Some(id) = taken.first() else { continue };
            let ends = fleet.instances[id].lease.as_ref().unwrap().expires_at;
            // The first holder may neither keep nor return what belongs to another by now.
            prop_assert!(fleet.expire_leases(ends) > 0 && fleet.instances[id].lease.is_none());
            fleet.grant(id, &gateway(9), &version, ends);
            for n in 0..3 {
                let returned = ReturnedLease { instance: id.clone(), served: true, idle_ms: 0, stuck: false, busy: 0 };
                let report = LeaseReport {
                    gateway: gateway(n),
                    held: vec![id.clone()],
                    numbers: Vec::new(),
                    returned: vec![returned],
                };
                prop_assert_eq!(&fleet.report(&report, ends).0, std::slice::from_ref(id));
            }
            prop_assert_eq!(&fleet.instances[id].lease.as_ref().unwrap().gateway, &gateway(9));
        }
    }

    #[test]
    fn a_function_s_instances_are_spread_over_the_zones(zones in 2..4_usize, instances in 2..12_usize) {
        let hosts = (0..zones * 3).map(|n| Host {
            capacity: 10_000,
            zone: u8::try_from(n % zones).unwrap(),
            busy: 0.2,
            cpus: 8,
            drained: false,
            silent: false,
            template: n == 0,
            cached: n == 1,
        });
        let cluster = Cluster { hosts: hosts.collect(), placed: Vec::new() };
        let mut fleet = cluster.fleet(0..cluster.hosts.len());
        let version = &functions()[0];
        for n in 0..instances {
            let decision = place(&fleet, version, &ask(), NOW);
            let Decision::Start { worker, kind } = decision else { panic!("{decision:?}") };
            let id: InstanceId = format!("i-{n}").parse().unwrap();
            fleet.add(id.clone(), worker, &version.spec, kind, Stage::Starting, NOW);
            fleet.grant(&id, &gateway(0), version, NOW);
        }
        let there = fleet.instances.of_version(&version.spec.function, version.spec.version).unwrap();
        prop_assert_eq!(there.zones.len(), zones.min(instances));
        let most = there.zones.values().max().unwrap();
        let even = instances.div_ceil(zones);
        prop_assert!(*most <= even + 1 + instances / 4, "{:?}", there.zones);
    }
}

#[test]
fn a_busy_worker_s_warm_instance_is_left_for_a_restore_elsewhere_only_when_that_is_sooner() {
    let version = &functions()[0];
    let on = |busy| {
        let hot = Host {
            capacity: 1_000,
            zone: 0,
            busy,
            cpus: 1,
            drained: false,
            silent: false,
            template: true,
            cached: false,
        };
        let cool = Host {
            busy: 0.0,
            ..hot.clone()
        };
        let ready = PlacedInstance {
            function: 0,
            host: 0,
            leased: false,
            stage: 0,
        };
        let cluster = Cluster {
            hosts: vec![hot, cool],
            placed: vec![ready],
        };
        place(&cluster.fleet(0..2), version, &ask(), NOW)
    };
    assert!(matches!(on(0.0), Decision::Use(_)));
    assert!(matches!(on(0.7), Decision::Use(_)));
    assert!(matches!(on(0.95), Decision::Start { worker: w, .. } if w == worker(1)));
}

#[test]
fn many_starts_at_once_are_spread_before_any_worker_has_reported_them() {
    let host = Host {
        capacity: 10_000,
        zone: 0,
        busy: 0.0,
        cpus: 2,
        drained: false,
        silent: false,
        template: true,
        cached: false,
    };
    let cluster = Cluster {
        hosts: vec![host; 4],
        placed: Vec::new(),
    };
    let mut fleet = cluster.fleet(0..4);
    let version = &functions()[0];
    let mut on = std::collections::BTreeMap::<WorkerId, usize>::new();
    for n in 0..20 {
        let Ok(best) = cheapest(&fleet, version, StartKind::Restored, NOW, |_| true) else {
            panic!("there is room")
        };
        *on.entry(best.worker.clone()).or_default() += 1;
        let id: InstanceId = format!("i-{n}").parse().unwrap();
        fleet.add(
            id,
            best.worker,
            &version.spec,
            StartKind::Restored,
            Stage::Starting,
            NOW,
        );
    }
    assert_eq!(on.values().copied().collect::<Vec<_>>(), [5; 4], "{on:?}");
}
