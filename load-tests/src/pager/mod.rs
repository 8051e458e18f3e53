//! `rekindle-bench pager`: the cost of a page fault to its thread, and of the pager to its host. Real processes run the
//! workloads of the reference (`kinds`) on memory provided in several ways. They run with and without the pager, in
//! turn, on an idle machine and on a busy one.
//!
//! ```text
//! rekindle-bench pager ── one at a time ──> rekindle-bench pager-process   (its memory, CRIU's part,
//!      └ the real pager  <── userfaultfd ──────┘                      the workload, the clock)
//! ```

mod case;
pub(crate) mod child;
pub(crate) mod content;
mod floor;
pub(crate) mod kinds;
pub(crate) mod process;
pub(crate) mod workload;

use anyhow::{Context as _, Result};

use crate::record::{Record, Row};
use case::Case;
use child::Busy;
use kinds::{Backing, Workload, name};

/// `rekindle-bench pager`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PagerArgs {
    /// How often each workload runs on each backing.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long it runs.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    millis: u64,
    /// How much restored memory it has.
    #[arg(
        long,
        value_name = "PAGES",
        default_value_t = 16_384,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    pages: u64,
    /// Only these workloads.
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these backings of the memory.
    #[arg(long, value_enum, value_delimiter = ',')]
    backings: Vec<Backing>,
    /// Only on the machine as it is, not again with every core kept busy by others.
    #[arg(long)]
    idle_only: bool,
}

/// Measures.
pub(crate) fn run(args: &PagerArgs) -> Result<Record> {
    let (workloads, backings) = (
        chosen(&args.workloads, &Workload::ALL),
        chosen(&args.backings, &Backing::ALL),
    );
    let mut record = Record::begin("pager");
    let pages = args.pages.next_multiple_of(16);
    record.fact(
        "runs",
        format!(
            "{} rounds of {} ms, {} MiB restored",
            args.rounds,
            args.millis,
            pages * 4 / 1024
        ),
    );
    record.baseline("memory", name(Backing::Anonymous));
    record.baseline("memory", name(Backing::File));
    let regimes: &[bool] = if args.idle_only { &[false] } else { &[false, true] };
    for busy in regimes {
        let others = busy.then(|| Busy::start(record.machine.cores)).transpose()?;
        let machine = match busy {
            true => "every core kept busy by others",
            false => "the machine as it is",
        };
        for round in 0..args.rounds {
            eprintln!("round {} of {}, {machine}", round + 1, args.rounds);
            if !busy {
                record.cpu_loop();
            }
            for workload in &workloads {
                for backing in &backings {
                    let case = Case {
                        workload: *workload,
                        backing: *backing,
                        machine,
                    };
                    let ran = case.run(&mut record, pages, args.millis);
                    ran.with_context(|| format!("{} by {}", name(*workload), name(*backing)))?;
                }
            }
            let row = Row::of(
                "A word to a sleeping thread and its answer, by pipes",
                &[("machine", &machine)],
            );
            let took = floor::measure()?;
            record
                .series(&row, "took", "µs")
                .values
                .add(took.into_iter().map(|us| (us, 1)));
        }
        drop(others);
    }
    Ok(record)
}

fn chosen<T: Copy>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { named.to_vec() }
}
