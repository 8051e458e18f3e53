//! A host that has nothing of a snapshot. The platform is stopped, and its chunks, templates and images are removed
//! (the root filesystem and the function's files stay unpacked). It is started again, on a store whose every request
//! takes longer by a delay. The delays alternate, and so do a worker that has just started and one that has restored
//! another function since: with the former, its own first steps are measured too.

use std::time::Duration;

use anyhow::Result;
use rekindle_testkit::s3::ObjectStore;
use rekindle_testkit::{Platform, until};

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Plot, PlotKind, Record, Row};
use crate::rounds::{self, FIRST_RESPONSE};
use crate::table::number;
use crate::workload::Workload;

const TABLE: &str = "Restored by a host that had nothing of the snapshot";
/// Restores before the first measured one: the working set is merged over three.
const RESTORES_BEFORE: usize = 4;
/// Time for what a restore leaves to be done: its working set stored, its template filled.
const SETTLED: Duration = Duration::from_millis(1_500);
/// Limit for the worker to report; then it has time to prepare an empty sandbox.
const READY_LIMIT: Duration = Duration::from_secs(30);
const POOL_FILLS: Duration = Duration::from_millis(700);
/// Whether a worker has restored another function since it started, and the name of that.
const WORKERS: [(bool, &str); 2] = [(false, "just started"), (true, "has restored another")];

/// Measures as many restores for each delay as requested.
pub(crate) async fn measure(args: &Args, record: &mut Record, workload: Workload) -> Result<()> {
    let store = ObjectStore::start();
    let mut options = platform::options(args, &[])?;
    store.be_used_by(&mut options);
    let mut platform = Platform::try_start(options)?;
    platform.deployed(&workload.prepare()?)?;
    platform.deployed(&workload.prepare_other()?)?;
    let ours = Ours::of(&platform, &workload.name());
    let other = Ours::of(&platform, &workload.other_name());
    for _ in 0..RESTORES_BEFORE {
        for function in [&ours, &other] {
            // The last of them settles too.
            function.start_and_remove("restored").await?;
            tokio::time::sleep(SETTLED).await;
        }
    }
    let row = |worker: &str, delay: u64| {
        let keys: [(&str, &dyn std::fmt::Display); 2] = [
            ("the worker", &worker),
            ("added to each request of the store, ms", &delay),
        ];
        Row::of(TABLE, &keys)
    };
    let first = args.delays.first().copied().unwrap_or_default();
    record.baseline("added to each request of the store, ms", first);
    for round in 0..args.cold {
        for ((has_restored, worker), delay) in WORKERS
            .iter()
            .flat_map(|worker| args.delays.iter().map(move |delay| (*worker, delay)))
        {
            platform.stop();
            platform.forget_snapshots();
            platform.try_restart()?;
            until("the worker reports", READY_LIMIT, || {
                (platform.workers_alive() == Some(1)).then_some(())
            });
            tokio::time::sleep(POOL_FILLS).await;
            if has_restored {
                other.start_and_remove("restored").await?;
                tokio::time::sleep(SETTLED).await;
            }
            store.set_delay(Duration::from_millis(*delay));
            let sample = ours.fresh("restored").await;
            store.set_delay(Duration::ZERO);
            let row = row(worker, *delay);
            match sample {
                Ok(sample) => rounds::push(record, &row, sample),
                Err(error) => record
                    .series(&row, FIRST_RESPONSE, "ms")
                    .errors
                    .push(format!("{error:#}")),
            }
        }
        eprintln!("cold: round {} of {}", round + 1, args.cold);
    }
    for (_, worker) in WORKERS {
        let p50 = |record: &Record, delay: u64| record.median(&row(worker, delay), FIRST_RESPONSE);
        for delay in &args.delays {
            if let (Some(base), Some(own), 1..) = (p50(record, first), p50(record, *delay), *delay) {
                let over = own - base;
                let target =
                    format!("a cold restore with {delay} ms added is at most two of them slower, worker {worker}, ms");
                record.bar(&target, number(over), over <= 2.0 * *delay as f64);
            }
        }
    }
    record.plots.push(Plot {
        file: "cold".to_owned(),
        title: format!(
            "{}: restored by a host that had nothing of the snapshot",
            workload.title()
        ),
        only: Vec::new(),
        kind: PlotKind::Dots {
            table: TABLE.to_owned(),
            measures: vec![FIRST_RESPONSE.to_owned()],
        },
    });
    Ok(())
}
