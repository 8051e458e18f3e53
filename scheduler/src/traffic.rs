//! The counts of all gateways together. Each gateway reports all its counts of a function whenever they change, so a
//! report that is lost or repeated does no harm. A gateway has a new id after each start, and the counts of the old id
//! stay.
//!
//! After a restart of the scheduler, live gateways report everything again within seconds. That replaces what was
//! stored for them ([`crate::usage`]); the counts of the others are added up then.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rekindle_wire::FunctionId;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::stats::{Traffic, TrafficReport, TrafficResponse};

use crate::clock::Millis;

/// Maximum number of gateways counted separately. Beyond it, those silent longest are added up.
const GATEWAYS_MAX: usize = 64;
/// Time after the scheduler's start by which every live gateway has reported.
const GRACE: Millis = Millis(60_000);
/// A gateway silent for this long does not count as live.
const SILENCE: Millis = Millis(15_000);

#[derive(Debug, Default)]
pub(crate) struct TrafficCounts {
    gateways: HashMap<GatewayId, GatewayCounts>,
    earlier: BTreeMap<FunctionId, Traffic>,
    /// Counts not stored yet. Added-up counts come first: they stand for gateways whose own counts are removed.
    changed: BTreeSet<(Option<GatewayId>, FunctionId)>,
    /// Gateways that were added up since.
    folded: Vec<GatewayId>,
}

/// Counts of one function, by one gateway or by earlier ones.
pub(crate) type Counts = (Option<GatewayId>, FunctionId, Traffic);

#[derive(Debug, Default)]
struct GatewayCounts {
    /// When it last reported; `None` if it was read from the database.
    at: Option<Millis>,
    functions: BTreeMap<FunctionId, Traffic>,
    /// Where it takes calls of functions, if it does.
    functions_at: Option<String>,
    /// Deleted functions that it has not been told about. Its counts for them are of the past, whatever has their names
    /// now.
    gone: BTreeSet<FunctionId>,
}

impl TrafficCounts {
    /// Applies a report. `exists` tells whether a function exists.
    pub(crate) fn take(
        &mut self,
        report: TrafficReport,
        now: Millis,
        exists: impl Fn(&FunctionId) -> bool,
    ) -> TrafficResponse {
        let TrafficReport {
            gateway,
            functions,
            functions_at,
            ..
        } = report;
        let told = self.gateways.entry(gateway.clone()).or_default();
        told.functions_at = functions_at;
        let known = told.at.replace(now).is_some();
        let mut gone = std::mem::take(&mut told.gone);
        for (name, traffic) in functions {
            if gone.contains(&name) {
                continue;
            }
            if !exists(&name) {
                gone.insert(name);
            } else if told.functions.get(&name) != Some(&traffic) {
                self.changed.insert((Some(gateway.clone()), name.clone()));
                told.functions.insert(name, traffic);
            }
        }
        self.fold(now);
        let gone = gone.into_iter().collect();
        TrafficResponse {
            known,
            gone,
            quotas: None,
        }
    }

    fn fold(&mut self, now: Millis) {
        if now >= GRACE {
            let ended = self.gateways.iter().filter(|(_, told)| told.at.is_none());
            for id in ended.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
                self.add_up(id);
            }
        }
        while self.gateways.values().filter(|told| told.at.is_some()).count() > GATEWAYS_MAX {
            let known = self.gateways.iter().filter(|(_, told)| told.at.is_some());
            let Some(silent) = known.min_by_key(|(_, told)| told.at).map(|(id, _)| id.clone()) else {
                return;
            };
            self.add_up(silent);
        }
    }

    fn add_up(&mut self, id: GatewayId) {
        for (name, traffic) in self.gateways.remove(&id).unwrap_or_default().functions {
            self.changed.remove(&(Some(id.clone()), name.clone()));
            self.changed.insert((None, name.clone()));
            add(self.earlier.entry(name).or_default(), &traffic);
        }
        self.folded.push(id);
    }

    /// Loads the stored counts.
    pub(crate) fn read(&mut self, counts: Vec<Counts>) {
        for (gateway, name, traffic) in counts {
            let of = match gateway {
                Some(gateway) => &mut self.gateways.entry(gateway).or_default().functions,
                None => &mut self.earlier,
            };
            of.insert(name, traffic);
        }
    }

    /// Takes what has changed since the last call: at most `most` counts, but always all added-up ones. The gateways
    /// that were added up come with them.
    pub(crate) fn take_changed(&mut self, most: usize) -> (Vec<Counts>, Vec<GatewayId>) {
        let added_up = self.changed.iter().take_while(|(gateway, _)| gateway.is_none()).count();
        let mut changed = Vec::new();
        while changed.len() < most.max(added_up)
            && let Some((gateway, name)) = self.changed.pop_first()
        {
            let of = match &gateway {
                Some(gateway) => self.gateways.get(gateway).map(|told| &told.functions),
                None => Some(&self.earlier),
            };
            if let Some(traffic) = of.and_then(|of| of.get(&name)).cloned() {
                changed.push((gateway, name, traffic));
            }
        }
        (changed, std::mem::take(&mut self.folded))
    }

    /// Returns counts that could not be stored; they are taken again.
    pub(crate) fn not_noted(&mut self, counts: Vec<Counts>, folded: Vec<GatewayId>) {
        let keys = counts.into_iter().map(|(gateway, name, _)| (gateway, name));
        self.changed.extend(keys);
        self.folded.extend(folded);
    }

    /// A function's counts over all gateways, with quantiles.
    pub(crate) fn of(&self, function: &FunctionId) -> Traffic {
        let mut sum = self.earlier.get(function).cloned().unwrap_or_default();
        for traffic in self.gateways.values().filter_map(|told| told.functions.get(function)) {
            add(&mut sum, traffic);
        }
        sum.values_mut().for_each(rekindle_wire::stats::StartStats::estimate);
        sum
    }

    /// Drops the counts of a deleted function.
    pub(crate) fn forget(&mut self, function: &FunctionId) {
        self.changed.retain(|(_, name)| name != function);
        self.earlier.remove(function);
        for told in self.gateways.values_mut() {
            if told.functions.remove(function).is_some() {
                told.gone.insert(function.clone());
            }
        }
    }

    /// Where gateways heard from lately take calls of functions.
    pub(crate) fn functions_at(&self, now: Millis) -> Vec<String> {
        let live = self.gateways.values();
        let live = live.filter(|told| told.at.is_some_and(|at| now.since(at) < SILENCE));
        let mut addresses: Vec<_> = live.filter_map(|told| told.functions_at.clone()).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }

    /// Number of gateways heard from lately.
    pub(crate) fn gateways(&self, now: Millis) -> usize {
        self.gateways
            .values()
            .filter(|told| told.at.is_some_and(|at| now.since(at) < SILENCE))
            .count()
    }
}

fn add(sum: &mut Traffic, more: &Traffic) {
    for (start, stats) in more {
        sum.entry(start.clone()).or_default().add(stats);
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::stats::StartStats;

    use super::*;

    fn report(gateway: &GatewayId, function: &str, invocations: u64) -> TrafficReport {
        let stats = StartStats {
            answered: invocations,
            latencies: [(1_000, invocations)].into(),
            ..StartStats::default()
        };
        let traffic: Traffic = [("warm".to_owned(), stats)].into();
        TrafficReport {
            gateway: gateway.clone(),
            functions: [(function.parse().unwrap(), traffic)].into(),
            shares: Vec::new(),
            keys_used: BTreeMap::new(),
            functions_at: None,
        }
    }

    #[test]
    fn workers_learn_where_the_gateways_that_live_take_calls() {
        let mut all = TrafficCounts::default();
        let (one, other) = (GatewayId::generate(), GatewayId::generate());
        let at = |gateway: &GatewayId, address: &str| TrafficReport {
            functions_at: Some(address.to_owned()),
            ..report(gateway, "hello", 1)
        };
        all.take(at(&one, "10.0.0.1:8083"), Millis(0), |_| true);
        all.take(at(&other, "10.0.0.2:8083"), Millis(10_000), |_| true);
        all.take(report(&GatewayId::generate(), "hello", 1), Millis(10_000), |_| true);
        assert_eq!(all.functions_at(Millis(10_000)), ["10.0.0.1:8083", "10.0.0.2:8083"]);
        assert_eq!(all.functions_at(SILENCE), ["10.0.0.2:8083"], "the first is silent");
        all.take(report(&other, "hello", 2), SILENCE, |_| true);
        assert!(all.functions_at(SILENCE).is_empty(), "it is about to end");
    }

    #[test]
    fn a_report_told_twice_counts_once_and_gateways_add_up() {
        let (mut all, hello) = (TrafficCounts::default(), "hello".parse().unwrap());
        let (one, two) = (GatewayId::generate(), GatewayId::generate());
        assert!(!all.take(report(&one, "hello", 3), Millis(0), |_| true).known);
        assert!(all.take(report(&one, "hello", 5), Millis(1), |_| true).known);
        all.take(report(&one, "hello", 5), Millis(2), |_| true);
        all.take(report(&two, "hello", 1), Millis(3), |_| true);
        let told = all.of(&hello);
        assert_eq!((told["warm"].answered, told["warm"].invocations()), (6, 6));
        assert!(told["warm"].p50_ms.is_some());
        assert_eq!((all.gateways(Millis(10)), all.gateways(Millis(15_002))), (2, 1));
    }

    #[test]
    fn what_was_written_down_is_told_once_by_gateways_that_are_still_there() {
        let (mut all, hello): (_, FunctionId) = (TrafficCounts::default(), "hello".parse().unwrap());
        let gateways: Vec<_> = (0..GATEWAYS_MAX + 2).map(|_| GatewayId::generate()).collect();
        let mut written = BTreeMap::new();
        let mut write = |all: &mut TrafficCounts, most| {
            let (counts, folded) = all.take_changed(most);
            let len = counts.len();
            for gateway in folded {
                written.remove(&(Some(gateway), hello.clone()));
            }
            written.extend(
                counts
                    .into_iter()
                    .map(|(gateway, name, traffic)| ((gateway, name), traffic)),
            );
            (len, written.clone())
        };
        for (at, gateway) in (0..).zip(&gateways) {
            all.take(report(gateway, "hello", 1), Millis(at), |_| true);
            write(&mut all, 10);
        }
        let last = gateways.last().unwrap();
        all.take(report(last, "hello", 5), Millis(100), |_| true);
        let (counts, folded) = all.take_changed(10);
        assert_eq!((counts.len(), folded.len()), (1, 0));
        all.not_noted(counts, folded);
        assert_eq!(write(&mut all, 0).0, 0, "no room for it");
        let (len, written) = write(&mut all, 10);
        assert_eq!((len, written.len()), (1, GATEWAYS_MAX + 1));

        let mut again = TrafficCounts::default();
        again.read(
            written
                .into_iter()
                .map(|((gateway, name), traffic)| (gateway, name, traffic))
                .collect(),
        );
        let invocations = |all: &TrafficCounts| all.of(&hello)["warm"].answered;
        assert_eq!(invocations(&again), GATEWAYS_MAX as u64 + 1 + 5);
        assert_eq!(again.gateways(Millis(0)), 0);
        assert!(
            !again.take(report(last, "hello", 6), Millis(1), |_| true).known,
            "it is to tell everything"
        );
        assert_eq!(
            (invocations(&again), again.gateways(Millis(2))),
            (GATEWAYS_MAX as u64 + 1 + 6, 1)
        );
        // A live gateway has reported by then. No other is assumed to have ended before, though there are many.
        assert_eq!(again.gateways.len(), GATEWAYS_MAX);
        again.take(report(last, "hello", 6), GRACE, |_| true);
        assert_eq!(
            (invocations(&again), again.gateways.len()),
            (GATEWAYS_MAX as u64 + 1 + 6, 1)
        );
    }

    #[test]
    fn what_ended_gateways_told_stays_and_what_is_told_of_deleted_functions_does_not() {
        let (mut all, hello) = (TrafficCounts::default(), "hello".parse().unwrap());
        for at in 0..GATEWAYS_MAX as u64 + 10 {
            all.take(report(&GatewayId::generate(), "hello", 1), Millis(at), |_| true);
        }
        assert_eq!(all.gateways.len(), GATEWAYS_MAX);
        assert_eq!(all.of(&hello)["warm"].answered, GATEWAYS_MAX as u64 + 10);
        all.forget(&hello);
        let late = GatewayId::generate();
        let told = all.take(report(&late, "hello", 1), Millis(100), |_| false);
        assert_eq!(told.gone, std::slice::from_ref(&hello));
        assert!(all.of(&hello).is_empty());
        // Deleted and deployed again before the gateway reports anything: its counts belong to the former.
        all.take(report(&late, "hello", 2), Millis(101), |_| true);
        all.forget(&hello);
        assert_eq!(
            all.take(report(&late, "hello", 3), Millis(102), |_| true).gone,
            std::slice::from_ref(&hello)
        );
        assert!(all.of(&hello).is_empty());
        assert!(
            all.take(report(&late, "hello", 1), Millis(103), |_| true)
                .gone
                .is_empty()
        );
        assert_eq!(all.of(&hello)["warm"].answered, 1);
    }
}
