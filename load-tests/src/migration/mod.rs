//! `rekindle-bench migration`: how long an instance is paused when it moves between two workers, for several sizes,
//! with little or all of its memory written. It also measures what a client notices that sends a request every
//! millisecond, and whether a request fails under constant load. Both workers are on this machine and share its
//! processors: what they do at the same time takes longer than on two hosts. Moves whose processes CRIU restores are
//! measured beside it.

mod clients;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use rekindle_testkit::{Client, Cluster, Folder};
use rekindle_wire::api::{Migration, RestoredBy};
use rekindle_wire::headers::FORCE_START;
use serde::Deserialize;

use crate::args::Args;
use crate::client::Connection;
use crate::platform;
use crate::record::{Record, Row};
use crate::subject::ms_since;
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
}

/// Titles of the tables of moves while one client asks, by restore programs and by CRIU.
const MOVES: &str = "Moves, while one client asks every millisecond";
const BY_CRIU: &str = "The same moves, where CRIU restores";
/// Those of moves and copies under constant load.
const LOADED: &str = "Moves under constant load";
const COPIES: &str = "Copies under the same load, the original going on";
/// The workers' setting that has CRIU restore.
const CRIU: &str = "criu";
/// Title of the tables about the whole.
const WHOLE: &str = "The whole";

#[derive(Debug, Deserialize)]
struct Said {
    count: u64,
    crc32: Option<u64>,
}

/// A size, mostly clean or all written, and the workers' setting of what restores it.
#[derive(Debug, Clone, Copy)]
struct Case {
    mib: u32,
    written: bool,
    restorer: &'static str,
}

impl Case {
    /// Its row in a table.
    fn row(self, table: &str) -> Row {
        let memory = if self.written { "all written" } else { "mostly clean" };
        Row::of(table, &[("MiB", &self.mib), ("memory", &memory)])
    }
}

/// Measures.
pub(crate) async fn run(args: &Args, migration: &MigrationArgs) -> Result<Record> {
    let mut record = Record::begin("migration");
    record.fact("constant load", format!("{LOAD} clients"));
    for restorer in ["auto", CRIU] {
        let (cluster, _store) = platform::cluster(args, &[("FN_RESTORER", restorer)])?;
        record.program = Some(cluster.program());
        for mib in &migration.sizes {
            deploy(&cluster, *mib)?;
            for written in [false, true] {
                let case = Case {
                    mib: *mib,
                    written,
                    restorer,
                };
                eprintln!("{case:?}");
                let measured = match restorer {
                    CRIU => by_criu(&mut record, &cluster, case, migration.rounds).await,
                    _ => measure(&mut record, &cluster, case, migration.rounds).await,
                };
                measured.with_context(|| cluster.log_tail(20))?;
            }
            cluster.delete(FUNCTION)?;
        }
    }
    Ok(record)
}

fn deploy(cluster: &Cluster, mib: u32) -> Result<()> {
    let folder = Folder::of("load-tests/functions/moving")?;
    let memory = format!("\"{}MiB\"", mib + BESIDE_MIB);
    folder.set(FUNCTION, &[("memory", &memory)])?;
    folder.edit(|text| format!("{text}\n[env]\nMOVING_MIB = \"{mib}\"\n"))?;
    cluster.deployed(&folder).map(drop)
}

/// Starts the instance. Returns what it says of itself before and after it has written.
async fn begin(record: &Record, cluster: &Cluster, case: Case) -> Result<(Said, Said)> {
    cluster.remove_instances()?;
    let authorization = format!("Bearer {}", cluster.key());
    let fresh = [("authorization", authorization.as_str()), (FORCE_START, "restored")];
    let first = said(cluster, "/", &fresh).await?;
    let before = said(cluster, if case.written { "/write" } else { "/digest" }, &[]).await?;
    // Both hosts have had the instance once: no first fetch of the function's files is measured.
    for _ in 0..2 {
        migrate(&mut record.clone(), cluster, 0, (case, "warm-up"), Kind::Move).await?;
    }
    Ok((first, before))
}

/// Moves it with one client, where CRIU restores it.
async fn by_criu(record: &mut Record, cluster: &Cluster, case: Case, rounds: usize) -> Result<()> {
    begin(record, cluster, case).await?;
    for _ in 0..2 * rounds {
        migrate(record, cluster, 1, (case, BY_CRIU), Kind::Move).await?;
    }
    Ok(())
}

async fn measure(record: &mut Record, cluster: &Cluster, case: Case, rounds: usize) -> Result<()> {
    let (first, before) = begin(record, cluster, case).await?;
    let whole = case.row(WHOLE);
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..2 {
            migrate(record, cluster, 1, (case, MOVES), Kind::Move).await?;
        }
        let there_and_back = ms_since(started) - 4.0 * CALM.as_secs_f64() * 1e3;
        record.push(&whole, "there and back", "ms", there_and_back);
        record.cpu_loop();
    }
    let (mut requests, mut failed) = (0, 0);
    for _ in 0..rounds {
        for (table, kind) in [(LOADED, Kind::Move), (COPIES, Kind::Copy)] {
            let asked = migrate(record, cluster, LOAD, (case, table), kind).await?;
            requests += asked.len();
            for why in asked.into_iter().filter_map(|a| a.failed) {
                failed += 1;
                record.series(&case.row(table), "pause", "ms").errors.push(why);
            }
        }
    }
    record.push(&whole, "requests under load", "", requests as f64);
    record.push(&whole, "failed", "", f64::from(failed));
    let after = said(cluster, "/digest", &[]).await?;
    ensure!(after.crc32 == before.crc32, "its memory has changed on the way");
    ensure!(after.count > first.count, "its count began anew");
    Ok(())
}

async fn said(cluster: &Cluster, path: &str, headers: &[(&str, &str)]) -> Result<Said> {
    let mut connection = Connection::open_at(platform::address(cluster)?).await?;
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

/// Moves the instance to the other worker, or copies it there, while so many clients send requests.
async fn migrate(
    record: &mut Record,
    cluster: &Cluster,
    clients: usize,
    (case, table): (Case, &str),
    kind: Kind,
) -> Result<Vec<clients::Asked>> {
    let row = &case.row(table);
    let clients = Clients::start(clients, platform::address(cluster)?, &format!("/function/{FUNCTION}/"));
    let instances = cluster.instances_of(FUNCTION);
    let [instance] = &instances[..] else {
        bail!("{} instances instead of one", instances.len());
    };
    let before = behind(cluster);
    std::thread::sleep(CALM);
    let began = Instant::now();
    let mut command = vec!["migrate", instance.id.as_str(), "--json"];
    command.extend((kind == Kind::Copy).then_some("--clone"));
    let moved: Migration = cluster.cli_json(&command)?;
    let ended = Instant::now();
    std::thread::sleep(CALM);
    let asked = clients.stop()?;
    let deadline = Instant::now() + BEHIND_LIMIT;
    let behind_ms = loop {
        let now = behind(cluster);
        if now.1 > before.1 {
            break (now.0 - before.0) * 1e3;
        }
        let is_there = cluster.instances_of(FUNCTION).iter().any(|i| i.id == moved.instance);
        ensure!(
            is_there,
            "{} has ended before all its memory had followed",
            moved.instance
        );
        ensure!(
            Instant::now() < deadline,
            "the memory of {} does not follow",
            moved.instance
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    if kind == Kind::Copy {
        cluster.remove_instance(moved.instance.as_str())?;
    }
    let during = asked.iter().filter(|a| a.at < ended && a.at + a.took > began);
    let client = during.map(|a| a.took.as_secs_f64() * 1e3).fold(0.0, f64::max);
    let times = &moved.phases;
    let by_criu = matches!(times.restored_by, Some(RestoredBy::Criu { .. }));
    ensure!(
        by_criu == (case.restorer == CRIU),
        "another restorer than was measured: {:?}",
        times.restored_by
    );
    for (name, unit, value) in [
        // As the source saw it.
        ("pause", "ms", times.pause_ms),
        ("settle", "ms", times.settle_ms),
        ("checkpoint", "ms", times.checkpoint_ms),
        ("restore", "ms", times.restore_ms),
        ("resume", "ms", times.resume_ms),
        ("a client's longest answer", "ms", client),
        ("with getting ready", "ms", moved.took_ms),
        // Until all memory was there.
        ("memory behind", "ms", behind_ms),
        ("written", "MiB", times.written_pages as f64 / 256.0),
        ("images", "KiB", times.image_bytes as f64 / 1024.0),
    ] {
        record.push(row, name, unit, value);
    }
    Ok(asked)
}

/// Seconds that memory was behind on both workers, and how often it was.
fn behind(client: &Client) -> (f64, f64) {
    let sum = |name| client.metric_of_each(name).iter().sum();
    // One that is counted is in the sum already, if that is read later.
    let count = sum(BEHIND[1]);
    (sum(BEHIND[0]), count)
}
