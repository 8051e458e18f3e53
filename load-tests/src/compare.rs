//! `rekindle-bench compare A B`: how much more or less is B? A and B are either two records of the same part, or the
//! directories of two builds. Builds are measured in one run, in turn, which is the honest way: any drift affects both.
//! Two records are of two moments; series that are not ours show what the machine itself did between them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::args::Args;
use crate::ours::Ours;
use crate::platform;
use crate::record::{Record, Series, told};
use crate::rounds::{self, REGIMES};
use crate::stats::{ROUNDS_MIN, Ratio, ratio};
use crate::subject::Subject;
use crate::table::{Grid, beside, notes, within};

/// Compares two records, or two builds in one run.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  rekindle-bench compare before.json after.json           two records of the same part
  rekindle-bench compare /tmp/a/dist target/dist          two builds, in turn in one run
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
    #[arg(
        long = "rounds",
        value_name = "N",
        default_value_t = 40,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub(crate) rounds: u32,
}

/// The conclusion that the ratio allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Less,
    More,
    NoDifference,
    TooFewRounds,
}

/// Compares; the outcome is no failure, whatever it is.
pub(crate) async fn run(args: &Args, compare: &CompareArgs) -> Result<()> {
    match (compare.a.is_dir(), compare.b.is_dir()) {
        (false, false) => {
            let (a, b) = (Record::read(&compare.a)?, Record::read(&compare.b)?);
            print(&a, &b)?;
            println!(
                "\nnote: two runs at two times: where what did not change differs too, the machine did; \
                 `make bench-compare` of two revisions measures in turn"
            );
        }
        (true, true) => builds(args, compare).await?,
        _ => bail!("one is a directory and the other is not: name two records, or two directories with programs"),
    }
    Ok(())
}

/// Prints what two records have in common, table by table.
fn print(a: &Record, b: &Record) -> Result<()> {
    ensure!(a.part == b.part, "A is a record of {}, and B of {}", a.part, b.part);
    for (name, record) in [("A", a), ("B", b)] {
        let program = record.program.as_deref().unwrap_or("none");
        let (revision, date) = (&record.revision, &record.date);
        println!(
            "{name}: {revision} at {date} on {}; platform: {program}",
            record.machine
        );
    }
    let tables = tables(a, b);
    ensure!(!tables.is_empty(), "the two records have nothing in common");
    for grid in tables {
        println!("\n{grid}");
    }
    for (name, record) in [("A", a), ("B", b)] {
        for note in notes(record) {
            println!("note: {name}: {note}");
        }
    }
    Ok(())
}

/// A table for each that both have, with a row for each series.
fn tables(a: &Record, b: &Record) -> Vec<Grid> {
    let mut grids: Vec<Grid> = Vec::new();
    for first in a.series.iter().filter(|s| s.at.is_empty()) {
        let Some(row) = b
            .series
            .iter()
            .find(|s| s.is_like(first))
            .and_then(|second| row(first, second))
        else {
            continue;
        };
        let at = grids.iter().position(|g| g.title == first.table).unwrap_or_else(|| {
            grids.push(Grid {
                title: first.table.clone(),
                words: 2,
                head: [
                    "", "measure", "runs", "A p50", "B p50", "A p99", "B p99", "B / A", "B is",
                ]
                .map(str::to_owned)
                .to_vec(),
                rows: Vec::new(),
            });
            grids.len() - 1
        });
        grids[at].rows.push(row);
    }
    grids
}

fn row(first: &Series, second: &Series) -> Option<Vec<String>> {
    let labels: Vec<&str> = first.labels.iter().map(|(_, value)| value.as_str()).collect();
    let (own, theirs) = (first.values.figures()?, second.values.figures()?);
    let ratio = ratio(&first.values, &second.values)?;
    let verdict = Verdict::of(ratio, first.values.rounds().min(second.values.rounds()));
    let is_time = ["s", "ms", "µs", "ns"].contains(&first.unit.as_str());
    Some(vec![
        labels.join(", "),
        first.title(),
        format!("{}/{}", own.count, theirs.count),
        within(own.median),
        within(theirs.median),
        crate::table::number(own.p99),
        crate::table::number(theirs.p99),
        beside(ratio),
        verdict.told(is_time).to_owned(),
    ])
}

/// Measures both builds in turn: which is first alternates from round to round.
async fn builds(args: &Args, compare: &CompareArgs) -> Result<()> {
    let workload = *args.workloads().first().context("no workload")?;
    let folder = workload.prepare()?;
    let subjects: Vec<Subject> = args.subjects().into_iter().filter(|s| s.is_ours()).collect();
    let start = |bin: &Path| {
        let args = Args {
            bin: Some(bin.to_owned()),
            ..args.clone()
        };
        let platform = platform::start(&args, &[])?;
        platform.deployed(&folder)?;
        if subjects.contains(&Subject::Parked) {
            // A revision without parked instances has none to compare, which its runs show.
            let _known = workload
                .prepare_parked(&folder)
                .and_then(|folder| platform.deployed(&folder));
        }
        if subjects.contains(&Subject::Fresh) {
            let _known = workload
                .prepare_fresh(&folder)
                .and_then(|folder| platform.deployed(&folder));
        }
        anyhow::Ok(platform)
    };
    let mut records = [Record::begin("compare"), Record::begin("compare")];
    let platforms = [
        start(&compare.a).with_context(|| format!("A, {}", compare.a.display()))?,
        start(&compare.b).with_context(|| format!("B, {}", compare.b.display()))?,
    ];
    let name = workload.name();
    let mut clients = [Ours::of(&platforms[0], &name), Ours::of(&platforms[1], &name)];
    let names = [(&compare.name_a, &compare.a), (&compare.name_b, &compare.b)];
    for ((record, platform), (name, path)) in records.iter_mut().zip(&platforms).zip(names) {
        let name = name.clone().unwrap_or_else(|| path.display().to_string());
        record.program = Some(format!("{name}: {}", platform.program()));
    }
    for regime in REGIMES {
        let mut given_up = [vec![0; subjects.len()], vec![0; subjects.len()]];
        for round in 0..args.warmup + compare.rounds {
            let counts = round >= args.warmup;
            for (n, subject) in subjects.iter().enumerate() {
                let row = rounds::row(workload, regime, *subject);
                for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let failures = &mut given_up[side][n];
                    let run = async || clients[side].run(*subject).await;
                    rounds::turn(&mut records[side], &row, (regime, *subject), counts, failures, run).await;
                }
            }
            if counts {
                records.iter_mut().for_each(Record::cpu_loop);
            }
        }
    }
    records.iter_mut().for_each(Record::end);
    println!();
    print(&records[0], &records[1])?;
    for (record, suffix) in records.iter().zip(["a", "b"]) {
        let path = record.place(args.json.as_deref());
        let path = path.with_extension(format!("{suffix}.json"));
        record.write(&path)?;
        println!("samples: {}", told(&path));
    }
    Ok(())
}

impl Verdict {
    /// Concludes only what holds over the whole interval.
    fn of(ratio: Ratio, rounds: usize) -> Self {
        match ratio.interval {
            Some((_, high)) if rounds >= ROUNDS_MIN && high < 1.0 => Self::Less,
            Some((low, _)) if rounds >= ROUNDS_MIN && low > 1.0 => Self::More,
            Some(_) if rounds >= ROUNDS_MIN => Self::NoDifference,
            _ => Self::TooFewRounds,
        }
    }

    fn told(self, is_time: bool) -> &'static str {
        match self {
            Self::Less if is_time => "faster",
            Self::More if is_time => "slower",
            Self::Less => "less",
            Self::More => "more",
            Self::NoDifference => "no different",
            Self::TooFewRounds => "? (below 10 rounds)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Row;

    #[test]
    fn only_what_the_whole_interval_says_is_said() {
        let of = |low, high, rounds| {
            let interval = Some((low, high));
            Verdict::of(Ratio { value: 1.0, interval }, rounds)
        };
        assert_eq!(of(0.8, 0.97, 40), Verdict::Less);
        assert_eq!(of(1.01, 1.2, 40), Verdict::More);
        assert_eq!(of(0.99, 1.2, 40), Verdict::NoDifference);
        assert_eq!(of(1.5, 3.0, 4), Verdict::TooFewRounds);
        let unknown = Ratio {
            value: 2.0,
            interval: None,
        };
        assert_eq!(Verdict::of(unknown, 40), Verdict::TooFewRounds);
    }

    #[test]
    fn two_records_are_compared_where_they_have_the_same_series() {
        let record = |scale: f64, row: &Row| {
            let mut record = Record::begin("many");
            record.extend(row, "answer", "ms", (0..20).map(|n| scale * (10.0 + f64::from(n % 3))));
            record.push(row, "restores", "a second", 100.0 * scale);
            record
        };
        let row = Row::of("At once", &[("at once", &8)]);
        let grids = tables(&record(1.0, &row), &record(2.0, &row));
        assert_eq!(grids.len(), 1);
        assert_eq!(grids[0].rows[0][..2], ["8", "answer, ms"]);
        assert_eq!(grids[0].rows[0][8], "slower");
        assert_eq!(grids[0].rows[1][7..], ["2.00", "? (below 10 rounds)"]);
        let other = Row::of("At once", &[("at once", &16)]);
        assert!(tables(&record(1.0, &row), &record(2.0, &other)).is_empty());
    }
}
