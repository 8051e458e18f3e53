//! `rekindle-bench phases`: the time of a restored, a parked and a warm invocation, in parts that do not overlap, with
//! floors that are measured in the same rounds.

mod floor;
mod parts;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::platform;
use crate::record::{Record, Row};
use crate::subject::{Sample, Subject};
use crate::workload::{Language, Workload};
use parts::{Part, RESTORE, RESTORER, WHOLE_RESTORE, WHOLE_RESTORER, split};

/// The subjects that are broken down.
const OURS: [Subject; 3] = [Subject::Restored, Subject::Parked, Subject::Warm];
/// How often a round repeats short runs.
const SHORT_RUNS: usize = 5;
const FLOORS: &str = "Floors";

/// Measures.
pub(crate) async fn run(args: &Args) -> Result<Record> {
    let mut record = Record::begin("phases");
    let workload = Workload {
        language: Language::Python,
        mib: 64,
    };
    let folder = workload.prepare()?;
    let mut peers = Peers::start(args, &[Subject::Direct], workload, folder.path()).await;
    if let Some(why) = peers.missing(Subject::Direct) {
        bail!("the function cannot be asked directly: {why}");
    }
    let platform = platform::start(args, &[])?;
    record.program = Some(platform.program());
    platform.deployed(&folder)?;
    platform.deployed(&workload.prepare_parked(&folder)?)?;
    let mut ours = Ours::of(&platform, &workload.name());
    let mut echo = floor::Echo::start().await?;
    // Nobody reads what does not count.
    let mut uncounted = record.clone();
    for _ in 0..args.warmup {
        round(&mut uncounted, &mut ours, &mut peers, &mut echo).await?;
    }
    for _ in 0..args.runs {
        round(&mut record, &mut ours, &mut peers, &mut echo).await?;
        record.cpu_loop();
    }
    for table in [Subject::Warm.title(), FLOORS] {
        record.in_blocks(&Row::of(table, &[]), SHORT_RUNS);
    }
    peers.stop();
    Ok(record)
}

/// Runs one of each, and a few of the short ones.
async fn round(record: &mut Record, ours: &mut Ours, peers: &mut Peers, echo: &mut floor::Echo) -> Result<()> {
    for subject in OURS {
        for _ in 0..if subject.is_running() { SHORT_RUNS } else { 1 } {
            let sample = ours.run(subject).await?;
            add(record, subject.title(), &sample, sample.ms, &parts::of(subject));
            if subject == Subject::Restored {
                for (title, name, inner) in [
                    ("of it the restore, from its order on", WHOLE_RESTORE, &RESTORE[..]),
                    ("of that the restorer", WHOLE_RESTORER, &RESTORER[..]),
                ] {
                    let whole = sample.phases.get(name).copied().unwrap_or_default();
                    add(record, title, &sample, whole, inner);
                }
            }
        }
    }
    // Each several times in a row, like the invocations above: other work in between leaves caches cold.
    let mut floors = Vec::new();
    for _ in 0..SHORT_RUNS {
        floors.push(("the function asked directly", peers.run(Subject::Direct).await?.ms));
    }
    for _ in 0..SHORT_RUNS {
        floors.push(("exchange over loopback, kept connection", echo.exchange().await?));
    }
    for _ in 0..SHORT_RUNS {
        floors.push(("exchange over loopback, new connection", echo.exchange_anew().await?));
    }
    for (name, ms) in floors {
        let row = Row::of(FLOORS, &[("floor", &name)]);
        record.push(&row, "took", "ms", ms);
    }
    Ok(())
}

/// Adds the parts of a sample whose whole is `whole` milliseconds.
fn add(record: &mut Record, table: &str, sample: &Sample, whole: f64, parts: &[Part]) {
    let row = |phase: &str, bound: &str, floor: &str| {
        Row::of(table, &[("phase", &phase), ("bound by", &bound), ("floor", &floor)])
    };
    for ((name, what, bound, floor), ms) in parts.iter().zip(split(sample, whole, parts)) {
        let title = match name.is_empty() {
            true => (*what).to_owned(),
            false => format!("{name}: {what}"),
        };
        record.push(&row(&title, bound, floor.name()), "took", "ms", ms);
    }
    record.push(&row("whole", "", ""), "took", "ms", whole);
}
