//! `rekindle-bench clones`, for each sample: page faults before a first response, until the working set is known and
//! once it is. Also the memory of clones that wait idle side by side, and of parked ones, so how many of them fit in a
//! GiB.

mod memory;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rekindle_testkit::{Folder, Platform};
use rekindle_wire::api::{InstanceInfo, InstanceState};

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Row};
use crate::table::number;
use memory::{Held, of_instance};

const FAULTS_TABLE: &str = "Page faults until the first response, restore by restore";
const CLONES_TABLE: &str = "Memory of a clone that has answered once; the template is on the host once";
const PARKED_TABLE: &str = "Memory of a parked instance";
const GIB: f64 = 1024.0;

/// Settings deployed in place of the samples' own: as many instances at once as requested, and none retired meanwhile.
const SETTINGS: [(&str, &str); 3] = [
    ("max_instances", "1000"),
    ("idle", "\"600s\""),
    ("memory", "\"108MiB\""),
];
/// Restores until the working set is known; the next one maps it ahead.
const RECORDED: usize = 3;
/// Parked instances to examine: after a request, and ones made ahead that have seen none.
const PARKED: usize = 10;
/// Limit for all to be parked.
const PARKED_LIMIT: Duration = Duration::from_secs(60);
const FUNCTION: &str = "sample";
const FAULTS: &str = "rekindle_pager_faults_total";

/// `rekindle-bench clones`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClonesArgs {
    /// Folders below functions/samples.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_values_t = [
            "hello-python", "counter-python", "flask-python", "numpy-python", "touch-python", "hello-node", "http-rust",
        ].map(String::from)
    )]
    samples: Vec<String>,
    /// How many clones are held at once, one number after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 10, 100])]
    counts: Vec<usize>,
}

/// Measures.
pub(crate) async fn run(args: &Args, clones: &ClonesArgs) -> Result<Record> {
    let mut record = Record::begin("clones");
    for name in &clones.samples {
        eprintln!("{name}");
        // One platform each, so that nothing of another sample counts.
        let platform = platform::start(args, &[])?;
        record.program = Some(platform.program());
        let measured = measure(&mut record, &platform, name, &clones.counts).await;
        measured.with_context(|| format!("sample {name}"))?;
        record.cpu_loop();
    }
    Ok(record)
}

async fn measure(record: &mut Record, platform: &Platform, name: &str, counts: &[usize]) -> Result<()> {
    let folder = Folder::of(&format!("functions/samples/{name}"))?;
    folder.set(FUNCTION, &SETTINGS)?;
    let snapshot = platform.deployed(&folder)?.snapshot;
    let ours = Ours::of(platform, FUNCTION);
    platform.remove_instances()?;
    let sample = Row::of(FAULTS_TABLE, &[("sample", &name)]);
    for restore in 1..=RECORDED + 2 {
        let before = platform.worker_metric(FAULTS);
        let started = ours.start("restored", FUNCTION, "/").await?;
        let faults = platform.worker_metric(FAULTS) - before;
        platform.remove_instance(started.instance())?;
        let column = match restore {
            1..=RECORDED => format!("restore {restore}"),
            _ => "with its working set".to_owned(),
        };
        record.push(&sample, &column, "", faults);
    }
    record.push(
        &sample,
        "in its snapshot",
        "MiB",
        mib(snapshot.map_or(0, |s| s.memory_bytes)),
    );
    let mut template = 0.0;
    for count in counts {
        eprintln!("  {count} clones");
        let mut instances = Vec::with_capacity(*count);
        for _ in 0..*count {
            instances.push(ours.start("restored", FUNCTION, "/").await?);
        }
        let row = Row::of(CLONES_TABLE, &[("sample", &name), ("clones", count)]);
        for started in &instances {
            hold(record, &row, of_instance(started.instance())?);
        }
        template = platform.worker_metric("rekindle_templates_memory_bytes") / 1_048_576.0;
        record.push(&row, "template", "MiB", template);
        platform.remove_instances()?;
    }
    let many = PARKED.to_string();
    let idle = [("idle", "\"1s\""), ("park", "\"600s\"")];
    for (how, settings, used) in [
        ("after a request", &idle[..], true),
        ("ahead", &[("min_parked", many.as_str())][..], false),
    ] {
        folder.set(FUNCTION, settings)?;
        platform.deployed(&folder)?;
        platform.remove_instances()?;
        let row = Row::of(PARKED_TABLE, &[("sample", &name), ("parked", &how)]);
        for held in parked(platform, &ours, used).await? {
            hold(record, &row, held);
        }
        // Of one version: a later one has a template of its own.
        record.push(&row, "template", "MiB", template);
        if let Some(charged) = record.median(&row, "charged") {
            let (beside, alone) = (
                number(((GIB - template) / charged).floor()),
                number((GIB / charged).floor()),
            );
            let finding =
                format!("{name}, parked {how}: {beside} fit in 1 GiB beside their template, {alone} without it");
            record.findings.push(finding);
        }
        platform.remove_instances()?;
    }
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// Records the memory of an instance.
fn hold(record: &mut Record, row: &Row, held: Held) {
    for (name, bytes) in [
        ("charged", held.charged),
        ("of it the kernel's", held.kernel),
        ("resident", held.resident),
        ("private", held.private),
        ("PSS", held.proportional),
    ] {
        record.push(row, name, "MiB", mib(bytes));
    }
}

/// Memory of this many parked instances: ones that have answered once, or ones that the platform made ahead.
async fn parked(platform: &Platform, ours: &Ours, used: bool) -> Result<Vec<Held>> {
    for _ in 0..if used { PARKED } else { 0 } {
        ours.start("restored", FUNCTION, "/").await?;
    }
    let deadline = Instant::now() + PARKED_LIMIT;
    loop {
        let all: Vec<InstanceInfo> = platform.value("/v1/instances")?;
        let parked: Vec<_> = all.iter().filter(|i| i.state == InstanceState::Parked).collect();
        if parked.len() >= PARKED {
            return parked.iter().map(|i| of_instance(i.id.as_str())).collect();
        }
        if Instant::now() > deadline {
            bail!(
                "{} of {PARKED} instances are parked after {PARKED_LIMIT:?}",
                parked.len()
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
