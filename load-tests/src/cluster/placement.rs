//! Placements a second on one core, and the duration of one.

use anyhow::Result;
use hdrhistogram::Histogram;
use rekindle_scheduler::simulation::{Timed, Timing, time_placements};
use serde::Serialize;

use super::{Head, SizeArgs};
use crate::record;
use crate::report::table;

/// `rekindle-bench placement`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlacementArgs {
    #[command(flatten)]
    size: SizeArgs,
    /// Number of running instances; half of them are leased.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    instances: u32,
    /// Placements that are timed in each round.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    placements: u32,
    /// Rounds, each with the next seed.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
}

#[derive(Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    head: Head,
    rounds: Vec<Round>,
}

#[derive(Debug, Serialize)]
struct Round {
    seed: u64,
    instances: u64,
    used: u64,
    started: u64,
    waited: u64,
    /// Including the returns between them.
    per_second: f64,
    /// By processor time, without what others on the machine took.
    per_cpu_second: Option<f64>,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

impl Round {
    fn of(seed: u64, timed: &Timed) -> Result<Self> {
        let mut histogram = Histogram::<u64>::new(3)?;
        for ns in &timed.placement_ns {
            histogram.record((*ns).max(1))?;
        }
        let at = |percent| histogram.value_at_percentile(percent);
        Ok(Self {
            seed,
            instances: timed.instances,
            used: timed.used,
            started: timed.started,
            waited: timed.waited,
            per_second: timed.placement_ns.len() as f64 / timed.elapsed.as_secs_f64(),
            per_cpu_second: timed.cpu.map(|cpu| timed.placement_ns.len() as f64 / cpu.as_secs_f64()),
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p999_ns: at(99.9),
            max_ns: histogram.max(),
        })
    }
}

/// Measures, writes, prints.
pub(crate) fn run(args: &PlacementArgs) -> Result<()> {
    let setup = args.size.setup();
    let mut record = Record {
        head: Head::begin(setup.clone()),
        rounds: Vec::new(),
    };
    for seed in (args.size.seed..).take(args.rounds as usize) {
        let timing = Timing {
            setup: rekindle_scheduler::simulation::Setup { seed, ..setup.clone() },
            instances: args.instances as usize,
            placements: args.placements as usize,
        };
        record.rounds.push(Round::of(seed, &time_placements(&timing))?);
    }
    let path = record.head.taken.place(args.size.json.as_deref(), "-placement");
    record::write_json(&record, &path)?;
    record.head.print();
    println!(
        "\nOne placement and what it changes in memory, on one core, µs; per second with what is given back between two"
    );
    let mut rows = table(
        &[
            "seed",
            "instances",
            "taken",
            "started",
            "waited",
            "per second",
            "of its own time",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
        ],
        1,
    );
    for round in &record.rounds {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        rows.add_row([
            round.seed.to_string(),
            round.instances.to_string(),
            round.used.to_string(),
            round.started.to_string(),
            round.waited.to_string(),
            format!("{:.0}", round.per_second),
            round
                .per_cpu_second
                .map_or_else(|| "-".to_owned(), |n| format!("{n:.0}")),
            us(round.p50_ns),
            us(round.p90_ns),
            us(round.p99_ns),
            us(round.p999_ns),
            us(round.max_ns),
        ]);
    }
    println!("{rows}\n\nfigures: {}", record::told(&path));
    Ok(())
}
