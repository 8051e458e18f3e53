//! `rekindle-bench`: measurements of the platform, of its parts, and of what others do beside it, in one run on one
//! machine.
//!
//! ```text
//! a part ── samples ──> record (JSON) ─┬─ table      tables, for a terminal or a page
//!                                      ├─ draw       plots
//!                                      └─ compare    with another record of the same part
//! ```
//!
//! - `starts`, without a name: from a request's trigger to the last byte of its first response. In turn: a platform of
//!   our own (`ours`), and its peers (`peers`), which a child in namespaces of its own starts; then a cold host
//!   (`cold`).
//! - `phases`, `throughput`, `checkpoint`, `sharing`, `many`, `clones`, `first`, `versions`, `migration`,
//!   `slow-clients`: a platform of our own, otherwise.
//! - `sandboxes`, `codec`, `pager`, `idle`: one part of the worker alone. `placement`, `simulate`: the scheduler's
//!   decisions alone. `policy`: a trace in virtual time. `load`: a platform under k6's scenarios.

mod args;
mod checkpoint;
mod client;
mod clones;
mod cluster;
mod codec;
mod cold;
mod command_line;
mod compare;
mod draw;
mod first;
mod idle;
mod load;
mod machine;
mod many;
mod migration;
mod ours;
mod page;
mod pager;
mod peers;
mod phases;
mod platform;
mod plot;
mod policy;
mod record;
mod rounds;
mod sandboxes;
mod sharing;
mod slow_clients;
mod starts;
mod stats;
mod subject;
mod table;
mod throughput;
mod versions;
mod workload;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;

use args::Args;
use command_line::{Command, CommandLine};
use record::{Record, told};

fn main() -> ExitCode {
    match run(&CommandLine::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rekindle-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(CommandLine { args, command }: &CommandLine) -> Result<ExitCode> {
    let done = |outcome: Result<()>| outcome.map(|()| ExitCode::SUCCESS);
    let record = match command {
        Some(Command::PagerProcess(process)) => return done(pager::process::run(process)),
        Some(Command::IdleProcess(process)) => return done(idle::process::run(process)),
        Some(Command::SandboxFloor(floor)) => return done(sandboxes::floor::run(floor)),
        Some(Command::Report(report)) => return done(again(args, &report.record)),
        Some(Command::PeerHost(host)) => return done(block_on(peers::host::serve(host))),
        Some(Command::Trace(trace)) => return done(block_on(load::show_trace(trace))),
        Some(Command::Compare(compare)) => return done(block_on(compare::run(args, compare))),
        Some(Command::Pager(pager)) => pager::run(pager)?,
        Some(Command::Idle(idle)) => idle::run(idle)?,
        Some(Command::Policy(policy)) => policy::run(policy)?,
        Some(Command::Placement(placement)) => cluster::place(placement)?,
        Some(Command::Simulate(simulate)) => cluster::simulate(simulate)?,
        Some(Command::Codec(codec)) => codec::run(args, codec)?,
        Some(Command::Sandboxes(all)) => sandboxes::run(args, all)?,
        Some(Command::Load(load)) => block_on(load::run(args, load))?,
        Some(Command::Migration(moves)) => block_on(migration::run(args, moves))?,
        Some(Command::Phases) => block_on(phases::run(args))?,
        Some(Command::Throughput(asked)) => block_on(throughput::run(args, asked))?,
        Some(Command::Many(many)) => block_on(many::run(args, many))?,
        Some(Command::First(first)) => block_on(first::run(args, first))?,
        Some(Command::Versions(asked)) => block_on(versions::run(args, asked))?,
        Some(Command::Checkpoint(asked)) => block_on(checkpoint::run(args, asked))?,
        Some(Command::Sharing(asked)) => block_on(sharing::run(args, asked))?,
        Some(Command::SlowClients(asked)) => block_on(slow_clients::run(args, asked))?,
        Some(Command::Clones(clones)) => block_on(clones::run(args, clones))?,
        None => block_on(starts::run(args))?,
    };
    finish(args, record)
}

/// Runs a measurement on one thread: the thread that sent a request waits for its response, with no hand-over between
/// threads.
fn block_on<T>(measuring: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")?;
    runtime.block_on(async {
        tokio::select! {
            outcome = measuring => outcome,
            // Everything that was started is dropped with `measuring`, and so stopped.
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing was written"),
        }
    })
}

/// Completes the record, writes it, and shows it.
fn finish(args: &Args, mut record: Record) -> Result<ExitCode> {
    record.end();
    let path = record.place(args.json.as_deref());
    record.write(&path)?;
    show(args, &record, &path)?;
    println!("record: {}", told(&path));
    for failure in &record.failures {
        eprintln!("{failure}");
    }
    Ok(if record.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `rekindle-bench report`.
fn again(args: &Args, path: &Path) -> Result<()> {
    show(args, &Record::read(path)?, path)
}

/// Prints the tables, and draws plots and a page with everything in it beside the record.
fn show(args: &Args, record: &Record, path: &Path) -> Result<()> {
    table::print(record);
    println!();
    if record.plots.is_empty() {
        return Ok(());
    }
    let beside = path.with_extension("");
    for dir in [Some(&beside), args.plots.as_ref()].into_iter().flatten() {
        draw::write(record, dir)?;
        println!("plots: {}", told(dir));
    }
    let page = beside.join("index.html");
    page::write(record, &page)?;
    println!("page: {}", told(&page));
    Ok(())
}
