//! `rekindle-bench versions`: what the platform holds after many versions of a function, and after its delete.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::args::Args;
use crate::host::Host;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::report::table;

/// How long the platform has to let go of what was deleted.
const LET_GO: Duration = Duration::from_secs(60);
/// Versions from one look at the platform to the next.
const EVERY: usize = 100;
/// Some 10 MB, of another content in each version.
const CODE: &str = "DATA = [(VERSION * n).to_bytes(8, 'little') for n in range(100_000)]\n\
    def handler(event, context):\n    return VERSION\n";

/// `rekindle-bench versions`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct VersionsArgs {
    /// Versions of one function, deployed one after the other and restored once each.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    versions: usize,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-versions.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    rows: Vec<Row>,
}

/// What the platform held at some moment.
#[derive(Debug, Clone, Serialize)]
struct Row {
    when: String,
    /// Resident memory of the platform's process that is its own, MiB.
    own_mib: u64,
    /// Templates' memory, MiB.
    templates_mib: u64,
    /// Files below its directories, MiB.
    disk_mib: u64,
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, asked: &VersionsArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        rows: Vec::new(),
    };
    let platform = Platform::start(args).await?;
    let host = Host::of(&platform).await?;
    deploy(&platform, &host, "first", 0).await?;
    platform.delete("first")?;
    tokio::time::sleep(LET_GO).await;
    record
        .rows
        .push(Row::of(&platform, &host, "one version, deleted".into()).await?);
    let started = Instant::now();
    for version in 1..=asked.versions {
        deploy(&platform, &host, "many", version).await?;
        if version % EVERY == 0 || version == asked.versions {
            record
                .rows
                .push(Row::of(&platform, &host, format!("{version} versions")).await?);
            eprintln!("{version} versions in {:.0} s", started.elapsed().as_secs_f64());
        }
    }
    platform.delete("many")?;
    tokio::time::sleep(LET_GO).await;
    record
        .rows
        .push(Row::of(&platform, &host, "deleted, a minute later".into()).await?);
    let path = record.taken.place(asked.json.as_deref(), "-versions");
    record::write_json(&record, &path)?;
    print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

async fn deploy(platform: &Platform, host: &Host, name: &str, version: usize) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary directory")?;
    let settings = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n");
    for (file, text) in [
        ("fn.toml", settings),
        ("main.py", format!("VERSION = {version}\n{CODE}")),
    ] {
        fs::write(folder.path().join(file), text).with_context(|| format!("{file} cannot be written"))?;
    }
    platform.deploy(folder.path())?;
    let instance = host.restore(name).await?;
    host.admin.delete(&instance).await
}

impl Row {
    async fn of(platform: &Platform, host: &Host, when: String) -> Result<Self> {
        let status = format!("/proc/{}/status", platform.pid());
        let status = fs::read_to_string(&status).with_context(|| format!("{status} cannot be read"))?;
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|kib| kib.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(Self {
            when,
            own_mib: kib.context("its memory is not told")? >> 10,
            templates_mib: host.metric("rekindle_templates_memory_bytes").await? as u64 >> 20,
            disk_mib: bytes_below(platform.root())? >> 20,
        })
    }
}

/// Bytes that the files below this directory take on the disk. What goes meanwhile counts for nothing.
fn bytes_below(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)
        .with_context(|| format!("{}: cannot be read", dir.display()))?
        .flatten()
    {
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += bytes_below(&entry.path()).unwrap_or(0),
            Ok(found) => bytes += found.blocks() * 512,
            Err(_) => {}
        }
    }
    Ok(bytes)
}

fn print(record: &Record) {
    println!("\n{}", record.taken);
    println!("\nWhat the platform holds, MiB\n");
    let mut table = table(&["after", "its own memory", "templates", "disk"], 0);
    for row in &record.rows {
        table.add_row([
            row.when.clone(),
            row.own_mib.to_string(),
            row.templates_mib.to_string(),
            row.disk_mib.to_string(),
        ]);
    }
    println!("{table}");
}
