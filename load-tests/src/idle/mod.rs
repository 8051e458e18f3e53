//! `rekindle-bench idle`: the cost to a process of evicting its unused memory. Four workloads (those of
//! `rekindle-bench pager`) use a quarter of their memory at a time, in three ways. All of it stays. The worker's own
//! evictor takes what is idle, also with DAMON if the kernel has it. Or the kernel alone reclaims into the same zram,
//! in a control group that may hold as much as the evictor left.
//!
//! ```text
//! rekindle-bench idle ── one at a time ──> rekindle-bench idle-process   (writes its memory, works on a
//!      │                                      │                            part of it, then on another)
//!      └ policy, looks, PAGEOUT ──────────────┘ swapped out and in by the kernel, zram
//! ```

mod case;
mod group;
pub(crate) mod process;

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rekindle_worker::idle::canary::Canary;
use rekindle_worker::idle::zram::{self, ZramDevice, ZramOwner, ZramPaths};

use crate::pager::kinds::{Workload, name};
use crate::record::{Plot, PlotKind, Record, Row};
use case::{Case, Eviction};

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
    /// How often each workload runs with each kind of eviction.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long it runs.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    millis: u64,
    /// How much memory it has.
    #[arg(
        long,
        value_name = "PAGES",
        default_value_t = 65_536,
        value_parser = clap::value_parser!(u64).range(64..=1 << 22)
    )]
    pages: u64,
    /// How long memory must be untouched before it is evicted.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    after: u64,
    /// Share of a processor for the evictor; a worker's has a twentieth.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    share: f64,
}

/// Titles of the tables, and what is in them.
const WORK: &str = "Work done while idle memory goes";
const TOUCHES: &str = "Touches of evicted pages";
const THROUGHPUT: &str = "throughput";
const RESIDENT: &str = "in memory";
const BACKGROUND: &str = "CPU of who evicts";
const KERNEL: &str = "CPU in the kernel";
const OUT: &str = "compressed";
const BACK: &str = "restored";
const TOOK: &str = "took";

/// Swap that exists as long as this value.
struct Swap(ZramDevice);

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(e) = self.0.take_down() {
            eprintln!("rekindle-bench: {e}");
        }
    }
}

/// Measures.
pub(crate) fn run(args: &IdleArgs) -> Result<Record> {
    let (places, owner) = (ZramPaths::default(), ZramOwner::of(OWNER));
    zram::sweep(&places, owner)?;
    let others = fs::read_to_string("/proc/swaps").context("no /proc/swaps")?;
    ensure!(
        others.lines().count() == 1,
        "there is a swap already, which would take part of it: swap it off"
    );
    let swap = Swap(ZramDevice::make(&places, owner, args.pages * rekindle_pager::PAGE * 2)?);
    let canary = Canary::new()?;
    let mut record = Record::begin("idle");
    record.fact(
        "runs",
        format!(
            "{} rounds of {} ms, {} MiB each, of which a quarter is in use; what is untouched for {} ms goes",
            args.rounds,
            args.millis,
            args.pages * 4 / 1024,
            args.after
        ),
    );
    record.baseline("idle memory", Eviction::Stays.told());
    let quiet = Row::of("A touch of an evicted page while nothing else is done", &[]);
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        record.cpu_loop();
        for _ in 0..QUIET_FAULTS {
            let sung = canary
                .measure_faults()
                .into_iter()
                .map(|took| (took.as_nanos() as f64 / 1e3, 1));
            record.series(&quiet, TOOK, "µs").values.add(sung);
        }
        let mut left = args.pages * rekindle_pager::PAGE;
        for workload in WORKLOADS {
            for eviction in Eviction::known() {
                let case = Case { workload, eviction };
                // The kernel may keep what the evictor kept just before, with the same workload.
                let ran = case.run(&mut record, args, Duration::from_millis(args.after), left);
                left = ran.with_context(|| format!("{} {}", name(workload), eviction.told()))?;
            }
        }
    }
    drop(swap);
    for (file, title, table, measures) in [
        (
            "idle-throughput",
            "Throughput while idle memory goes",
            WORK,
            vec![THROUGHPUT],
        ),
        ("idle-cpu", "Processor time for it", WORK, vec![BACKGROUND, KERNEL]),
        ("idle-faults", "Touches of evicted pages", TOUCHES, vec![TOOK]),
        ("idle-pages", "Pages in a run", WORK, vec![OUT, BACK]),
    ] {
        record.plots.push(Plot {
            file: file.to_owned(),
            title: title.to_owned(),
            only: Vec::new(),
            kind: PlotKind::Dots {
                table: table.to_owned(),
                measures: measures.into_iter().map(str::to_owned).collect(),
            },
        });
    }
    Ok(record)
}
