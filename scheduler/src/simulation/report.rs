//! The results of a simulation.

use serde::Serialize;

/// Counts, and how evenly the workers were loaded.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Seed of the run.
    pub seed: u64,
    /// Requests.
    pub requests: u64,
    /// Requests on a slot that their gateway held: the scheduler was not asked.
    pub leased: u64,
    /// Requests on an instance that the scheduler leased anew.
    pub warm: u64,
    /// Requests on a parked instance.
    pub parked: u64,
    /// Requests on an instance restored from an open template.
    pub from_template: u64,
    /// Requests on an instance restored from chunks on the worker's disk.
    pub from_disk: u64,
    /// Requests on an instance restored from the store.
    pub from_store: u64,
    /// Asks that had to wait.
    pub waited: u64,
    /// Asks that waited in vain and were refused.
    pub refused: u64,
    /// Requests that were in an instance when its worker failed, or found it out of reach three times.
    pub lost: u64,
    /// Requests that were placed again since they had not reached their instance.
    pub again: u64,
    /// Placement decisions.
    pub placements: u64,
    /// Real time of the placements and what carries them out, nanoseconds.
    pub placing_ns: u64,
    /// Real time of the whole run, milliseconds.
    pub real_ms: u64,
    /// Workers that failed, including those that were cut off.
    pub failures: u64,
    /// Failed workers that kept running, cut off.
    pub cut_off: u64,
    /// Workers that were drained.
    pub drains: u64,
    /// Instances that moved off draining workers.
    pub evacuated: u64,
    /// Instances that moved off hot workers.
    pub rebalanced: u64,
    /// Instances at the end.
    pub instances: u64,
    /// Greatest ratio of the busiest worker's load to the mean, after the first quarter.
    pub imbalance_max: f64,
    /// Average of that ratio.
    pub imbalance_mean: f64,
    /// Mean load of a worker's processors after the first quarter.
    pub load_mean: f64,
    /// Number of times that everything was checked.
    pub checks: u64,
    #[serde(skip)]
    pub(super) samples: u64,
}

impl Report {
    /// Requests that were served, by how.
    #[must_use]
    pub fn served(&self) -> [(&'static str, u64); 6] {
        [
            ("slot held by the gateway", self.leased),
            ("warm", self.warm),
            ("parked", self.parked),
            ("restored from a template", self.from_template),
            ("restored from the disk", self.from_disk),
            ("restored from the store", self.from_store),
        ]
    }

    /// Placements a second of real time.
    #[must_use]
    pub fn placements_per_second(&self) -> f64 {
        self.placements as f64 * 1e9 / (self.placing_ns.max(1)) as f64
    }

    /// Records a sample of the loads of all workers.
    pub(super) fn sample(&mut self, loads: impl Iterator<Item = f64> + Clone) {
        let count = loads.clone().count().max(1);
        let mean = loads.clone().sum::<f64>() / count as f64;
        let most = loads.fold(0.0, f64::max);
        if mean > 0.0 {
            let n = self.samples as f64;
            self.samples += 1;
            let ratio = most / mean;
            self.imbalance_max = self.imbalance_max.max(ratio);
            self.imbalance_mean = (self.imbalance_mean * n + ratio) / (n + 1.0);
            self.load_mean = (self.load_mean * n + mean) / (n + 1.0);
        }
    }
}
