//! `rekindle-bench many`: many restores at the same moment, of one snapshot and of different ones, through the whole
//! platform. The duration of each grows with their number, since they share the processors; its processor time should
//! not.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use rekindle_testkit::{Folder, Platform, processes};

use crate::args::Args;
use crate::machine;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};
use crate::subject::ms_since;
use crate::table::number;

const TABLE: &str = "Restores at the same moment, from the requests until each answer";
/// Settings deployed in place of the sample's own.
const SETTINGS: [(&str, &str); 3] = [
    ("max_instances", "1000"),
    ("idle", "\"600s\""),
    ("memory", "\"128MiB\""),
];
/// Restores until the working set of a snapshot is known, and some more.
const WARM_UP: usize = 5;
/// Limit for the pool to be full again.
const FULL_LIMIT: Duration = Duration::from_secs(60);

/// `rekindle-bench many`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManyArgs {
    /// How many at once, one number after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    at_once: Vec<usize>,
    /// Minimum number of restores for each number at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    restores: usize,
    /// Number of different snapshots for the restores that are not all of one.
    #[arg(long, value_name = "N", default_value_t = 16)]
    snapshots: usize,
    /// A folder below functions/samples.
    #[arg(long, value_name = "NAME", default_value = "touch-python")]
    sample: String,
}

/// Measures.
pub(crate) async fn run(args: &Args, many: &ManyArgs) -> Result<Record> {
    let mut record = Record::begin("many");
    record.fact("sample", &many.sample);
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    // Each with a snapshot of its own.
    let functions: Vec<String> = (0..many.snapshots.max(1)).map(|n| format!("many-{n}")).collect();
    for name in &functions {
        let folder = Folder::of(&format!("functions/samples/{}", many.sample))?;
        folder.set(name, &SETTINGS)?;
        platform.deployed(&folder)?;
    }
    platform.remove_instances()?;
    let ours = Ours::of(&platform, "");
    for function in &functions {
        for _ in 0..WARM_UP {
            let started = ours.start("restored", function, "/").await?;
            platform.remove_instance(started.instance())?;
        }
    }
    for at_once in &many.at_once {
        for snapshots in [1, functions.len()] {
            eprintln!("{at_once} at once of {snapshots}");
            let rounds = many.restores.div_ceil(*at_once);
            measure(&mut record, &platform, &ours, &functions[..snapshots], *at_once, rounds).await?;
        }
    }
    let row = |at_once| Row::of(TABLE, &[("at once", at_once), ("snapshots", &1)]);
    if let (Some(first), Some(last)) = (many.at_once.first(), many.at_once.last())
        && let (Some(one), Some(all)) = (record.median(&row(first), CPU), record.median(&row(last), CPU))
    {
        let times = number(all / one);
        let finding = format!("{last} at once cost {times} times the processor time of {first} for each");
        record.findings.push(finding);
    }
    judge(&mut record, many);
    Ok(record)
}

/// The targets of docs/reference/speed.md, which are for this many at once.
const JUDGED_AT: usize = 64;
const CPU_MOST_MS: f64 = 4.0;
const RATE_LEAST: f64 = 250.0;

fn judge(record: &mut Record, many: &ManyArgs) {
    if !many.at_once.contains(&JUDGED_AT) {
        return;
    }
    let row = Row::of(TABLE, &[("at once", &JUDGED_AT), ("snapshots", &1)]);
    if let Some(each) = record.median(&row, CPU) {
        let target = format!("{JUDGED_AT} at once: at most {CPU_MOST_MS} ms of processor time each");
        record.bar(&target, number(each), each <= CPU_MOST_MS);
    }
    if let Some(rate) = record.median(&row, RATE) {
        let target = format!("{JUDGED_AT} at once: at least {RATE_LEAST} restores a second");
        record.bar(&target, number(rate), rate >= RATE_LEAST);
    }
}

/// Restores from the requests to the last answer.
const RATE: &str = "restores";
/// Processor time of the platform and its sandboxes for each restore, including the sandboxes made as replacements.
const CPU: &str = "CPU of each";
/// The same until the last answer: replacements are made meanwhile, but not all of them.
const CPU_UNTIL_ANSWERED: &str = "until answered";
/// Processor time of the whole machine: also of the kernel's own threads, of this program, and of the copies' ends.
const CPU_OF_MACHINE: &str = "of the machine";

async fn measure(
    record: &mut Record,
    platform: &Platform,
    ours: &Ours,
    functions: &[String],
    at_once: usize,
    rounds: usize,
) -> Result<()> {
    let row = Row::of(TABLE, &[("at once", &at_once), ("snapshots", &functions.len())]);
    let (root, restores) = (platform.pid().cast_unsigned(), (rounds * at_once) as f64);
    let made = || platform.worker_metric("rekindle_sandboxes_taken_total{from=\"made\"}");
    let (mut under_way, mut cpu_ms, mut answered_ms, made_before) = (0.0, 0.0, 0.0, made());
    filled(platform).await?;
    let machine_before = machine::busy_ms();
    for _ in 0..rounds {
        filled(platform).await?;
        let before = processes::cpu_ms(root);
        let started = Instant::now();
        let all = (0..at_once).map(|n| async move {
            let answered = ours.start("restored", &functions[n % functions.len()], "/").await?;
            anyhow::Ok((answered, ms_since(started)))
        });
        let answered = try_join_all(all).await?;
        under_way += started.elapsed().as_secs_f64();
        answered_ms += processes::cpu_ms(root) - before;
        // Replacing what was taken from the pool is part of the cost of these restores.
        filled(platform).await?;
        cpu_ms += processes::cpu_ms(root) - before;
        for (answered, ms) in answered {
            record.push(&row, "answer", "ms", ms);
            platform.remove_instance(answered.instance())?;
        }
    }
    record.in_blocks(&row, at_once);
    filled(platform).await?;
    record.push(&row, RATE, "a second", restores / under_way);
    record.push(&row, CPU, "ms", cpu_ms / restores);
    record.push(&row, CPU_UNTIL_ANSWERED, "ms", answered_ms / restores);
    let machine_ms = machine::busy_ms() - machine_before;
    record.push(&row, CPU_OF_MACHINE, "ms", machine_ms / restores);
    record.push(&row, "not from the pool", "", made() - made_before);
    record.cpu_loop();
    Ok(())
}

async fn filled(platform: &Platform) -> Result<()> {
    let deadline = Instant::now() + FULL_LIMIT;
    let level = |name| platform.worker_metric(name);
    while level("rekindle_sandboxes_ready") < level("rekindle_sandboxes_wanted") {
        ensure!(Instant::now() < deadline, "the pool is not full within {FULL_LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
