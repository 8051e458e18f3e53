//! How long a function was idle between uses. A histogram of 240 bins (four hours of one minute each) as in M. Shahrad
//! et al., "Serverless in the Wild", USENIX ATC 2020, section 4.2. Also a count of idle times beyond it, and the last
//! few of those. It takes 560 bytes for each function, whatever its age.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bins of a histogram.
pub const BINS: usize = 240;
/// Number of idle times beyond the histogram that are remembered individually.
const FAR: usize = 8;
/// All counts are halved when there are this many, so that old ones count less and less.
const MOST: u32 = 10_000;

/// A histogram in its stored form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredHistogram {
    /// Bin width, milliseconds.
    pub bin_ms: u64,
    /// Counts by bin, without empty ones.
    pub counts: BTreeMap<u16, u16>,
    /// Number of idle times beyond the histogram.
    pub beyond: u32,
    /// The last of those, in bins, oldest first.
    pub far: Vec<u32>,
}

/// The histogram of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleTimes {
    counts: Box<[u16; BINS]>,
    within: u32,
    beyond: u32,
    /// The last idle times beyond the histogram, in whole bins; the oldest is overwritten first.
    far: [u32; FAR],
    far_seen: u32,
}

impl Default for IdleTimes {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BINS]),
            within: 0,
            beyond: 0,
            far: [0; FAR],
            far_seen: 0,
        }
    }
}

impl IdleTimes {
    /// Counts one idle time, in bins of this width.
    pub fn add(&mut self, idle: Duration, bin: Duration) {
        let at = idle.as_nanos() / bin.as_nanos().max(1);
        match usize::try_from(at).ok().and_then(|at| self.counts.get_mut(at)) {
            Some(count) => {
                *count += 1;
                self.within += 1;
            }
            None => {
                self.far[self.far_seen as usize % FAR] = u32::try_from(at).unwrap_or(u32::MAX);
                self.far_seen = self.far_seen.saturating_add(1);
                self.beyond += 1;
            }
        }
        if self.seen() >= MOST {
            self.halve();
        }
    }

    /// The stored form, with bins of this width.
    pub fn noted(&self, bin: Duration) -> StoredHistogram {
        let counts = (0_u16..).zip(self.counts.iter().copied());
        let (seen, kept) = (self.far_seen as usize, (self.far_seen as usize).min(FAR));
        StoredHistogram {
            bin_ms: bin_ms(bin),
            counts: counts.filter(|(_, count)| *count > 0).collect(),
            beyond: self.beyond,
            far: (seen - kept..seen).map(|at| self.far[at % FAR]).collect(),
        }
    }

    /// Restores the stored form; `None` if it was counted in bins of another width, or by other rules.
    pub fn of(noted: &StoredHistogram, bin: Duration) -> Option<Self> {
        let mut times = Self {
            beyond: noted.beyond,
            ..Self::default()
        };
        for (bin, count) in &noted.counts {
            *times.counts.get_mut(usize::from(*bin))? = *count;
            times.within += u32::from(*count);
        }
        for far in &noted.far {
            times.far[times.far_seen as usize % FAR] = *far;
            times.far_seen += 1;
        }
        let sound =
            noted.bin_ms == bin_ms(bin) && noted.far.len() <= FAR && times.within.checked_add(times.beyond)? < MOST;
        sound.then_some(times)
    }

    fn halve(&mut self) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.within = self.counts.iter().map(|count| u32::from(*count)).sum();
        self.beyond /= 2;
    }

    /// Number of idle times counted.
    pub fn seen(&self) -> u32 {
        self.within + self.beyond
    }

    /// Share of idle times that are beyond the histogram.
    pub fn share_beyond(&self) -> f64 {
        f64::from(self.beyond) / f64::from(self.seen().max(1))
    }

    /// The bin below which this share of the idle times within the histogram falls. Use its lower edge for a head, one
    /// more for a tail.
    pub fn quantile(&self, share: f64) -> usize {
        let wanted = (share * f64::from(self.within)).ceil().max(1.0);
        let mut below = 0.0;
        for (bin, count) in self.counts.iter().enumerate() {
            below += f64::from(*count);
            if below >= wanted {
                return bin;
            }
        }
        BINS - 1
    }

    /// The coefficient of variation of the bins' counts: high if few bins hold everything, so that the histogram is
    /// informative.
    pub fn variation(&self) -> f64 {
        let mean = f64::from(self.within) / BINS as f64;
        let squares: f64 = self.counts.iter().map(|count| f64::from(*count).powi(2)).sum();
        match mean > 0.0 {
            true => (squares / BINS as f64 - mean * mean).max(0.0).sqrt() / mean,
            false => 0.0,
        }
    }

    /// The shortest and the longest of the last idle times beyond the histogram, in bins, once there are `least`.
    pub fn far(&self, least: usize) -> Option<(u32, u32)> {
        let kept = &self.far[..(self.far_seen as usize).min(FAR)];
        let (shortest, longest) = (kept.iter().min()?, kept.iter().max()?);
        (kept.len() >= least).then_some((*shortest, *longest))
    }
}

fn bin_ms(bin: Duration) -> u64 {
    u64::try_from(bin.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn of(minutes: impl IntoIterator<Item = u64>) -> IdleTimes {
        let mut times = IdleTimes::default();
        for m in minutes {
            times.add(MINUTE * u32::try_from(m).unwrap(), MINUTE);
        }
        times
    }

    #[test]
    fn quantiles_are_bins_and_what_lies_beyond_is_apart() {
        let times = of((0..100).chain([240, 500]));
        assert_eq!(
            (times.quantile(0.05), times.quantile(0.99), times.quantile(1.0)),
            (4, 98, 99)
        );
        assert!((times.share_beyond() - 2.0 / 102.0).abs() < 1e-9);
        assert_eq!(times.far(2), Some((240, 500)));
        assert_eq!(times.far(3), None);
        assert_eq!(of([]).quantile(0.5), BINS - 1);
    }

    #[test]
    fn the_variation_is_high_where_idle_times_are_alike_and_low_where_they_are_spread() {
        assert!(of([30; 20]).variation() > 15.0);
        assert!(of(0..240).variation() < 1e-9);
        assert!(of([]).variation() < 1e-9);
    }

    #[test]
    fn a_function_costs_what_it_is_said_to() {
        let of_one = size_of::<IdleTimes>() + size_of::<[u16; BINS]>();
        assert!(of_one <= 560, "{of_one} bytes");
    }

    #[test]
    fn what_is_not_a_histogram_of_this_kind_is_not_taken_for_one() {
        let sound = of([3, 3, 300]).noted(MINUTE);
        assert!(IdleTimes::of(&sound, MINUTE).is_some());
        assert_eq!(IdleTimes::of(&sound, MINUTE / 2), None, "other bins");
        let with = |change: fn(&mut StoredHistogram)| {
            let mut noted = sound.clone();
            change(&mut noted);
            IdleTimes::of(&noted, MINUTE)
        };
        assert_eq!(with(|n| n.counts = [(240, 1)].into()), None);
        assert_eq!(with(|n| n.beyond = u32::MAX), None);
        assert_eq!(with(|n| n.far = vec![300; 9]), None);
    }

    proptest! {
        #[test]
        fn what_is_noted_is_read_as_it_was_and_counts_on(
            minutes in proptest::collection::vec(0_u64..600, 0..80), more in 0_u64..600,
        ) {
            let mut times = of(minutes);
            let noted = times.noted(MINUTE);
            let mut read = IdleTimes::of(&noted, MINUTE).unwrap();
            prop_assert_eq!(&read.noted(MINUTE), &noted);
            for times in [&mut times, &mut read] {
                times.add(MINUTE * more as u32, MINUTE);
            }
            prop_assert_eq!(read.noted(MINUTE), times.noted(MINUTE));
        }

        #[test]
        fn counts_stay_bounded_and_follow_what_is_recent(first in 0_u64..240, then in 0_u64..240, times in 1_usize..3) {
            let mut kept = of([first; 5_000]);
            for _ in 0..times * 30_000 {
                kept.add(MINUTE * then as u32, MINUTE);
                prop_assert!(kept.seen() < MOST);
            }
            prop_assert_eq!(kept.quantile(0.5), then as usize);
        }
    }
}
