//! Numbers that look random and are the same for the same seed, on every machine and with every version of every
//! library.

use crate::fleet::ring::scatter;

/// A sequence of numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(scatter(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scatter(self.0)
    }

    /// At least 0 and less than 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Less than `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from((u128::from(self.next()) * n as u128) >> 64).unwrap_or(0)
    }

    /// Exponentially distributed with this mean, like the waits between unrelated events.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    /// Normally distributed, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.share()).cos()
    }

    /// Lognormally distributed, with this median.
    pub(super) fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }
}

/// A choice among many, each with a weight of its own.
#[derive(Debug, Clone)]
pub(super) struct Weighted(Vec<f64>);

impl Weighted {
    /// Zipf's distribution: the n-th has the weight 1/n^`exponent`.
    pub(super) fn zipf(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let up_to = (1..=n).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(up_to.collect())
    }

    pub(super) fn pick(&self, random: &mut Random) -> usize {
        let at = random.share() * self.0.last().copied().unwrap_or(0.0);
        self.0
            .partition_point(|up_to| *up_to <= at)
            .min(self.0.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distributions_have_their_means_and_medians() {
        let mut random = Random::new(7);
        let n = 20_000;
        let mean = (0..n).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        let below = (0..n).filter(|_| random.lognormal(8.0, 1.0) < 8.0).count();
        assert!((9_500..10_500).contains(&below), "{below}");
        let zipf = Weighted::zipf(100, 1.0);
        let first = (0..n).filter(|_| zipf.pick(&mut random) == 0).count();
        // 1 / (1 + 1/2 + ... + 1/100)
        assert!((3_600..4_100).contains(&first), "{first}");
        assert!((0..1_000).all(|_| random.below(3) < 3 && zipf.pick(&mut random) < 100));
    }
}
