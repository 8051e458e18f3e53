//! `rekindle-bench sharing`: how much of a snapshot the store already has, for each way of sharing the snapshot of a
//! runtime. It also measures the effect on a boot for a deploy, and on a restore. There is a platform for each way, in
//! turn, in one run.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rekindle_testkit::{Folder, Platform};
use rekindle_wire::api::VersionState;

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};

const RESTORES: &str = "Restored, of the last version";
const STORED: &str = "In the store, of the first version and of later ones";
/// The values of `--share-memory`.
const WAYS: [&str; 3] = ["none", "versions", "functions"];
/// Versions of each function; each but the first changes its source by a line.
const VERSIONS: usize = 6;
/// Pause between two restores.
const CALM: Duration = Duration::from_millis(30);
/// Restores until the working set is known.
const RECORDED: u32 = 5;

/// `rekindle-bench sharing`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SharingArgs {
    /// Folders below functions/samples; they are deployed in this order.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_values_t = [
            "hello-python", "counter-python", "numpy-python", "touch-python", "hello-node",
        ].map(String::from)
    )]
    samples: Vec<String>,
}

/// Measures.
pub(crate) async fn run(args: &Args, asked: &SharingArgs) -> Result<Record> {
    let mut record = Record::begin("sharing");
    record.baseline("shares with", WAYS[0]);
    let mut platforms = Vec::new();
    for way in WAYS {
        platforms.push(platform::start(args, &[("FN_SHARE_MEMORY", way)])?);
    }
    record.program = platforms.first().map(|p| p.program());
    for name in &asked.samples {
        eprintln!("{name}");
        let measured = measure(args, &mut record, &platforms, name).await;
        measured.with_context(|| format!("sample {name}"))?;
    }
    Ok(record)
}

async fn measure(args: &Args, record: &mut Record, platforms: &[Platform], name: &str) -> Result<()> {
    let folder = Folder::of(&format!("functions/samples/{name}"))?;
    folder.set(name, &[("idle", "\"600s\"")])?;
    for version in 0..VERSIONS {
        if version > 0 {
            change(&folder, version)?;
        }
        for (platform, way) in platforms.iter().zip(WAYS) {
            store(record, platform, &folder, name, way, version)?;
            platform.remove_instances()?;
        }
    }
    let ours: Vec<Ours> = platforms.iter().map(|p| Ours::of(p, name)).collect();
    for round in 0..RECORDED + args.warmup + args.runs {
        // Each is first in a round as often as the others. It begins once the previous one is gone and its sandbox is
        // replaced.
        for turn in 0..WAYS.len() {
            let at = (round as usize + turn) % WAYS.len();
            tokio::time::sleep(CALM).await;
            let started = ours[at].start("restored", name, "/").await?;
            platforms[at].remove_instance(started.instance())?;
            if round >= RECORDED + args.warmup {
                let row = Row::of(RESTORES, &[("sample", &name), ("shares with", &WAYS[at])]);
                record.push(&row, "first response", "ms", started.sample.ms);
            }
        }
        record.cpu_loop();
    }
    Ok(())
}

/// Deploys a version, and records its snapshot's bytes, without its bundle.
fn store(
    record: &mut Record,
    platform: &Platform,
    folder: &Folder,
    name: &str,
    way: &str,
    version: usize,
) -> Result<()> {
    const MIB: f64 = 1_048_576.0;
    let deployed = platform.deployed(folder)?;
    let snapshot = deployed.snapshot.as_ref().context("there is no snapshot")?;
    let booting = deployed.phases.iter().find(|p| p.phase == VersionState::Booting);
    let which = if version == 0 { "first" } else { "later" };
    let row = Row::of(STORED, &[("sample", &name), ("shares with", &way), ("version", &which)]);
    let (stored, shared) = (snapshot.stored_bytes as f64, snapshot.shared_bytes as f64);
    record.push(&row, "new", "MiB", (stored - shared) / MIB);
    record.push(&row, "memory", "MiB", snapshot.memory_bytes as f64 / MIB);
    record.push(&row, "stored", "MiB", stored / MIB);
    record.push(&row, "there before", "%", 100.0 * shared / stored.max(1.0));
    record.push(&row, "booting", "ms", booting.context("it was not booted")?.ms);
    Ok(())
}

/// Makes another version of the function, which does the same and has one more line.
fn change(folder: &Folder, version: usize) -> Result<()> {
    let lines = [
        ("main.py", format!("noted = {version}")),
        ("index.js", format!("globalThis.noted = {version};")),
    ];
    let there = lines.iter().filter(|(file, _)| folder.path().join(file).exists());
    there.into_iter().try_for_each(|(file, line)| folder.append(file, line))
}
