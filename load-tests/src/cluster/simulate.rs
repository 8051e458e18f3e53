//! A large cluster in virtual time, with failing workers.

use anyhow::Result;
use rekindle_scheduler::simulation::{Report, Setup, simulate};
use serde::Serialize;

use super::{Head, SizeArgs};
use crate::record;
use crate::report::table;

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

#[derive(Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    head: Head,
    report: Report,
}

/// Simulates, writes, prints.
pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    let setup = Setup {
        rate: args.rate,
        seconds: args.seconds,
        fail_every: args.fail_every,
        drain_every: args.drain_every,
        rebalance_at: f64::from(args.rebalance_at) / 100.0,
        ..args.size.setup()
    };
    eprintln!("seed {}", setup.seed);
    let head = Head::begin(setup.clone());
    let record = Record {
        head,
        report: simulate(&setup),
    };
    let path = record.head.taken.place(args.size.json.as_deref(), "-simulate");
    record::write_json(&record, &path)?;
    record.head.print();
    print(&setup, &record.report);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

fn print(setup: &Setup, report: &Report) {
    let percent = |n: u64| format!("{:.3} %", n as f64 * 100.0 / report.requests.max(1) as f64);
    println!(
        "\n{} s of virtual time, {:.0} requests a second; in real time {:.0} s",
        setup.seconds,
        setup.rate,
        report.real_ms as f64 / 1e3
    );
    let mut rows = table(&["requests", "number", "share"], 1);
    let others = [
        ("had to wait for a slot", report.waited),
        ("refused after 10 s", report.refused),
        ("placed again, as their worker was out of reach", report.again),
        ("lost with their worker", report.lost),
    ];
    for (name, count) in report.served().into_iter().chain(others) {
        rows.add_row([name.to_owned(), count.to_string(), percent(count)]);
    }
    println!("{rows}\n");
    let mut rows = table(&["", "number"], 1);
    for (name, value) in [
        ("placements", report.placements.to_string()),
        (
            "placements a second of real time",
            format!("{:.0}", report.placements_per_second()),
        ),
        ("instances at the end", report.instances.to_string()),
        ("workers that failed", report.failures.to_string()),
        ("of them cut off", report.cut_off.to_string()),
        ("workers that were drained", report.drains.to_string()),
        (
            "instances that moved off draining workers",
            report.evacuated.to_string(),
        ),
        ("instances that moved off hot workers", report.rebalanced.to_string()),
        ("mean load of processors", format!("{:.1} %", report.load_mean * 100.0)),
        (
            "busiest worker over the mean, on average",
            format!("{:.2}", report.imbalance_mean),
        ),
        ("the same at its greatest", format!("{:.2}", report.imbalance_max)),
        ("times that all was checked", report.checks.to_string()),
    ] {
        rows.add_row([name.to_owned(), value]);
    }
    println!("{rows}");
}
