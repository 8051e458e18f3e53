//! `rekindle-bench sharing`: how much of a snapshot the store already has, for each way of sharing the snapshot of a
//! runtime. It also measures the effect on a boot for a deploy, and on a restore. There is a platform for each way, in
//! turn, in one run.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rekindle_wire::api::{VersionInfo, VersionState};
use serde::Serialize;

use crate::args::{Args, checkout};
use crate::folder;
use crate::host::Host;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::report::{mib, ms, table};
use crate::stats::{figures, ratio};

/// The values of `--share-memory`.
const WAYS: [&str; 3] = ["none", "versions", "functions"];
/// Versions of each function; each but the first changes its source by a line.
const VERSIONS: usize = 6;
/// Pause between two restores.
const CALM: Duration = Duration::from_millis(30);
/// Restores until the working set is known.
const RECORDED: usize = 5;

/// `rekindle-bench sharing`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SharingArgs {
    /// Folders below functions/samples; they are deployed in this order.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_values_t = ["hello-python", "counter-python", "numpy-python", "touch-python", "hello-node"].map(String::from)
    )]
    samples: Vec<String>,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-sharing.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, Serialize)]
struct Sample {
    name: String,
    ways: Vec<Way>,
}

/// A sample under one of [`WAYS`].
#[derive(Debug, Clone, Serialize)]
struct Way {
    way: &'static str,
    /// Sizes by version.
    versions: Vec<Size>,
    /// From the trigger to the last byte of the first response of the last version, restored, milliseconds.
    restored: Vec<f64>,
}

/// Bytes of a version's snapshot, without its bundle.
#[derive(Debug, Clone, Copy, Serialize)]
struct Size {
    memory: u64,
    stored: u64,
    shared: u64,
    /// The phase `booting` of its deploy, milliseconds.
    booting_ms: f64,
}

impl Size {
    fn of(version: &VersionInfo) -> Result<Self> {
        let snapshot = version.snapshot.as_ref().context("there is no snapshot")?;
        let booting = version.phases.iter().find(|p| p.phase == VersionState::Booting);
        Ok(Self {
            memory: snapshot.memory_bytes,
            stored: snapshot.stored_bytes,
            shared: snapshot.shared_bytes,
            booting_ms: booting.context("it was not booted")?.ms,
        })
    }

    fn added(self) -> u64 {
        self.stored - self.shared
    }
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, asked: &SharingArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        samples: Vec::new(),
    };
    let mut platforms = Vec::new();
    for way in WAYS {
        platforms.push(Platform::start_with(args, &[("FN_SHARE_MEMORY", way)]).await?);
    }
    for name in &asked.samples {
        eprintln!("{name}");
        let sample = measure(args, &platforms, name).await;
        record.samples.push(sample.with_context(|| format!("sample {name}"))?);
    }
    let path = record.taken.place(asked.json.as_deref(), "-sharing");
    record::write_json(&record, &path)?;
    print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

async fn measure(args: &Args, platforms: &[Platform], name: &str) -> Result<Sample> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let folder = scratch.path().join("function");
    folder::copy(&checkout().join("functions/samples").join(name), &folder)?;
    folder::rename(&folder, name, &[("idle", "\"600s\"")])?;
    let mut ways: Vec<Way> = WAYS
        .iter()
        .map(|way| Way {
            way,
            versions: Vec::new(),
            restored: Vec::new(),
        })
        .collect();
    for version in 0..VERSIONS {
        if version > 0 {
            change(&folder, version)?;
        }
        for (platform, way) in std::iter::zip(platforms, &mut ways) {
            way.versions.push(Size::of(&platform.deploy(&folder)?)?);
            platform.admin()?.delete_all().await?;
        }
    }
    let mut hosts = Vec::with_capacity(platforms.len());
    for platform in platforms {
        hosts.push(Host::of(platform).await?);
    }
    for round in 0..RECORDED + (args.warmup + args.runs) as usize {
        // Each is first in a round as often as the others. It begins once the previous one is gone and its sandbox is
        // replaced.
        for turn in 0..WAYS.len() {
            let at = (round + turn) % WAYS.len();
            let (host, way) = (&hosts[at], &mut ways[at]);
            tokio::time::sleep(CALM).await;
            let triggered = Instant::now();
            let instance = host.restore(name).await?;
            let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
            host.admin.delete(&instance).await?;
            if round >= RECORDED + args.warmup as usize {
                way.restored.push(ms);
            }
        }
    }
    Ok(Sample {
        name: name.to_owned(),
        ways,
    })
}

/// Makes another version of the function, which does the same and has one more line.
fn change(folder: &Path, version: usize) -> Result<()> {
    for (file, line) in [
        ("main.py", format!("noted = {version}")),
        ("index.js", format!("globalThis.noted = {version};")),
    ] {
        let source = folder.join(file);
        if source.exists() {
            let appended = fs::OpenOptions::new().append(true).open(&source);
            let appended = appended.and_then(|mut file| writeln!(file, "{line}"));
            appended.with_context(|| format!("{}: cannot be written", source.display()))?;
        }
    }
    Ok(())
}

fn print(record: &Record) {
    println!("\n{}", record.taken);
    let head = [
        "sample",
        "shares with",
        "memory, MiB",
        "stored, MiB",
        "new of the first version, MiB",
        "new of the next, MiB",
        "in the store before",
        "booting, ms",
        "restored p50, ms",
        "restored over none (95 %)",
    ];
    let mut shown = table(&head, 2);
    for sample in &record.samples {
        let Some(plain) = sample.ways.first().map(|way| &way.restored) else {
            continue;
        };
        for way in &sample.ways {
            let ([first, later @ ..], Some(f)) = (way.versions.as_slice(), figures(way.restored.iter().copied()))
            else {
                continue;
            };
            let Some(last) = later.last() else { continue };
            let beside = ratio(plain, &way.restored, 1).map_or(String::new(), |r| {
                format!("{:.2} ({:.2} to {:.2})", r.value, r.low, r.high)
            });
            let booting = figures(later.iter().map(|size| size.booting_ms)).map_or(String::new(), |f| ms(f.p50));
            shown.add_row([
                sample.name.clone(),
                way.way.to_owned(),
                format!("{:.1}", mib(last.memory)),
                format!("{:.2}", mib(last.stored)),
                format!("{:.2}", mib(first.added())),
                format!("{:.2}", mib(last.added())),
                format!("{:.0} %", 100.0 * last.shared as f64 / last.stored.max(1) as f64),
                booting,
                ms(f.p50),
                beside,
            ]);
        }
    }
    println!("\n{shown}");
}
