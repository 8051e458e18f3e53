//! The comparison: each workload with every subject in turn, then restores from a cold host.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::platform::Platform;
use crate::record::{Record, Worked, told};
use crate::subject::Subject;
use crate::workload::Workload;
use crate::{cold, figures, report, rounds};

/// Measures, prints and writes everything that was requested.
pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    let chosen = args.subjects();
    let workloads = args.workloads();
    let mut record = Record::begin(args);
    eprintln!(
        "{} runs of each of {} for {} workloads in {} regimes, on {}",
        args.runs,
        report::names(&chosen),
        workloads.len(),
        rounds::REGIMES.len(),
        record.machine
    );
    let folders = tempfile::Builder::new()
        .prefix("rekindle-bench-functions-")
        .tempdir()
        .context("no temporary directory")?;
    let platform = match chosen.iter().any(|s| s.is_ours()) {
        true => Some(Platform::start(args).await?),
        false => None,
    };
    record.program = platform.as_ref().map(Platform::program);
    for workload in &workloads {
        let worked = match workload.prepare(folders.path()) {
            Ok(folder) => measure(args, &chosen, *workload, &folder, platform.as_ref()).await?,
            Err(error) => Worked::missing(*workload, format!("{error:#}")),
        };
        record.workloads.push(worked);
    }
    drop(platform);
    if let (Some(workload), 1..) = (workloads.first(), args.cold) {
        let folder = folders.path().join(workload.name());
        record.cold = cold::measure(args, *workload, &folder).await.context("cold restores")?;
    }

    record.end();
    let path = record.write(args)?;
    report::print(&record);
    println!("\nsamples: {}", told(&path));
    for dir in [Some(path.with_extension("")), args.plots.clone()]
        .into_iter()
        .flatten()
    {
        figures::write(&record, &dir)?;
        println!("plots: {}", told(&dir));
    }
    let broken: Vec<&str> = record.failures().filter(|s| s.is_ours()).map(Subject::name).collect();
    if !broken.is_empty() {
        eprintln!("failed invocations of: {}", broken.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(
    args: &Args,
    chosen: &[Subject],
    workload: Workload,
    folder: &Path,
    platform: Option<&Platform>,
) -> Result<Worked> {
    let started = Instant::now();
    let mut worked = Worked::of(workload);
    let mut peers = Peers::start(args, chosen, workload, folder).await;
    worked.peers = peers.tell();
    let mut ours = match platform {
        Some(platform) => {
            let version = platform.deploy(folder)?;
            worked.snapshot = version.snapshot;
            if chosen.contains(&Subject::Parked) {
                platform.deploy(&workload.prepare_parked(folder)?)?;
            }
            Some(Ours::of(platform, &workload.name())?)
        }
        None => None,
    };
    let took = Duration::from_secs(started.elapsed().as_secs());
    eprintln!("{}: ready after {}", workload.title(), humantime::format_duration(took));
    for regime in rounds::REGIMES {
        let measured = rounds::run(args, regime, chosen, &mut ours, &mut peers).await;
        worked.regimes.push(measured);
    }
    peers.stop();
    Ok(worked)
}
