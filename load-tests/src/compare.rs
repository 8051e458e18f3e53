//! `rekindle-bench compare A B`: how much faster or slower is B? A and B are either two records of `make bench`, or the
//! directories of two builds. Builds are measured in one run, in turn, which is the honest way: any drift affects both.
//! Two records are of two moments; the subjects that are not ours show what the machine itself did between them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::args::Args;
use crate::machine;
use crate::ours::Ours;
use crate::platform::Platform;
use crate::record::{Measured, Outcome, Record, Taken, told, write_json};
use crate::report::{ms, within};
use crate::rounds::{self, REGIMES, Regime};
use crate::stats::{Ratio, figures, ratio};
use crate::subject::Subject;

/// Compares two records, or two builds in one run.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  rekindle-bench compare before.json after.json           two records of `make bench`
  rekindle-bench compare /tmp/a/release target/release    two builds, in turn in one run
  make bench-compare A=main~5 B=HEAD                      builds two revisions, then that")]
pub(crate) struct CompareArgs {
    /// The first: a record, or a directory with `fn` and `rekindle-init`.
    pub(crate) a: PathBuf,
    /// The second, likewise.
    pub(crate) b: PathBuf,
    /// Name of the first.
    #[arg(long, value_name = "NAME")]
    pub(crate) name_a: Option<String>,
    /// Name of the second.
    #[arg(long, value_name = "NAME")]
    pub(crate) name_b: Option<String>,
    /// Runs of each start kind in each regime, for builds.
    #[arg(long = "rounds", value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
}

/// The conclusion that the ratio allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Faster,
    Slower,
    NoDifference,
    TooFewRounds,
}

/// A bootstrap over fewer rounds is unreliable.
const ROUNDS_MIN: usize = 10;

/// A comparison of two builds, as it is stored.
#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(flatten)]
    taken: Taken,
    names: [String; 2],
    programs: [String; 2],
    workload: String,
    /// First those of A, then those of B, regime by regime.
    regimes: Vec<[Measured; 2]>,
}

/// Compares; the outcome is no failure, whatever it is.
pub(crate) async fn run(args: &Args, compare: &CompareArgs) -> Result<ExitCode> {
    match (compare.a.is_dir(), compare.b.is_dir()) {
        (false, false) => records(compare)?,
        (true, true) => builds(args, compare).await?,
        _ => bail!("one is a directory and the other is not: name two records, or two directories with programs"),
    }
    Ok(ExitCode::SUCCESS)
}

fn records(compare: &CompareArgs) -> Result<()> {
    let (a, b) = (Record::read(&compare.a)?, Record::read(&compare.b)?);
    println!("A: {} at {} on {}", a.revision, a.date, a.machine);
    println!("B: {} at {} on {}", b.revision, b.date, b.machine);
    let mut common = 0;
    for worked in &a.workloads {
        let Some(other) = b.workloads.iter().find(|w| w.workload == worked.workload) else {
            continue;
        };
        for measured in &worked.regimes {
            if let Some(theirs) = other.regimes.iter().find(|m| m.regime == measured.regime) {
                common += 1;
                println!(
                    "\n{}, {}, ms\n{}",
                    worked.workload.title(),
                    measured.regime.title(),
                    table(measured, theirs)
                );
            }
        }
    }
    if common == 0 {
        bail!("the two records have no workload in common");
    }
    println!(
        "\nnote: two runs at two times: where the peers and the plain start differ too, the machine did; `make bench-compare` of two revisions measures in turn"
    );
    Ok(())
}

async fn builds(args: &Args, compare: &CompareArgs) -> Result<()> {
    let workload = *args.workloads().first().context("no workload")?;
    let folders = tempfile::tempdir().context("no temporary directory")?;
    let folder = workload.prepare(folders.path())?;
    let parked = workload.prepare_parked(&folder);
    let taken = Taken::now();
    let start = async |bin: &Path| {
        let args = Args {
            bin: Some(bin.to_owned()),
            ..args.clone()
        };
        let platform = Platform::start(&args).await?;
        platform.deploy(&folder)?;
        if args.subjects().contains(&Subject::Parked) {
            // A revision without parked instances has none to compare, which its runs show.
            let _known = parked.as_ref().map(|folder| platform.deploy(folder));
        }
        anyhow::Ok(platform)
    };
    let platforms = [
        start(&compare.a)
            .await
            .with_context(|| format!("A, {}", compare.a.display()))?,
        start(&compare.b)
            .await
            .with_context(|| format!("B, {}", compare.b.display()))?,
    ];
    let mut clients = [
        Ours::of(&platforms[0], &workload.name())?,
        Ours::of(&platforms[1], &workload.name())?,
    ];
    let mut comparison = Comparison {
        taken,
        names: [named(&compare.name_a, &compare.a), named(&compare.name_b, &compare.b)],
        programs: [platforms[0].program(), platforms[1].program()],
        workload: workload.title(),
        regimes: Vec::new(),
    };
    for regime in REGIMES {
        comparison
            .regimes
            .push(in_turn(args, compare.rounds, regime, &mut clients).await);
    }
    let path = comparison.taken.place(args.json.as_deref(), "-compare");
    write_json(&comparison, &path)?;
    println!(
        "A: {}: {}\nB: {}: {}",
        comparison.names[0], comparison.programs[0], comparison.names[1], comparison.programs[1]
    );
    println!(
        "on {}; others kept {:.0} % of it busy in the second before",
        comparison.taken.machine,
        comparison.taken.busy_before * 100.0
    );
    for [a, b] in &comparison.regimes {
        println!("\n{}, {}, ms\n{}", comparison.workload, a.regime.title(), table(a, b));
        if let Some(fixed) = figures(a.cpu_loop_ms.iter().copied()) {
            println!(
                "a fixed CPU loop, once each round: p50 {}, p99 {} ms",
                ms(fixed.p50),
                ms(fixed.p99)
            );
        }
    }
    println!("\nsamples: {}", told(&path));
    Ok(())
}

/// Runs both in each round; which is first alternates from round to round.
async fn in_turn(args: &Args, rounds: u32, regime: Regime, clients: &mut [Ours; 2]) -> [Measured; 2] {
    let subjects: Vec<Subject> = args.subjects().into_iter().filter(|s| s.is_ours()).collect();
    let empty = || Measured {
        regime,
        outcomes: subjects.iter().map(|s| Outcome::of(*s, None)).collect(),
        cpu_loop_ms: Vec::new(),
    };
    let mut out = [empty(), empty()];
    for round in 0..args.warmup + rounds {
        let counts = round >= args.warmup;
        for (n, subject) in subjects.iter().enumerate() {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                if out[side].outcomes[n].missing.is_some() {
                    continue;
                }
                for _ in 0..regime.runs_in_round(*subject) {
                    tokio::time::sleep(regime.pause()).await;
                    let sample = clients[side].run(*subject).await;
                    rounds::take(&mut out[side].outcomes[n], sample, counts);
                }
            }
        }
        if counts {
            out[0].cpu_loop_ms.push(machine::cpu_loop());
        }
    }
    out
}

fn named(name: &Option<String>, path: &Path) -> String {
    name.clone().unwrap_or_else(|| path.display().to_string())
}

fn table(a: &Measured, b: &Measured) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["", "runs", "A p50", "B p50", "A p99", "B p99", "B / A", "B is"]);
    for Outcome { subject, .. } in &a.outcomes {
        let [first, second] = [a, b].map(|m| m.samples(*subject).map(|s| s.ms).collect::<Vec<f64>>());
        let ratio = ratio(&first, &second, a.regime.runs_in_round(*subject));
        let (Some(own), Some(theirs), Some(ratio)) = (a.figures(*subject), b.figures(*subject), ratio) else {
            table.add_row([subject.title(), "missing"]);
            continue;
        };
        table.add_row([
            subject.title().to_owned(),
            format!("{}/{}", own.count, theirs.count),
            within(own.median),
            within(theirs.median),
            ms(own.p99),
            ms(theirs.p99),
            format!("{:.3} [{:.3}, {:.3}]", ratio.value, ratio.low, ratio.high),
            Verdict::of(ratio, own.count.min(theirs.count) / a.regime.runs_in_round(*subject)).to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

impl Verdict {
    /// Concludes only what holds over the whole interval.
    fn of(ratio: Ratio, rounds: usize) -> Self {
        match ratio {
            _ if rounds < ROUNDS_MIN => Self::TooFewRounds,
            r if r.high < 1.0 => Self::Faster,
            r if r.low > 1.0 => Self::Slower,
            _ => Self::NoDifference,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no different",
            Self::TooFewRounds => "? (below 10 rounds)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_whole_interval_says_is_said() {
        let verdict = |low, high| Verdict::of(Ratio { value: 1.0, low, high }, 40);
        assert_eq!(verdict(0.8, 0.97), Verdict::Faster);
        assert_eq!(verdict(1.01, 1.2), Verdict::Slower);
        assert_eq!(verdict(0.99, 1.2), Verdict::NoDifference);
        let few = Ratio {
            value: 2.0,
            low: 1.5,
            high: 3.0,
        };
        assert_eq!(Verdict::of(few, 4), Verdict::TooFewRounds);
    }
}
