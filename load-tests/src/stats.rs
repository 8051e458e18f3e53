//! Order statistics of a handful of samples. Exact: no buckets, no interpolation.

/// The figures of one subject, in the unit of its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// How many samples.
    pub(crate) count: usize,
    /// The least.
    pub(crate) min: f64,
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile by nearest rank: the greatest, below 100 samples.
    pub(crate) p99: f64,
}

/// `None` without samples.
pub(crate) fn figures(samples: impl IntoIterator<Item = f64>) -> Option<Figures> {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    Some(Figures {
        count: sorted.len(),
        min: *sorted.first()?,
        p50: rank(&sorted, 50)?,
        p99: rank(&sorted, 99)?,
    })
}

/// The nearest-rank percentile of sorted samples.
fn rank(sorted: &[f64], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let hundred = figures((1..=100).rev().map(f64::from)).unwrap();
        assert_eq!(
            hundred,
            Figures {
                count: 100,
                min: 1.0,
                p50: 50.0,
                p99: 99.0
            }
        );
    }

    #[test]
    fn below_a_hundred_samples_p99_is_the_greatest() {
        let few = figures([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            few,
            Figures {
                count: 3,
                min: 1.0,
                p50: 2.0,
                p99: 3.0
            }
        );
        assert_eq!(figures([7.0]).unwrap().p50, 7.0);
    }

    #[test]
    fn no_samples_give_no_figures() {
        assert_eq!(figures([]), None);
    }
}
