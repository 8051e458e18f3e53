//! A cluster that is played in virtual time: workers, gateways and requests are made up, every decision about them is the scheduler's own (`fleet`,
//! `placement`). For capacity planning, and to see that no sequence of failures breaks a promise: what must hold is checked all along, and
//! what does not ends the simulation with a panic.
//!
//! ```text
//!   arrivals ──> gateway ──holds a lease with a free slot──────────────> instance ──> done
//!                   └──────> fleet, place ──use, start, wait──> lease ──────┘
//!   heartbeats, ticks, lease reports, failures, drains, moves: at their times
//! ```
//!
//! What is made up: requests come as a Poisson process, functions by Zipf's law, durations are lognormal, an invocation takes as much longer as its
//! worker has more invocations than processors, starts take what `placement::cost` says of the tier that the worker truly has.

use serde::Serialize;

mod gateways;
mod hosts;
mod random;
mod report;
mod timing;
mod workload;
mod world;

#[cfg(test)]
mod tests;

pub use report::Report;
pub use timing::{Timed, Timing, time_placements};

/// What to play.
#[derive(Debug, Clone, Serialize)]
pub struct Setup {
    /// Workers.
    pub workers: usize,
    /// Functions.
    pub functions: usize,
    /// Zones, as many workers in each.
    pub zones: usize,
    /// Gateways.
    pub gateways: usize,
    /// Processors of a worker.
    pub cpus: u32,
    /// Memory that a worker may give to instances, bytes.
    pub memory: u64,
    /// Requests a second, all functions together.
    pub rate: f64,
    /// Functions' popularity: the n-th has the weight 1/n to this power.
    pub skew: f64,
    /// Virtual time, seconds.
    pub seconds: u64,
    /// Seconds between two workers that fail, killed or cut off by turns; 0 for none. Each is back after a minute.
    pub fail_every: f64,
    /// Seconds between two workers that are drained, for a minute; 0 for none.
    pub drain_every: f64,
    /// From what share of its processors on a worker is hot; 0 for no rebalancing.
    pub rebalance_at: f64,
    /// The same seed gives the same run.
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

/// Plays it.
///
/// # Panics
/// When something that must hold does not: a worker over its capacity, a lease held twice, an instance on a worker long gone, a decision for a worker that
/// takes nothing new. The message has the seed and the time.
#[must_use]
pub fn simulate(setup: &Setup) -> Report {
    world::World::new(setup.clone()).run()
}
