//! `rekindle-bench`: from a request's trigger to the last byte of its first response, through the whole platform and
//! beside it, in one run on one machine.
//!
//! ```text
//! main ── rounds ──┬─ ours        a platform of our own, started for this: booted, restored, warm
//!                  └─ peers       a child in namespaces of its own (peers/host.rs): plain start, CRIU, lazy-pages, direct
//!           └─ record (JSON) ─ report (tables)
//! ```
//!
//! `pager` and `codec` measure one part alone: page faults, and how memory is stored. `load` puts a platform under k6's scenarios.

mod args;
mod client;
mod codec;
mod folder;
mod load;
mod machine;
mod ours;
mod pager;
mod peers;
mod platform;
mod plot;
mod record;
mod report;
mod rounds;
mod stats;
mod subject;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;

use args::{Args, Command};
use ours::Ours;
use peers::Peers;
use platform::Platform;
use record::Record;
use subject::Subject;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rekindle-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Pager(pager)) => return pager::run(pager).map(|()| ExitCode::SUCCESS),
        Some(Command::PagerProcess(process)) => return pager::process::run(process).map(|()| ExitCode::SUCCESS),
        Some(Command::Codec(codec)) => return codec::run(args, codec).map(|()| ExitCode::SUCCESS),
        Some(Command::LoadReport(report)) => return load::report(report).map(|()| ExitCode::SUCCESS),
        Some(Command::PeerHost(_) | Command::Load(_) | Command::Trace(_)) | None => {}
    }
    // One thread: what waits for an answer is the thread that sent the request, with no hand-over between them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    if let Some(Command::PeerHost(host)) = &args.command {
        runtime.block_on(peers::host::serve(host))?;
        return Ok(ExitCode::SUCCESS);
    }
    let measuring = async {
        match &args.command {
            Some(Command::Load(load)) => load::run(args, load).await,
            Some(Command::Trace(trace)) => load::show_trace(trace).await,
            _ => measure(args).await,
        }
    };
    runtime.block_on(async {
        tokio::select! {
            outcome = measuring => outcome,
            // What was started is dropped with `measure`, and so stopped.
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing was written"),
        }
    })
}

async fn measure(args: &Args) -> Result<ExitCode> {
    let chosen = args.subjects();
    let mut record = Record::begin(args);
    eprintln!(
        "{} runs of each of {} in {} regimes, on {}",
        args.runs,
        report::names(&chosen),
        rounds::REGIMES.len(),
        record.machine
    );

    let started = Instant::now();
    let mut peers = Peers::start(args, &chosen).await;
    record.peers = peers.tell();
    let platform = match chosen.iter().any(|s| s.is_ours()) {
        true => Some(Platform::start(args).await?),
        false => None,
    };
    let mut ours = match &platform {
        Some(platform) => {
            record.program = Some(platform.program());
            platform.deploy(&args.function())?;
            Some(Ours::of(platform))
        }
        None => None,
    };
    eprintln!(
        "ready after {}",
        humantime::format_duration(Duration::from_secs(started.elapsed().as_secs()))
    );

    for regime in rounds::REGIMES {
        let measured = rounds::run(args, regime, &chosen, &mut ours, &mut peers).await;
        record.regimes.push(measured);
    }
    drop(ours);
    drop(platform);
    peers.stop();

    record.end();
    let path = record.write(args)?;
    report::print(&record);
    println!("\nsamples: {}", record::told(&path));
    let broken: Vec<&str> = record.failures().filter(|s| s.is_ours()).map(Subject::name).collect();
    if !broken.is_empty() {
        eprintln!("failed invocations of: {}", broken.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
