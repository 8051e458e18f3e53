//! `rekindle-bench clones`, for each sample: page faults before a first response, until the working set is known and
//! once it is. Also the memory of clones that wait idle side by side, and of parked ones, so how many of them fit in a
//! GiB.

mod memory;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rekindle_wire::api::InstanceState;
use serde::Serialize;

use crate::args::{Args, checkout};
use crate::folder;
use crate::host::Host;
use crate::platform::Platform;
use crate::record::{self, Taken};
use memory::{Held, of_instance};

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
        default_values_t = ["hello-python", "counter-python", "flask-python", "numpy-python", "touch-python", "hello-node", "http-rust"].map(String::from)
    )]
    samples: Vec<String>,
    /// How many clones are held at once, one number after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 10, 100])]
    counts: Vec<usize>,
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-clones.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    taken: Taken,
    samples: Vec<Sample>,
}

/// A sample's figures.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    name: String,
    /// Memory in its snapshot, bytes.
    memory_bytes: u64,
    /// Faults until the first response of each restore, in order: three that are recorded, then two that map ahead.
    faults: Vec<u64>,
    clones: Vec<Clones>,
    /// Frozen after they answered once.
    parked: Clones,
    /// Restored ahead and frozen.
    ahead: Clones,
}

/// Clones that were held at once.
#[derive(Debug, Clone, Serialize)]
struct Clones {
    count: usize,
    /// Memory of each once all exist.
    each: Vec<Held>,
    /// Memory of the template, shared by all: it is on the host once, bytes.
    template_bytes: u64,
}

/// Measures, writes the record and prints the tables.
pub(crate) async fn run(args: &Args, clones: &ClonesArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        samples: Vec::new(),
    };
    for name in &clones.samples {
        eprintln!("{name}");
        // One platform each, so that nothing of another sample counts.
        let platform = Platform::start(args).await?;
        let sample = measure(&platform, name, &clones.counts).await;
        record.samples.push(sample.with_context(|| format!("sample {name}"))?);
    }
    let path = record.taken.place(clones.json.as_deref(), "-clones");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

async fn measure(platform: &Platform, name: &str, counts: &[usize]) -> Result<Sample> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let folder = scratch.path().join("function");
    folder::copy(&checkout().join("functions/samples").join(name), &folder)?;
    folder::rename(&folder, FUNCTION, &SETTINGS)?;
    let version = platform.deploy(&folder)?;
    let memory_bytes = version.snapshot.map_or(0, |s| s.memory_bytes);
    let host = Host::of(platform).await?;
    host.admin.delete_all().await?;
    let mut faults = Vec::new();
    for _ in 0..RECORDED + 2 {
        let before = host.metric(FAULTS).await?;
        let instance = host.restore(FUNCTION).await?;
        faults.push((host.metric(FAULTS).await? - before) as u64);
        host.admin.delete(&instance).await?;
    }
    let mut held = Vec::new();
    for count in counts {
        eprintln!("  {count} clones");
        let mut instances = Vec::with_capacity(*count);
        for _ in 0..*count {
            instances.push(host.restore(FUNCTION).await?);
        }
        let each = instances.iter().map(|id| of_instance(id)).collect::<Result<_>>()?;
        let template_bytes = host.metric("rekindle_templates_memory_bytes").await? as u64;
        held.push(Clones {
            count: *count,
            each,
            template_bytes,
        });
        host.admin.delete_all().await?;
    }
    // Of one version: a later one has a template of its own.
    let template_bytes = held.last().map_or(0, |h: &Clones| h.template_bytes);
    let many = PARKED.to_string();
    let idle = [("idle", "\"1s\""), ("park", "\"600s\"")];
    let mut sets = Vec::new();
    for (settings, used) in [(&idle[..], true), (&[("min_parked", many.as_str())][..], false)] {
        folder::rename(&folder, FUNCTION, settings)?;
        platform.deploy(&folder)?;
        host.admin.delete_all().await?;
        let each = parked(&host, used).await?;
        sets.push(Clones {
            count: each.len(),
            each,
            template_bytes,
        });
        host.admin.delete_all().await?;
    }
    let [parked, ahead] = sets.try_into().map_err(|_| anyhow!("not both kinds"))?;
    Ok(Sample {
        name: name.to_owned(),
        memory_bytes,
        faults,
        clones: held,
        parked,
        ahead,
    })
}

/// Memory of this many parked instances: ones that have answered once, or ones that the platform made ahead.
async fn parked(host: &Host, used: bool) -> Result<Vec<Held>> {
    for _ in 0..if used { PARKED } else { 0 } {
        host.restore(FUNCTION).await?;
    }
    let deadline = Instant::now() + PARKED_LIMIT;
    loop {
        let all = host.admin.instances(FUNCTION).await?;
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
