//! A distribution of durations: bounded memory for any number of them, percentiles within 0.1 %, and small as JSON.

use hdrhistogram::Histogram as Hdr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest duration that is distinguished, microseconds: longer ones count as this.
const LONGEST_US: u64 = 600_000_000;

/// Durations, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Histogram(Option<Hdr<u64>>);

impl Default for Histogram {
    fn default() -> Self {
        // The bounds are constants that it accepts; an empty histogram in its place would only lose samples.
        Self(Hdr::new_with_bounds(1, LONGEST_US, 3).ok())
    }
}

impl Histogram {
    /// Records one duration, milliseconds.
    pub(crate) fn record(&mut self, ms: f64) {
        self.record_many(micros(ms), 1);
    }

    fn record_many(&mut self, us: u64, count: u64) {
        if let Some(hdr) = &mut self.0 {
            hdr.saturating_record(us.max(1));
            if count > 1 {
                // It is within the bounds, since the first was saturated to them.
                let _within = hdr.record_n(us.clamp(1, LONGEST_US), count - 1);
            }
        }
    }

    /// Number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Hdr::len)
    }

    /// The percentile by nearest rank, milliseconds; zero without any.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        self.0.as_ref().map_or(0.0, |h| ms(h.value_at_percentile(percent)))
    }

    /// The greatest duration, milliseconds.
    pub(crate) fn max(&self) -> f64 {
        self.0.as_ref().map_or(0.0, |h| ms(h.max()))
    }

    /// The cumulative share of durations over milliseconds, as steps from left to right.
    pub(crate) fn cumulative(&self) -> Vec<(f64, f64)> {
        let (mut below, all) = (0_u64, as_f64(self.count()));
        let steps = self.steps();
        steps
            .into_iter()
            .map(|(us, count)| {
                below += count;
                (ms(us), as_f64(below) / all)
            })
            .collect()
    }

    fn steps(&self) -> Vec<(u64, u64)> {
        let recorded = self.0.iter().flat_map(Hdr::iter_recorded);
        recorded.map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
    }
}

/// `[[microseconds, count], ...]`
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.steps().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let steps = Vec::<(u64, u64)>::deserialize(deserializer)?;
        let mut out = Self::default();
        steps
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .for_each(|(us, count)| out.record_many(us, count));
        Ok(out)
    }
}

/// Whole microseconds; negative values and NaN become none.
fn micros(ms: f64) -> u64 {
    let us = (ms * 1_000.0).round();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, which is what is wanted here"
    )]
    let whole = us as u64;
    whole
}

fn ms(us: u64) -> f64 {
    as_f64(us) / 1_000.0
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 2^53: microseconds of 285 years")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = f64>) -> Histogram {
        let mut out = Histogram::default();
        values.into_iter().for_each(|v| out.record(v));
        out
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let hundred = of((1..=100).map(f64::from));
        for (percent, wanted) in [(50.0, 50.0), (99.0, 99.0), (100.0, 100.0)] {
            let got = hundred.percentile(percent);
            assert!((got / wanted - 1.0).abs() < 0.001, "p{percent} is {got}");
        }
        assert_eq!((hundred.count(), Histogram::default().percentile(50.0)), (100, 0.0));
    }

    #[test]
    fn the_cumulative_share_ends_at_one() {
        let steps = of([1.0, 1.0, 2.0, 4.0]).cumulative();
        assert_eq!(steps.iter().map(|s| s.1).collect::<Vec<_>>(), [0.5, 0.75, 1.0]);
        assert!(Histogram::default().cumulative().is_empty());
    }

    #[test]
    fn json_and_back_keeps_counts_and_percentiles() {
        let before = of([0.4, 17.0, 17.0, 700_000.0, -1.0]);
        let after: Histogram = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
        assert_eq!((after.count(), after.percentile(50.0)), (5, before.percentile(50.0)));
        assert_eq!(after.cumulative(), before.cumulative());
    }
}
