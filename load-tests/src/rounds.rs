//! Runs everything in turn, round after round, so that any drift affects all alike.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::record::{Record, Row};
use crate::subject::{Sample, Subject};
use crate::workload::Workload;

/// A subject that fails this often in a row is given up.
const FAILURES_MAX: u32 = 3;
/// The phases of `Server-Timing` in the order in which they happen; others come after them.
const PHASES: [&str; 13] = [
    "route",
    "place",
    "open",
    "files",
    "sandbox",
    "start",
    "thaw",
    "listen",
    "criu",
    "working-set",
    "after-restore",
    "restore",
    "function",
];
/// What is measured.
pub(crate) const FIRST_RESPONSE: &str = "trigger to the last byte of the first response";

/// How long the machine was idle before a trigger. After some idle time cores and caches are slow to wake, so a figure
/// means nothing without its regime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Regime {
    /// Not at all: the end of the last run is followed by the next trigger.
    BackToBack,
    /// 80 ms before each run.
    AfterIdle,
}

/// All regimes, in the order in which they are measured.
pub(crate) const REGIMES: [Regime; 2] = [Regime::BackToBack, Regime::AfterIdle];

impl Regime {
    /// Its title in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::BackToBack => "back to back",
            Self::AfterIdle => "after 80 ms idle",
        }
    }

    /// Pause before each run.
    fn pause(self) -> Duration {
        match self {
            Self::BackToBack => Duration::ZERO,
            Self::AfterIdle => Duration::from_millis(80),
        }
    }

    /// Number of runs in a round: a running subject responds so fast that one run a round would show mostly noise.
    fn runs_in_round(self, subject: Subject) -> usize {
        match (subject.is_running(), self) {
            (false, _) => 1,
            (true, Self::BackToBack) => 10,
            (true, Self::AfterIdle) => 2,
        }
    }
}

/// The title of the table of a workload in a regime.
pub(crate) fn table(workload: Workload, regime: Regime) -> String {
    format!("{}, {}", workload.title(), regime.title())
}

/// The row of a subject in that table.
pub(crate) fn row(workload: Workload, regime: Regime, subject: Subject) -> Row {
    let (language, subject) = (workload.language.name(), subject.title());
    let labels: [(&str, &dyn std::fmt::Display); 4] = [
        ("language", &language),
        ("MiB touched", &workload.mib),
        ("regime", &regime.title()),
        ("subject", &subject),
    ];
    Row::of(table(workload, regime), &labels)
}

/// Measures the chosen subjects in one regime.
pub(crate) async fn run(
    args: &Args,
    record: &mut Record,
    workload: Workload,
    regime: Regime,
    ours: &mut Option<Ours>,
    peers: &mut Peers,
) {
    let chosen = args.subjects();
    for subject in &chosen {
        let missing = peers.missing(*subject).map(str::to_owned);
        record
            .series(&row(workload, regime, *subject), FIRST_RESPONSE, "ms")
            .missing = missing;
    }
    let mut failures = vec![0; chosen.len()];
    for round in 0..args.warmup + args.runs {
        let counts = round >= args.warmup;
        for (subject, failures) in chosen.iter().zip(&mut failures) {
            let row = row(workload, regime, *subject);
            let once = async || match subject.is_ours() {
                true => ours.as_mut().context("there is no platform")?.run(*subject).await,
                false => peers.run(*subject).await,
            };
            turn(record, &row, (regime, *subject), counts, failures, once).await;
        }
        if counts {
            record.cpu_loop();
        }
    }
    eprintln!("{}: measured", regime.title());
}

/// A subject's runs in one round. `failures` counts those in a row.
pub(crate) async fn turn(
    record: &mut Record,
    row: &Row,
    (regime, subject): (Regime, Subject),
    counts: bool,
    failures: &mut u32,
    mut run: impl AsyncFnMut() -> Result<Sample>,
) {
    let runs = regime.runs_in_round(subject);
    for _ in 0..runs {
        if record.series(row, FIRST_RESPONSE, "ms").missing.is_some() {
            return;
        }
        tokio::time::sleep(regime.pause()).await;
        let sample = run().await;
        take(record, row, subject, sample, counts, failures);
    }
    record.in_blocks(row, runs);
}

/// Records a sample and its phases.
pub(crate) fn push(record: &mut Record, row: &Row, sample: Sample) {
    record.push(row, FIRST_RESPONSE, "ms", sample.ms);
    let mut phases: Vec<(String, f64)> = sample.phases.into_iter().collect();
    phases.sort_by_key(|(name, _)| PHASES.iter().position(|p| p == name).unwrap_or(PHASES.len()));
    for (phase, ms) in phases {
        let row = row.below("Server-Timing (phases may overlap)", "phase", &phase);
        record.push(&row, "took", "ms", ms);
    }
}

/// Records the sample if it counts, and every failure, warm-up or not.
fn take(record: &mut Record, row: &Row, subject: Subject, sample: Result<Sample>, counts: bool, failures: &mut u32) {
    match sample {
        Ok(sample) => {
            *failures = 0;
            if counts {
                push(record, row, sample);
            }
        }
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("{}: {error}", subject.name());
            *failures += 1;
            let series = record.series(row, FIRST_RESPONSE, "ms");
            if *failures >= FAILURES_MAX {
                series.missing = Some(format!("given up after {FAILURES_MAX} failures in a row: {error}"));
            }
            series.errors.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn sample(ms: f64) -> Result<Sample> {
        let phases = [("criu".to_owned(), ms / 2.0), ("route".to_owned(), 1.0)].into();
        Ok(Sample { ms, phases })
    }

    #[test]
    fn warm_up_runs_do_not_count_but_their_failures_do() {
        let (mut record, row, mut failures) = (Record::begin("starts"), Row::of("Starts", &[]), 0);
        for (outcome, counts) in [
            (sample(900.0), false),
            (Err(anyhow!("no answer")), false),
            (sample(100.0), true),
        ] {
            take(&mut record, &row, Subject::Plain, outcome, counts, &mut failures);
        }
        let series = record.series(&row, FIRST_RESPONSE, "ms");
        assert_eq!(series.values.samples, [100.0]);
        assert_eq!((series.errors.len(), &series.missing), (1, &None));
        let phases: Vec<(&str, &[f64])> = record.series[1..]
            .iter()
            .map(|s| (s.label("phase"), &s.values.samples[..]))
            .collect();
        assert_eq!(phases, [("route", &[1.0][..]), ("criu", &[50.0])], "as they happen");
        record.in_blocks(&row, 10);
        assert!(record.series.iter().all(|s| s.values.block == 10));
    }

    #[test]
    fn what_fails_again_and_again_is_given_up() {
        let (mut record, row, mut failures) = (Record::begin("starts"), Row::of("Starts", &[]), 0);
        for _ in 0..FAILURES_MAX {
            take(
                &mut record,
                &row,
                Subject::Criu,
                Err(anyhow!("exit status: 1")),
                true,
                &mut failures,
            );
        }
        let missing = record.series[0].missing.clone();
        assert!(missing.unwrap().ends_with("exit status: 1"));
    }
}
