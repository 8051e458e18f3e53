//! Order statistics of a handful of samples. They are exact: no buckets, no interpolation. Each percentile comes with
//! its 95 % confidence interval, whatever the distribution: between two order statistics, by the binomial distribution.
//! Runs of one round that follow each other at once are correlated (a disturbance affects neighbours). For those, and
//! for ratios, whole rounds are resampled.

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

/// The figures of one subject, in the unit of its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// Number of samples.
    pub(crate) count: usize,
    /// Least sample.
    pub(crate) min: f64,
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
    /// The lower end.
    pub(crate) low: f64,
    /// The upper end.
    pub(crate) high: f64,
}

/// Probability beyond either side of an interval.
const BEYOND: f64 = 0.025;
/// Resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// `None` without samples.
pub(crate) fn figures(samples: impl IntoIterator<Item = f64>) -> Option<Figures> {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (median, tail) = (percentile(&sorted, 50)?, percentile(&sorted, 99)?);
    Some(Figures {
        count: sorted.len(),
        min: *sorted.first()?,
        p50: median.value,
        p99: tail.value,
        median,
        tail,
    })
}

/// The nearest-rank percentile of sorted samples.
fn percentile(sorted: &[f64], percent: usize) -> Option<Percentile> {
    let (low, high) = interval(sorted.len(), as_f64(percent) / 100.0);
    Some(Percentile {
        value: rank(sorted, percent)?,
        low: low.and_then(|rank| sorted.get(rank - 1).copied()),
        high: high.and_then(|rank| sorted.get(rank - 1).copied()),
    })
}

fn rank(sorted: &[f64], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

/// The ranks, from 1, between which the quantile `q` lies. The number of samples below the true quantile is binomial in
/// `n` and `q`.
fn interval(n: usize, q: f64) -> (Option<usize>, Option<usize>) {
    let (mut low, mut high) = (None, None);
    // P(exactly k below), as a logarithm: the numbers themselves are too small for n in the thousands.
    let mut ln = as_f64(n) * (1.0 - q).ln();
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
        ln += (as_f64(n - k) / as_f64(k + 1)).ln() + (q / (1.0 - q)).ln();
    }
    (low, high)
}

/// The figures of samples of which `block` were taken in each round, one after the other.
pub(crate) fn figures_of_rounds(samples: &[f64], block: usize) -> Option<Figures> {
    let exact = figures(samples.iter().copied())?;
    if block <= 1 {
        return Some(exact);
    }
    let mut random = Random(SEED);
    let (mut medians, mut tails) = (Vec::with_capacity(RESAMPLES), Vec::with_capacity(RESAMPLES));
    for _ in 0..RESAMPLES {
        let mut resampled = random
            .rounds(samples.len().div_ceil(block))
            .flat_map(|n| round(samples, block, n))
            .copied()
            .collect::<Vec<_>>();
        resampled.sort_by(f64::total_cmp);
        medians.push(rank(&resampled, 50)?);
        tails.push(rank(&resampled, 99)?);
    }
    let within = |value, drawn| {
        let (low, high) = middle(drawn)?;
        Some(Percentile {
            value,
            low: Some(low),
            high: Some(high),
        })
    };
    let greatest = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let tail = within(exact.p99, tails)?;
    // Resampling knows nothing beyond the greatest sample.
    let high = tail.high.filter(|h| *h < greatest);
    Some(Figures {
        median: within(exact.p50, medians)?,
        tail: Percentile { high, ..tail },
        ..exact
    })
}

/// The ratio of the medians, second over first, by a bootstrap over rounds of `block` samples each. If both have as
/// many, the same rounds of both are drawn, since they were measured side by side. `None` without samples on both
/// sides. The same samples give the same interval.
pub(crate) fn ratio(first: &[f64], second: &[f64], block: usize) -> Option<Ratio> {
    let value = median(second.to_vec())? / median(first.to_vec())?;
    let mut random = Random(SEED);
    let rounds = |samples: &[f64]| samples.len().div_ceil(block.max(1));
    let of = |samples: &[f64], chosen: &[usize]| {
        let all = chosen.iter().flat_map(|n| round(samples, block.max(1), *n)).copied();
        median(all.collect())
    };
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let a: Vec<usize> = random.rounds(rounds(first)).collect();
        let b = if first.len() == second.len() {
            a.clone()
        } else {
            random.rounds(rounds(second)).collect()
        };
        ratios.push(of(second, &b)? / of(first, &a)?);
    }
    let (low, high) = middle(ratios)?;
    Some(Ratio { value, low, high })
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

#[allow(clippy::cast_precision_loss, reason = "counts of samples are far below 2^53")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(ratio(&[], &[1.0], 1), None);
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
        let (alone, rounds) = (
            figures_of_rounds(&samples, 1).unwrap(),
            figures_of_rounds(&samples, 10).unwrap(),
        );
        assert_eq!((alone.p50, alone.p99), (rounds.p50, rounds.p99));
        assert!(width(rounds.median) >= width(alone.median), "{rounds:?}, {alone:?}");
        assert_eq!(rounds.tail.high, None, "the greatest sample is no upper end");
    }

    #[test]
    fn a_drift_that_both_sides_share_cancels() {
        let first: Vec<f64> = (0..40).map(|n| 10.0 + f64::from(n)).collect();
        let second: Vec<f64> = first.iter().map(|v| v * 1.1).collect();
        let both = ratio(&first, &second, 1).unwrap();
        assert!(
            (both.low - 1.1).abs() < 1e-9 && (both.high - 1.1).abs() < 1e-9,
            "{both:?}"
        );
    }

    #[test]
    fn a_ratio_is_within_its_interval_and_noise_of_both_sides_widens_it() {
        let steady: Vec<f64> = (0..50).map(|n| 10.0 + f64::from(n) / 100.0).collect();
        let noisy: Vec<f64> = (0..50).map(|n| 20.0 + f64::from(n % 10)).collect();
        let narrow = ratio(&steady, &steady, 1).unwrap();
        assert!(
            narrow.low <= 1.0 && narrow.high >= 1.0 && narrow.high - narrow.low < 0.05,
            "{narrow:?}"
        );
        let wide = ratio(&steady, &noisy, 1).unwrap();
        assert!(
            wide.low > 1.5 && wide.high - wide.low > narrow.high - narrow.low,
            "{wide:?}"
        );
        assert_eq!(ratio(&steady, &noisy, 1), Some(wide));
    }
}
