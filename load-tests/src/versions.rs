//! `rekindle-bench versions`: what the platform holds after many versions of a function, and after its delete.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rekindle_testkit::{Folder, Platform};

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};

const MIB: f64 = 1_048_576.0;
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
}

/// Measures.
pub(crate) async fn run(args: &Args, asked: &VersionsArgs) -> Result<Record> {
    let mut record = Record::begin("versions");
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    deploy(&platform, "first", 0).await?;
    platform.delete("first")?;
    tokio::time::sleep(LET_GO).await;
    look(&mut record, &platform, "one version, deleted")?;
    let started = Instant::now();
    for version in 1..=asked.versions {
        deploy(&platform, "many", version).await?;
        if version % EVERY == 0 || version == asked.versions {
            look(&mut record, &platform, &format!("{version} versions"))?;
            eprintln!("{version} versions in {:.0} s", started.elapsed().as_secs_f64());
        }
    }
    platform.delete("many")?;
    tokio::time::sleep(LET_GO).await;
    look(&mut record, &platform, "deleted, a minute later")?;
    Ok(record)
}

async fn deploy(platform: &Platform, name: &str, version: usize) -> Result<()> {
    let settings = format!("name = \"{name}\"\nruntime = \"python\"\nentry = \"main.handler\"\n");
    let folder = Folder::with_config(&settings).file("main.py", &format!("VERSION = {version}\n{CODE}"));
    platform.deployed(&folder)?;
    let started = Ours::of(platform, name).start("restored", name, "/").await?;
    platform.remove_instance(started.instance())
}

/// Records what the platform holds now.
fn look(record: &mut Record, platform: &Platform, when: &str) -> Result<()> {
    let status = format!("/proc/{}/status", platform.pid());
    let status = fs::read_to_string(&status).with_context(|| format!("{status} cannot be read"))?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = anonymous.and_then(|kib| kib.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    let row = Row::of("What the platform holds", &[("after", &when)]);
    for (name, bytes) in [
        ("its own memory", kib.context("its memory is not told")? * 1024.0),
        ("templates", platform.worker_metric("rekindle_templates_memory_bytes")),
        ("disk", bytes_below(platform.root())? as f64),
    ] {
        record.push(&row, name, "MiB", bytes / MIB);
    }
    Ok(())
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
