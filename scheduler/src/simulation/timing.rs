//! Measures the speed of placements. A view of the given size is filled like a running cluster, then placements are
//! made one after another. Each includes all that the scheduler does for it in memory: the decision, the new instance
//! if there is one, the lease. Between two placements something is returned or goes, so that the view stays as full as
//! it is.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rekindle_wire::InstanceId;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{LeaseReport, ReturnedLease};

use super::Setup;
use super::hosts::Host;
use super::random::Random;
use super::workload::{Workload, parsed};
use crate::catalog::ClaimedVersion;
use crate::clock::Millis;
use crate::fleet::{Fleet, Stage};
use crate::placement::{Decision, SlotRequest, place};

/// What is timed.
#[derive(Debug, Clone)]
pub struct Timing {
    /// The cluster.
    pub setup: Setup,
    /// Instances that the view is filled with.
    pub instances: usize,
    /// Placements that are timed.
    pub placements: usize,
}

/// The measurements.
#[derive(Debug, Clone, Default)]
pub struct TimingReport {
    /// Duration of each placement with what carries it out in memory, nanoseconds.
    pub placement_ns: Vec<u64>,
    /// Duration of all placements, and of the returns between them.
    pub elapsed: Duration,
    /// Processor time of these, if the kernel reports it: time that others on the machine took is not included.
    pub cpu: Option<Duration>,
    /// Placements that used an existing instance.
    pub used: u64,
    /// Placements that started one.
    pub started: u64,
    /// Placements that had to wait.
    pub waited: u64,
    /// Instances in the view at the end.
    pub instances: u64,
}

struct HeldLease {
    function: usize,
    gateway: usize,
    instance: InstanceId,
}

struct View {
    fleet: Fleet,
    workload: Workload,
    random: Random,
    gateways: Vec<GatewayId>,
    /// The ask of each gateway for each function.
    asks: HashMap<(usize, usize), SlotRequest>,
    held: VecDeque<HeldLease>,
    idle: VecDeque<InstanceId>,
    made: u64,
    now: Millis,
}

/// Times the placements.
#[must_use]
pub fn time_placements(timing: &Timing) -> TimingReport {
    let mut view = View::new(&timing.setup);
    let mut ignored = TimingReport::default();
    while view.fleet.instances.len() < timing.instances {
        let (function, gateway) = view.next(&timing.setup);
        view.place(function, gateway, &mut ignored);
        // Half of all are idle, since no ask leads to another instance while one is.
        if view.held.len() > timing.instances / 2 {
            view.give_back();
        }
        if ignored.waited > timing.instances as u64 {
            break;
        }
    }
    let mut timed = TimingReport {
        placement_ns: Vec::with_capacity(timing.placements),
        ..TimingReport::default()
    };
    let (began, cpu_before) = (Instant::now(), cpu_time());
    for _ in 0..timing.placements {
        let (function, gateway) = view.next(&timing.setup);
        view.place(function, gateway, &mut timed);
        view.give_back();
        while view.fleet.instances.len() > timing.instances {
            view.let_go();
        }
    }
    timed.elapsed = began.elapsed();
    timed.cpu = cpu_before.and_then(|before| cpu_time()?.checked_sub(before));
    timed.instances = view.fleet.instances.len() as u64;
    timed
}

/// Processor time of this thread.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

impl View {
    fn new(setup: &Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let workload = Workload::new(setup, &mut random);
        let mut fleet = Fleet::default();
        for n in 0..setup.workers {
            let mut host = Host::new(n, setup);
            // As many templates as a worker that has run for a while.
            for _ in 0..50 {
                host.open(workload.popularity.pick(&mut random));
            }
            host.running = u32::try_from(random.below(setup.cpus as usize + 1)).unwrap_or(0);
            let beat = host.beat(setup, &workload.functions, Millis(0));
            fleet.heartbeat(&beat, Millis(0), |_, _| ClaimedVersion::Unknown);
        }
        Self {
            fleet,
            workload,
            random,
            gateways: (0..setup.gateways).map(|n| parsed(&format!("g-{n}"))).collect(),
            asks: HashMap::new(),
            held: VecDeque::new(),
            idle: VecDeque::new(),
            made: 0,
            now: Millis(1_000),
        }
    }

    /// The function that is asked for next, and the gateway that asks.
    fn next(&mut self, setup: &Setup) -> (usize, usize) {
        // Time passes as with a hundred thousand placements a second.
        if self.random.below(100) == 0 {
            self.now = self.now.plus(Millis(1));
        }
        (
            self.workload.popularity.pick(&mut self.random),
            self.random.below(setup.gateways),
        )
    }

    fn place(&mut self, function: usize, gateway: usize, timed: &mut TimingReport) {
        let live = &self.workload.functions[function].live;
        // With the instances it already holds, which a gateway sends with each ask.
        let gateway_id = &self.gateways[gateway];
        let ask = self.asks.entry((gateway, function)).or_insert_with(|| SlotRequest {
            gateway: gateway_id.clone(),
            version: None,
            held: Vec::new(),
            force: None,
            avoid: Vec::new(),
            avoid_until: Millis(0),
        });
        let began = Instant::now();
        let decision = place(&self.fleet, live, ask, self.now);
        let id = match decision {
            Decision::Use(id) => {
                timed.used += 1;
                Some(id)
            }
            Decision::Start { worker, kind } => {
                timed.started += 1;
                self.made += 1;
                let id: InstanceId = parsed(&format!("i-{:032x}", self.made));
                self.fleet
                    .add(id.clone(), worker, &live.spec, kind, Stage::Starting, self.now);
                Some(id)
            }
            Decision::Wait { .. } | Decision::TooBig { .. } | Decision::OverQuota(_) => {
                timed.waited += 1;
                None
            }
        };
        let granted = id.and_then(|id| self.fleet.grant(&id, &ask.gateway, live, self.now));
        let took = began.elapsed();
        timed
            .placement_ns
            .push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(placement) = granted {
            let instance = placement.instance;
            ask.held.push(instance.clone());
            self.held.push_back(HeldLease {
                function,
                gateway,
                instance,
            });
        }
    }

    /// Returns the lease that has been held longest.
    fn give_back(&mut self) {
        let Some(held) = self.held.pop_front() else { return };
        if let Some(ask) = self.asks.get_mut(&(held.gateway, held.function))
            && let Some(at) = ask.held.iter().position(|id| *id == held.instance)
        {
            ask.held.remove(at);
        }
        let returned = ReturnedLease {
            instance: held.instance.clone(),
            served: true,
            idle_ms: 0,
            stuck: false,
            busy: 0,
        };
        let report = LeaseReport {
            gateway: self.gateways[held.gateway].clone(),
            held: Vec::new(),
            numbers: Vec::new(),
            returned: vec![returned],
        };
        self.fleet.report(&report, self.now);
        self.idle.push_back(held.instance);
    }

    /// Removes the instance that was returned longest ago, unless it is leased again.
    fn let_go(&mut self) {
        let Some(id) = self.idle.pop_front() else { return };
        if !self.fleet.is_leased(&id) {
            drop(self.fleet.forget(&id, self.now));
        }
    }
}
