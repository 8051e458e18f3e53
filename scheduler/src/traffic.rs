//! What all gateways have counted together. Each tells all its counts of a function whenever they change, so a report that is lost or told twice
//! does no harm. A gateway has another id after each start: what an older one told stays. In memory only: after a restart of the scheduler the
//! gateways tell everything again, and what ended ones had told is gone.

use std::collections::{BTreeMap, HashMap};

use rekindle_wire::FunctionName;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::stats::{Traffic, TrafficAnswer, TrafficReport};

use crate::fleet::Millis;

/// Gateways told apart; of more than these the longest silent are added up.
const GATEWAYS_MAX: usize = 64;
/// One that was silent for this long is not counted as one that is there.
const SILENCE: Millis = Millis(15_000);

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Traffics {
    gateways: HashMap<GatewayId, Told>,
    earlier: BTreeMap<FunctionName, Traffic>,
}

#[derive(Debug, Default)]
struct Told {
    at: Millis,
    functions: BTreeMap<FunctionName, Traffic>,
}

impl Traffics {
    /// Takes a report in. `exists` tells which functions there are.
    pub(crate) fn take(
        &mut self,
        report: TrafficReport,
        now: Millis,
        exists: impl Fn(&FunctionName) -> bool,
    ) -> TrafficAnswer {
        let known = self.gateways.contains_key(&report.gateway);
        let told = self.gateways.entry(report.gateway).or_default();
        told.at = now;
        told.functions.extend(report.functions);
        let gone: Vec<FunctionName> = told.functions.keys().filter(|name| !exists(name)).cloned().collect();
        for name in &gone {
            told.functions.remove(name);
        }
        self.fold();
        TrafficAnswer { known, gone }
    }

    fn fold(&mut self) {
        while self.gateways.len() > GATEWAYS_MAX {
            let silent = self.gateways.iter().min_by_key(|(_, told)| told.at);
            let Some(id) = silent.map(|(id, _)| id.clone()) else {
                return;
            };
            for (name, traffic) in self.gateways.remove(&id).unwrap_or_default().functions {
                add(self.earlier.entry(name).or_default(), &traffic);
            }
        }
    }

    /// What a function's invocations came to, with quantiles.
    pub(crate) fn of(&self, function: &FunctionName) -> Traffic {
        let mut sum = self.earlier.get(function).cloned().unwrap_or_default();
        for traffic in self.gateways.values().filter_map(|told| told.functions.get(function)) {
            add(&mut sum, traffic);
        }
        sum.values_mut().for_each(rekindle_wire::stats::StartStats::estimate);
        sum
    }

    /// Drops what was told of a function that is gone.
    pub(crate) fn forget(&mut self, function: &FunctionName) {
        self.earlier.remove(function);
        for told in self.gateways.values_mut() {
            told.functions.remove(function);
        }
    }

    /// How many gateways were heard of lately.
    pub(crate) fn gateways(&self, now: Millis) -> usize {
        self.gateways
            .values()
            .filter(|told| now.since(told.at) < SILENCE)
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
        }
    }

    #[test]
    fn a_report_told_twice_counts_once_and_gateways_add_up() {
        let (mut all, hello) = (Traffics::default(), "hello".parse().unwrap());
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
    fn what_ended_gateways_told_stays_and_what_is_told_of_deleted_functions_does_not() {
        let (mut all, hello) = (Traffics::default(), "hello".parse().unwrap());
        for at in 0..GATEWAYS_MAX as u64 + 10 {
            all.take(report(&GatewayId::generate(), "hello", 1), Millis(at), |_| true);
        }
        assert_eq!(all.gateways.len(), GATEWAYS_MAX);
        assert_eq!(all.of(&hello)["warm"].answered, GATEWAYS_MAX as u64 + 10);
        all.forget(&hello);
        let late = all.take(report(&GatewayId::generate(), "hello", 1), Millis(100), |_| false);
        assert_eq!(late.gone, std::slice::from_ref(&hello));
        assert!(all.of(&hello).is_empty());
    }
}
