//! `rekindle-bench many`: many restores at the same moment, of one snapshot and of different ones, through the whole
//! platform. The duration of each grows with their number, since they share the processors; its processor time should
//! not.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use serde::Serialize;

use crate::args::{Args, checkout};
use crate::host::Host;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::report::{ms, table};
use crate::stats::figures;
use crate::{folder, processes};

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
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-many.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    sample: String,
    rows: Vec<Row>,
}

/// Results for one number at once.
#[derive(Debug, Clone, Serialize)]
struct Row {
    at_once: usize,
    snapshots: usize,
    /// Milliseconds of each, from its request to its response.
    each_ms: Vec<f64>,
    /// Restores a second while they were in progress.
    a_second: f64,
    /// Processor time of the platform and its sandboxes for each restore, milliseconds, including the sandboxes made as
    /// replacements.
    cpu_ms: f64,
    /// Sandboxes that were not ready when they were needed.
    made: f64,
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, many: &ManyArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        sample: many.sample.clone(),
        rows: Vec::new(),
    };
    let platform = Platform::start(args).await?;
    let functions = deploy(&platform, many)?;
    let host = Host::of(&platform).await?;
    host.admin.delete_all().await?;
    for function in &functions {
        for _ in 0..WARM_UP {
            let instance = host.restore(function).await?;
            host.admin.delete(&instance).await?;
        }
    }
    for at_once in &many.at_once {
        for snapshots in [1, functions.len()] {
            eprintln!("{at_once} at once of {snapshots}");
            let row = measure(&platform, &host, &functions[..snapshots], *at_once, many.restores).await?;
            record.rows.push(row);
        }
    }
    let path = record.taken.place(many.json.as_deref(), "-many");
    record::write_json(&record, &path)?;
    print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

/// Deploys the sample under different names, each with a snapshot of its own.
fn deploy(platform: &Platform, many: &ManyArgs) -> Result<Vec<String>> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let mut functions = Vec::new();
    for n in 0..many.snapshots.max(1) {
        let (name, folder) = (format!("many-{n}"), scratch.path().join(n.to_string()));
        folder::copy(&checkout().join("functions/samples").join(&many.sample), &folder)?;
        folder::rename(&folder, &name, &SETTINGS)?;
        platform.deploy(&folder)?;
        functions.push(name);
    }
    Ok(functions)
}

async fn measure(
    platform: &Platform,
    host: &Host,
    functions: &[String],
    at_once: usize,
    restores: usize,
) -> Result<Row> {
    let rounds = restores.div_ceil(at_once);
    let mut each_ms = Vec::new();
    let (mut under_way, mut cpu_ms) = (Duration::ZERO, 0.0);
    let made_before = made(host).await?;
    for _ in 0..rounds {
        filled(host).await?;
        let before = processes::cpu_ms(platform.pid());
        let started = Instant::now();
        let all = (0..at_once).map(|n| {
            let function = &functions[n % functions.len()];
            async move {
                let instance = host.restore(function).await?;
                Ok::<_, anyhow::Error>((instance, started.elapsed()))
            }
        });
        let answered = try_join_all(all).await?;
        under_way += started.elapsed();
        // Replacing what was taken from the pool is part of the cost of these restores.
        filled(host).await?;
        cpu_ms += processes::cpu_ms(platform.pid()) - before;
        for (instance, took) in answered {
            each_ms.push(took.as_secs_f64() * 1e3);
            host.admin.delete(&instance).await?;
        }
    }
    Ok(Row {
        at_once,
        snapshots: functions.len(),
        a_second: each_ms.len() as f64 / under_way.as_secs_f64(),
        cpu_ms: cpu_ms / each_ms.len() as f64,
        made: made(host).await? - made_before,
        each_ms,
    })
}

async fn made(host: &Host) -> Result<f64> {
    Ok(host
        .metric("rekindle_sandboxes_taken_total{from=\"made\"}")
        .await
        .unwrap_or(0.0))
}

async fn filled(host: &Host) -> Result<()> {
    let deadline = Instant::now() + FULL_LIMIT;
    while host.metric("rekindle_sandboxes_ready").await? < host.metric("rekindle_sandboxes_wanted").await? {
        ensure!(Instant::now() < deadline, "the pool is not full within {FULL_LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!(
        "\nSimultaneous restores of {}, ms from the requests until each answer\n",
        record.sample
    );
    let header = [
        "at once",
        "snapshots",
        "restores",
        "p50",
        "p99",
        "a second",
        "CPU ms each",
        "not from the pool",
    ];
    let mut table = table(&header, 0);
    for row in &record.rows {
        let Some(figures) = figures(row.each_ms.iter().copied()) else {
            continue;
        };
        table.add_row([
            row.at_once.to_string(),
            row.snapshots.to_string(),
            row.each_ms.len().to_string(),
            ms(figures.p50),
            ms(figures.p99),
            format!("{:.0}", row.a_second),
            ms(row.cpu_ms),
            format!("{:.0}", row.made),
        ]);
    }
    println!("{table}");
    let of_one: Vec<&Row> = record.rows.iter().filter(|r| r.snapshots == 1).collect();
    if let (Some(first), Some(last)) = (of_one.first(), of_one.last()) {
        println!(
            "{} at once cost {:.2} times the processor time of {} for each",
            last.at_once,
            last.cpu_ms / first.cpu_ms,
            first.at_once
        );
    }
}
