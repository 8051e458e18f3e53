//! Eviction order by greedy-dual (N. Young, 1994; by size: P. Cao and S. Irani, 1997). Pure.
//!
//! Each use gives an item the clock's reading, plus the cost to have it again for each byte it takes. The item that is
//! worth least is evicted, and the clock advances to its worth. So expensive small items outlive cheap large ones, but
//! not forever without being used. Among equals the longest unused is evicted first.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Nanoseconds saved for each byte taken, on top of a clock's reading.
pub type Worth = f64;

/// Greedy-dual's clock: it advances to the least worth whenever that item is evicted. If items change their size or
/// cost while they stand by, their owner records the reading at each use, and adds the worth of the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Clock(Worth);

impl Clock {
    /// The worth of an item used now that saves `cost` and takes `bytes`.
    pub fn worth(self, cost: Duration, bytes: u64) -> Worth {
        // Exact below 2^53 nanoseconds and bytes.
        self.0 + cost.as_nanos() as f64 / bytes.max(1) as f64
    }

    /// Records that an item of this worth was evicted.
    pub fn gone(&mut self, worth: Worth) {
        self.0 = self.0.max(worth);
    }
}

/// The worth of items.
#[derive(Debug)]
pub struct GreedyDual<K> {
    clock: Clock,
    uses: u64,
    worth: HashMap<K, EntryWorth>,
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct EntryWorth {
    value: Worth,
    /// Breaks ties.
    used: u64,
}

impl<K> Default for GreedyDual<K> {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            uses: 0,
            worth: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Clone> GreedyDual<K> {
    /// Records a use of `key`, or that it is kept from now on. It takes `bytes`, and to have it again would cost
    /// `cost`.
    pub fn used(&mut self, key: K, cost: Duration, bytes: u64) {
        self.uses += 1;
        let (value, used) = (self.clock.worth(cost, bytes), self.uses);
        self.worth.insert(key, EntryWorth { value, used });
    }

    /// The candidate that is worth least; those never used are worth nothing.
    pub fn least<'a>(&self, candidates: impl Iterator<Item = &'a K>) -> Option<&'a K> {
        let nothing = EntryWorth { value: 0.0, used: 0 };
        let worth = |key: &K| self.worth.get(key).copied().unwrap_or(nothing);
        candidates.min_by(|a, b| {
            let (a, b) = (worth(a), worth(b));
            a.value.total_cmp(&b.value).then(a.used.cmp(&b.used))
        })
    }

    /// Whether an item with this cost and size, used now, would be worth more than `key`.
    pub fn would_outlive(&self, key: &K, cost: Duration, bytes: u64) -> bool {
        let worth = self.worth.get(key).map_or(0.0, |w| w.value);
        self.clock.worth(cost, bytes) > worth
    }

    /// Records that `key`, or a part of it, was evicted: the clock advances to its worth.
    pub fn gone(&mut self, key: &K) {
        if let Some(worth) = self.worth.get(key) {
            self.clock.gone(worth.value);
        }
    }

    /// Forgets `key`.
    pub fn forget(&mut self, key: &K) {
        self.worth.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn of_equals_the_longest_unused_goes_first() {
        let mut kept = GreedyDual::default();
        for key in [1, 2, 3] {
            kept.used(key, MS, 100);
        }
        kept.used(1, MS, 100);
        assert_eq!(kept.least([1, 2, 3].iter()), Some(&2));
        assert_eq!(
            kept.least([1, 2, 3, 4].iter()),
            Some(&4),
            "what was never used is worth nothing"
        );
        assert_eq!(kept.least([].iter()), None);
    }

    #[test]
    fn what_is_dear_outlives_what_is_cheap_but_not_for_ever() {
        let mut kept = GreedyDual::default();
        kept.used(0, 10 * MS, 100);
        for key in 1..=20 {
            kept.used(key, MS, 100);
            let least = *kept.least([0, key].iter()).unwrap();
            if key <= 9 {
                assert_eq!(least, key);
            }
            kept.gone(&least);
            kept.forget(&least);
            if least == 0 {
                return;
            }
        }
        panic!("it was never used again, and stays");
    }

    #[test]
    fn a_newcomer_outlives_only_what_is_worth_less() {
        let mut kept = GreedyDual::default();
        kept.used("old", 2 * MS, 100);
        assert!(!kept.would_outlive(&"old", MS, 100));
        assert!(kept.would_outlive(&"old", 3 * MS, 100));
        kept.used("other", 4 * MS, 100);
        kept.gone(&"other");
        assert!(kept.would_outlive(&"old", MS, 100), "time has passed");
    }

    proptest! {
        #[test]
        fn the_clock_never_goes_back_and_the_least_is_the_least(
            steps in proptest::collection::vec((0_u8..8, 0_u64..50, 1_u64..5000, any::<bool>()), 1..200)
        ) {
            let mut kept = GreedyDual::default();
            let all: Vec<u8> = (0..8).collect();
            for (key, cost, bytes, evict) in steps {
                let clock = kept.clock;
                if evict {
                    let least = *kept.least(all.iter()).unwrap();
                    let value = |k: &u8| kept.worth.get(k).map_or(0.0, |w| w.value);
                    prop_assert!(all.iter().all(|k| value(&least) <= value(k)));
                    kept.gone(&least);
                    kept.forget(&least);
                } else {
                    kept.used(key, MS * cost as u32, bytes);
                    prop_assert!(kept.worth[&key].value >= kept.clock.0);
                }
                prop_assert!(kept.clock.0 >= clock.0);
            }
        }
    }
}
