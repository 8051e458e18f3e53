//! `rekindle-bench placement` and `simulate`: the scheduler alone, on clusters larger than any machine here could be.
//! The decisions are the scheduler's own code; workers and requests are simulated ([`rekindle_scheduler::simulation`]).

use anyhow::Result;
use rekindle_scheduler::simulation::{Setup, Timing, simulate as play, time_placements};

use crate::record::{Record, Row};
use crate::stats::Rounded;

/// Size of the simulated cluster.
#[derive(Debug, Clone, clap::Args)]
struct SizeArgs {
    /// Number of workers.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: u32,
    /// Number of functions.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// Skew of functions' popularity: the n-th is called as often as 1/n to this power.
    #[arg(long, value_name = "POWER", default_value_t = 1.0)]
    skew: f64,
    /// Seed of the random numbers: the same seed gives the same cluster.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

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

/// `rekindle-bench simulate`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    size: SizeArgs,
    /// Requests a second, over all functions.
    #[arg(long, value_name = "N", default_value_t = 30_000.0)]
    rate: f64,
    /// Virtual time, seconds.
    #[arg(long, value_name = "S", default_value_t = 300)]
    seconds: u64,
    /// Seconds between two failures of workers, alternately killed and cut off, each for a minute; 0 for none.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    fail_every: f64,
    /// Seconds between two drains of a worker, each for a minute; 0 for none.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    drain_every: f64,
    /// Load from which instances move off a worker, percent; 0 for never.
    #[arg(long, value_name = "PERCENT", default_value_t = 85)]
    rebalance_at: u8,
}

impl SizeArgs {
    fn begin(&self, part: &str) -> (Record, Setup) {
        let setup = Setup {
            workers: self.workers as usize,
            functions: self.functions as usize,
            skew: self.skew,
            seed: self.seed,
            ..Setup::default()
        };
        let mut record = Record::begin(part);
        record.fact("workers", format!("{} in {} zones", setup.workers, setup.zones));
        record.fact(
            "functions",
            format!("{}, of popularity 1/n^{}", setup.functions, setup.skew),
        );
        record.fact("seed", setup.seed);
        (record, setup)
    }
}

/// Measures placements a second on one core, and the duration of one.
pub(crate) fn place(args: &PlacementArgs) -> Result<Record> {
    const TIMES: &str = "One placement and what it changes in memory, on one core";
    const RATES: &str = "Placements, with what is given back between two";
    let (mut record, setup) = args.size.begin("placement");
    for seed in (args.size.seed..).take(args.rounds as usize) {
        let timed = time_placements(&Timing {
            setup: Setup { seed, ..setup.clone() },
            instances: args.instances as usize,
            placements: args.placements as usize,
        });
        let mut times = Rounded::default();
        timed.placement_ns.iter().for_each(|ns| times.count(*ns));
        let series = record.series(&Row::of(TIMES, &[("seed", &seed)]), "took", "µs");
        series.values.add(times.over(1e3));
        let (row, count) = (Row::of(RATES, &[("seed", &seed)]), timed.placement_ns.len() as f64);
        record.push(&row, "placements", "a second", count / timed.elapsed.as_secs_f64());
        if let Some(cpu) = timed.cpu {
            record.push(&row, "of its own time", "a second", count / cpu.as_secs_f64());
        }
        for (name, value) in [
            ("instances", timed.instances),
            ("taken", timed.used),
            ("started", timed.started),
            ("waited", timed.waited),
        ] {
            record.push(&row, name, "", value as f64);
        }
        record.cpu_loop();
    }
    Ok(record)
}

/// Simulates a large cluster in virtual time, with failing workers.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<Record> {
    let (mut record, size) = args.size.begin("simulate");
    let setup = Setup {
        rate: args.rate,
        seconds: args.seconds,
        fail_every: args.fail_every,
        drain_every: args.drain_every,
        rebalance_at: f64::from(args.rebalance_at) / 100.0,
        ..size
    };
    eprintln!("seed {}", setup.seed);
    let report = play(&setup);
    record.fact(
        "time",
        format!(
            "{} s of virtual time, {:.0} requests a second; in real time {:.0} s",
            setup.seconds,
            setup.rate,
            report.real_ms as f64 / 1e3
        ),
    );
    let others = [
        ("had to wait for a slot", report.waited),
        ("refused after 10 s", report.refused),
        ("placed again, as their worker was out of reach", report.again),
        ("lost with their worker", report.lost),
    ];
    for (name, count) in report.served().into_iter().chain(others) {
        let row = Row::of("Requests", &[("requests", &name)]);
        record.push(&row, "number", "", count as f64);
        record.push(&row, "share", "%", count as f64 * 100.0 / report.requests.max(1) as f64);
    }
    for (name, value) in [
        ("placements", report.placements as f64),
        ("placements a second of real time", report.placements_per_second()),
        ("instances at the end", report.instances as f64),
        ("workers that failed", report.failures as f64),
        ("of them cut off", report.cut_off as f64),
        ("workers that were drained", report.drains as f64),
        ("instances that moved off draining workers", report.evacuated as f64),
        ("instances that moved off hot workers", report.rebalanced as f64),
        ("mean load of processors, %", report.load_mean * 100.0),
        ("busiest worker over the mean, on average", report.imbalance_mean),
        ("the same at its greatest", report.imbalance_max),
        ("times that all was checked", report.checks as f64),
    ] {
        record.push(&Row::of("The cluster", &[("what", &name)]), "number", "", value);
    }
    Ok(record)
}
