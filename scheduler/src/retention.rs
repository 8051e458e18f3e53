//! What is known of each function's calls, and what its instances are kept by: the shell around [`rekindle_retention`], which decides. Looked at ten
//! times a second by [`crate::reaper`].
//!
//! A function that says `idle` or `park` in its fn.toml is kept as it says; what follows is for the others. In memory only: after a restart of the
//! scheduler every function is new again, and is kept as a new one until four idle times are known.

use std::collections::HashMap;

use rekindle_retention::{Figures, History, Plan, Settings};
use rekindle_wire::stats::{StartStats, Traffic};
use rekindle_wire::{FunctionName, VersionNumber};

use crate::catalog::Catalog;
use crate::fleet::{Fleet, Millis};
use crate::traffic::Traffics;

/// Between two looks at what starts take.
const FIGURES_EVERY: Millis = Millis(30_000);
/// Fewer invocations of a kind say nothing of what it takes.
const INVOCATIONS_LEAST: u64 = 5;

/// All functions.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    settings: Settings,
    functions: HashMap<FunctionName, Kept>,
    figures_at: Option<Millis>,
}

#[derive(Debug)]
struct Kept {
    history: History,
    figures: Figures,
}

/// How many instances of a version stay, whatever happens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Ready.
    pub(crate) warm: usize,
    /// Parked.
    pub(crate) parked: usize,
}

impl Retention {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Takes in what the fleet has seen since the last look, and gives instances the times of their function's plan.
    pub(crate) fn look(&mut self, fleet: &mut Fleet, catalog: &Catalog, traffic: &Traffics, now: Millis) {
        self.functions.retain(|name, _| catalog.has(name));
        let mut seen: HashMap<&FunctionName, (Option<Millis>, bool)> = HashMap::new();
        for instance in fleet.instances.values() {
            let (last, in_use) = seen.entry(&instance.function).or_default();
            // What was started ahead was not used, whatever its worker says of its start.
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
                self.functions.insert(name.clone(), Kept { history, figures });
            }
            if let (Some(kept), Some(last)) = (self.functions.get_mut(name), last) {
                let at = if in_use { now } else { last };
                kept.history.seen(at.into(), in_use);
            }
        }
        if self.figures_at.is_none_or(|at| now.since(at) >= FIGURES_EVERY) {
            self.figures_at = Some(now);
            for (name, kept) in &mut self.functions {
                kept.figures = measured(&traffic.of(name));
            }
        }
        self.apply(fleet, catalog);
    }

    fn apply(&self, fleet: &mut Fleet, catalog: &Catalog) {
        let mut news = Vec::new();
        for (id, instance) in &fleet.instances {
            if let Some(kept) = self.functions.get(&instance.function) {
                news.push((id.clone(), kept.figures, self.plan(catalog, &instance.function)));
            }
        }
        for (id, figures, plan) in news {
            fleet.note_worth(&id, figures);
            let (Some(instance), Some(plan)) = (fleet.instances.get_mut(&id), plan) else {
                continue;
            };
            instance.idle_limit = plan.ready.into();
            instance.park_limit = plan.parked.saturating_sub(plan.ready).into();
        }
    }

    /// What a function's instances are kept by; `None` where it says so itself.
    fn plan(&self, catalog: &Catalog, function: &FunctionName) -> Option<&Plan> {
        let live = catalog.live(function)?;
        let kept = self.functions.get(function)?;
        live.spec.manifest.adaptive.then(|| kept.history.plan())
    }

    /// Whether a call of the function is expected about now, so that one instance shall stand by.
    pub(crate) fn expects(&self, catalog: &Catalog, function: &FunctionName, now: Millis) -> bool {
        let live = catalog.live(function);
        live.is_some_and(|live| live.spec.manifest.adaptive && live.spec.snapshot.is_some())
            && self
                .functions
                .get(function)
                .is_some_and(|kept| kept.history.stands_by(now.into()))
    }

    /// How many of a version stay parked or ready although they are unused for long.
    pub(crate) fn floor(
        &self,
        catalog: &Catalog,
        function: &FunctionName,
        version: VersionNumber,
        now: Millis,
    ) -> Floor {
        let mut floor = Floor::given(catalog, function, version);
        if catalog.live(function).is_some_and(|live| live.spec.version == version) {
            floor.parked = floor.parked.max(usize::from(self.expects(catalog, function, now)));
        }
        floor
    }
}

impl Floor {
    /// As the manifest says; none of a version that is not live.
    pub(crate) fn given(catalog: &Catalog, function: &FunctionName, version: VersionNumber) -> Self {
        let live = catalog.live(function).filter(|live| live.spec.version == version);
        live.map_or_else(Self::default, |live| Self {
            warm: live.spec.manifest.min_warm as usize,
            parked: live.spec.manifest.min_parked as usize,
        })
    }
}

/// What starts of a function take over a warm one, at their medians; where too few were seen, what is measured for the platform.
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
