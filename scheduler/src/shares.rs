//! What gateways count of invocations that several versions share. Each gateway reports all its counts since it applied
//! the weights, so a report that is lost or repeated does no harm, and a new leader is told everything again.

use std::collections::{BTreeMap, HashMap};

use rekindle_wire::api::AliasTarget;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::stats::{Outcomes, ShareReport};
use rekindle_wire::{FunctionId, VersionNumber};

/// Maximum number of gateways for each function. A gateway has a new id after each start.
const GATEWAYS_MAX: usize = 256;

/// The counts of functions whose invocations are shared.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    functions: HashMap<FunctionId, Share>,
}

/// The counts of one function.
#[derive(Debug)]
struct Share {
    targets: Vec<AliasTarget>,
    gateways: HashMap<GatewayId, BTreeMap<VersionNumber, BTreeMap<String, Outcomes>>>,
}

impl Shares {
    /// Counts from now on for these weights, and keeps what there is if they have not changed.
    pub(crate) fn begin(&mut self, function: &FunctionId, targets: Vec<AliasTarget>) {
        let is_same = self
            .functions
            .get(function)
            .is_some_and(|share| share.targets == targets);
        if !is_same {
            let gateways = HashMap::new();
            self.functions.insert(function.clone(), Share { targets, gateways });
        }
    }

    /// Drops a function's counts.
    pub(crate) fn end(&mut self, function: &FunctionId) {
        self.functions.remove(function);
    }

    /// Applies a report. What is for other weights than the current ones is out of date, or early.
    pub(crate) fn take(&mut self, gateway: &GatewayId, reports: Vec<ShareReport>) {
        for report in reports {
            let Some(share) = self.functions.get_mut(&report.function) else {
                continue;
            };
            let has_room = share.gateways.len() < GATEWAYS_MAX || share.gateways.contains_key(gateway);
            if share.targets == report.targets && has_room {
                share.gateways.insert(gateway.clone(), report.versions);
            }
        }
    }

    /// Outcomes of a version's invocations by start kind, over all gateways.
    pub(crate) fn of(&self, function: &FunctionId, version: VersionNumber) -> BTreeMap<String, Outcomes> {
        let gateways = self
            .functions
            .get(function)
            .into_iter()
            .flat_map(|share| share.gateways.values());
        let mut sum: BTreeMap<String, Outcomes> = BTreeMap::new();
        for (start, outcomes) in gateways.filter_map(|versions| versions.get(&version)).flatten() {
            sum.entry(start.clone()).or_default().add(outcomes);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_gateways_add_up_as_long_as_the_weights_stay() {
        let mut shares = Shares::default();
        let hello: FunctionId = "hello".parse().unwrap();
        let targets = |weight| {
            vec![AliasTarget {
                version: VersionNumber(8),
                weight,
            }]
        };
        let report = |weight, failed| ShareReport {
            function: hello.clone(),
            targets: targets(weight),
            versions: [(
                VersionNumber(8),
                [(
                    "warm".to_owned(),
                    Outcomes {
                        failed,
                        ..Outcomes::default()
                    },
                )]
                .into(),
            )]
            .into(),
        };
        let [a, b] = ["g-a", "g-b"].map(|id| id.parse().unwrap());
        let failed = |shares: &Shares| shares.of(&hello, VersionNumber(8)).get("warm").map(|o| o.failed);
        shares.take(&a, vec![report(10, 1)]);
        assert_eq!(failed(&shares), None, "nobody asked");
        shares.begin(&hello, targets(10));
        shares.take(&a, vec![report(10, 1)]);
        shares.take(&a, vec![report(10, 3)]);
        shares.take(&b, vec![report(10, 2), report(25, 50)]);
        assert_eq!(failed(&shares), Some(5));
        shares.begin(&hello, targets(10));
        assert_eq!(failed(&shares), Some(5));
        shares.begin(&hello, targets(25));
        assert_eq!(failed(&shares), None);
        shares.take(&b, vec![report(10, 2)]);
        assert_eq!(failed(&shares), None, "of before");
        shares.take(&b, vec![report(25, 4)]);
        assert_eq!(failed(&shares), Some(4));
        shares.end(&hello);
        assert_eq!(failed(&shares), None);
    }
}
