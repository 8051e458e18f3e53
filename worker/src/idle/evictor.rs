//! The thread that evicts. Once a period it looks at every instance, parked ones first. It keeps to a share of a
//! processor, and stops between two slices when an instance is needed. It does nothing if that would make a shortage of
//! memory worse.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rekindle_wire::InstanceId;
use rekindle_wire::api::InstanceState;

use super::canary::Canary;
use super::idle_memory::{EvictionCounts, IdleMemory};
use super::policy::{Ledger, ProcessActivity};
use super::throttle::Throttle;
use super::visit::visit;
use super::watcher::Watcher;
use crate::host::pressure::PressureFiles;
use crate::instance::isolate::memory_limit;
use crate::instance::{Instance, Instances, RunningInstance};
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

/// Maximum share of one processor.
const CPU_SHARE: f64 = 0.05;
/// How long an instance must be parked, at most, before all of it is evicted. One that is thawed at once costs nothing.
const PARKED_FOR: Duration = Duration::from_secs(5);
/// Minimum and maximum interval between passes.
const PERIOD: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Memory pressure, in per cent of time lost, above which running instances are left alone. Their pages would have to
/// come back when that is hardest.
const PRESSED: f64 = 20.0;

/// What is known of an instance.
#[derive(Default)]
struct EvictionState {
    parked_since: Option<Duration>,
    /// Whether nothing more of it can be evicted while it stays parked.
    settled: bool,
    ledgers: HashMap<i32, Ledger>,
}

/// Evicts the idle memory of instances and of templates.
pub struct Evictor {
    /// Where it goes.
    pub idle: Arc<IdleMemory>,
    /// All instances.
    pub instances: Weak<Instances>,
    /// Open snapshots, with their templates.
    pub snapshots: Arc<Snapshots>,
    /// The host's memory pressure.
    pub pressure: PressureFiles,
    /// Where the cost of evictions is measured.
    pub metrics: Arc<Metrics>,
}

impl Evictor {
    /// Starts to evict, on a thread of its own, until [`IdleMemory::stop`] or until there are no instances any more.
    pub(crate) fn start(self) {
        if self.idle.settings.after.is_zero() {
            return;
        }
        let idle = Arc::clone(&self.idle);
        let begun = std::thread::Builder::new()
            .name("idle-memory".to_owned())
            .spawn(move || self.run());
        match begun {
            Ok(thread) => *idle.thread.lock() = Some(thread),
            Err(e) => tracing::warn!(error = %e, "idle memory stays: no thread for it"),
        }
    }

    fn run(&self) {
        let idle = &self.idle;
        let begun = Instant::now();
        let mut known: HashMap<InstanceId, EvictionState> = HashMap::new();
        let mut throttle = Throttle::new(CPU_SHARE);
        let canary = Canary::new().ok();
        let watcher = Watcher::new(idle.settings);
        loop {
            if !idle.rest((idle.settings.after / 4).clamp(PERIOD.0, PERIOD.1)) {
                return;
            }
            let Some(instances) = self.instances.upgrade() else {
                return;
            };
            self.pass(&instances, &mut known, &watcher, &mut throttle, begun);
            follow(idle, &known, &watcher);
            self.templates(&instances);
            if idle.swap.read().is_there()
                && let Some(canary) = &canary
            {
                canary
                    .measure_faults()
                    .into_iter()
                    .for_each(|took| self.metrics.idle_fault(took));
            }
            account(idle, &mut throttle);
        }
    }

    /// Evicts clean pages of templates that nobody uses.
    fn templates(&self, instances: &Instances) {
        let mut idle: HashMap<_, Duration> = HashMap::new();
        for instance in instances.all() {
            let Some(running) = instance.running() else { continue };
            if let Some(snapshot) = &running.snapshot {
                let rests = Duration::from_millis(instance.usage.idle_ms());
                let least = idle.entry(snapshot.id.clone()).or_insert(rests);
                *least = rests.min(*least);
            }
        }
        self.snapshots.take_idle(self.idle.settings.after, &idle);
    }

    fn pass(
        &self,
        instances: &Instances,
        known: &mut HashMap<InstanceId, EvictionState>,
        watcher: &Watcher,
        throttle: &mut Throttle,
        begun: Instant,
    ) {
        let idle = &self.idle;
        let mut instances = instances.all();
        known.retain(|id, _| instances.iter().any(|i| i.id == *id));
        if !idle.swap.read().is_there() {
            return;
        }
        let figures = self.pressure.read();
        let is_pressed = figures.some.is_some_and(|some| some > PRESSED);
        EvictionCounts::add(&idle.counts.pressed, u64::from(is_pressed));
        // This comes before anything that may end this pass: a limit that was lowered must not stay so.
        instances.iter().for_each(hold_swap);
        instances.sort_by_key(|instance| instance.state() != InstanceState::Parked);
        for instance in instances {
            if idle.is_stopped() {
                return;
            }
            if !idle.swap.read().has_room() {
                EvictionCounts::add(&idle.counts.full, 1);
                return;
            }
            let Some(running) = instance.running() else { continue };
            let known = known.entry(instance.id.clone()).or_default();
            let now = begun.elapsed();
            // It may have been thawed and parked again since the last pass.
            let idle_for = Duration::from_millis(instance.usage.idle_ms());
            if known
                .parked_since
                .is_some_and(|since| idle_for < now.saturating_sub(since))
            {
                (known.parked_since, known.settled) = (None, false);
            }
            let usage = match instance.state() {
                InstanceState::Parked => {
                    let since = *known.parked_since.get_or_insert(now);
                    if known.settled || now - since < PARKED_FOR.min(idle.settings.after) {
                        continue;
                    }
                    ProcessActivity::Parked
                }
                InstanceState::Ready => {
                    (known.parked_since, known.settled) = (None, false);
                    if is_pressed {
                        continue;
                    }
                    ProcessActivity::Warm
                }
                _ => continue,
            };
            let (evicted, is_whole) = of_instance(idle, &instance, &running, known, (usage, now), watcher, throttle);
            let counter = match usage {
                ProcessActivity::Parked => &idle.counts.parked_pages,
                ProcessActivity::Warm => &idle.counts.warm_pages,
            };
            EvictionCounts::add(counter, evicted);
            known.settled = usage == ProcessActivity::Parked && is_whole && evicted == 0;
            account(idle, throttle);
        }
    }
}

/// Makes the kernel watch the processes of running instances.
fn follow(idle: &IdleMemory, known: &HashMap<InstanceId, EvictionState>, watcher: &Watcher) {
    let running = known.values().filter(|k| k.parked_since.is_none());
    let processes = running.flat_map(|k| k.ledgers.iter().map(|(pid, ledger)| (*pid, ledger.present())));
    let watched = watcher.follow(processes.collect());
    idle.counts.watched.store(watched as u64, Ordering::Relaxed);
}

/// Sleeps in proportion to the processor time spent.
fn account(idle: &IdleMemory, throttle: &mut Throttle) {
    let (spent, rest) = throttle.spent();
    EvictionCounts::add(&idle.counts.cpu_ns, u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
    // The caller checks for itself whether it has to stop.
    let _ = idle.rest(rest);
}

/// Sets the limit of swap, if there is a separate one. An instance may have as much in swap as was evicted of it, and
/// gets no additional memory for that.
fn hold_swap(instance: &Arc<Instance>) {
    let Some(running) = instance.running() else { return };
    if !matches!(instance.state(), InstanceState::Ready | InstanceState::Parked) {
        return;
    }
    if let Err(e) = running.cgroup.hold_swap(memory_limit(&instance.spec)) {
        tracing::debug!(instance = %instance.id, error = %e, "its swap cannot be limited");
    }
}

/// Evicts what may be evicted of one instance. Returns how many pages were evicted, and whether all was looked at.
fn of_instance(
    idle: &IdleMemory,
    instance: &Arc<Instance>,
    running: &RunningInstance,
    known: &mut EvictionState,
    (usage, now): (ProcessActivity, Duration),
    watcher: &Watcher,
    throttle: &mut Throttle,
) -> (u64, bool) {
    let Ok(pids) = running.cgroup.pids() else {
        return (0, false);
    };
    known.ledgers.retain(|pid, _| pids.contains(pid));
    let is_wanted = || match usage {
        ProcessActivity::Parked => instance.state() != InstanceState::Parked,
        ProcessActivity::Warm => !matches!(instance.state(), InstanceState::Ready | InstanceState::Parked),
    };
    let mut evicted = 0;
    let broken_off = Cell::new(false);
    for pid in pids {
        let ledger = known
            .ledgers
            .entry(pid)
            .or_insert_with(|| Ledger::new(idle.settings.after));
        let slice = |pages: u64| {
            let goes_on = !idle.is_stopped() && !is_wanted() && idle.swap.read().has_room();
            // If swap has a separate limit, it allows the instance only these pages.
            let goes_on = goes_on && running.cgroup.lend_swap(pages * rekindle_pager::PAGE).is_ok();
            broken_off.set(broken_off.get() || !goes_on);
            goes_on
        };
        let rest = || account(idle, throttle);
        let untouched = match usage {
            ProcessActivity::Parked => None,
            ProcessActivity::Warm => watcher.untouched(pid),
        };
        let chosen = (usage, untouched.as_deref());
        match visit(&idle.host, pid, ledger, chosen, now, slice, rest) {
            Ok(done) => {
                evicted += done.evicted;
                EvictionCounts::add(&idle.counts.returned_pages, done.returned);
            }
            // The process has ended since.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {}
            Err(error) => tracing::debug!(instance = %instance.id, pid, %error, "its memory stays"),
        }
    }
    hold_swap(instance);
    (evicted, !broken_off.get())
}
