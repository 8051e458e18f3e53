//! Fisher's exact test of two proportions, one-sided. It is exact for any counts: a canary has few invocations, and few
//! of them fail, where tests that assume a normal distribution are wrong.

/// Below this, logarithms of factorials are added up; above it, Stirling's series is exact to twelve digits.
const SMALL: u64 = 20;
/// Terms smaller than this share of the sum no longer change it.
const NEGLIGIBLE: f64 = 1e-12;

/// A number of hits among a number of trials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) hits: u64,
    pub(crate) of: u64,
}

impl Sample {
    fn share(self) -> f64 {
        self.hits as f64 / self.of.max(1) as f64
    }
}

/// The chance of at least as many hits in `new` if hits fell on both samples alike: the upper tail of the
/// hypergeometric distribution. 1 if hits are no more frequent in `new`.
pub(crate) fn p_value(old: Sample, new: Sample) -> f64 {
    if new.share() <= old.share() {
        return 1.0;
    }
    let (hits, all) = (old.hits + new.hits, old.of + new.of);
    let mut term =
        (ln_choose(hits, new.hits) + ln_choose(all - hits, new.of - new.hits) - ln_choose(all, new.of)).exp();
    let mut sum = term;
    // Hits are more frequent than on average from here on, so each term is smaller than the one before.
    for k in new.hits..hits.min(new.of) {
        let chance = (hits - k) as f64 * (new.of - k) as f64;
        term *= chance / ((k + 1) as f64 * (all - hits + k + 1 - new.of) as f64);
        sum += term;
        if term < sum * NEGLIGIBLE {
            break;
        }
    }
    sum.min(1.0)
}

fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

fn ln_factorial(n: u64) -> f64 {
    if n < SMALL {
        return (2..=n).map(|i| (i as f64).ln()).sum();
    }
    let n = n as f64;
    let series = 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3)) + 1.0 / (1260.0 * n.powi(5));
    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(old: (u64, u64), new: (u64, u64)) -> f64 {
        let sample = |(hits, of)| Sample { hits, of };
        p_value(sample(old), sample(new))
    }

    #[test]
    fn it_is_the_tail_of_the_hypergeometric_distribution() {
        // The lady tasting tea.
        assert!((p((1, 4), (3, 4)) - 17.0 / 70.0).abs() < 1e-12);
        assert!((p((0, 4), (4, 4)) - 1.0 / 70.0).abs() < 1e-12);
        // All six of sixty: one of the choices of six among sixty.
        assert!((p((0, 54), (6, 6)) * 50_063_860.0 - 1.0).abs() < 1e-9);
        assert_eq!(p((3, 10), (3, 10)), 1.0);
        assert_eq!(p((0, 0), (0, 0)), 1.0);
        assert_eq!(p((0, 0), (5, 5)), 1.0, "there is nothing to compare with");
        let large = p((10_000, 10_000_000), (1_200, 1_000_000));
        assert!(large > 1e-12 && large < 1e-7, "{large}");
    }

    #[test]
    fn what_is_no_worse_seldom_seems_to_be() {
        let mut seed = 1_u64;
        let mut draw = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as f64 / f64::from(u32::MAX >> 1)
        };
        let mut hits = |of: u64| (0..of).filter(|_| draw() < 0.02).count() as u64;
        let wrong = (0..2_000)
            .filter(|_| p((hits(500), 500), (hits(60), 60)) < 0.01)
            .count();
        assert!(wrong <= 20, "{wrong} of 2000 at a limit of 1 %");
        assert!(p((5, 500), (12, 60)) < 1e-6, "and what is worse does");
    }
}
