//! `rekindle-bench codec`: how memory is stored, in every mode, compared with liblz4 used as CRIU 4.3 uses it, and with
//! a plain copy.
//!
//! ```text
//! patterns ─► a dump on tmpfs ─┬─ ours   publish ─► S3 in this process, on tmpfs ─► restore from it,
//!                              │         and from the chunk cache
//!                              └─ peer   one thread: a block, 7/8, a file on tmpfs ─► and back;
//!                                        and by way of the same S3
//! process ─► the same patterns in a real process: deployed, checkpointed, restored by the platform
//! ```

mod dump;
mod memory;
mod ours;
mod patterns;
mod peer;
mod process;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rekindle_snapshotter::{Acceleration, Codec, RegionSize};

use crate::args::Args;
use crate::record::{Record, Row};
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
    /// Encrypt ours, as in a namespace whose snapshots are.
    #[arg(long)]
    encrypt: bool,
    /// Directory of the dump, the store and the peer's files.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
}

/// Titles of the tables.
const STORED: &str = "Bytes stored";
const CAPTURE: &str = "From the dump to where it is stored";
const RESTORE: &str = "From there to plain memory";
/// Who stores it, and by which way.
const OURS: &str = "ours";
const OURS_CACHED: &str = "ours, from the cache";
const PEER: &str = "liblz4";
const PEER_SHIPPED: &str = "liblz4, by the same store";
const PEER_FILE: &str = "liblz4, by a file";

/// Measures.
pub(crate) fn run(all: &Args, args: &CodecArgs) -> Result<Record> {
    let mut record = Record::begin("codec");
    record.fact(
        "memory",
        format!(
            "{} MiB of each pattern, acceleration {}",
            args.mib.next_multiple_of(4),
            args.acceleration
        ),
    );
    record.fact(
        "peer",
        "liblz4 as CRIU 4.3 uses it: one thread, to a file and back, and \
         by way of the S3 server to which ours is published",
    );
    if args.encrypt {
        record.fact("encryption", "ours is encrypted, the peer's is not");
    }
    for base in [PEER, PEER_SHIPPED, PEER_FILE] {
        record.baseline("by", base);
    }
    let chosen = if args.patterns.is_empty() {
        Pattern::ALL.to_vec()
    } else {
        args.patterns.clone()
    };
    for pattern in &chosen {
        measure(&mut record, args, *pattern)?;
        record.cpu_loop();
    }
    if args.process > 0 {
        process::run(&mut record, all, args.process, &args.regions, args.acceleration)?;
    }
    bars(&mut record, args, &chosen);
    Ok(record)
}

fn row(table: &str, pattern: Pattern, region: RegionSize, by: &str) -> Row {
    Row::of(table, &[("pattern", &pattern.name()), ("region", &region), ("by", &by)])
}

fn measure(record: &mut Record, args: &CodecArgs, pattern: Pattern) -> Result<()> {
    let scratch = tempfile::Builder::new()
        .prefix("rekindle-codec-")
        .tempdir_in(&args.scratch);
    let scratch = scratch.with_context(|| format!("{}: no directory can be made there", args.scratch.display()))?;
    let dump = scratch.path().join("dump");
    let bytes = args.mib.next_multiple_of(4) << 20;
    dump::write(&dump, pattern, bytes)?;
    let memory = dump.join(dump::PAGES);
    let before = sha256(Stdio::from(File::open(&memory)?))?;
    let plain = Arc::new(Memory::new(usize::try_from(bytes)?));
    let copied = peer::copy(&memory, scratch.path())?;
    record.push(
        &Row::of("Plain copy", &[("pattern", &pattern.name())]),
        "took",
        "s",
        copied,
    );
    for region in &args.regions {
        eprintln!("{}, {region}", pattern.name());
        let codec = Codec {
            region: *region,
            acceleration: args.acceleration,
        };
        let row = |table, by| row(table, pattern, *region, by);
        for _ in 0..args.rounds {
            let store = Store::start(&scratch.path().join("store"), args.encrypt)?;
            plain.clear();
            let ours = store.measure(&dump, codec, &plain)?;
            if sha256_of(&plain)? != before {
                let failure = format!("{}, {region}: memory did not come back as it was", pattern.name());
                record.failures.push(failure);
            }
            let peer = peer::measure(&memory, scratch.path(), codec, &store, &plain)?;
            drop(store);
            std::fs::remove_dir_all(scratch.path().join("store")).context("the store cannot be removed")?;
            if sha256_of(&plain)? != before {
                bail!("{}, {region}: the peer gave back other bytes", pattern.name());
            }
            for (by, bytes) in [(OURS, ours.stored_bytes), (PEER, peer.stored_bytes)] {
                record.push(&row(STORED, by), "stored", "MiB", mib(bytes));
            }
            record.push(&row(STORED, OURS), "of it payloads", "MiB", mib(ours.payload_bytes));
            for (table, by, elapsed) in [
                (CAPTURE, OURS, ours.capture),
                (CAPTURE, PEER_SHIPPED, peer.shipped),
                (CAPTURE, PEER_FILE, peer.capture),
                (RESTORE, OURS, ours.restore),
                (RESTORE, OURS_CACHED, ours.restore_cached),
                (RESTORE, PEER_SHIPPED, peer.fetched),
                (RESTORE, PEER_FILE, peer.restore),
            ] {
                record.push(&row(table, by), "took", "s", elapsed.seconds);
                record.push(&row(table, by), "CPU", "s", elapsed.cpu_s);
            }
        }
    }
    Ok(())
}

/// The target: at one block size no larger than liblz4 as CRIU uses it, and faster.
fn bars(record: &mut Record, args: &CodecArgs, patterns: &[Pattern]) {
    let all = mib(args.mib << 20);
    let cases = || patterns.iter().flat_map(|p| args.regions.iter().map(move |r| (*p, *r)));
    let p50 = |record: &Record, (pattern, region), table, name, by| {
        record
            .median(&row(table, pattern, region, by), name)
            .unwrap_or_default()
    };
    // Capture and restore together.
    let both = |record: &Record, case, capture, restore| {
        p50(record, case, CAPTURE, "took", capture) + p50(record, case, RESTORE, "took", restore)
    };
    type Missed<'a> = &'a dyn Fn(&Record, (Pattern, RegionSize)) -> bool;
    let targets: [(&str, Missed); 3] = [
        // For pure zeros both store next to nothing.
        ("no larger than liblz4 at the same block size", &|record, case| {
            let of = |by| p50(record, case, STORED, "stored", by);
            of(OURS) > of(PEER).max(all / 1000.0)
        }),
        (
            "capture to the store and restore from it together faster than liblz4's by the same store",
            &|record, case| both(record, case, OURS, OURS) > both(record, case, PEER_SHIPPED, PEER_SHIPPED),
        ),
        (
            "capture, and restore from the cache, together faster than liblz4's to a file and \
             back, which hashes, sends and shares nothing",
            &|record, case| both(record, case, OURS, OURS_CACHED) > both(record, case, PEER_FILE, PEER_FILE),
        ),
    ];
    for (target, missed) in targets {
        let missed = cases().filter(|case| missed(record, *case));
        let missed: Vec<String> = missed.map(|(p, r)| format!("{} {r}", p.name())).collect();
        let value = match missed.is_empty() {
            true => "by all".to_owned(),
            false => format!("not by {}", missed.join(", ")),
        };
        record.bar(target, value, missed.is_empty());
    }
}

/// Bytes in MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
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
#[derive(Debug, Clone, Copy)]
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
