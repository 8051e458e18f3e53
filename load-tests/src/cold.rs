//! A host that has nothing of a snapshot. The platform is stopped, and its chunks, templates and images are removed
//! (the root filesystem and the function's files stay unpacked). It is started again, on a store whose every request
//! takes longer by a delay. The delays alternate.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_wire::headers::{FORCE_START, START};

use crate::args::Args;
use crate::client::Connection;
use crate::platform::Platform;
use crate::record::Cold;
use crate::slow_store::SlowStore;
use crate::subject::Sample;
use crate::workload::Workload;

/// Restores before the first measured one: the working set is merged over three.
const RESTORES_BEFORE: usize = 4;
/// Time for what a restore leaves to be done: its working set stored, its template filled.
const SETTLED: Duration = Duration::from_millis(1_500);
/// Limit for the worker to report; then it has time to prepare an empty sandbox.
const READY_LIMIT: Duration = Duration::from_secs(30);
const POOL_FILLS: Duration = Duration::from_millis(700);

/// Measures as many restores for each delay as requested.
pub(crate) async fn measure(args: &Args, workload: Workload, folder: &Path) -> Result<Vec<Cold>> {
    let objects = tempfile::Builder::new()
        .prefix("rekindle-bench-store-")
        .tempdir()
        .context("no temporary directory")?;
    let store = SlowStore::start(objects.path())?;
    let environment = store.environment();
    let settings: Vec<(&str, &str)> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut platform = Platform::start_with(args, &settings).await?;
    platform.deploy(folder)?;
    for _ in 0..RESTORES_BEFORE {
        restored(&platform, workload).await?;
        tokio::time::sleep(SETTLED).await;
    }
    let mut out: Vec<Cold> = args
        .delays
        .iter()
        .map(|delay_ms| Cold {
            workload,
            delay_ms: *delay_ms,
            samples: Vec::new(),
            errors: Vec::new(),
        })
        .collect();
    for round in 0..args.cold {
        for cold in &mut out {
            platform.restart_without_snapshots().await?;
            until_ready(&platform).await?;
            store.delay(cold.delay_ms);
            let sample = restored(&platform, workload).await;
            store.delay(0);
            match sample {
                Ok(sample) => cold.samples.push(sample),
                Err(error) => cold.errors.push(format!("{error:#}")),
            }
        }
        eprintln!("cold: round {} of {}", round + 1, args.cold);
    }
    Ok(out)
}

async fn restored(platform: &Platform, workload: Workload) -> Result<Sample> {
    let admin = platform.admin()?;
    let headers = [admin.authorization(), (FORCE_START, "restored")];
    let path = format!("/function/{}/", workload.name());
    let triggered = Instant::now();
    let mut connection = Connection::open(platform.port()).await?;
    let answer = connection.call(Method::GET, &path, &headers).await?;
    let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
    let answer = answer.of_function()?;
    if answer.header(START) != "restored" {
        bail!("the instance was {}, not restored", answer.header(START));
    }
    Ok(Sample {
        ms,
        phases: answer.phases(),
    })
}

/// Waits until the worker is there and has had the time to fill its pool.
async fn until_ready(platform: &Platform) -> Result<()> {
    platform.admin()?.until_alive(1, READY_LIMIT).await?;
    tokio::time::sleep(POOL_FILLS).await;
    Ok(())
}
