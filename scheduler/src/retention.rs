//! What is known of each function's calls, and how long its instances are kept. [`rekindle_retention`] decides; this is
//! the shell around it. [`crate::reaper`] calls it, at least once a second.
//!
//! A function that sets `idle` or `park` in its fn.toml is kept as it says. The rest applies to the others. What is
//! learned is stored ([`crate::usage`]). Until four idle times are known, a function is kept like a new one.

use std::collections::{BTreeSet, HashMap};

use rekindle_retention::{Figures, History, Settings, StoredHistogram};
use rekindle_wire::stats::{StartStats, Traffic};
use rekindle_wire::{FunctionId, VersionNumber};

use crate::catalog::Catalog;
use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::fleet::Fleet;
use crate::fleet::retire::Floor;
use crate::traffic::TrafficCounts;

/// Shortest and longest interval between two looks at all instances.
const LOOK_LEAST: Millis = Millis(100);
const LOOK_MOST: Millis = Millis(1_000);
/// Interval between two measurements of how long starts take.
const FIGURES_EVERY: Millis = Millis(30_000);
/// Fewer invocations of a kind say nothing about its duration.
const INVOCATIONS_LEAST: u64 = 5;

/// Histories of all functions.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    settings: Settings,
    functions: HashMap<FunctionId, FunctionHistory>,
    /// Functions of which something was learned that is not stored yet.
    learned: BTreeSet<FunctionId>,
    /// Functions of which a call was expected at the last look.
    expected: Vec<FunctionId>,
    looked_at: Option<Millis>,
    figures_at: Option<Millis>,
}

#[derive(Debug)]
struct FunctionHistory {
    history: History,
    figures: Figures,
}

impl Retention {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Loads what was stored; histories with other bins are ignored.
    pub(crate) fn read(&mut self, histories: Vec<(FunctionId, StoredHistogram)>) {
        for (name, noted) in histories {
            if let Some(history) = History::learned(&noted, self.settings) {
                let figures = Figures::default();
                self.functions.insert(name, FunctionHistory { history, figures });
            }
        }
    }

    /// Takes what was learned since the last call, of at most `most` functions.
    pub(crate) fn take_learned(&mut self, most: usize) -> Vec<(FunctionId, StoredHistogram)> {
        let mut learned = Vec::new();
        while learned.len() < most
            && let Some(name) = self.learned.pop_first()
        {
            if let Some(kept) = self.functions.get(&name) {
                learned.push((name, kept.history.noted()));
            }
        }
        learned
    }

    /// Returns what could not be stored; it is taken again.
    pub(crate) fn not_noted(&mut self, learned: Vec<(FunctionId, StoredHistogram)>) {
        self.learned.extend(learned.into_iter().map(|(name, _)| name));
    }

    /// Interval between two looks: a tenth of a bin is accurate enough.
    fn pause(&self) -> Millis {
        Millis::from(self.settings.bin / 10).clamp(LOOK_LEAST, LOOK_MOST)
    }

    /// Records what the fleet has seen since the last look, and gives instances the times of their function's plan.
    pub(crate) fn look(&mut self, fleet: &mut Fleet, catalog: &Catalog, traffic: &TrafficCounts, now: Millis) {
        if self.looked_at.is_some_and(|at| now.since(at) < self.pause()) {
            return;
        }
        self.looked_at = Some(now);
        self.functions.retain(|name, _| catalog.has(name));
        let mut seen: HashMap<&FunctionId, (Option<Millis>, bool)> = HashMap::new();
        for instance in fleet.instances.values() {
            let (last, in_use) = seen.entry(&instance.function).or_default();
            // An instance started ahead has not been used yet, whatever its worker reports of its start.
            if instance.keeping.ahead.is_none() {
                *last = (*last).max(Some(instance.last_active));
                *in_use |= instance.in_flight > 0;
            }
        }
        for (_, kept) in self.functions.iter_mut().filter(|(name, _)| !seen.contains_key(name)) {
            kept.history.gone();
        }
        for (name, (last, in_use)) in seen {
            if !catalog.has(name) {
                continue;
            }
            if !self.functions.contains_key(name) {
                let history = History::new(self.settings);
                let figures = Figures::default();
                self.functions
                    .insert(name.clone(), FunctionHistory { history, figures });
            }
            if let (Some(kept), Some(last)) = (self.functions.get_mut(name), last) {
                let at = if in_use { now } else { last };
                if kept.history.seen(at.into(), in_use) {
                    self.learned.insert(name.clone());
                }
            }
        }
        if self.figures_at.is_none_or(|at| now.since(at) >= FIGURES_EVERY) {
            self.figures_at = Some(now);
            for (name, kept) in &mut self.functions {
                kept.figures = measured(&traffic.of(name));
            }
        }
        let expected = self
            .functions
            .iter()
            .filter(|(_, kept)| kept.history.stands_by(now.into()));
        self.expected = expected.map(|(name, _)| name.clone()).collect();
        self.apply(fleet, catalog);
    }

    /// Functions of which a call may be expected: [`Retention::expects`] says whether one is.
    pub(crate) fn expected(&self) -> impl Iterator<Item = &FunctionId> {
        self.expected.iter()
    }

    fn apply(&self, fleet: &mut Fleet, catalog: &Catalog) {
        let mut news = Vec::new();
        for (id, instance) in fleet.instances.iter() {
            let Some(kept) = self.functions.get(&instance.function) else {
                continue;
            };
            let given = (instance.idle_limit, instance.park_limit);
            let is_adaptive = |live: LiveVersion| live.spec.config.adaptive;
            let limits = if catalog.live(&instance.function).is_some_and(is_adaptive) {
                let plan = kept.history.plan();
                (plan.ready.into(), plan.parked.saturating_sub(plan.ready).into())
            } else {
                given
            };
            if limits != given || instance.keeping.is_news(instance.last_active, kept.figures) {
                news.push((id.clone(), kept.figures, limits));
            }
        }
        for (id, figures, (idle, park)) in news {
            fleet.note_worth(&id, figures);
            if let Some(mut instance) = fleet.instances.get_mut(&id) {
                (instance.idle_limit, instance.park_limit) = (idle, park);
            }
        }
    }

    /// Whether a call of the function is expected about now, so that one instance of its live version should stand by.
    pub(crate) fn expects(&self, live: &LiveVersion, now: Millis) -> bool {
        let stands_by = |kept: &FunctionHistory| kept.history.stands_by(now.into());
        live.spec.config.adaptive
            && live.spec.snapshot.is_some()
            && self.functions.get(&live.spec.function).is_some_and(stands_by)
    }

    /// Minimum number of a version's instances that stay parked or ready even if long unused.
    pub(crate) fn floor(&self, catalog: &Catalog, function: &FunctionId, version: VersionNumber, now: Millis) -> Floor {
        let Some(live) = catalog.serving(function, version) else {
            return Floor::default();
        };
        let mut floor = Floor::of(&live);
        floor.parked = floor.parked.max(usize::from(self.expects(&live, now)));
        floor
    }
}

impl Floor {
    /// The minimum from the function config; zero for a version that is not live.
    pub(crate) fn given(catalog: &Catalog, function: &FunctionId, version: VersionNumber) -> Self {
        let live = catalog.serving(function, version);
        live.map_or_else(Self::default, |live| Self::of(&live))
    }

    fn of(live: &LiveVersion) -> Self {
        let config = &live.spec.config;
        Self {
            warm: config.min_warm as usize,
            parked: config.min_parked as usize,
        }
    }
}

/// Median duration of a function's starts beyond that of a warm one. If too few were seen, the platform's measured
/// values are used.
fn measured(traffic: &Traffic) -> Figures {
    let known = |start: &str| -> Option<std::time::Duration> {
        let stats: &StartStats = traffic.get(start).filter(|s| s.answered >= INVOCATIONS_LEAST)?;
        std::time::Duration::try_from_secs_f64(stats.p50_ms? / 1e3).ok()
    };
    let usual = Figures::default();
    let Some(warm) = known("warm") else { return usual };
    let over = |start: &str, usual| known(start).map_or(usual, |took| took.saturating_sub(warm));
    Figures {
        parked: over("parked", usual.parked),
        restored: over("restored", usual.restored),
        booted: over("booted", usual.booted),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle_wire::api::StartKind;
    use rekindle_wire::function_config::FunctionConfig;
    use rekindle_wire::internal::VersionSpec;
    use rekindle_wire::processor::InstructionSets;

    use super::*;
    use crate::fixture::{fleet, live, parsed, ready, spec, worker};
    use crate::fleet::keeping::EarlyStartReason;
    use crate::fleet::retire::InstanceDecision;

    const HOUR: u64 = 3_600_000;

    struct World {
        fleet: Fleet,
        catalog: Catalog,
        retention: Retention,
        live: LiveVersion,
    }

    fn world(adaptive: bool) -> World {
        let plain = spec("hello", 1, 64 << 20, 1, 5);
        let config = FunctionConfig {
            adaptive,
            ..plain.config.clone()
        };
        let spec = VersionSpec {
            config,
            snapshot: Some("s-1".parse().unwrap()),
            snapshot_digest: None,
            instruction_sets: InstructionSets::default(),
            ..plain
        };
        let mut catalog = Catalog::default();
        catalog.release(spec.clone());
        World {
            fleet: fleet(1 << 30),
            catalog,
            retention: Retention::new(Settings::default()),
            live: live(spec),
        }
    }

    impl World {
        fn look(&mut self, now: u64) {
            let (fleet, traffic) = (&mut self.fleet, TrafficCounts::default());
            self.retention.look(fleet, &self.catalog, &traffic, Millis(now));
        }

        /// One call each hour, whose instance then goes.
        fn hourly(&mut self, calls: u64) {
            for call in 0..calls {
                let now = Millis(call * HOUR);
                let id = ready(&mut self.fleet, &format!("i-{call}"), &self.live, now);
                self.look(now.0);
                self.fleet.forget(&id, now);
                self.look(now.0 + 10_000);
            }
        }

        fn expects(&self, now: u64) -> bool {
            let function = "hello".parse().unwrap();
            self.retention
                .expects(&self.catalog.live(&function).unwrap(), Millis(now))
        }
    }

    #[test]
    fn a_function_called_each_hour_is_expected_before_the_next_call_and_not_for_ever() {
        let mut world = world(true);
        world.hourly(6);
        let last = 5 * HOUR;
        assert!(!world.expects(last + HOUR / 2));
        assert!(world.expects(last + HOUR - 60_000));
        assert_eq!(world.retention.expected().count(), 0);
        world.look(last + HOUR - 60_000);
        assert_eq!(world.retention.expected().count(), 1);
        assert!(!world.expects(last + HOUR * 5 / 4));
        let floor = |at| {
            let function = "hello".parse().unwrap();
            world
                .retention
                .floor(&world.catalog, &function, VersionNumber(1), Millis(at))
        };
        assert_eq!((floor(last).parked, floor(last + HOUR - 1).parked), (0, 1));
    }

    #[test]
    fn what_was_learned_is_known_after_a_restart_from_the_first_call_on() {
        let mut before = world(true);
        before.hourly(6);
        assert!(before.retention.take_learned(0).is_empty());
        let learned = before.retention.take_learned(10);
        assert_eq!((learned.len(), before.retention.take_learned(10).len()), (1, 0));
        before.retention.not_noted(learned.clone());
        assert_eq!(before.retention.take_learned(10).len(), 1);

        let mut after = world(true);
        after.retention.read(learned);
        assert!(!after.expects(HOUR), "when the last call was is not known");
        after.hourly(1);
        assert!(after.expects(HOUR - 60_000) && !after.expects(HOUR / 2));
    }

    #[test]
    fn what_is_started_ahead_is_no_call_and_counts_as_used_only_by_one() {
        let mut world = world(true);
        world.hourly(6);
        let now = Millis(6 * HOUR - 120_000);
        let (kind, why) = (StartKind::Restored, EarlyStartReason::Forecast);
        let id = world.fleet.add_ahead(worker(0), &world.live, kind, why, true, now);
        world.look(now.0 + 1_000);
        assert!(world.expects(6 * HOUR), "the start itself was not taken for the call");
        let gateway = "g-1".parse().unwrap();
        world.fleet.grant(&id, &gateway, &world.live, Millis(6 * HOUR));
        assert_eq!(world.fleet.take_decided(), [InstanceDecision::PrewarmUsed]);
        world.look(6 * HOUR + 1_000);
        assert!(!world.expects(6 * HOUR + 60_000), "it was called");
        let second = world.fleet.add_ahead(worker(0), &world.live, kind, why, true, now);
        world.fleet.forget(&second, now);
        assert_eq!(world.fleet.take_decided(), [InstanceDecision::PrewarmUnused]);
    }

    #[test]
    fn instances_get_their_functions_times_unless_its_config_has_them() {
        for (adaptive, idle) in [(true, 300_000), (false, 4_000)] {
            let mut world = world(adaptive);
            let id = ready(&mut world.fleet, "i-a", &world.live, Millis(0));
            world.look(1);
            assert_eq!(world.fleet.instances[&id].idle_limit, Millis(idle));
            assert_eq!(world.fleet.instances[&id].park_limit > Millis(0), adaptive);
        }
        assert!(parsed("x").adaptive);
    }

    #[test]
    fn what_is_deleted_is_forgotten() {
        let mut world = world(true);
        world.hourly(6);
        world.catalog.remove(&"hello".parse().unwrap());
        world.look(6 * HOUR);
        assert!(world.retention.functions.is_empty());
    }

    #[test]
    fn figures_are_measured_where_there_are_enough() {
        let stats = |ms: u64, answered| StartStats {
            answered,
            p50_ms: Some(ms as f64),
            ..StartStats::default()
        };
        let mut traffic: Traffic = [("warm".to_owned(), stats(2, 9)), ("restored".to_owned(), stats(42, 5))].into();
        assert_eq!(measured(&traffic).restored, Duration::from_millis(40));
        assert_eq!(measured(&traffic).booted, Figures::default().booted);
        traffic.insert("restored".to_owned(), stats(42, 4));
        assert_eq!(measured(&traffic), Figures::default());
    }
}
