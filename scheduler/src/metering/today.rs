//! What is in use of the quotas that are not those of instances, in memory.

use std::collections::HashMap;

use parking_lot::Mutex;
use rekindle_wire::FunctionId;
use rekindle_wire::internal::UsageReport;

/// What is in use of quotas that are not those of instances.
#[derive(Debug, Default)]
pub(crate) struct Metering {
    today: Mutex<Today>,
    stored: Mutex<HashMap<String, u64>>,
}

#[derive(Debug, Default)]
struct Today {
    day: u32,
    egress: HashMap<String, u64>,
}

impl Metering {
    /// Replaces what was used on a day.
    pub(super) fn set(&self, day: u32, egress: impl IntoIterator<Item = (String, u64)>) {
        *self.today.lock() = Today {
            day,
            egress: egress.into_iter().collect(),
        };
    }

    /// Adds a report that was counted.
    pub(super) fn note(&self, report: &UsageReport) {
        let mut today = self.today.lock();
        for entry in &report.entries {
            if entry.day > today.day {
                *today = Today {
                    day: entry.day,
                    egress: HashMap::new(),
                };
            }
            if entry.day == today.day && entry.counts.egress_bytes > 0 {
                let namespace = entry.function.namespace();
                let bytes = entry.counts.egress_bytes;
                match today.egress.get_mut(namespace) {
                    Some(sum) => *sum = sum.saturating_add(bytes),
                    None => drop(today.egress.insert(namespace.to_owned(), bytes)),
                }
            }
        }
    }

    /// Bytes that a namespace's functions have answered with on this day.
    pub(crate) fn egress(&self, namespace: &str, day: u32) -> u64 {
        let today = self.today.lock();
        let known = today.egress.get(namespace).filter(|_| today.day == day);
        known.copied().unwrap_or(0)
    }

    /// Bytes that a namespace had stored when they were added up last.
    pub(crate) fn stored(&self, namespace: &str) -> u64 {
        self.stored.lock().get(namespace).copied().unwrap_or(0)
    }

    pub(super) fn set_stored(&self, all: &[(FunctionId, u64)]) {
        let mut stored = HashMap::new();
        for (function, bytes) in all {
            *stored.entry(function.namespace().to_owned()).or_insert(0_u64) += bytes;
        }
        *self.stored.lock() = stored;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rekindle_wire::VersionNumber;
    use rekindle_wire::ids::GatewayId;
    use rekindle_wire::internal::{UsageCounts, UsageEntry};

    use super::*;

    /// What a gateway reports of one function.
    pub(in crate::metering) fn report(day: u32, function: &str, egress_bytes: u64) -> UsageReport {
        UsageReport {
            gateway: GatewayId::generate(),
            sequence: 1,
            entries: vec![UsageEntry {
                day,
                function: function.parse().unwrap(),
                version: VersionNumber(1),
                counts: UsageCounts {
                    egress_bytes,
                    ..UsageCounts::default()
                },
            }],
        }
    }

    #[test]
    fn egress_is_the_day_s_and_the_namespace_s() {
        let metering = Metering::default();
        metering.set(8, [("team".to_owned(), 5)]);
        metering.note(&report(8, "a.team", 3));
        metering.note(&report(7, "a.team", 100));
        metering.note(&report(8, "a", 1));
        assert_eq!((metering.egress("team", 8), metering.egress("default", 8)), (8, 1));
        assert_eq!(metering.egress("team", 9), 0);
        metering.note(&report(9, "a.team", 2));
        assert_eq!((metering.egress("team", 8), metering.egress("team", 9)), (0, 2));
    }
}
