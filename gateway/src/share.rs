//! Counts of what becomes of invocations that several versions share, by version, as long as their weights stay: the
//! scheduler compares a new version with an old one by them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_telemetry::metrics::buckets::FINE;
use rekindle_wire::api::AliasTarget;
use rekindle_wire::stats::Outcomes;
use rekindle_wire::{ApiError, ErrorCode, VersionNumber};

/// Start kind of an invocation that no instance was found for.
const NOT_STARTED: &str = "none";

/// The invocations that versions share with these weights.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) targets: Vec<AliasTarget>,
    counts: Mutex<OutcomesByVersion>,
}

/// Outcomes by version and start kind.
pub(crate) type OutcomesByVersion = BTreeMap<VersionNumber, BTreeMap<String, Outcomes>>;

/// What became of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was answered after this long.
    Answered(Duration),
    /// The function failed, or no instance of its version took it.
    Failed,
}

impl Outcome {
    /// Of an invocation that took this long. `None` if it says nothing of the version: the request was at fault.
    pub(crate) fn of(answer: Result<http::StatusCode, &ApiError>, took: Duration) -> Option<Self> {
        match answer {
            Ok(status) if !status.is_server_error() => Some(Self::Answered(took)),
            Ok(_) => Some(Self::Failed),
            Err(error) if error.code == ErrorCode::Throttled || error.code.status().is_server_error() => {
                Some(Self::Failed)
            }
            Err(_) => None,
        }
    }
}

impl Share {
    pub(crate) fn new(targets: Vec<AliasTarget>) -> Self {
        Self {
            targets,
            counts: Mutex::default(),
        }
    }

    pub(crate) fn count(&self, version: VersionNumber, start: Option<&str>, outcome: Outcome) {
        let mut counts = self.counts.lock();
        let of_version = counts.entry(version).or_default();
        let start = start.unwrap_or(NOT_STARTED);
        if !of_version.contains_key(start) {
            of_version.insert(start.to_owned(), Outcomes::default());
        }
        let Some(outcomes) = of_version.get_mut(start) else {
            return;
        };
        match outcome {
            Outcome::Failed => outcomes.failed += 1,
            Outcome::Answered(took) => {
                let seconds = took.as_secs_f64();
                let bound = FINE.iter().find(|bound| seconds <= **bound);
                let bound_us = bound.map_or(u64::MAX, |bound| (bound * 1e6).round() as u64);
                outcomes.answered += 1;
                *outcomes.latencies.entry(bound_us).or_default() += 1;
            }
        }
    }

    pub(crate) fn counts(&self) -> OutcomesByVersion {
        self.counts.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn only_what_the_version_is_at_fault_for_counts_as_its_failure() {
        let took = Duration::from_millis(3);
        let of = |answer: Result<StatusCode, ErrorCode>| {
            let answer = answer.map_err(|code| ApiError::new(code, ""));
            Outcome::of(answer.as_ref().copied(), took)
        };
        assert_eq!(of(Ok(StatusCode::OK)), Some(Outcome::Answered(took)));
        assert_eq!(of(Ok(StatusCode::NOT_FOUND)), Some(Outcome::Answered(took)));
        assert_eq!(of(Ok(StatusCode::BAD_GATEWAY)), Some(Outcome::Failed));
        assert_eq!(of(Err(ErrorCode::FunctionTimeout)), Some(Outcome::Failed));
        assert_eq!(of(Err(ErrorCode::Throttled)), Some(Outcome::Failed));
        assert_eq!(of(Err(ErrorCode::TooLarge)), None);
    }

    #[test]
    fn outcomes_are_counted_by_version_and_start_kind() {
        let share = Share::new(Vec::new());
        let (old, new) = (VersionNumber(7), VersionNumber(8));
        for (version, start, outcome) in [
            (old, Some("warm"), Outcome::Answered(Duration::from_micros(1_100))),
            (old, Some("warm"), Outcome::Answered(Duration::from_micros(1_250))),
            (new, Some("restored"), Outcome::Answered(Duration::from_secs(100))),
            (new, None, Outcome::Failed),
        ] {
            share.count(version, start, outcome);
        }
        let counts = share.counts();
        assert_eq!(counts[&old]["warm"].latencies, [(1_250, 2)].into());
        assert_eq!(counts[&new]["restored"].latencies, [(u64::MAX, 1)].into());
        assert_eq!((counts[&new]["none"].failed, counts[&new]["none"].all()), (1, 1));
    }
}
