//! `rekindle-bench placement` and `simulate`: the scheduler alone, on clusters larger than any machine here could be.
//! The decisions are the scheduler's own code; workers and requests are simulated ([`rekindle_scheduler::simulation`]).

mod placement;
mod simulate;

use std::path::PathBuf;

use rekindle_scheduler::simulation::Setup;
use serde::Serialize;

use crate::record::Taken;

pub(crate) use placement::{PlacementArgs, run as place};
pub(crate) use simulate::{SimulateArgs, run as simulate};

/// Size of the simulated cluster.
#[derive(Debug, Clone, clap::Args)]
struct SizeArgs {
    /// Number of workers.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: u32,
    /// Number of functions.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// Skew of functions' popularity: the n-th is called as often as 1/n to this power.
    #[arg(long, value_name = "POWER", default_value_t = 1.0)]
    skew: f64,
    /// Seed of the random numbers: the same seed gives the same cluster.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-COMMAND.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

impl SizeArgs {
    fn setup(&self) -> Setup {
        Setup {
            workers: self.workers as usize,
            functions: self.functions as usize,
            skew: self.skew,
            seed: self.seed,
            ..Setup::default()
        }
    }
}

/// Common head of every record of figures.
#[derive(Debug, Clone, Serialize)]
struct Head {
    #[serde(flatten)]
    taken: Taken,
    setup: Setup,
}

impl Head {
    fn begin(setup: Setup) -> Self {
        Self {
            taken: Taken::now(),
            setup,
        }
    }

    fn print(&self) {
        println!("\n{}", self.taken);
        let Setup {
            workers,
            functions,
            zones,
            skew,
            seed,
            ..
        } = &self.setup;
        println!("{workers} workers in {zones} zones, {functions} functions of popularity 1/n^{skew}, seed {seed}");
    }
}
