//! The patterns in a real process: deployed, checkpointed, published and restored by the platform, in each mode. The
//! function returns the SHA-256 of its memory, from before the checkpoint and as it is now.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http::{Method, StatusCode};
use rekindle_snapshotter::{Acceleration, RegionSize};
use rekindle_wire::headers::{FORCE_START, INSTANCE, START};
use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::client::Connection;
use crate::platform::Platform;
use crate::stats::figures;

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
        line = json.dumps({"id": n, "user": rng.randrange(10**6), "name": rng.choice(["Ada", "Grace", "Alan"]), "score": rng.random()})
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
mixed = b"".join((bytes(8192), n.to_bytes(16, "little") * 256, rng.randbytes(4096)) [k] for n in range(PART // 16384) for k in range(3))
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

/// One mode.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) region: String,
    pub(super) sha256_before: String,
    pub(super) sha256_after: String,
    pub(super) memory_bytes: u64,
    pub(super) stored_bytes: u64,
    pub(super) frozen_ms: f64,
    /// From the request to the first response of a restored instance: median and greatest of [`RUNS`].
    pub(super) first_p50_ms: f64,
    pub(super) first_max_ms: f64,
    /// From the request to the SHA-256 of all memory, every page through the pager.
    pub(super) all_ms: f64,
}

#[derive(Deserialize)]
struct Digests {
    before: String,
    after: String,
}

/// Measures each of these region sizes on a platform of its own.
pub(super) fn run(args: &Args, mib: u64, regions: &[RegionSize], acceleration: Acceleration) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the async runtime could not be started")?;
    let folder = tempfile::tempdir().context("no temporary directory")?;
    write_function(folder.path(), mib)?;
    let mut rows = Vec::new();
    for region in regions {
        eprintln!("a process of {mib} MiB, {region}");
        let row = runtime.block_on(Box::pin(measure(args, folder.path(), *region, acceleration)));
        rows.push(row.with_context(|| format!("a process of {mib} MiB, {region}"))?);
    }
    Ok(rows)
}

fn write_function(dir: &Path, mib: u64) -> Result<()> {
    let manifest = format!(
        "name = \"pattern\"\nruntime = \"python\"\nentry = \"main.handler\"\nmemory = \"{}MiB\"\ntimeout = \"60s\"\n\
         concurrency = 1\nidle = \"60s\"\n\n[[warmup]]\nmethod = \"GET\"\npath = \"/\"\n",
        mib * 2 + 256
    );
    for (name, content) in [
        ("fn.toml", manifest.as_str()),
        ("main.py", PROGRAM),
        ("mib", &mib.to_string()),
    ] {
        fs::write(dir.join(name), content).with_context(|| format!("{name} cannot be written"))?;
    }
    Ok(())
}

async fn measure(args: &Args, folder: &Path, region: RegionSize, acceleration: Acceleration) -> Result<Row> {
    let (size, acceleration) = (region.to_string(), acceleration.to_string());
    let settings = [("FN_REGION", size.as_str()), ("FN_ACCELERATION", acceleration.as_str())];
    let platform = Platform::start_with(args, &settings).await?;
    let version = platform.deploy(folder)?;
    let snapshot = version.snapshot.context("the version has no snapshot")?;
    let admin = platform.admin()?;
    let headers = [admin.authorization(), (FORCE_START, "restored")];
    let call = async |path: &str| {
        let triggered = Instant::now();
        let mut connection = Connection::open(platform.port()).await?;
        let answer = connection
            .call(Method::GET, &format!("/function/pattern{path}"), &headers)
            .await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        if answer.status != StatusCode::OK {
            bail!("{}: {}", answer.status, answer.text());
        }
        if answer.header(START) != "restored" {
            bail!("the instance was {}, not restored", answer.header(START));
        }
        admin.delete(answer.header(INSTANCE)).await?;
        anyhow::Ok((ms, String::from_utf8_lossy(&answer.body).into_owned()))
    };
    let (all_ms, digests) = call("/digest").await?;
    let digests: Digests = serde_json::from_str(&digests).with_context(|| format!("no digests: {digests}"))?;
    let mut first = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        first.push(call("/").await?.0);
    }
    let first = figures(first).context("no runs")?;
    Ok(Row {
        region: size.clone(),
        sha256_before: digests.before,
        sha256_after: digests.after,
        memory_bytes: snapshot.memory_bytes,
        stored_bytes: snapshot.stored_bytes,
        frozen_ms: snapshot.frozen_ms,
        first_p50_ms: first.p50,
        first_max_ms: first.p99,
        all_ms,
    })
}
