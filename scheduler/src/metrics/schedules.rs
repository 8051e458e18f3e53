//! The scheduler's metrics of schedules.

use std::time::Duration;

use rekindle_telemetry::metrics::{Counter, Desc, Family, Histogram, Registry};

use super::FUNCTION;

const RUNS: Desc = Desc::new(
    "rekindle.schedule.runs",
    "{run}",
    &[FUNCTION, "outcome"],
    "Runs of schedules: `fired`; `known`, queued by an earlier leader; `by_hand`; `skipped`, as the one before went \
     on; `missed`; `refused` by the queue, and tried again.",
);
const LATENESS: Desc = Desc::new(
    "rekindle.schedule.lateness",
    "s",
    &[],
    "From when a run was due until it was queued.",
);

pub(crate) struct ScheduleMetrics {
    runs: Family<Counter, 2>,
    lateness: Family<Histogram, 0>,
}

impl ScheduleMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            runs: registry.family(&RUNS),
            lateness: registry.family(&LATENESS),
        }
    }

    /// Counts runs.
    pub(crate) fn ran(&self, function: &str, outcome: &'static str, runs: u64) {
        self.runs.with([function, outcome]).add(runs);
    }

    /// Records how late a run was queued.
    pub(crate) fn was_late(&self, late: Duration) {
        self.lateness.with([]).record(late);
    }
}
