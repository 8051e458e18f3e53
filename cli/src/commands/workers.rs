//! `fn workers`, `fn drain`, `fn undrain`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rekindle_wire::api::{WorkerInfo, WorkerState};

use crate::args::{DrainArgs, Listing, UndrainArgs};
use crate::client::Client;
use crate::show::{self, Tone};

const POLL: Duration = Duration::from_millis(200);

pub(crate) async fn list(client: &Client, args: Listing) -> Result<ExitCode> {
    let workers = client.workers().await?;
    if args.json {
        show::print_json(&workers)?;
    } else if workers.is_empty() {
        say!(
            "no worker is connected: start one with `fn worker`, or see its journal (`journalctl -u rekindle-worker`)"
        );
    } else {
        print(&workers);
    }
    Ok(ExitCode::SUCCESS)
}

/// Drains a worker, and waits until nothing runs on it any more if asked to.
pub(crate) async fn drain(client: &Client, args: &DrainArgs) -> Result<ExitCode> {
    let mut worker = client.drain(&args.worker, true).await?;
    let ready = |w: &WorkerInfo| w.state == WorkerState::Ready;
    if !client.workers().await?.iter().any(ready) {
        eprintln!(
            "{} no worker takes anything new any more: what needs a start fails until one is there (`fn undrain {}`)",
            show::tinted_err("careful", Tone::Warning),
            worker.id
        );
    }
    let deadline = Instant::now() + Duration::from_secs(args.limit);
    while args.wait && worker.alive && worker.state != WorkerState::Drained {
        if Instant::now() > deadline {
            bail!(
                "{} still has {} after {} s: it stays as it is, and takes nothing new; wait longer with --limit",
                worker.id,
                show::count(usize::try_from(worker.instances).unwrap_or(usize::MAX), "instance"),
                args.limit
            );
        }
        tokio::time::sleep(POLL).await;
        let all = client.workers().await?;
        match all.into_iter().find(|w| w.id == worker.id) {
            Some(now) => worker = now,
            None => break,
        }
    }
    tell(&worker, args.listing)
}

/// Uses a worker again.
pub(crate) async fn undrain(client: &Client, args: &UndrainArgs) -> Result<ExitCode> {
    let worker = client.drain(&args.worker, false).await?;
    tell(&worker, args.listing)
}

fn tell(worker: &WorkerInfo, listing: Listing) -> Result<ExitCode> {
    if listing.json {
        show::print_json(worker)?;
    } else {
        print(std::slice::from_ref(worker));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(workers: &[WorkerInfo]) {
    let mut table = show::table([
        "WORKER",
        "HOST",
        "ADDRESS",
        "ZONE",
        "STATE",
        "HEARD",
        "INSTANCES",
        "MEMORY RESERVED",
        "CPUS",
        "LABELS",
    ]);
    for w in workers {
        let labels: Vec<String> = w.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        table.add_row([
            w.id.to_string(),
            w.host.clone(),
            w.address.clone(),
            w.zone.clone(),
            state(w.state),
            format!("{} ago", show::millis(w.heartbeat_age_ms as f64)),
            match w.instances_max {
                0 => w.instances.to_string(),
                most => format!("{} of {most}", w.instances),
            },
            reserved(w),
            w.cpus.to_string(),
            labels.join(" "),
        ]);
    }
    show::print_table(&table);
}

/// A worker's state, in its colour.
pub(super) fn state(state: WorkerState) -> String {
    let tone = match state {
        WorkerState::Ready => Tone::Good,
        WorkerState::Draining | WorkerState::Drained => Tone::Warning,
        WorkerState::Silent | WorkerState::Gone => Tone::Bad,
    };
    show::tinted(state.as_str(), tone)
}

/// How much of a worker's memory is set aside.
pub(super) fn reserved(worker: &WorkerInfo) -> String {
    let of = show::bytes(worker.memory_capacity_bytes);
    format!("{} of {of}", show::bytes(worker.memory_reserved_bytes))
}
