//! `rekindle-bench pager`: the cost of a page fault to its thread, and of the pager to its host. Real processes run the
//! workloads of the reference (`kinds`) on memory provided in several ways. They run with and without the pager, in
//! turn, on an idle machine and on a busy one.
//!
//! ```text
//! rekindle-bench pager ── one at a time ──> rekindle-bench pager-process   (its memory, CRIU's part, the workload, the clock)
//!      └ the real pager  <── userfaultfd ──────┘
//! ```

pub(crate) mod case;
pub(crate) mod child;
pub(crate) mod content;
mod floor;
pub(crate) mod kinds;
pub(crate) mod process;
mod report;
pub(crate) mod workload;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::machine;
use crate::record::{self, Taken};
use case::{Case, Latency};
use child::Busy;
use kinds::{Way, Workload, name};

/// `rekindle-bench pager`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PagerArgs {
    /// How often each workload runs in each way.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long it runs.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    millis: u64,
    /// How much restored memory it has.
    #[arg(long, value_name = "PAGES", default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pages: u64,
    /// Only these workloads.
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these ways of providing memory.
    #[arg(long, value_enum, value_delimiter = ',')]
    ways: Vec<Way>,
    /// Only on the machine as it is, not again with every core kept busy by others.
    #[arg(long)]
    idle_only: bool,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-pager.json.
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
    /// A bare message to another thread and its answer: idle, busy.
    floor: Vec<Latency>,
    cpu_loop_ms: Vec<f64>,
    cases: Vec<Case>,
}

/// Measures, writes, prints.
pub(crate) fn run(args: &PagerArgs) -> Result<()> {
    let (workloads, ways) = (chosen(&args.workloads, &Workload::ALL), chosen(&args.ways, &Way::ALL));
    let mut record = Record {
        taken: Taken::now(),
        rounds: args.rounds,
        millis: args.millis,
        pages: args.pages.next_multiple_of(16),
        floor: Vec::new(),
        cpu_loop_ms: Vec::new(),
        cases: Vec::new(),
    };
    let regimes: &[bool] = if args.idle_only { &[false] } else { &[false, true] };
    for busy in regimes {
        let others = busy.then(|| Busy::start(record.taken.machine.cores)).transpose()?;
        let mut floor = Latency::new()?;
        let first = record.cases.len();
        for workload in &workloads {
            for way in &ways {
                record.cases.push(Case::new(*workload, *way, *busy)?);
            }
        }
        for round in 0..args.rounds {
            eprintln!(
                "round {} of {}{}",
                round + 1,
                args.rounds,
                if *busy { ", busy" } else { "" }
            );
            record.cpu_loop_ms.push(machine::cpu_loop());
            floor::measure(&mut floor.histogram)?;
            for case in &mut record.cases[first..] {
                case.run(record.pages, record.millis)
                    .with_context(|| format!("{} by {}", name(case.workload), name(case.way)))?;
            }
        }
        floor.read();
        record.floor.push(floor);
        drop(others);
    }
    for case in &mut record.cases {
        case.first_touches.read();
        case.waited.read();
    }
    let path = record.taken.place(args.json.as_deref(), "-pager");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

fn chosen<T: Copy>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named.to_vec() }
}
