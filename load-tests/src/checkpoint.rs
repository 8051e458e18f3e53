//! `rekindle-bench checkpoint`: how long an instance stands still for its snapshot, compared with stock CRIU's own dump
//! of the same function into memory, in the same rounds. Ours is what a deploy reports (`frozen_ms`): from the order to
//! a waiting CRIU to its response. Meanwhile the instance's /tmp is packed, too.

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::peers::Peers;
use crate::platform;
use crate::record::{Record, Row};
use crate::subject::Subject;
use crate::workload::{Language, Workload};

const TABLE: &str = "How long the function stands still for its checkpoint";

/// `rekindle-bench checkpoint`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// Memory that the function has touched, MiB.
    #[arg(long = "touched", value_name = "MIB", value_delimiter = ',', default_values_t = [64, 256])]
    touched: Vec<u32>,
}

/// Measures.
pub(crate) async fn run(args: &Args, asked: &CheckpointArgs) -> Result<Record> {
    let mut record = Record::begin("checkpoint");
    for dump in Subject::DUMPS {
        record.baseline("by", dump.title());
    }
    for mib in &asked.touched {
        eprintln!("{mib} MiB");
        measure(args, &mut record, *mib).await?;
    }
    Ok(record)
}

async fn measure(args: &Args, record: &mut Record, mib: u32) -> Result<()> {
    let workload = Workload {
        language: Language::Python,
        mib,
    };
    let folder = workload.prepare()?;
    let mut peers = Peers::start(args, &Subject::DUMPS, workload, folder.path()).await;
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    for round in 0..args.warmup + args.runs {
        // Another version of the function, which does the same.
        folder.append("main.py", &format!("# {round}"))?;
        let snapshot = platform.deployed(&folder)?.snapshot.context("there is no snapshot")?;
        let mut taken = vec![("rekindle, for its snapshot", snapshot.frozen_ms)];
        for dump in Subject::DUMPS {
            taken.push((dump.title(), peers.run(dump).await?.ms));
        }
        if round < args.warmup {
            continue;
        }
        for (by, ms) in taken {
            record.push(
                &Row::of(TABLE, &[("MiB touched", &mib), ("by", &by)]),
                "stands still",
                "ms",
                ms,
            );
        }
        record.cpu_loop();
    }
    peers.stop();
    Ok(())
}
