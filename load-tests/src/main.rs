//! `rekindle-bench`: from a request's trigger to the last byte of its first response, through the whole platform and
//! around it, in one run on one machine.
//!
//! ```text
//! bench ── rounds ─┬─ ours        a platform of our own, started for this: booted, restored, warm
//!                  └─ peers       a child in namespaces of its own (peers/host.rs): plain start, containers, CRIU, direct
//!       ├─ cold      a platform without its caches, on a store that answers late
//!       └─ record (JSON) ─ report (tables), figures (plots)
//! ```
//!
//! `pager`, `idle`, `codec` and `placement` measure one part alone: page faults, eviction of idle memory, the storage
//! of memory, the scheduler's decisions. `simulate` runs a large cluster in virtual time, `load` puts a platform under
//! k6's scenarios, `policy` replays a trace in virtual time.

mod admin;
mod args;
mod bench;
mod children;
mod client;
mod clones;
mod cluster;
mod codec;
mod cold;
mod compare;
mod figures;
mod first;
mod folder;
mod freeze;
mod host;
mod hosts;
mod idle;
mod load;
mod machine;
mod many;
mod migration;
mod ours;
mod pager;
mod peers;
mod phases;
mod platform;
mod plot;
mod policy;
mod processes;
mod record;
mod report;
mod rounds;
mod sandboxes;
mod sharing;
mod slow_store;
mod stats;
mod subject;
mod throughput;
mod versions;
mod workload;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;

use args::{Args, Command};

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
        Some(Command::Idle(idle)) => return idle::run(idle).map(|()| ExitCode::SUCCESS),
        Some(Command::IdleProcess(process)) => return idle::process::run(process).map(|()| ExitCode::SUCCESS),
        Some(Command::Policy(policy)) => return policy::run(policy).map(|()| ExitCode::SUCCESS),
        Some(Command::Placement(placement)) => return cluster::place(placement).map(|()| ExitCode::SUCCESS),
        Some(Command::Simulate(simulate)) => return cluster::simulate(simulate).map(|()| ExitCode::SUCCESS),
        Some(Command::Codec(codec)) => return codec::run(args, codec).map(|()| ExitCode::SUCCESS),
        Some(Command::Sandboxes(all)) => return sandboxes::run(args, all).map(|()| ExitCode::SUCCESS),
        Some(Command::SandboxFloor(floor)) => return sandboxes::floor::run(floor).map(|()| ExitCode::SUCCESS),
        Some(Command::LoadReport(report)) => return load::report(report).map(|()| ExitCode::SUCCESS),
        Some(
            Command::PeerHost(_)
            | Command::Clones(_)
            | Command::Migration(_)
            | Command::Many(_)
            | Command::First(_)
            | Command::Versions(_)
            | Command::Freeze(_)
            | Command::Sharing(_)
            | Command::Phases(_)
            | Command::Throughput(_)
            | Command::Load(_)
            | Command::Trace(_)
            | Command::Compare(_),
        )
        | None => {}
    }
    // One thread: the thread that sent a request waits for its response, with no hand-over between threads.
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
            Some(Command::Compare(compare)) => compare::run(args, compare).await,
            Some(Command::Migration(moves)) => migration::run(args, moves).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Phases(phases)) => phases::run(args, phases).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Throughput(asked)) => throughput::run(args, asked).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Many(many)) => many::run(args, many).await.map(|()| ExitCode::SUCCESS),
            Some(Command::First(first)) => first::run(args, first).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Versions(asked)) => versions::run(args, asked).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Freeze(asked)) => freeze::run(args, asked).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Sharing(asked)) => sharing::run(args, asked).await.map(|()| ExitCode::SUCCESS),
            Some(Command::Clones(clones)) => clones::run(args, clones).await.map(|()| ExitCode::SUCCESS),
            _ => bench::run(args).await,
        }
    };
    runtime.block_on(async {
        tokio::select! {
            outcome = measuring => outcome,
            // Everything that was started is dropped with `measure`, and so stopped.
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing was written"),
        }
    })
}
