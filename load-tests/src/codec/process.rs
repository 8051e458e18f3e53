//! The patterns in a real process: deployed, checkpointed, published and restored by the platform, in each mode. The
//! function returns the SHA-256 of its memory, from before the checkpoint and as it is now.

use anyhow::{Context as _, Result};
use rekindle_snapshotter::{Acceleration, RegionSize};
use rekindle_testkit::Folder;
use serde::Deserialize;

use super::mib;
use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};

const FUNCTION: &str = "pattern";
/// Restores whose first response is timed in each mode.
const RUNS: usize = 15;

/// A fifth of the memory for each pattern. `/` reads a page of each; `/digest` reads everything.
const PROGRAM: &str = r#"
import hashlib, json, mmap, os, random
MIB = int(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mib")).read())
PART = MIB * 1024 * 1024 // 5 // 4096 * 4096

def text(rng):
    out, size, n = [], 0, 0
    while size < PART:
        line = json.dumps({
            "id": n, "user": rng.randrange(10**6), "name": rng.choice(["Ada", "Grace", "Alan"]), "score": rng.random(),
        })
        out.append(line); size += len(line) + 1; n += 1
    return "\n".join(out).encode()[:PART]

def elf():
    out = bytearray()
    for folder in ("/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/local/bin", "/usr/lib/python3.11/lib-dynload"):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if os.path.isfile(path) and len(out) < PART:
                with open(path, "rb") as file:
                    out += file.read(PART - len(out))
    return bytes(out)

def filled(content):
    memory = mmap.mmap(-1, PART, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:len(content)] = content
    return memory

rng = random.Random(7)
mixed = b"".join(
    (bytes(8192), n.to_bytes(16, "little") * 256, rng.randbytes(4096)) [k]
    for n in range(PART // 16384) for k in range(3)
)
PARTS = [filled(bytes(PART)), filled(mixed), filled(rng.randbytes(PART)), filled(text(rng)), filled(elf())]
del mixed

def digest():
    sha = hashlib.sha256()
    for part in PARTS:
        sha.update(part)
    return sha.hexdigest()

BEFORE = digest()

def handler(event, context):
    if event.get("rawPath") == "/digest":
        return {"before": BEFORE, "after": digest()}
    return {"bytes": [part[PART // 2] for part in PARTS]}
"#;

#[derive(Deserialize)]
struct Digests {
    before: String,
    after: String,
}

/// Measures each of these region sizes on a platform of its own.
pub(super) fn run(
    record: &mut Record,
    args: &Args,
    mib: u64,
    regions: &[RegionSize],
    acceleration: Acceleration,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the async runtime could not be started")?;
    let config = format!(
        "name = \"{FUNCTION}\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"{}MiB\"\ntimeout = \"60s\"\n\
         concurrency = 1\nidle = \"60s\"\n\n[[warmup]]\nmethod = \"GET\"\npath = \"/\"\n",
        mib * 2 + 256
    );
    let folder = Folder::with_config(&config)
        .file("main.py", PROGRAM)
        .file("mib", &mib.to_string());
    for region in regions {
        eprintln!("a process of {mib} MiB, {region}");
        let measured = runtime.block_on(Box::pin(measure(record, args, &folder, *region, acceleration)));
        measured.with_context(|| format!("a process of {mib} MiB, {region}"))?;
    }
    Ok(())
}

async fn measure(
    record: &mut Record,
    args: &Args,
    folder: &Folder,
    region: RegionSize,
    acceleration: Acceleration,
) -> Result<()> {
    let (size, acceleration) = (region.to_string(), acceleration.to_string());
    let settings = [("FN_REGION", size.as_str()), ("FN_ACCELERATION", acceleration.as_str())];
    let platform = platform::start(args, &settings)?;
    record.program = Some(platform.program());
    let snapshot = platform
        .deployed(folder)?
        .snapshot
        .context("the version has no snapshot")?;
    let ours = Ours::of(&platform, FUNCTION);
    let call = async |path: &str| {
        let started = ours.start("restored", FUNCTION, path).await?;
        platform.remove_instance(started.instance())?;
        anyhow::Ok(started)
    };
    let row = Row::of(
        "A real process, a fifth of each pattern, through the platform",
        &[("region", &region)],
    );
    // Every page through the pager.
    let all = call("/digest").await?;
    let digests: Digests = serde_json::from_slice(&all.reply.body).context("no digests")?;
    if digests.before != digests.after {
        record
            .failures
            .push(format!("a process, {region}: memory did not come back as it was"));
    }
    for _ in 0..RUNS {
        record.push(&row, "first response", "ms", call("/").await?.sample.ms);
    }
    record.push(&row, "all of it", "ms", all.sample.ms);
    record.push(&row, "frozen", "ms", snapshot.frozen_ms);
    record.push(&row, "memory", "MiB", mib(snapshot.memory_bytes));
    record.push(&row, "stored", "MiB", mib(snapshot.stored_bytes));
    Ok(())
}
