//! `rekindle-bench migration`: how long an instance is paused when it moves between two workers, for several sizes,
//! with little or all of its memory written. It also measures what a client notices that sends a request every
//! millisecond, and whether a request fails under constant load. Both workers are on this machine and share its
//! processors: what they do at the same time takes longer than on two hosts.

mod clients;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use rekindle_wire::api::Migration;
use rekindle_wire::headers::FORCE_START;
use serde::{Deserialize, Serialize};

use crate::admin::Admin;
use crate::args::{Args, checkout};
use crate::client::Connection;
use crate::folder;
use crate::hosts::Hosts;
use crate::record::{self, Taken};
use clients::Clients;

const FUNCTION: &str = "moving";
/// Number of clients under constant load.
const LOAD: usize = 3;
/// How long they continue before, between and after moves.
const CALM: Duration = Duration::from_millis(400);
/// Limit for all memory of an instance to follow it.
const BEHIND_LIMIT: Duration = Duration::from_secs(60);
/// How long memory was behind, and how often, as workers report it.
const BEHIND: [&str; 2] = [
    "rekindle_migration_behind_duration_seconds_sum",
    "rekindle_migration_behind_duration_seconds_count",
];
/// Memory of an instance besides the buffer, MiB: the interpreter, and what CRIU needs.
const BESIDE_MIB: u32 = 96;

/// `rekindle-bench migration`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MigrationArgs {
    /// Sizes of the instance's buffer, MiB.
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_values_t = [128, 256, 512])]
    sizes: Vec<u32>,
    /// Round trips of each, by a client and under load.
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: usize,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-migration.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    taken: Taken,
    cases: Vec<Case>,
}

/// A size, mostly clean or all written.
#[derive(Debug, Clone, Serialize)]
struct Case {
    mib: u32,
    written: bool,
    /// Moves while one client sends a request every millisecond.
    moves: Vec<Move>,
    /// From the order to move until it was back, milliseconds.
    round_trips_ms: Vec<f64>,
    /// Moves under constant load.
    loaded: Vec<Move>,
    /// Copies made under the same load, while the original continued.
    copies: Vec<Move>,
    /// Requests under constant load, and why some of them failed.
    requests: usize,
    failed: Vec<String>,
}

/// One move. Milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Move {
    settle: f64,
    checkpoint: f64,
    restore: f64,
    resume: f64,
    /// The pause as the source saw it.
    pause: f64,
    /// The longest response time of a client during the move.
    client: f64,
    /// Until all memory was there.
    behind: f64,
    /// The whole move, including preparation.
    whole: f64,
    written_mib: f64,
    images_kib: f64,
}

#[derive(Debug, Deserialize)]
struct Said {
    count: u64,
    crc32: Option<u64>,
}

/// Measures, writes the record and prints the tables.
pub(crate) async fn run(args: &Args, migration: &MigrationArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        cases: Vec::new(),
    };
    let hosts = Hosts::start(args, &[]).await?;
    for mib in &migration.sizes {
        deploy(&hosts, *mib)?;
        for written in [false, true] {
            eprintln!("{mib} MiB, {}", if written { "all written" } else { "mostly clean" });
            let case = measure(&hosts, *mib, written, migration.rounds).await;
            record.cases.push(case.with_context(|| hosts.log_tail())?);
        }
        hosts.delete(FUNCTION)?;
    }
    let path = record.taken.place(migration.json.as_deref(), "-migration");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

fn deploy(hosts: &Hosts, mib: u32) -> Result<()> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let folder = scratch.path().join("function");
    folder::copy(&checkout().join("load-tests/functions/moving"), &folder)?;
    let memory = format!("\"{}MiB\"", mib + BESIDE_MIB);
    folder::rename(&folder, FUNCTION, &[("memory", &memory)])?;
    let manifest = folder.join("fn.toml");
    let text = std::fs::read_to_string(&manifest).context("fn.toml cannot be read")?;
    std::fs::write(&manifest, format!("{text}\n[env]\nMOVING_MIB = \"{mib}\"\n"))
        .context("fn.toml cannot be written")?;
    match hosts.deploy(&folder)?.snapshot_error {
        Some(error) => bail!("no snapshot: {error}"),
        None => Ok(()),
    }
}

async fn measure(hosts: &Hosts, mib: u32, written: bool, rounds: usize) -> Result<Case> {
    let admin = hosts.admin()?;
    admin.delete_all().await?;
    let first = said(hosts, "/", &[admin.authorization(), (FORCE_START, "restored")]).await?;
    let before = said(hosts, if written { "/write" } else { "/digest" }, &[]).await?;
    let mut case = Case {
        mib,
        written,
        moves: Vec::new(),
        round_trips_ms: Vec::new(),
        loaded: Vec::new(),
        copies: Vec::new(),
        requests: 0,
        failed: Vec::new(),
    };
    // Both hosts have had the instance once: no first fetch of the function's files is measured.
    for _ in 0..2 {
        migrate(hosts, Clients::start(0, hosts.port(), ""), Kind::Move).await?;
    }
    let path = format!("/function/{FUNCTION}/");
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..2 {
            let (moved, _) = migrate(hosts, Clients::start(1, hosts.port(), &path), Kind::Move).await?;
            case.moves.push(moved);
        }
        case.round_trips_ms
            .push(started.elapsed().as_secs_f64() * 1e3 - 4.0 * CALM.as_secs_f64() * 1e3);
    }
    for _ in 0..rounds {
        for kind in [Kind::Move, Kind::Copy] {
            let (moved, asked) = migrate(hosts, Clients::start(LOAD, hosts.port(), &path), kind).await?;
            match kind {
                Kind::Move => case.loaded.push(moved),
                Kind::Copy => case.copies.push(moved),
            }
            case.requests += asked.len();
            case.failed.extend(asked.into_iter().filter_map(|a| a.failed));
        }
    }
    let after = said(hosts, "/digest", &[]).await?;
    ensure!(after.crc32 == before.crc32, "its memory has changed on the way");
    ensure!(after.count > first.count, "its count began anew");
    Ok(case)
}

async fn said(hosts: &Hosts, path: &str, headers: &[(&str, &str)]) -> Result<Said> {
    let mut connection = Connection::open(hosts.port()).await?;
    let answer = connection
        .call(Method::GET, &format!("/function/{FUNCTION}{path}"), headers)
        .await?;
    if !answer.status.is_success() {
        bail!("{path}: {}: {}", answer.status, answer.text());
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("{path}: {}", answer.text()))
}

/// What happens to the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is gone.
    Move,
    /// It continues; the copy is ended once it has all its memory.
    Copy,
}

/// Moves the instance to the other worker, or copies it there, while these clients send requests.
async fn migrate(hosts: &Hosts, clients: Clients, kind: Kind) -> Result<(Move, Vec<clients::Asked>)> {
    let admin = hosts.admin()?;
    let instances = admin.instances(FUNCTION).await?;
    let [instance] = &instances[..] else {
        bail!("{} instances instead of one", instances.len());
    };
    let before = behind(&admin).await?;
    std::thread::sleep(CALM);
    let began = Instant::now();
    let mut command = vec!["migrate", instance.id.as_str(), "--json"];
    command.extend((kind == Kind::Copy).then_some("--clone"));
    let moved: Migration = hosts.command_line(&command)?;
    let ended = Instant::now();
    std::thread::sleep(CALM);
    let asked = clients.stop()?;
    let deadline = Instant::now() + BEHIND_LIMIT;
    let behind = loop {
        let now = behind(&admin).await?;
        if now.1 > before.1 {
            break (now.0 - before.0) * 1e3;
        }
        ensure!(Instant::now() < deadline, "its memory does not follow");
        std::thread::sleep(Duration::from_millis(20));
    };
    if kind == Kind::Copy {
        admin.delete(moved.instance.as_str()).await?;
    }
    let during = asked.iter().filter(|a| a.at < ended && a.at + a.took > began);
    let client = during.map(|a| a.took.as_secs_f64() * 1e3).fold(0.0, f64::max);
    let times = &moved.departed;
    let moved = Move {
        settle: times.settle_ms,
        checkpoint: times.checkpoint_ms,
        restore: times.restore_ms,
        resume: times.resume_ms,
        pause: times.pause_ms,
        client,
        behind,
        whole: moved.took_ms,
        written_mib: times.written_pages as f64 / 256.0,
        images_kib: times.image_bytes as f64 / 1024.0,
    };
    Ok((moved, asked))
}

/// Seconds that memory was behind on both workers, and how often it was.
async fn behind(admin: &Admin) -> Result<(f64, f64)> {
    let mut both = (0.0, 0.0);
    for worker in admin.workers().await? {
        let found = admin.metrics(&worker, &BEHIND).await?;
        both.0 += found.get(BEHIND[0]).copied().unwrap_or(0.0);
        both.1 += found.get(BEHIND[1]).copied().unwrap_or(0.0);
    }
    Ok(both)
}
