//! `rekindle-bench freeze`: how long an instance is frozen for its snapshot, compared with stock CRIU's own dump of the
//! same function into memory, in the same rounds. Ours is what a deploy reports (`frozen_ms`): from the order to a
//! waiting CRIU to its response. Meanwhile the instance's /tmp is packed, too.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::args::Args;
use crate::peers::Peers;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::report::{ms, table};
use crate::stats::{figures, ratio};
use crate::subject::Subject;
use crate::workload::{Language, Workload};

/// `rekindle-bench freeze`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FreezeArgs {
    /// Memory that the function has touched, MiB.
    #[arg(long = "touched", value_name = "MIB", value_delimiter = ',', default_values_t = [64, 256])]
    touched: Vec<u32>,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-freeze.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    sizes: Vec<Size>,
}

/// One size: milliseconds, by round.
#[derive(Debug, Clone, Serialize)]
struct Size {
    touched_mib: u32,
    /// Memory in the platform's snapshot, bytes.
    memory_bytes: u64,
    /// How long the platform's instance was frozen.
    frozen: Vec<f64>,
    /// `criu dump`, including its start.
    command: Vec<f64>,
    /// A dump by a CRIU that was started before.
    waiting: Vec<f64>,
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, freeze: &FreezeArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        sizes: Vec::new(),
    };
    for mib in &freeze.touched {
        eprintln!("{mib} MiB");
        record.sizes.push(measure(args, *mib).await?);
    }
    let path = record.taken.place(freeze.json.as_deref(), "-freeze");
    record::write_json(&record, &path)?;
    print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

async fn measure(args: &Args, touched_mib: u32) -> Result<Size> {
    let workload = Workload {
        language: Language::Python,
        mib: touched_mib,
    };
    let folders = tempfile::tempdir().context("no temporary directory")?;
    let folder = workload.prepare(folders.path())?;
    let mut peers = Peers::start(args, &Subject::DUMPS, workload, &folder).await;
    let platform = Platform::start(args).await?;
    let mut size = Size {
        touched_mib,
        memory_bytes: 0,
        frozen: Vec::new(),
        command: Vec::new(),
        waiting: Vec::new(),
    };
    for round in 0..args.warmup + args.runs {
        change(&folder, round)?;
        let snapshot = platform.deploy(&folder)?.snapshot.context("there is no snapshot")?;
        let command = peers.run(Subject::CriuDump).await?.ms;
        let waiting = peers.run(Subject::CriuDumpWaiting).await?.ms;
        if round >= args.warmup {
            size.memory_bytes = snapshot.memory_bytes;
            size.frozen.push(snapshot.frozen_ms);
            size.command.push(command);
            size.waiting.push(waiting);
        }
    }
    peers.stop();
    Ok(size)
}

/// Makes another version of the function, which does the same.
fn change(folder: &Path, round: u32) -> Result<()> {
    let source = folder.join("main.py");
    let appended = fs::OpenOptions::new().append(true).open(&source);
    let appended = appended.and_then(|mut file| writeln!(file, "# {round}"));
    appended.with_context(|| format!("{}: cannot be written", source.display()))
}

fn print(record: &Record) {
    println!("\n{}", record.taken);
    let head = [
        "touched, MiB",
        "stands still for, ms",
        "p50",
        "p99",
        "ours over it (95 %)",
    ];
    let mut shown = table(&head, 2);
    for size in &record.sizes {
        for (name, samples) in [
            ("rekindle, for its snapshot", &size.frozen),
            (Subject::CriuDumpWaiting.title(), &size.waiting),
            (Subject::CriuDump.title(), &size.command),
        ] {
            let Some(f) = figures(samples.iter().copied()) else {
                continue;
            };
            let beside = ratio(samples, &size.frozen, 1).map_or(String::new(), |r| {
                format!("{:.2} ({:.2} to {:.2})", r.value, r.low, r.high)
            });
            shown.add_row([
                size.touched_mib.to_string(),
                name.to_owned(),
                ms(f.p50),
                ms(f.p99),
                beside,
            ]);
        }
    }
    println!("\n{shown}");
}
