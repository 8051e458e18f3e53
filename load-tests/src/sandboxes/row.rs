//! Many sandboxes one after the other through a pool like the worker's: the cost of taking one, and whether anything
//! grows with them.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rekindle_worker::host::sandbox::pool::{Empty, SandboxPool};
use serde::Serialize;

use super::making::{Clock, LIMITS, Place};

/// Limit for the pool to be full.
const FULL_LIMIT: Duration = Duration::from_secs(30);
/// Time to clean up after the last ones: the kernel ends network namespaces in the background.
const SETTLE: Duration = Duration::from_secs(3);
/// Uncounted sandboxes before: whatever is made only once is made then.
const WARM_UP: usize = 100;

/// Resources of a host of which none may grow.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Level {
    pub(super) processes: usize,
    pub(super) mounts: usize,
    pub(super) groups: usize,
    pub(super) network_namespaces: usize,
    pub(super) descriptors: usize,
    /// Memory of the process that makes them, KiB.
    pub(super) resident_kib: u64,
    /// Memory of the kernel: unreclaimable slabs, per-processor memory, stacks, page tables; KiB.
    pub(super) kernel_kib: u64,
}

/// A row of sandboxes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Row {
    pub(super) count: usize,
    /// Milliseconds to take one that was ready.
    pub(super) take_ms: Vec<f64>,
    /// Milliseconds until it had its name, its limits and its files.
    pub(super) furnish_ms: Vec<f64>,
    /// Milliseconds from one to the next, with all that is made in the background on the same processors.
    pub(super) each_ms: Vec<f64>,
    pub(super) before: Level,
    pub(super) after: Level,
}

/// Takes, furnishes and ends `count` of them.
pub(super) async fn run(place: &Place, count: usize) -> Result<Row> {
    let pool = SandboxPool::new(
        place.cgroups.clone(),
        Arc::clone(&place.zygote),
        place.prestart.clone(),
        place.network.clone(),
        8,
        8,
    );
    let pool = Arc::new(pool);
    let filling = tokio::spawn(Arc::clone(&pool).keep_filled());
    let row = take_all(place, &pool, count).await;
    filling.abort();
    let closing = Arc::clone(&pool);
    tokio::task::spawn_blocking(move || closing.close()).await?;
    row
}

async fn take_all(place: &Place, pool: &SandboxPool, count: usize) -> Result<Row> {
    let mut row = Row {
        count,
        ..Row::default()
    };
    for _ in 0..WARM_UP {
        once(place, pool, &mut Row::default()).await?;
    }
    row.before = settled(place, pool).await?;
    for done in 0..count {
        if done > 0 && done.is_multiple_of(1_000) {
            eprintln!("  {done}");
        }
        once(place, pool, &mut row).await?;
    }
    row.after = settled(place, pool).await?;
    Ok(row)
}

async fn once(place: &Place, pool: &SandboxPool, row: &mut Row) -> Result<()> {
    let mut whole = Clock(Instant::now());
    filled(pool, 1).await?;
    let mut clock = Clock(Instant::now());
    let mut empty = pool.take().await?;
    row.take_ms.push(clock.lap());
    place.cgroups.assign(&mut empty.cgroup, &place.name("row"), LIMITS)?;
    empty.sandbox.furnish(place.layers(), place.setup()).await?;
    row.furnish_ms.push(clock.lap());
    let ending = Arc::clone(&empty.sandbox);
    tokio::task::spawn_blocking(move || ending.end()).await?;
    let Empty {
        sandbox, cgroup, criu, ..
    } = empty;
    // As the worker releases them: the group last, to be cleaned and reused.
    drop((sandbox, criu));
    drop(cgroup);
    row.each_ms.push(whole.lap());
    Ok(())
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

async fn settled(place: &Place, pool: &SandboxPool) -> Result<Level> {
    filled(pool, pool.counts().wanted).await?;
    tokio::time::sleep(SETTLE).await;
    level(place)
}

fn level(place: &Place) -> Result<Level> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("{path} cannot be read"));
    let kib = |text: &str, key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .unwrap_or(0)
    };
    let (meminfo, status) = (read("/proc/meminfo")?, read("/proc/self/status")?);
    let kernel = ["SUnreclaim", "Percpu", "KernelStack", "PageTables"];
    // An object of the network namespaces' slab is one of them; if the kernel merges slabs, they cannot be counted.
    let namespaces = read("/proc/slabinfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("net_namespace "))?.to_owned();
        line.split_whitespace().next()?.parse().ok()
    });
    Ok(Level {
        processes: entries("/proc")?.iter().filter(|n| n.parse::<u32>().is_ok()).count(),
        mounts: read("/proc/self/mountinfo")?.lines().count(),
        groups: place.cgroups.count(),
        network_namespaces: namespaces.unwrap_or(0),
        descriptors: entries("/proc/self/fd")?.len(),
        resident_kib: kib(&status, "VmRSS"),
        kernel_kib: kernel.iter().map(|key| kib(&meminfo, key)).sum(),
    })
}

fn entries(path: &str) -> Result<Vec<String>> {
    let all = fs::read_dir(path).with_context(|| format!("{path} cannot be read"))?;
    Ok(all.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
}
