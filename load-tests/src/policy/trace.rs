//! The trace: functions like those of Azure Functions that M. Shahrad et al. published ("Serverless in the Wild",
//! USENIX ATC 2020), generated from a seed.
//!
//! | of a function | from the paper |
//! |---|---|
//! | mean invocations a day | over eight orders of magnitude; 45 % at most one an hour, 81 % at most one a minute, |
//! | | log-uniform between those; 15.6 % are called by timers |
//! | duration | lognormal, log-mean -0.38 and deviation 2.36 (seconds); cut at ten minutes |
//! | memory | Burr, c = 11.652, k = 0.221, scale 107.083 (MB) |
//!
//! The paper shows calls of every regularity, and gives no formula. So this mix is ours, by coefficient of variation
//! (CV):
//!
//! - Timers have a period that people write (CV near 0).
//! - Of the others a fifth are nearly regular (Erlang, CV 0.25 to 0.5).
//! - Two fifths are about random (Erlang, CV 0.7 or 1).
//! - Two fifths come in bursts (lognormal, CV 2 to 6).
//!
//! There are no days and nights in it. A function is one unit here as in the paper: it is in use from the beginning of
//! its first call to the end of its last one.

use std::time::Duration;

use super::random::Random;

/// Mean invocations a day, as logarithms to base ten, with the share of functions that have at most that many.
const RATES: [(f64, f64); 4] = [(0.0, -1.0), (0.45, 1.380_211), (0.81, 3.158_362), (1.0, 7.0)];
const TIMERS: f64 = 0.156;
/// Periods that people write, seconds.
const PERIODS: [f64; 13] = [
    60.0,
    300.0,
    600.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    14_400.0,
    21_600.0,
    43_200.0,
    86_400.0,
    604_800.0,
    1_209_600.0,
];
const DURATION_MAX: f64 = 600.0;
const DAY: f64 = 86_400.0;

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pattern {
    /// Every `period` seconds, give or take a second.
    Timer { period: f64 },
    /// With `steps` steps between calls.
    Erlang { steps: u32 },
    /// With this coefficient of variation.
    Bursts { variation: f64 },
}

/// One function.
#[derive(Debug, Clone)]
pub(super) struct Function {
    /// Average seconds between calls.
    pub(super) interval: f64,
    pub(super) pattern: Pattern,
    /// Duration of one call, seconds.
    pub(super) duration: f64,
    /// Bytes.
    pub(super) memory: f64,
    random: Random,
}

/// Generates `count` functions.
pub(super) fn functions(count: usize, seed: u64) -> Vec<Function> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Function::draw(&mut random)).collect()
}

impl Function {
    fn draw(random: &mut Random) -> Self {
        let interval = DAY / rate(random.uniform());
        let pattern = match random.uniform() {
            kind if kind < TIMERS => Pattern::Timer {
                period: nearest(interval),
            },
            _ => match random.uniform() {
                kind if kind < 0.2 => Pattern::Erlang {
                    steps: if kind < 0.1 { 16 } else { 4 },
                },
                kind if kind < 0.6 => Pattern::Erlang {
                    steps: if kind < 0.4 { 2 } else { 1 },
                },
                _ => Pattern::Bursts {
                    variation: random.between(2.0, 6.0),
                },
            },
        };
        Self {
            interval: match pattern {
                Pattern::Timer { period } => period,
                _ => interval,
            },
            pattern,
            duration: random.lognormal(-0.38, 2.36).min(DURATION_MAX),
            memory: random.burr(11.652, 0.221, 107.083) * 1e6,
            random: random.split(),
        }
    }

    /// Its calls until `end`: when each begins and ends, with overlapping ones merged.
    pub(super) fn uses(&self, end: Duration) -> impl Iterator<Item = (Duration, Duration)> {
        let mut calls = self.calls().take_while(move |at| *at < end.as_secs_f64()).peekable();
        let duration = self.duration;
        std::iter::from_fn(move || {
            let begin = calls.next()?;
            let mut over = begin + duration;
            while let Some(next) = calls.next_if(|next| *next <= over) {
                over = next + duration;
            }
            Some((Duration::from_secs_f64(begin), Duration::from_secs_f64(over)))
        })
    }

    /// When it is called, seconds from the beginning of the trace.
    fn calls(&self) -> impl Iterator<Item = f64> + use<> {
        let (mut random, interval, pattern) = (self.random.clone(), self.interval, self.pattern);
        let mut at = -interval * random.uniform();
        let times = std::iter::from_fn(move || {
            at += match pattern {
                Pattern::Timer { period } => period,
                Pattern::Erlang { steps } => interval * random.erlang(steps),
                Pattern::Bursts { variation } => {
                    let deviation = (1.0 + variation * variation).ln().sqrt();
                    interval * random.lognormal(-deviation * deviation / 2.0, deviation)
                }
            };
            Some(match pattern {
                Pattern::Timer { .. } => at + random.between(-1.0, 1.0),
                _ => at,
            })
        });
        times.skip_while(|at| *at < 0.0)
    }
}

/// Mean invocations a day below which this share of the functions stays.
fn rate(share: f64) -> f64 {
    let segment = RATES.windows(2).find(|ends| share <= ends[1].0).unwrap_or(&RATES[2..]);
    let ((low, from), (high, to)) = (segment[0], segment[1]);
    10_f64.powf(from + (to - from) * (share - low) / (high - low))
}

fn nearest(interval: f64) -> f64 {
    let off = |period: f64| (period / interval).ln().abs();
    let nearest = PERIODS.into_iter().min_by(|a, b| off(*a).total_cmp(&off(*b)));
    nearest.unwrap_or(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        let at = (values.len() as f64 * share) as usize;
        values[at.min(values.len() - 1)]
    }

    fn near(value: f64, wanted: f64, off: f64) -> bool {
        (value / wanted - 1.0).abs() < off
    }

    #[test]
    fn a_seed_gives_one_trace() {
        let uses = |seed| -> Vec<_> {
            let end = Duration::from_secs(86_400);
            functions(50, seed)
                .iter()
                .filter(|f| f.interval > 30.0)
                .flat_map(|f| f.uses(end))
                .collect()
        };
        assert_eq!(uses(7), uses(7));
        assert_ne!(uses(7), uses(8));
    }

    #[test]
    fn rates_are_spread_as_published() {
        let all = functions(40_000, 1);
        let a_day: Vec<f64> = all
            .iter()
            .filter(|f| !matches!(f.pattern, Pattern::Timer { .. }))
            .map(|f| DAY / f.interval)
            .collect();
        let share = |most: f64| a_day.iter().filter(|rate| **rate <= most).count() as f64 / a_day.len() as f64;
        assert!((share(24.0) - 0.45).abs() < 0.01, "{}", share(24.0));
        assert!((share(1_440.0) - 0.81).abs() < 0.01, "{}", share(1_440.0));
        let (least, most) = (quantile(a_day.clone(), 0.0), quantile(a_day.clone(), 1.0));
        assert!(
            (most / least).log10() > 7.9,
            "orders of magnitude from {least} to {most}"
        );
        let total: f64 = a_day.iter().sum();
        let popular: f64 = a_day.iter().filter(|rate| **rate > 1_440.0).sum();
        assert!(
            popular / total > 0.99,
            "the paper: 18.6 % of the functions have 99.6 % of the invocations"
        );
    }

    #[test]
    fn durations_and_memory_have_the_published_quantiles() {
        let all = functions(40_000, 2);
        let durations: Vec<f64> = all.iter().map(|f| f.duration).collect();
        // exp(-0.38 + 2.36 z)
        for (share, wanted) in [(0.25, 0.139), (0.5, 0.684), (0.75, 3.360), (0.9, 14.08)] {
            let seen = quantile(durations.clone(), share);
            assert!(near(seen, wanted, 0.07), "{share}: {seen} s");
        }
        let memory: Vec<f64> = all.iter().map(|f| f.memory / 1e6).collect();
        // 107.083 ((1 - share)^(-1/0.221) - 1)^(1/11.652)
        for (share, wanted) in [(0.25, 115.7), (0.5, 139.6), (0.75, 183.0), (0.9, 261.9)] {
            let seen = quantile(memory.clone(), share);
            assert!(near(seen, wanted, 0.03), "{share}: {seen} MB");
        }
    }

    #[test]
    fn times_between_calls_vary_as_their_pattern_says() {
        let mut random = Random::new(3);
        let variation = |pattern| {
            let function = Function {
                interval: 1_000.0,
                pattern,
                duration: 0.0,
                memory: 1.0,
                random: Random::new(5),
            };
            let calls: Vec<f64> = function.calls().take(200_000).collect();
            let gaps: Vec<f64> = calls.windows(2).map(|w| w[1] - w[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!(near(mean, 1_000.0, 0.05), "{pattern:?}: {mean}");
            square.sqrt() / mean
        };
        assert!(variation(Pattern::Timer { period: 1_000.0 }) < 0.01);
        assert!(near(variation(Pattern::Erlang { steps: 16 }), 0.25, 0.02));
        assert!(near(variation(Pattern::Erlang { steps: 1 }), 1.0, 0.02));
        assert!(near(variation(Pattern::Bursts { variation: 3.0 }), 3.0, 0.15));
        let all = functions(20_000, 4);
        let share = |of: fn(&Pattern) -> bool| all.iter().filter(|f| of(&f.pattern)).count() as f64 / all.len() as f64;
        assert!((share(|p| matches!(p, Pattern::Timer { .. })) - 0.156).abs() < 0.01);
        assert!((share(|p| matches!(p, Pattern::Bursts { .. })) - 0.844 * 0.4).abs() < 0.01);
        assert!(random.uniform() < 1.0);
    }

    #[test]
    fn calls_that_overlap_are_one_use() {
        let function = Function {
            interval: 10.0,
            pattern: Pattern::Timer { period: 10.0 },
            duration: 15.0,
            memory: 1.0,
            random: Random::new(5),
        };
        assert_eq!(function.uses(Duration::from_secs(1_000)).count(), 1);
        let short = Function {
            duration: 1.0,
            ..function
        };
        assert!((99..=101).contains(&short.uses(Duration::from_secs(1_000)).count()));
    }
}
