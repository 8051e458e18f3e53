//! `rekindle-bench codec`: how memory is stored, in every mode, compared with liblz4 used as CRIU 4.3 uses it, and with
//! a plain copy.
//!
//! ```text
//! patterns ─► a dump on tmpfs ─┬─ ours   publish ─► S3 in this process, on tmpfs ─► restore from it, and from the chunk cache
//!                              └─ peer   one thread: a block, 7/8, a file on tmpfs ─► and back; and by way of the same S3
//! process ─► the same patterns in a real process: deployed, checkpointed, restored by the platform
//! ```

mod dump;
mod memory;
mod ours;
mod patterns;
mod peer;
mod process;
mod report;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rekindle_snapshotter::{Acceleration, Codec, RegionSize};
use serde::Serialize;

use crate::args::Args;
use crate::record::{self, Taken};
use memory::Memory;
use ours::Store;
use patterns::Pattern;

/// `rekindle-bench codec`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CodecArgs {
    /// Memory of each pattern, MiB: a multiple of 4.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(4..=16_384))]
    mib: u64,
    /// Only these patterns.
    #[arg(long, value_enum, value_delimiter = ',')]
    patterns: Vec<Pattern>,
    /// Only these region sizes.
    #[arg(long, value_delimiter = ',', default_value = "4K,64K,256K,1M,4M")]
    regions: Vec<RegionSize>,
    /// LZ4's acceleration, ours and the peer's.
    #[arg(long, value_name = "N", default_value_t)]
    acceleration: Acceleration,
    /// How often each is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Memory of a real process that passes through the platform in each mode, MiB; 0 for none.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    process: u64,
    /// Directory of the dump, the store and the peer's files.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-codec.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// One pattern in one mode.
#[derive(Debug, Clone, Serialize)]
struct Row {
    pattern: Pattern,
    region: String,
    memory_bytes: u64,
    sha256_before: String,
    sha256_after: String,
    ours: ours::Figures,
    peer: peer::Figures,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    mib: u64,
    rounds: u32,
    acceleration: u8,
    rows: Vec<Row>,
    /// Reading and writing each pattern once, seconds.
    copies: Vec<(Pattern, f64)>,
    processes: Vec<process::Row>,
}

/// Measures, writes, prints.
pub(crate) fn run(all: &Args, args: &CodecArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        mib: args.mib.next_multiple_of(4),
        rounds: args.rounds,
        acceleration: args.acceleration.get(),
        rows: Vec::new(),
        copies: Vec::new(),
        processes: Vec::new(),
    };
    let chosen = if args.patterns.is_empty() {
        Pattern::ALL.to_vec()
    } else {
        args.patterns.clone()
    };
    for pattern in chosen {
        measure(&mut record, args, pattern)?;
    }
    if args.process > 0 {
        record.processes = process::run(all, args.process, &args.regions, args.acceleration)?;
    }
    let path = record.taken.place(args.json.as_deref(), "-codec");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    let changed = record.rows.iter().any(|row| row.sha256_before != row.sha256_after)
        || record.processes.iter().any(|row| row.sha256_before != row.sha256_after);
    if changed {
        bail!("memory did not come back as it was");
    }
    Ok(())
}

fn measure(record: &mut Record, args: &CodecArgs, pattern: Pattern) -> Result<()> {
    let scratch = tempfile::Builder::new()
        .prefix("rekindle-codec-")
        .tempdir_in(&args.scratch);
    let scratch = scratch.with_context(|| format!("{}: no directory can be made there", args.scratch.display()))?;
    let dump = scratch.path().join("dump");
    let bytes = record.mib << 20;
    dump::write(&dump, pattern, bytes)?;
    let memory = dump.join(dump::PAGES);
    let before = sha256(Stdio::from(File::open(&memory)?))?;
    let plain = Arc::new(Memory::new(usize::try_from(bytes)?));
    record.copies.push((pattern, peer::copy(&memory, scratch.path())?));
    for size in &args.regions {
        eprintln!("{}, {size}", pattern.name());
        let codec = Codec {
            region: *size,
            acceleration: args.acceleration,
        };
        let (mut ours, mut peers, mut after) = (Vec::new(), Vec::new(), before.clone());
        for _ in 0..args.rounds {
            let store = Store::start(&scratch.path().join("store"))?;
            plain.clear();
            ours.push(store.measure(&dump, codec, &plain)?);
            let found = sha256_of(&plain)?;
            if found != before {
                after = found;
            }
            peers.push(peer::measure(&memory, scratch.path(), codec, &store, &plain)?);
            drop(store);
            std::fs::remove_dir_all(scratch.path().join("store")).context("the store cannot be removed")?;
            if sha256_of(&plain)? != before {
                bail!("{}, {size}: the peer gave back other bytes", pattern.name());
            }
        }
        record.rows.push(Row {
            pattern,
            region: size.to_string(),
            memory_bytes: bytes,
            sha256_before: before.clone(),
            sha256_after: after,
            ours: ours::median(ours).context("no rounds")?,
            peer: peer::median(peers).context("no rounds")?,
        });
    }
    Ok(())
}

fn sha256_of(memory: &Memory) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("sha256sum (coreutils) cannot be started")?;
    if let Some(stdin) = child.stdin.take() {
        memory.write_to(stdin).context("sha256sum does not read")?;
    }
    let output = child.wait_with_output().context("sha256sum does not end")?;
    digest(&output.stdout)
}

fn sha256(from: Stdio) -> Result<String> {
    let output = Command::new("sha256sum").stdin(from).output();
    digest(&output.context("sha256sum (coreutils) cannot be started")?.stdout)
}

fn digest(told: &[u8]) -> Result<String> {
    let told = String::from_utf8_lossy(told);
    let digest = told.split_whitespace().next().context("sha256sum told nothing")?;
    Ok(digest.to_owned())
}

/// A start time, with the processor time that this process had taken by then.
struct Clock {
    begun: Instant,
    cpu_s: f64,
}

/// Time and processor time since a start.
struct Elapsed {
    seconds: f64,
    cpu_s: f64,
}

impl Clock {
    fn start() -> Self {
        let (begun, cpu_s) = (Instant::now(), cpu_seconds());
        Self { begun, cpu_s }
    }

    fn elapsed(&self) -> Elapsed {
        Elapsed {
            seconds: self.begun.elapsed().as_secs_f64(),
            cpu_s: cpu_seconds() - self.cpu_s,
        }
    }
}

/// Processor time of all threads of this process.
fn cpu_seconds() -> f64 {
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    usage.map_or(f64::NAN, |usage| {
        seconds(usage.user_time()) + seconds(usage.system_time())
    })
}

/// The middle item when sorted by `key`.
fn middle<T>(mut items: Vec<T>, key: impl Fn(&T) -> f64) -> Option<T> {
    items.sort_by(|a, b| key(a).total_cmp(&key(b)));
    let at = items.len() / 2;
    (at < items.len()).then(|| items.swap_remove(at))
}
