//! `rekindle-bench sandboxes`: the cost of a sandbox, compared with the bare floor of this machine; alone, many at
//! once, and many in a row.
//!
//! ```text
//! floor  ─► a process of one thread: clone with namespaces, pivot_root, exit         without, with a network, with a control group
//! making ─► ours step by step, from nothing to gone: lean (what the floor has) and whole (a waiting CRIU and a link, too)
//! crowd  ─► both, 1 to 16 at once
//! row    ─► 10,000 through a pool: take, furnish, end; what has grown
//! ```

pub(crate) mod floor;
mod making;
mod report;
mod row;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::args::Args;
use crate::machine;
use crate::record::{self, Taken};
use making::{Place, Steps, Way};
use row::Row;

/// `rekindle-bench sandboxes`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SandboxesArgs {
    /// Sandboxes of each kind, one at a time.
    #[arg(long, value_name = "N", default_value_t = 300)]
    count: usize,
    /// How many are made at once, one number after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12, 16])]
    at_once: Vec<usize>,
    /// How long each of those is measured, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    millis: u64,
    /// Sandboxes in a row through a pool; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    row: usize,
    /// Without links to a router: the host's network is left alone.
    #[arg(long)]
    no_egress: bool,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-sandboxes.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    /// The bare floor, milliseconds of each: without a network namespace, with one, and with a control group too.
    floors: [Vec<f64>; 3],
    /// Ours with the same parts as the last of these.
    lean: Vec<Steps>,
    /// The same in control groups that are reused.
    again: Vec<Steps>,
    /// Ours as the pool makes them.
    whole: Vec<Steps>,
    crowds: Vec<Crowd>,
    row: Option<Row>,
}

/// Sandboxes made several at once.
#[derive(Debug, Clone, Serialize)]
struct Crowd {
    at_once: usize,
    floor_a_second: f64,
    lean_a_second: f64,
    whole_a_second: f64,
    /// Processor time of the whole machine for each, milliseconds, including what others used meanwhile.
    lean_cpu_ms: f64,
    whole_cpu_ms: f64,
}

/// Measures, writes and prints.
pub(crate) fn run(args: &Args, sandboxes: &SandboxesArgs) -> Result<()> {
    // Several threads, as in the worker: a removal that blocks delays no other task.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    runtime.block_on(async {
        tokio::select! {
            outcome = measure(args, sandboxes) => outcome,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted: nothing was written"),
        }
    })
}

async fn measure(args: &Args, sandboxes: &SandboxesArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        floors: Default::default(),
        lean: Vec::new(),
        again: Vec::new(),
        whole: Vec::new(),
        crowds: Vec::new(),
        row: None,
    };
    let place = Arc::new(Place::make(args, !sandboxes.no_egress).await?);
    // In turn, so that any drift affects all.
    for _ in 0..sandboxes.count.div_ceil(ROUND) {
        for (kind, floor) in record.floors.iter_mut().enumerate() {
            floor.extend(floors(&place, kind, 1, FLOOR_MS).await?.into_iter().take(ROUND));
        }
        for _ in 0..ROUND {
            record.lean.push(place.once(Way::Lean).await?);
            record.again.push(place.once(Way::Again).await?);
            record.whole.push(place.once(Way::Whole).await?);
        }
    }
    for at_once in &sandboxes.at_once {
        eprintln!("{at_once} at once");
        record.crowds.push(crowd(&place, *at_once, sandboxes.millis).await?);
    }
    if sandboxes.row > 0 {
        eprintln!("{} in a row", sandboxes.row);
        record.row = Some(row::run(&place, sandboxes.row).await?);
    }
    let path = record.taken.place(sandboxes.json.as_deref(), "-sandboxes");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

/// Sandboxes of a kind before the next kind's turn.
const ROUND: usize = 20;
/// Enough for that many bare ones on any machine.
const FLOOR_MS: u64 = 150;

/// Bare floors of a kind, from `at_once` concurrent processes.
async fn floors(place: &Arc<Place>, kind: usize, at_once: usize, millis: u64) -> Result<Vec<f64>> {
    let place = Arc::clone(place);
    let measured = tokio::task::spawn_blocking(move || {
        let group = |n: usize| (kind == 2).then(|| format!("{}/floor-{n}", place.parent));
        let children = (0..at_once)
            .map(|n| floor::start(millis, place.root(), kind > 0, group(n).as_deref()))
            .collect::<Result<Vec<_>>>()?;
        let mut all = Vec::new();
        for child in children {
            all.extend(floor::finish(child)?);
        }
        Ok::<_, anyhow::Error>(all)
    });
    measured.await?
}

async fn crowd(place: &Arc<Place>, at_once: usize, millis: u64) -> Result<Crowd> {
    let bare = floors(place, 2, at_once, millis).await?.len();
    let (lean_a_second, lean_cpu_ms) = ours(place, Way::Again, at_once, millis).await?;
    let (whole_a_second, whole_cpu_ms) = ours(place, Way::Whole, at_once, millis).await?;
    Ok(Crowd {
        at_once,
        floor_a_second: bare as f64 * 1e3 / millis as f64,
        lean_a_second,
        whole_a_second,
        lean_cpu_ms,
        whole_cpu_ms,
    })
}

/// Ours, by `at_once` concurrent tasks: how many a second, and the machine's processor time for each.
async fn ours(place: &Arc<Place>, way: Way, at_once: usize, millis: u64) -> Result<(f64, f64)> {
    let started = Instant::now();
    let before = machine::busy_ms();
    let end = started + Duration::from_millis(millis);
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let place = Arc::clone(place);
            tokio::spawn(async move {
                let mut done = 0_usize;
                while Instant::now() < end {
                    place.once(way).await?;
                    done += 1;
                }
                Ok::<_, anyhow::Error>(done)
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    let (took, busy) = (started.elapsed().as_secs_f64(), machine::busy_ms() - before);
    Ok((done as f64 / took, busy / done.max(1) as f64))
}
