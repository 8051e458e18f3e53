//! Simulates a cluster in virtual time. Workers, gateways and requests are modelled; every decision about them is the
//! scheduler's own (`fleet`, `placement`). It serves capacity planning, and shows that no sequence of failures breaks
//! an invariant: invariants are checked throughout, and a violation ends the simulation with a panic.
//!
//! ```text
//!   arrivals ──> gateway ──holds a lease with a free slot──────────────> instance ──> done
//!                   └──────> fleet, place ──use, start, wait──> lease ──────┘
//!   heartbeats, ticks, lease reports, failures, drains, moves: at their times
//! ```
//!
//! The model:
//!
//! - Requests are a Poisson process, functions follow Zipf's law, and durations are lognormal.
//! - An invocation takes as much longer as its worker has more invocations than processors.
//! - Starts take what `fleet::cost` says of the tier that the worker really has.

use serde::Serialize;

mod changes;
mod checks;
mod gateways;
mod hosts;
mod random;
mod report;
mod requests;
mod timing;
mod workload;
mod world;

#[cfg(test)]
mod tests;

pub use report::Report;
pub use timing::{Timing, TimingReport, time_placements};

/// What to simulate.
#[derive(Debug, Clone, Serialize)]
pub struct Setup {
    /// Number of workers.
    pub workers: usize,
    /// Number of functions.
    pub functions: usize,
    /// Number of zones, with as many workers in each.
    pub zones: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Processors of a worker.
    pub cpus: u32,
    /// Memory that a worker may give to instances, bytes.
    pub memory: u64,
    /// Requests a second, over all functions.
    pub rate: f64,
    /// Skew of the functions' popularity: the n-th has the weight 1/n to this power.
    pub skew: f64,
    /// Virtual time, seconds.
    pub seconds: u64,
    /// Seconds between two failures of workers, alternately killed and cut off; 0 for none. Each is back after a
    /// minute.
    pub fail_every: f64,
    /// Seconds between two drains of a worker, each for a minute; 0 for none.
    pub drain_every: f64,
    /// Share of its processors in use from which a worker is hot; 0 for no rebalancing.
    pub rebalance_at: f64,
    /// Seed: the same one gives the same run.
    pub seed: u64,
}

impl Default for Setup {
    /// The cluster of docs/explanation/scaling.md.
    fn default() -> Self {
        Self {
            workers: 10_000,
            functions: 50_000,
            zones: 3,
            gateways: 16,
            cpus: 4,
            memory: 16 << 30,
            rate: 30_000.0,
            skew: 1.0,
            seconds: 300,
            fail_every: 2.0,
            drain_every: 10.0,
            rebalance_at: 0.85,
            seed: 1,
        }
    }
}

/// Runs the simulation.
///
/// # Panics
/// If an invariant is violated: a worker over its capacity, or a lease held twice. Likewise for an instance on a worker
/// long gone, or a decision for a worker that takes nothing new. The message has the seed and the time.
#[must_use]
pub fn simulate(setup: &Setup) -> Report {
    world::World::new(setup.clone()).run()
}
