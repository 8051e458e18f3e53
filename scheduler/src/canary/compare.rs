//! Compares a new version with the old one beside which it serves: how many invocations fail, and how many of each
//! start kind are slow.

use std::collections::BTreeMap;

use rekindle_telemetry::metrics::buckets::FINE;
use rekindle_wire::api::{CanaryCheck, Compared};
use rekindle_wire::stats::{Latencies, Outcomes};

use super::fisher::{Sample, p_value};

/// Name of the comparison of failures.
pub(crate) const ERRORS: &str = "errors";
/// Number of comparisons at once: failures, and four start kinds.
pub(crate) const CHECKS: u32 = 5;
/// Fewer invocations of a kind have no 99th percentile to speak of.
const LEAST: u64 = 20;
/// Slow is what takes this much longer than the old version's 99th percentile: one step of the histogram, and ten
/// milliseconds, which nobody rolls a version back for.
const SLOWER: f64 = 1.25;
const SLOWER_US: u64 = 10_000;

/// Outcomes of a version's invocations by start kind.
pub(crate) type OutcomesByStart = BTreeMap<String, Outcomes>;

/// Compares both. A check fails if chance alone explains what differs with a probability below `limit`.
pub(crate) fn compare(old: &OutcomesByStart, new: &OutcomesByStart, limit: f64) -> Vec<CanaryCheck> {
    let failures = |all: &OutcomesByStart| Sample {
        hits: all.values().map(|outcomes| outcomes.failed).sum(),
        of: all.values().map(Outcomes::all).sum(),
    };
    let mut checks = vec![check(ERRORS, None, (failures(old), failures(new)), limit)];
    for (start, new) in new {
        let Some(old) = old.get(start) else { continue };
        let Some(slow_us) = slow_us(&old.latencies) else {
            continue;
        };
        let slow = |latencies: &Latencies| Sample {
            hits: latencies.range(slow_us + 1..).map(|(_, count)| count).sum(),
            of: latencies.values().sum(),
        };
        let samples = (slow(&old.latencies), slow(&new.latencies));
        if samples.1.of > 0 {
            checks.push(check(start, Some(slow_us as f64 / 1e3), samples, limit));
        }
    }
    checks
}

/// The bound in microseconds above which an invocation is slow. `None` if there are too few to say so.
fn slow_us(latencies: &Latencies) -> Option<u64> {
    let all: u64 = latencies.values().sum();
    if all < LEAST {
        return None;
    }
    let mut left = all / 100;
    let p99 = latencies.iter().rev().find(|(_, count)| {
        let is_here = left < **count;
        left = left.saturating_sub(**count);
        is_here
    });
    let p99 = *p99?.0;
    let least = (p99 as f64 * SLOWER).max(p99.saturating_add(SLOWER_US) as f64);
    // Bounds are a little less than a whole step apart.
    let bounds = FINE.iter().map(|s| (s * 1e6).round());
    let bound = bounds.filter(|bound| *bound >= least * 0.99).min_by(f64::total_cmp)?;
    Some(bound as u64)
}

fn check(what: &str, slow_ms: Option<f64>, (old, new): (Sample, Sample), limit: f64) -> CanaryCheck {
    let p = p_value(old, new);
    let compared = |Sample { hits, of }| Compared { hits, of };
    CanaryCheck {
        what: what.to_owned(),
        slow_ms,
        old: compared(old),
        new: compared(new),
        p,
        limit,
        worse: p < limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(failed: u64, latencies: &[(u64, u64)]) -> Outcomes {
        let latencies: Latencies = latencies.iter().copied().collect();
        Outcomes {
            answered: latencies.values().sum(),
            failed,
            latencies,
        }
    }

    fn warm(outcomes: Outcomes) -> OutcomesByStart {
        [("warm".to_owned(), outcomes)].into()
    }

    fn worse(old: &OutcomesByStart, new: &OutcomesByStart) -> Vec<String> {
        let checks = compare(old, new, 1e-3).into_iter();
        checks.filter(|check| check.worse).map(|check| check.what).collect()
    }

    #[test]
    fn failures_are_told_from_chance() {
        let old = warm(outcomes(2, &[(1_000, 900)]));
        assert_eq!(worse(&old, &warm(outcomes(0, &[(1_000, 100)]))), [""; 0]);
        assert_eq!(worse(&old, &warm(outcomes(1, &[(1_000, 99)]))), [""; 0]);
        assert_eq!(worse(&old, &warm(outcomes(8, &[(1_000, 92)]))), ["errors"]);
        let at_no_start = [("none".to_owned(), outcomes(9, &[]))].into();
        assert_eq!(worse(&old, &at_no_start), ["errors"], "none found an instance");
    }

    #[test]
    fn slow_is_what_exceeds_the_old_99th_percentile_by_more_than_the_histogram_and_the_host_blur() {
        assert_eq!(slow_us(&[(1_000, 19)].into()), None, "too few");
        assert_eq!(slow_us(&[(1_000, 99), (50_000, 1)].into()), Some(12_500));
        assert_eq!(slow_us(&[(1_000, 98), (100_000, 2)].into()), Some(125_000));
        assert_eq!(slow_us(&[(1_000, 98), (u64::MAX, 2)].into()), None);
        let old = warm(outcomes(0, &[(1_000, 890), (50_000, 10)]));
        let check = |new: &[(u64, u64)]| worse(&old, &warm(outcomes(0, new)));
        assert_eq!(
            check(&[(1_000, 95), (63_000, 5)]),
            [""; 0],
            "one step is within the blur"
        );
        assert_eq!(check(&[(1_000, 99), (200_000, 1)]), [""; 0], "one may be slow");
        assert_eq!(check(&[(1_000, 90), (200_000, 10)]), ["warm"]);
    }

    #[test]
    fn each_start_kind_is_compared_with_its_own() {
        let both = |warm: &[(u64, u64)], restored: &[(u64, u64)]| -> OutcomesByStart {
            let kinds = [("warm", outcomes(0, warm)), ("restored", outcomes(0, restored))];
            kinds.map(|(kind, outcomes)| (kind.to_owned(), outcomes)).into()
        };
        let old = both(&[(1_000, 900)], &[(80_000, 30)]);
        // A newcomer starts more often, which makes it no slower.
        assert_eq!(worse(&old, &both(&[(1_000, 50)], &[(80_000, 50)])), [""; 0]);
        assert_eq!(worse(&old, &both(&[(1_000, 50)], &[(800_000, 50)])), ["restored"]);
    }
}
