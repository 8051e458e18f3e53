//! Many sandboxes one after the other through a pool like the worker's: the cost of taking one, and whether anything
//! grows with them.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rekindle_worker::host::sandbox::maker::{EmptySandbox, SandboxMaker};
use rekindle_worker::host::sandbox::pool::SandboxPool;
use rekindle_worker::host::start_limiter::StartLimiter;

use super::making::{Clock, LIMITS, Place};
use crate::record::{Record, Row};
use crate::stats::figures;
use crate::table::number;

/// Limit for the pool to be full.
const FULL_LIMIT: Duration = Duration::from_secs(30);
/// Time to clean up after the last ones: the kernel ends network namespaces in the background.
const SETTLE: Duration = Duration::from_secs(3);
/// Uncounted sandboxes before: whatever is made only once is made then.
const WARM_UP: usize = 100;

/// Titles of the tables.
const IN_A_ROW: &str = "Many in a row through a pool";
const LEVELS: &str = "What the host has before and after them";
/// Target for taking one from the pool, milliseconds.
const TAKE_BAR_MS: f64 = 0.2;

/// Takes, furnishes and ends `count` of them.
pub(super) async fn run(record: &mut Record, place: &Place, count: usize) -> Result<()> {
    let maker = SandboxMaker::new(
        place.cgroups.clone(),
        Arc::clone(&place.zygote),
        place.prestart.clone(),
        place.network.clone(),
        false,
    );
    let pool = Arc::new(SandboxPool::new(maker, Arc::new(StartLimiter::new(8)), 8, 8));
    let filling = tokio::spawn(Arc::clone(&pool).keep_filled());
    let taken = take_all(record, place, &pool, count).await;
    filling.abort();
    let closing = Arc::clone(&pool);
    tokio::task::spawn_blocking(move || closing.close()).await?;
    taken
}

async fn take_all(record: &mut Record, place: &Place, pool: &SandboxPool, count: usize) -> Result<()> {
    for _ in 0..WARM_UP {
        once(place, pool).await?;
    }
    levels(record, "before", settled(place, pool).await?);
    let mut takes = Vec::with_capacity(count);
    for done in 0..count {
        if done > 0 && done.is_multiple_of(1_000) {
            eprintln!("  {done}");
        }
        let part = match done * 10 / count {
            0 => "the first tenth",
            9 => "the last tenth",
            _ => "between",
        };
        for (step, ms) in once(place, pool).await? {
            record.push(
                &Row::of(IN_A_ROW, &[("step", &step), ("part", &part)]),
                "took",
                "ms",
                ms,
            );
            if step == TAKE {
                takes.push(ms);
            }
        }
    }
    if let Some(f) = figures(takes) {
        let target = format!("a pooled sandbox is taken in less than {TAKE_BAR_MS} ms");
        record.bar(&target, number(f.p50), f.p50 < TAKE_BAR_MS);
    }
    levels(record, "after", settled(place, pool).await?);
    Ok(())
}

/// Records what the host has.
fn levels(record: &mut Record, when: &str, levels: Vec<(&str, f64)>) {
    for (what, level) in levels {
        record.push(&Row::of(LEVELS, &[("what", &what)]), when, "", level);
    }
}

const TAKE: &str = "take";

/// Takes, furnishes and ends one. Returns milliseconds: to take one that was ready, until it had its name, its limits
/// and its files, and from one to the next. The last one includes all that is made in the background on the same
/// processors.
async fn once(place: &Place, pool: &SandboxPool) -> Result<[(&'static str, f64); 3]> {
    let mut whole = Clock(Instant::now());
    filled(pool, 1).await?;
    let mut clock = Clock(Instant::now());
    let mut empty = pool.take().await?;
    let take = clock.lap();
    place.cgroups.assign(&mut empty.cgroup, &place.name("row"), LIMITS)?;
    empty.sandbox.furnish(place.layers(), place.setup()).await?;
    let furnish = clock.lap();
    let ending = Arc::clone(&empty.sandbox);
    tokio::task::spawn_blocking(move || ending.end()).await?;
    let EmptySandbox {
        sandbox, cgroup, criu, ..
    } = empty;
    // As the worker releases them: the group last, to be cleaned and reused.
    drop((sandbox, criu));
    drop(cgroup);
    Ok([
        (TAKE, take),
        ("name, limits, files", furnish),
        ("from one to the next", whole.lap()),
    ])
}

async fn filled(pool: &SandboxPool, wanted: usize) -> Result<()> {
    let deadline = Instant::now() + FULL_LIMIT;
    while pool.counts().ready < wanted {
        ensure!(
            Instant::now() < deadline,
            "the pool is not filled within {FULL_LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    Ok(())
}

async fn settled(place: &Place, pool: &SandboxPool) -> Result<Vec<(&'static str, f64)>> {
    filled(pool, pool.counts().wanted).await?;
    tokio::time::sleep(SETTLE).await;
    level(place)
}

/// Resources of a host of which none may grow.
fn level(place: &Place) -> Result<Vec<(&'static str, f64)>> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("{path} cannot be read"));
    let kib = |text: &str, key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let (meminfo, status) = (read("/proc/meminfo")?, read("/proc/self/status")?);
    // Unreclaimable slabs, per-processor memory, stacks, page tables.
    let kernel = ["SUnreclaim", "Percpu", "KernelStack", "PageTables"];
    // An object of the network namespaces' slab is one of them; if the kernel merges slabs, they cannot be counted.
    let namespaces = read("/proc/slabinfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("net_namespace "))?.to_owned();
        line.split_whitespace().next()?.parse().ok()
    });
    let processes = entries("/proc")?.iter().filter(|n| n.parse::<u32>().is_ok()).count();
    Ok(vec![
        ("processes", processes as f64),
        ("mounts", read("/proc/self/mountinfo")?.lines().count() as f64),
        ("control groups", place.cgroups.count() as f64),
        ("network namespaces", namespaces.unwrap_or(0.0)),
        (
            "descriptors of the worker's part",
            entries("/proc/self/fd")?.len() as f64,
        ),
        ("memory of the worker's part, KiB", kib(&status, "VmRSS")),
        (
            "memory of the kernel's own, KiB",
            kernel.iter().map(|key| kib(&meminfo, key)).sum(),
        ),
    ])
}

fn entries(path: &str) -> Result<Vec<String>> {
    let all = fs::read_dir(path).with_context(|| format!("{path} cannot be read"))?;
    Ok(all.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
}
