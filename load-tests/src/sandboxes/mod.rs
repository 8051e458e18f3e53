//! `rekindle-bench sandboxes`: the cost of a sandbox, compared with the bare floor of this machine; alone, many at
//! once, and many in a row.
//!
//! ```text
//! floor  ─► a process of one thread: clone with namespaces, pivot_root, exit: without and with a network,
//!           with a control group
//! making ─► ours step by step, from nothing to gone: lean (what the floor has) and whole (a waiting CRIU
//!           and a link, too)
//! crowd  ─► both, 1 to 16 at once
//! row    ─► 10,000 through a pool: take, furnish, end; what has grown
//! ```

pub(crate) mod floor;
mod making;
mod row;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::machine;
use crate::record::{Record, Row};
use crate::table::number;
use making::{Place, SandboxKind};

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
}

/// Titles of the tables.
const ALONE: &str = "One at a time";
const STEPS: &str = "Steps of ours as the pool makes them";
const AT_ONCE: &str = "Many at once, from nothing to gone";
/// The kinds of bare floors.
const FLOORS: [&str; 3] = [
    "bare floor: clone, pivot_root, exit",
    "… with a network namespace",
    "… and a control group",
];
/// Ours of the same parts, in control groups that are used again.
const AGAIN: &str = "… in a control group that is used again";
/// Target for a new one, as a multiple of the bare floor of the same parts.
const NEW_BAR: f64 = 1.5;

/// Measures.
pub(crate) fn run(args: &Args, sandboxes: &SandboxesArgs) -> Result<Record> {
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

async fn measure(args: &Args, sandboxes: &SandboxesArgs) -> Result<Record> {
    let mut record = Record::begin("sandboxes");
    record.baseline("", FLOORS[2]);
    let place = Arc::new(Place::make(args, !sandboxes.no_egress).await?);
    let alone = |name: &str| Row::of(ALONE, &[("", &name)]);
    // In turn, so that any drift affects all.
    for _ in 0..sandboxes.count.div_ceil(ROUND) {
        for (kind, name) in FLOORS.into_iter().enumerate() {
            let taken = floors(&place, kind, 1, FLOOR_MS).await?.into_iter().take(ROUND);
            record.extend(&alone(name), "took", "ms", taken);
        }
        for _ in 0..ROUND {
            let lean = place.once(SandboxKind::Lean).await?;
            record.push(
                &alone("ours, of the same parts, from nothing to gone"),
                "took",
                "ms",
                lean.lean(),
            );
            let again = place.once(SandboxKind::Again).await?;
            record.push(&alone(AGAIN), "took", "ms", again.lean());
            let whole = place.once(SandboxKind::Whole).await?;
            let name = "ours, with CRIU and a link, from nothing to furnished";
            record.push(&alone(name), "took", "ms", whole.made());
            for (step, ms) in whole.told() {
                record.push(&Row::of(STEPS, &[("step", &step)]), "took", "ms", ms);
            }
        }
        record.cpu_loop();
    }
    for at_once in &sandboxes.at_once {
        eprintln!("{at_once} at once");
        crowd(&mut record, &place, *at_once, sandboxes.millis).await?;
    }
    if sandboxes.row > 0 {
        eprintln!("{} in a row", sandboxes.row);
        row::run(&mut record, &place, sandboxes.row).await?;
    }
    let p50 = |name: &str| record.median(&alone(name), "took");
    if let (Some(floor), Some(ours)) = (p50(FLOORS[2]), p50(AGAIN)) {
        let target = format!("a new one costs at most {NEW_BAR} times the bare floor of the same parts");
        record.bar(&target, number(ours / floor), ours / floor <= NEW_BAR);
    }
    Ok(record)
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

async fn crowd(record: &mut Record, place: &Arc<Place>, at_once: usize, millis: u64) -> Result<()> {
    let bare = floors(place, 2, at_once, millis).await?.len();
    let row = Row::of(AT_ONCE, &[("at once", &at_once)]);
    record.push(&row, "bare floor", "a second", bare as f64 * 1e3 / millis as f64);
    for (kind, name) in [(SandboxKind::Again, "ours, lean"), (SandboxKind::Whole, "ours, whole")] {
        let (a_second, cpu_ms) = ours(place, kind, at_once, millis).await?;
        record.push(&row, name, "a second", a_second);
        // Including what others used meanwhile.
        record.push(&row, &format!("CPU of each, {name}"), "ms", cpu_ms);
    }
    record.cpu_loop();
    Ok(())
}

/// Ours, by `at_once` concurrent tasks: how many a second, and the machine's processor time for each.
async fn ours(place: &Arc<Place>, kind: SandboxKind, at_once: usize, millis: u64) -> Result<(f64, f64)> {
    let started = Instant::now();
    let before = machine::busy_ms();
    let end = started + Duration::from_millis(millis);
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let place = Arc::clone(place);
            tokio::spawn(async move {
                let mut done = 0_usize;
                while Instant::now() < end {
                    place.once(kind).await?;
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
