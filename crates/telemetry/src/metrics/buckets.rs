//! Bounds of histograms, in seconds. They are Renard's preferred numbers: each step is the same factor, so that an
//! interpolated quantile is off by at most that factor.

/// Ten steps a decade (a factor of 1.26) from 100 µs to 63 s: what users wait for.
pub const FINE: &[f64] = &[
    0.0001, 0.000125, 0.00016, 0.0002, 0.00025, 0.000315, 0.0004, 0.0005, 0.00063, 0.0008, 0.001, 0.00125, 0.0016,
    0.002, 0.0025, 0.00315, 0.004, 0.005, 0.0063, 0.008, 0.01, 0.0125, 0.016, 0.02, 0.025, 0.0315, 0.04, 0.05, 0.063,
    0.08, 0.1, 0.125, 0.16, 0.2, 0.25, 0.315, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0,
    10.0, 12.5, 16.0, 20.0, 25.0, 31.5, 40.0, 50.0, 63.0,
];

/// Five steps a decade (a factor of 1.58) from 10 µs to 63 s: phases within the platform.
pub const COARSE: &[f64] = &[
    0.00001, 0.000016, 0.000025, 0.00004, 0.000063, 0.0001, 0.00016, 0.00025, 0.0004, 0.00063, 0.001, 0.0016, 0.0025,
    0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63, 1.0, 1.6, 2.5, 4.0, 6.3, 10.0, 16.0,
    25.0, 40.0, 63.0,
];

/// Estimates a quantile (`share` from 0 to 1) from a histogram. Each count is of values at or below its bound and above
/// the previous bound; the last count is of values above all bounds. Linear within a bucket, as Prometheus'
/// `histogram_quantile`. `None` without any values.
pub fn quantile(bounds: &[f64], counts: &[u64], share: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = share.clamp(0.0, 1.0) * total as f64;
    let mut below = 0;
    for (index, count) in counts.iter().enumerate() {
        if *count > 0 && (below + count) as f64 >= rank {
            let low = index.checked_sub(1).and_then(|i| bounds.get(i)).copied().unwrap_or(0.0);
            // Above the last bound nothing more is known.
            let high = bounds.get(index).copied().unwrap_or(low);
            let within = ((rank - below as f64) / *count as f64).clamp(0.0, 1.0);
            return Some(low + (high - low) * within);
        }
        below += count;
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_by_nearly_one_factor() {
        for (bounds, factor) in [(FINE, 1.26), (COARSE, 1.585)] {
            for pair in bounds.windows(2) {
                let step = pair[1] / pair[0];
                assert!((step - factor).abs() < 0.04, "{pair:?}");
            }
        }
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_of_its_rank() {
        let bounds = [1.0, 2.0, 4.0];
        assert_eq!(quantile(&bounds, &[0; 4], 0.5), None);
        assert_eq!(quantile(&bounds, &[0, 10, 0, 0], 0.5), Some(1.5));
        assert_eq!(quantile(&bounds, &[5, 5, 0, 0], 1.0), Some(2.0));
        assert_eq!(
            quantile(&bounds, &[0, 0, 0, 3], 0.5),
            Some(4.0),
            "above the last bound nothing is known"
        );
        assert_eq!(quantile(&bounds, &[4, 0, 4, 0], 0.75), Some(3.0));
    }
}
