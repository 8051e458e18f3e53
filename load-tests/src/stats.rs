//! Order statistics of a handful of samples. They are exact: no buckets, no interpolation. Each percentile comes with
//! its 95 % confidence interval, whatever the distribution: between two order statistics, by the binomial distribution.
//! Runs of one round that follow each other at once are correlated (a disturbance affects neighbours). For those, and
//! for ratios, whole rounds are resampled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Samples, in the order in which they were taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Values {
    /// The samples; of a distribution its distinct values, from the least on.
    pub(crate) samples: Vec<f64>,
    /// How often each of them was seen, of a distribution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) counts: Vec<u64>,
    /// How many samples of each round were taken one after the other; 0 and 1 for one.
    #[serde(default, skip_serializing_if = "is_single")]
    pub(crate) block: usize,
}

fn is_single(block: &usize) -> bool {
    *block <= 1
}

/// A distribution of any number of samples in bounded memory: each counts as the next lower number of four digits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rounded(BTreeMap<u64, u64>);

impl Rounded {
    /// Counts a sample.
    pub(crate) fn count(&mut self, sample: u64) {
        let step = 10_u64.pow(sample.max(1).ilog10().saturating_sub(3));
        *self.0.entry(sample / step * step).or_default() += 1;
    }

    /// Number of samples.
    pub(crate) fn len(&self) -> u64 {
        self.0.values().sum()
    }

    /// Its values in another unit, with how often each was seen.
    pub(crate) fn over(&self, unit: f64) -> impl Iterator<Item = (f64, u64)> {
        self.0.iter().map(move |(value, count)| (*value as f64 / unit, *count))
    }
}

/// A percentile and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Percentile {
    /// The sample by nearest rank.
    pub(crate) value: f64,
    /// Lower end; `None` if there are too few samples.
    pub(crate) low: Option<f64>,
    /// Upper end, likewise: p99 needs some hundred samples.
    pub(crate) high: Option<f64>,
}

/// The figures of one series, in the unit of its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// Number of samples.
    pub(crate) count: u64,
    /// Least sample.
    pub(crate) min: f64,
    /// Greatest sample.
    pub(crate) max: f64,
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile by nearest rank: the greatest, below 100 samples.
    pub(crate) p99: f64,
    /// The median with its interval.
    pub(crate) median: Percentile,
    /// The 99th percentile with its interval.
    pub(crate) tail: Percentile,
}

/// The ratio of two medians, with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// Second over first.
    pub(crate) value: f64,
    /// The lower and the upper end; `None` where the samples do not tell.
    pub(crate) interval: Option<(f64, f64)>,
}

/// Probability beyond either side of an interval.
const BEYOND: f64 = 0.025;
/// Resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
/// A bootstrap over fewer rounds is unreliable.
pub(crate) const ROUNDS_MIN: usize = 10;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

impl Values {
    /// Samples that were taken one in each round.
    pub(crate) fn of(samples: Vec<f64>) -> Self {
        Self {
            samples,
            ..Self::default()
        }
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, sample: f64) {
        self.samples.push(sample);
    }

    /// Adds samples of a distribution: values, and how often each was seen.
    pub(crate) fn add(&mut self, seen: impl IntoIterator<Item = (f64, u64)>) {
        for (value, count) in seen.into_iter().filter(|(_, count)| *count > 0) {
            match self.samples.binary_search_by(|known| known.total_cmp(&value)) {
                Ok(at) => self.counts[at] += count,
                Err(at) => {
                    self.samples.insert(at, value);
                    self.counts.insert(at, count);
                }
            }
        }
    }

    /// Number of samples.
    pub(crate) fn count(&self) -> u64 {
        match self.counts.is_empty() {
            true => self.samples.len() as u64,
            false => self.counts.iter().sum(),
        }
    }

    /// Number of rounds in which they were taken; none of a distribution.
    pub(crate) fn rounds(&self) -> usize {
        match self.counts.is_empty() {
            true => self.samples.len().div_ceil(self.block.max(1)),
            false => 0,
        }
    }

    /// The nearest-rank percentile; `None` without samples.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let at = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        self.sorted().at(at)
    }

    /// The cumulative share of samples over their values, from the least on.
    pub(crate) fn shares(&self) -> Vec<(f64, f64)> {
        let (sorted, all) = (self.sorted(), self.count() as f64);
        let ranks = sorted.up_to.iter().map(|rank| *rank as f64 / all);
        sorted.values.iter().copied().zip(ranks).collect()
    }

    fn sorted(&self) -> Sorted {
        let mut values = self.samples.clone();
        let mut sum = 0;
        let up_to = if self.counts.is_empty() {
            values.sort_by(f64::total_cmp);
            (1..=values.len() as u64).collect()
        } else {
            let ranks = self.counts.iter().map(|count| {
                sum += count;
                sum
            });
            ranks.collect()
        };
        Sorted { values, up_to }
    }

    /// `None` without samples.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let (sorted, count) = (self.sorted(), self.count());
        let percentile = |percent: u64| {
            let (low, high) = interval(count, percent as f64 / 100.0);
            Some(Percentile {
                value: sorted.at((count * percent).div_ceil(100).max(1))?,
                low: low.and_then(|rank| sorted.at(rank)),
                high: high.and_then(|rank| sorted.at(rank)),
            })
        };
        let (median, tail) = (percentile(50)?, percentile(99)?);
        let exact = Figures {
            count,
            min: *sorted.values.first()?,
            max: *sorted.values.last()?,
            p50: median.value,
            p99: tail.value,
            median,
            tail,
        };
        match (self.block, self.rounds()) {
            (0 | 1, _) => Some(exact),
            // One round says nothing about others.
            (_, 1) => {
                let alone = |p: Percentile| Percentile {
                    low: None,
                    high: None,
                    ..p
                };
                Some(Figures {
                    median: alone(median),
                    tail: alone(tail),
                    ..exact
                })
            }
            (block, _) => resampled(&self.samples, block, exact),
        }
    }
}

/// Values from the least on, each with the number of samples up to it.
struct Sorted {
    values: Vec<f64>,
    up_to: Vec<u64>,
}

impl Sorted {
    /// The sample of this rank, from 1.
    fn at(&self, rank: u64) -> Option<f64> {
        self.values.get(self.up_to.partition_point(|r| *r < rank)).copied()
    }
}

/// `None` without samples.
pub(crate) fn figures(samples: impl IntoIterator<Item = f64>) -> Option<Figures> {
    Values::of(samples.into_iter().collect()).figures()
}

/// The ranks, from 1, between which the quantile `q` lies. The number of samples below the true quantile is binomial in
/// `n` and `q`.
fn interval(n: u64, q: f64) -> (Option<u64>, Option<u64>) {
    /// With more samples the normal distribution is as good.
    const EXACT_MAX: u64 = 20_000;
    if n > EXACT_MAX {
        let (mean, deviation) = (n as f64 * q, (n as f64 * q * (1.0 - q)).sqrt());
        let rank = |sign: f64| (mean + sign * 1.96 * deviation).round() as u64;
        return (Some(rank(-1.0).max(1)), Some(rank(1.0).min(n)));
    }
    let (mut low, mut high) = (None, None);
    // P(exactly k below), as a logarithm: the numbers themselves are too small for n in the thousands.
    let mut ln = n as f64 * (1.0 - q).ln();
    let mut up_to = 0.0;
    for k in 0..n {
        up_to += ln.exp();
        // up_to is now P(at most k below).
        if up_to <= BEYOND {
            low = Some(k + 1);
        }
        if high.is_none() && 1.0 - up_to <= BEYOND {
            high = Some(k + 1);
        }
        ln += ((n - k) as f64 / (k + 1) as f64).ln() + (q / (1.0 - q)).ln();
    }
    (low, high)
}

/// The figures of samples of which `block` were taken in each round, one after the other.
fn resampled(samples: &[f64], block: usize, exact: Figures) -> Option<Figures> {
    let mut random = Random(SEED);
    let (mut medians, mut tails) = (Vec::with_capacity(RESAMPLES), Vec::with_capacity(RESAMPLES));
    for _ in 0..RESAMPLES {
        let mut drawn: Vec<f64> = random
            .rounds(samples.len().div_ceil(block))
            .flat_map(|n| round(samples, block, n))
            .copied()
            .collect();
        drawn.sort_by(f64::total_cmp);
        let rank = |percent: usize| drawn.get((drawn.len() * percent).div_ceil(100).max(1) - 1).copied();
        medians.push(rank(50)?);
        tails.push(rank(99)?);
    }
    let within = |value, drawn| {
        let (low, high) = middle(drawn)?;
        Some(Percentile {
            value,
            low: Some(low),
            high: Some(high),
        })
    };
    let tail = within(exact.p99, tails)?;
    // Resampling knows nothing beyond the greatest sample.
    let high = tail.high.filter(|h| *h < exact.max);
    Some(Figures {
        median: within(exact.p50, medians)?,
        tail: Percentile { high, ..tail },
        ..exact
    })
}

/// The ratio of the medians, second over first, by a bootstrap over rounds. If both have as many, the same rounds of
/// both are drawn, since they were measured side by side. `None` without samples on both sides. The same samples give
/// the same interval.
pub(crate) fn ratio(first: &Values, second: &Values) -> Option<Ratio> {
    let value = second.figures()?.p50 / first.figures()?.p50;
    if first.rounds().min(second.rounds()) < 2 {
        return Some(Ratio { value, interval: None });
    }
    let mut random = Random(SEED);
    let of = |values: &Values, chosen: &[usize]| {
        let block = values.block.max(1);
        let all = chosen.iter().flat_map(|n| round(&values.samples, block, *n)).copied();
        median(all.collect())
    };
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let a: Vec<usize> = random.rounds(first.rounds()).collect();
        let b = if first.samples.len() == second.samples.len() {
            a.clone()
        } else {
            random.rounds(second.rounds()).collect()
        };
        ratios.push(of(second, &b)? / of(first, &a)?);
    }
    let interval = middle(ratios);
    Some(Ratio { value, interval })
}

/// The samples of the `n`th round.
fn round(samples: &[f64], block: usize, n: usize) -> &[f64] {
    let from = (n * block).min(samples.len());
    &samples[from..(from + block).min(samples.len())]
}

/// The bounds of the middle 95 %.
fn middle(mut drawn: Vec<f64>) -> Option<(f64, f64)> {
    drawn.sort_by(f64::total_cmp);
    let beyond = drawn.len() / 40;
    Some((*drawn.get(beyond)?, *drawn.get(drawn.len() - 1 - beyond)?))
}

fn median(mut samples: Vec<f64>) -> Option<f64> {
    let at = samples.len().div_ceil(2).checked_sub(1)?;
    Some(*samples.select_nth_unstable_by(at, f64::total_cmp).1)
}

/// Xorshift: good enough to choose samples, and the same in each run.
struct Random(u64);

impl Random {
    /// `count` numbers below `count`, with repetitions.
    fn rounds(&mut self, count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap_or(0) % count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(samples: &[f64], block: usize) -> Figures {
        let samples = samples.to_vec();
        let values = Values {
            samples,
            block,
            ..Values::default()
        };
        values.figures().unwrap()
    }

    fn ends(ratio: Ratio) -> (f64, f64) {
        ratio.interval.unwrap()
    }

    #[test]
    fn a_distribution_has_the_figures_of_its_samples() {
        let mut counted = Values::default();
        counted.add([(3.0, 1), (1.0, 2)]);
        counted.add([(2.0, 4), (1.0, 1), (9.0, 0)]);
        let plain = Values::of(vec![1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0]);
        assert_eq!(counted.figures(), plain.figures());
        assert_eq!((counted.count(), counted.percentile(99.9)), (8, Some(3.0)));
        assert_eq!(counted.shares(), [(1.0, 0.375), (2.0, 0.875), (3.0, 1.0)]);
    }

    #[test]
    fn a_rounded_distribution_is_within_a_thousandth_and_bounded() {
        let mut rounded = Rounded::default();
        (1..=100_000).for_each(|n| rounded.count(n));
        let mut values = Values::default();
        values.add(rounded.over(1e3));
        for (percent, wanted) in [(50.0, 50.0), (99.0, 99.0), (100.0, 100.0)] {
            let got = values.percentile(percent).unwrap();
            assert!((got / wanted - 1.0).abs() <= 0.001, "p{percent} is {got}");
        }
        assert!(rounded.len() == 100_000 && values.samples.len() < 30_000);
    }

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let hundred = figures((1..=100).rev().map(f64::from)).unwrap();
        assert_eq!(
            (hundred.count, hundred.min, hundred.p50, hundred.p99),
            (100, 1.0, 50.0, 99.0)
        );
    }

    #[test]
    fn below_a_hundred_samples_p99_is_the_greatest() {
        let few = figures([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.count, few.min, few.p50, few.p99), (3, 1.0, 2.0, 3.0));
        assert_eq!(figures([7.0]).unwrap().p50, 7.0);
    }

    #[test]
    fn no_samples_give_no_figures() {
        assert_eq!(figures([]), None);
        assert_eq!(ratio(&Values::default(), &Values::of(vec![1.0])), None);
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Conover, Practical Nonparametric Statistics, table A3: median, 95 %.
        assert_eq!(interval(40, 0.5), (Some(14), Some(27)));
        assert_eq!(interval(10, 0.5), (Some(2), Some(9)));
        // With five samples all may be on one side of the median with 2 * 0.5^5 = 6 %.
        assert_eq!(interval(5, 0.5), (None, None));
    }

    #[test]
    fn the_upper_end_of_a_99th_percentile_takes_hundreds_of_samples() {
        let few = figures((1..=40).map(f64::from)).unwrap().tail;
        assert!(few.low.is_some() && few.high.is_none(), "{few:?}");
        let many = figures((1..=1_000).map(f64::from)).unwrap().tail;
        assert!(many.low < Some(990.0) && many.high > Some(990.0), "{many:?}");
    }

    #[test]
    fn thousands_of_samples_are_no_trouble() {
        let (low, high) = interval(4_000, 0.5);
        assert!((1_930..1_950).contains(&low.unwrap()) && (2_050..2_070).contains(&high.unwrap()));
    }

    #[test]
    fn runs_that_are_alike_within_a_round_do_not_pass_for_independent_ones() {
        // Twenty rounds of ten runs; all of a round are disturbed, or none.
        let samples: Vec<f64> = (0..200)
            .map(|n| {
                if n / 10 % 3 == 0 {
                    2.0
                } else {
                    1.0 + f64::from(n % 10) / 100.0
                }
            })
            .collect();
        let width = |p: Percentile| p.high.unwrap() - p.low.unwrap();
        let (alone, rounds) = (rounds(&samples, 1), rounds(&samples, 10));
        assert_eq!((alone.p50, alone.p99), (rounds.p50, rounds.p99));
        assert!(width(rounds.median) >= width(alone.median), "{rounds:?}, {alone:?}");
        assert_eq!(rounds.tail.high, None, "the greatest sample is no upper end");
        let one = self::rounds(&samples[..10], 10).median;
        assert_eq!((one.low, one.high), (None, None), "one round says nothing about others");
    }

    #[test]
    fn a_drift_that_both_sides_share_cancels() {
        let first: Vec<f64> = (0..40).map(|n| 10.0 + f64::from(n)).collect();
        let second: Vec<f64> = first.iter().map(|v| v * 1.1).collect();
        let (low, high) = ends(ratio(&Values::of(first), &Values::of(second)).unwrap());
        assert!((low - 1.1).abs() < 1e-9 && (high - 1.1).abs() < 1e-9, "{low}, {high}");
    }

    #[test]
    fn a_ratio_is_within_its_interval_and_noise_of_both_sides_widens_it() {
        let steady = Values::of((0..50).map(|n| 10.0 + f64::from(n) / 100.0).collect());
        let noisy = Values::of((0..50).map(|n| 20.0 + f64::from(n % 10)).collect());
        let narrow = ends(ratio(&steady, &steady).unwrap());
        assert!(
            narrow.0 <= 1.0 && narrow.1 >= 1.0 && narrow.1 - narrow.0 < 0.05,
            "{narrow:?}"
        );
        let wide = ratio(&steady, &noisy).unwrap();
        assert!(
            ends(wide).0 > 1.5 && ends(wide).1 - ends(wide).0 > narrow.1 - narrow.0,
            "{wide:?}"
        );
        assert_eq!(ratio(&steady, &noisy), Some(wide));
    }
}
