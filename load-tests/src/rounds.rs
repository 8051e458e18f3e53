//! Runs everything in turn, round after round, so that any drift affects all alike.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::machine;
use crate::ours::Ours;
use crate::peers::Peers;
use crate::record::{Measured, Outcome};
use crate::subject::{Sample, Subject};

/// A subject that fails this often in a row is given up.
const FAILURES_MAX: u32 = 3;

/// How long the machine was idle before a trigger. After some idle time cores and caches are slow to wake, so a figure
/// means nothing without its regime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    pub(crate) fn pause(self) -> Duration {
        match self {
            Self::BackToBack => Duration::ZERO,
            Self::AfterIdle => Duration::from_millis(80),
        }
    }

    /// Number of runs in a round: a running subject responds so fast that one run a round would show mostly noise.
    pub(crate) fn runs_in_round(self, subject: Subject) -> usize {
        match (subject.is_running(), self) {
            (false, _) => 1,
            (true, Self::BackToBack) => 10,
            (true, Self::AfterIdle) => 2,
        }
    }
}

/// Measures the chosen subjects in one regime.
pub(crate) async fn run(
    args: &Args,
    regime: Regime,
    chosen: &[Subject],
    ours: &mut Option<Ours>,
    peers: &mut Peers,
) -> Measured {
    let mut outcomes: Vec<Outcome> = chosen.iter().map(|s| Outcome::of(*s, peers.missing(*s))).collect();
    let mut cpu_loop_ms = Vec::new();
    for round in 0..args.warmup + args.runs {
        let counts = round >= args.warmup;
        for outcome in outcomes.iter_mut().filter(|o| o.missing.is_none()) {
            for _ in 0..regime.runs_in_round(outcome.subject) {
                tokio::time::sleep(regime.pause()).await;
                let sample = once(outcome.subject, ours, peers).await;
                take(outcome, sample, counts);
            }
        }
        if counts {
            cpu_loop_ms.push(machine::cpu_loop());
        }
    }
    eprintln!("{}: measured", regime.title());
    Measured {
        regime,
        outcomes,
        cpu_loop_ms,
    }
}

async fn once(subject: Subject, ours: &mut Option<Ours>, peers: &mut Peers) -> Result<Sample> {
    match subject.is_ours() {
        true => ours.as_mut().context("there is no platform")?.run(subject).await,
        false => peers.run(subject).await,
    }
}

/// Records the sample if it counts, and every failure, warm-up or not.
pub(crate) fn take(outcome: &mut Outcome, sample: Result<Sample>, counts: bool) {
    match sample {
        Ok(sample) => {
            outcome.failures_in_row = 0;
            if counts {
                outcome.samples.push(sample);
            }
        }
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("{}: {error}", outcome.subject.name());
            outcome.failures_in_row += 1;
            if outcome.failures_in_row >= FAILURES_MAX {
                outcome.missing = Some(format!("given up after {FAILURES_MAX} failures in a row: {error}"));
            }
            outcome.errors.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn warm_up_runs_do_not_count_but_their_failures_do() {
        let mut outcome = Outcome::of(Subject::Plain, None);
        take(
            &mut outcome,
            Ok(Sample {
                ms: 900.0,
                ..Sample::default()
            }),
            false,
        );
        take(&mut outcome, Err(anyhow!("no answer")), false);
        take(
            &mut outcome,
            Ok(Sample {
                ms: 100.0,
                ..Sample::default()
            }),
            true,
        );
        assert_eq!(outcome.samples.iter().map(|s| s.ms).collect::<Vec<_>>(), [100.0]);
        assert_eq!((outcome.errors.len(), outcome.missing), (1, None));
    }

    #[test]
    fn what_fails_again_and_again_is_given_up() {
        let mut outcome = Outcome::of(Subject::Criu, None);
        for _ in 0..FAILURES_MAX {
            take(&mut outcome, Err(anyhow!("exit status: 1")), true);
        }
        assert!(outcome.missing.unwrap().ends_with("exit status: 1"));
    }
}
