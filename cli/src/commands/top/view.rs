//! What `fn top` shows, computed from two readings: rates and latencies are those between them. Pure.

use std::collections::BTreeMap;

use rekindle_wire::api::StartKind;
use rekindle_wire::stats::{FunctionStats, Latencies, StartStats, Stats, WorkerStats, quantile_ms};
use serde::Serialize;

/// The platform between two readings.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct View {
    /// Time between the readings.
    pub(crate) seconds: f64,
    pub(crate) gateways: u64,
    pub(crate) workers: Vec<WorkerStats>,
    /// All functions together.
    pub(crate) total: Row,
    /// Functions, busiest first.
    pub(crate) functions: Vec<Row>,
}

/// A function between two readings.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) per_second: f64,
    /// Invocations a second that waited for a start.
    pub(crate) cold_per_second: f64,
    pub(crate) failed_per_second: f64,
    /// From arrival to the response's headers; `None` without invocations.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Invocations since it was first deployed.
    pub(crate) invocations: u64,
    pub(crate) instances: u64,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) memory_bytes: u64,
    /// Memory beyond that, which was not touched for a while.
    pub(crate) evicted_bytes: u64,
    /// Rows by kind of start.
    pub(crate) starts: BTreeMap<String, StartRow>,
}

/// A function's invocations with one kind of start, between two readings.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct StartRow {
    pub(crate) per_second: f64,
    pub(crate) failed_per_second: f64,
    /// From arrival to the response's headers; `None` without invocations.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Invocations since it was first deployed.
    pub(crate) invocations: u64,
}

impl View {
    /// What happened from `before` to `after`.
    pub(crate) fn between(before: &Stats, after: &Stats) -> Self {
        let seconds = (after.at_unix_ms.saturating_sub(before.at_unix_ms).max(1)) as f64 / 1e3;
        let mut total = IntervalCounts::default();
        let mut functions: Vec<Row> = Vec::new();
        for function in &after.functions {
            let earlier = before.functions.iter().find(|f| f.name == function.name);
            let counted = IntervalCounts::between(earlier, function);
            let mut all = IntervalCounts::default();
            counted.values().for_each(|c| all.add(c));
            let starts = counted.iter().map(|(start, c)| {
                let ever = function.starts.get(*start).map_or(0, StartStats::invocations);
                ((*start).clone(), c.start_row(ever, seconds))
            });
            functions.push(Row {
                starts: starts.collect(),
                ..all.row(function, seconds)
            });
            total.add(&all);
        }
        functions.sort_by(|a, b| b.per_second.total_cmp(&a.per_second).then_with(|| a.name.cmp(&b.name)));
        let sum = |of: fn(&Row) -> u64| functions.iter().map(of).sum();
        let total = Row {
            name: "all".to_owned(),
            invocations: sum(|r| r.invocations),
            instances: sum(|r| r.instances),
            in_flight: sum(|r| r.in_flight),
            waiting: sum(|r| r.waiting),
            memory_bytes: sum(|r| r.memory_bytes),
            evicted_bytes: sum(|r| r.evicted_bytes),
            ..total.rates(seconds)
        };
        Self {
            seconds,
            gateways: after.gateways,
            workers: after.workers.clone(),
            total,
            functions,
        }
    }
}

/// Counts between two readings.
#[derive(Debug, Default)]
struct IntervalCounts {
    invocations: u64,
    cold: u64,
    failed: u64,
    latencies: Latencies,
}

impl IntervalCounts {
    /// Counts by kind of start.
    fn between<'a>(before: Option<&FunctionStats>, after: &'a FunctionStats) -> BTreeMap<&'a String, Self> {
        let nothing = StartStats::default();
        let of_start = |(start, now): (&'a String, &StartStats)| {
            let then = before.and_then(|f| f.starts.get(start)).unwrap_or(&nothing);
            // A scheduler that was restarted in between has counted less.
            let invocations = now.invocations().saturating_sub(then.invocations());
            let is_cold = matches!(start.parse(), Ok(StartKind::Restored | StartKind::Booted));
            let latencies = now.latencies.iter().map(|(bound, count)| {
                let earlier = then.latencies.get(bound).copied().unwrap_or(0);
                (*bound, count.saturating_sub(earlier))
            });
            let counted = Self {
                invocations,
                cold: if is_cold { invocations } else { 0 },
                failed: now.failed().saturating_sub(then.failed()),
                latencies: latencies.collect(),
            };
            (start, counted)
        };
        after.starts.iter().map(of_start).collect()
    }

    fn start_row(&self, ever: u64, seconds: f64) -> StartRow {
        let rates = self.rates(seconds);
        StartRow {
            per_second: rates.per_second,
            failed_per_second: rates.failed_per_second,
            p50_ms: rates.p50_ms,
            p99_ms: rates.p99_ms,
            invocations: ever,
        }
    }

    fn add(&mut self, other: &Self) {
        self.invocations += other.invocations;
        self.cold += other.cold;
        self.failed += other.failed;
        for (bound, count) in &other.latencies {
            *self.latencies.entry(*bound).or_default() += count;
        }
    }

    fn rates(&self, seconds: f64) -> Row {
        Row {
            per_second: self.invocations as f64 / seconds,
            cold_per_second: self.cold as f64 / seconds,
            failed_per_second: self.failed as f64 / seconds,
            p50_ms: quantile_ms(&self.latencies, 0.5),
            p99_ms: quantile_ms(&self.latencies, 0.99),
            ..Row::default()
        }
    }

    fn row(&self, function: &FunctionStats, seconds: f64) -> Row {
        let instances = &function.instances;
        Row {
            name: function.name.to_string(),
            invocations: function.starts.values().map(StartStats::invocations).sum(),
            instances: instances.len() as u64,
            in_flight: instances.iter().map(|i| u64::from(i.in_flight)).sum(),
            waiting: function.waiting,
            memory_bytes: instances.iter().map(|i| i.memory_bytes).sum(),
            evicted_bytes: instances.iter().map(|i| i.evicted_bytes).sum(),
            ..self.rates(seconds)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn stats(at: i64, functions: &[(&str, &str, u64, u64)]) -> Stats {
        let one = |(name, start, count, failed): &(&str, &str, u64, u64)| FunctionStats {
            name: name.parse().unwrap(),
            starts: [(
                (*start).to_owned(),
                StartStats {
                    answered: *count,
                    errors: [("5xx".to_owned(), *failed)].into(),
                    latencies: [(1_000, *count)].into(),
                    ..StartStats::default()
                },
            )]
            .into(),
            instances: Vec::new(),
            waiting: 1,
            snapshot: None,
        };
        Stats {
            at_unix_ms: at,
            gateways: 1,
            workers: Vec::new(),
            functions: functions.iter().map(one).collect(),
        }
    }

    #[test]
    fn rates_are_those_between_two_readings_and_the_busiest_comes_first() {
        let before = stats(1_000, &[("idle", "warm", 100, 3), ("busy", "restored", 10, 0)]);
        let after = stats(
            3_000,
            &[
                ("idle", "warm", 102, 3),
                ("busy", "restored", 30, 2),
                ("new", "warm", 4, 0),
            ],
        );
        let view = View::between(&before, &after);
        let names: Vec<_> = view.functions.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["busy", "new", "idle"]);
        let busy = &view.functions[0];
        assert_eq!(
            (busy.per_second, busy.cold_per_second, busy.failed_per_second),
            (10.0, 10.0, 1.0)
        );
        assert!(busy.p50_ms.is_some_and(|ms| ms > 0.5 && ms <= 1.0), "{busy:?}");
        assert_eq!(
            (view.total.per_second, view.total.invocations, view.total.waiting),
            (13.0, 136, 3)
        );
        let start = &busy.starts["restored"];
        assert_eq!(
            (start.per_second, start.failed_per_second, start.invocations),
            (10.0, 1.0, 30)
        );
    }

    #[test]
    fn counts_that_begin_anew_are_no_negative_rate() {
        let (before, after) = (stats(0, &[("a", "warm", 100, 0)]), stats(1_000, &[("a", "warm", 3, 0)]));
        assert_eq!(View::between(&before, &after).total.per_second, 0.0);
    }
}
