//! `rekindle-bench phases`: the time of a restored, a parked and a warm invocation, in parts that do not overlap, with
//! floors that are measured in the same rounds.

mod floor;
mod parts;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::args::Args;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::platform::Platform;
use crate::record::{self, Taken};
use crate::subject::{Sample, Subject};
use crate::workload::{Language, Workload};
use floor::Floors;

/// The subjects that are broken down.
const OURS: [Subject; 3] = [Subject::Restored, Subject::Parked, Subject::Warm];
/// How often a round repeats short runs.
const SHORT_RUNS: usize = 5;

/// `rekindle-bench phases`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PhasesArgs {
    /// Where to write the figures; by default load-tests/results/DATE-REVISION-phases.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
struct Record {
    #[serde(flatten)]
    taken: Taken,
    samples: BTreeMap<Subject, Vec<Sample>>,
    floors: Floors,
}

/// Measures, writes and prints.
pub(crate) async fn run(args: &Args, phases: &PhasesArgs) -> Result<()> {
    let mut record = Record {
        taken: Taken::now(),
        samples: BTreeMap::new(),
        floors: Floors::default(),
    };
    let workload = Workload {
        language: Language::Python,
        mib: 64,
    };
    let folders = tempfile::tempdir().context("no temporary directory")?;
    let folder = workload.prepare(folders.path())?;
    let mut peers = Peers::start(args, &[Subject::Direct], workload, &folder).await;
    if let Some(why) = peers.missing(Subject::Direct) {
        bail!("the function cannot be asked directly: {why}");
    }
    let platform = Platform::start(args).await?;
    platform.deploy(&folder)?;
    platform.deploy(&workload.prepare_parked(&folder)?)?;
    let mut ours = Ours::of(&platform, &workload.name())?;
    let echo = floor::Echo::start().await?;
    let mut measuring = Measuring {
        ours: &mut ours,
        peers: &mut peers,
        echo,
    };
    for round in 0..args.warmup + args.runs {
        let counts = (round >= args.warmup).then_some(&mut record);
        measuring.round(counts).await?;
    }
    peers.stop();
    let path = record.taken.place(phases.json.as_deref(), "-phases");
    record::write_json(&record, &path)?;
    report::print(&record);
    println!("\nfigures: {}", record::told(&path));
    Ok(())
}

struct Measuring<'a> {
    ours: &'a mut Ours,
    peers: &'a mut Peers,
    echo: floor::Echo,
}

impl Measuring<'_> {
    /// Runs one of each, and a few of the short ones; recorded if it counts.
    async fn round(&mut self, mut counts: Option<&mut Record>) -> Result<()> {
        for subject in OURS {
            let runs = if subject.is_running() { SHORT_RUNS } else { 1 };
            for _ in 0..runs {
                let sample = self.ours.run(subject).await?;
                if let Some(record) = counts.as_deref_mut() {
                    record.samples.entry(subject).or_default().push(sample);
                }
            }
        }
        // Each several times in a row, like the invocations above: other work in between leaves caches cold.
        let mut floors = Floors::default();
        for _ in 0..SHORT_RUNS {
            floors.direct.push(self.peers.run(Subject::Direct).await?.ms);
        }
        for _ in 0..SHORT_RUNS {
            floors.hop.push(self.echo.exchange().await?);
        }
        for _ in 0..SHORT_RUNS {
            floors.connected.push(self.echo.exchange_anew().await?);
        }
        if let Some(record) = counts {
            record.floors.add(floors);
        }
        Ok(())
    }
}
