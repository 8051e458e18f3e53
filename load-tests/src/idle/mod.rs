//! `rekindle-bench idle`: the cost to a process of evicting its unused memory. Four workloads (those of
//! `rekindle-bench pager`) use a quarter of their memory at a time, in three ways. All of it stays. The worker's own
//! evictor takes what is idle, also with DAMON if the kernel has it. Or the kernel alone reclaims into the same zram,
//! in a control group that may hold as much as the evictor left.
//!
//! ```text
//! rekindle-bench idle ── one at a time ──> rekindle-bench idle-process   (writes its memory, works on a part of it, then on another)
//!      └ policy, looks, PAGEOUT ──────────────┘ swapped out and in by the kernel, zram
//! ```

mod case;
mod group;
mod plots;
pub(crate) mod process;
mod report;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rekindle_worker::idle::canary::Canary;
use rekindle_worker::idle::zram::{self, Device, Owner, Places};
use serde::Serialize;

use crate::machine;
use crate::pager::case::Latency;
use crate::pager::kinds::{Workload, name};
use crate::record::{self, Taken};
use case::{Case, Way};

/// Owner of the device, in case this program is killed.
const OWNER: &str = "rekindle-bench-idle";
/// The reference's four workloads.
const WORKLOADS: [Workload; 4] = [
    Workload::InteractiveBurst,
    Workload::AnonStreamer,
    Workload::RandomTouchHeap,
    Workload::MmapChurn,
];
/// Number of faults in each round without other activity.
const QUIET_FAULTS: u32 = 25;

/// `rekindle-bench idle`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct IdleArgs {
    /// How often each workload runs in each way.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long it runs.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    millis: u64,
    /// How much memory it has.
    #[arg(long, value_name = "PAGES", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(64..=1 << 22))]
    pages: u64,
    /// How long memory must be untouched before it is evicted.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    after: u64,
    /// Share of a processor for the evictor; a worker's has a twentieth.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    share: f64,
    /// Draw the plots into this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-idle.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    rounds: u32,
    millis: u64,
    pages: u64,
    after_ms: u64,
    share: f64,
    /// A touch of an evicted page without other activity, microseconds.
    restore: Latency,
    cpu_loop_ms: Vec<f64>,
    cases: Vec<Case>,
}

/// Swap that exists as long as this value.
struct Swap(Device);

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(e) = self.0.take_down() {
            eprintln!("rekindle-bench: {e}");
        }
    }
}

/// Measures, writes, prints.
pub(crate) fn run(args: &IdleArgs) -> Result<()> {
    let (places, owner) = (Places::default(), Owner::of(OWNER));
    zram::sweep(&places, owner)?;
    let others = fs::read_to_string("/proc/swaps").context("no /proc/swaps")?;
    ensure!(
        others.lines().count() == 1,
        "there is a swap already, which would take part of it: swap it off"
    );
    let swap = Swap(Device::make(&places, owner, args.pages * rekindle_pager::PAGE * 2)?);
    let canary = Canary::new()?;
    let mut record = Record {
        taken: Taken::now(),
        rounds: args.rounds,
        millis: args.millis,
        pages: args.pages,
        after_ms: args.after,
        share: args.share,
        restore: Latency::new()?,
        cpu_loop_ms: Vec::new(),
        cases: Vec::new(),
    };
    for workload in WORKLOADS {
        for way in Way::known() {
            record.cases.push(Case::new(workload, way)?);
        }
    }
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        record.cpu_loop_ms.push(machine::cpu_loop());
        for _ in 0..QUIET_FAULTS {
            for took in canary.sing() {
                record.restore.add(&[(u64::try_from(took.as_nanos())?, 1)])?;
            }
        }
        let mut left = args.pages * rekindle_pager::PAGE;
        for case in &mut record.cases {
            // The kernel may keep what the evictor kept just before, with the same workload.
            case.run(args, Duration::from_millis(args.after), left)
                .with_context(|| format!("{} {}", name(case.workload), case.way.told()))?;
            left = case.resident.last().map_or(left, |mib| (mib * 1048576.0) as u64);
        }
    }
    record.restore.read();
    for case in &mut record.cases {
        case.brought.read();
    }
    drop(swap);
    let path = record.taken.place(args.json.as_deref(), "-idle");
    record::write_json(&record, &path)?;
    report::print(&record);
    if let Some(directory) = &args.plots {
        plots::draw(&record, directory)?;
    }
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}
