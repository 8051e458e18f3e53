//! How busy this worker's instances have recently kept the host's processors. The scheduler uses it for placement, and
//! moves instances away from a hot host. If no control group counts the use of all instances, their processes are read
//! one by one.

use std::fs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::cgroup::Cgroups;

/// Age at which an observation has a third of the weight of a new one.
const FADING: Duration = Duration::from_secs(5);
/// Minimum interval of observations. Processes are charged by ticks of 10 ms, so shorter intervals say too little.
const CLOSEST: Duration = Duration::from_millis(500);

/// A share of the host's processors, faded over some seconds.
#[derive(Debug, Default)]
pub struct Load(Mutex<Option<LoadSample>>);

#[derive(Debug, Clone, Copy)]
struct LoadSample {
    at: Instant,
    used: Duration,
    share: f64,
}

impl Load {
    /// Returns the share of the host's `cpus` that instances keep busy, 0 to 1. Reads files of the kernel. `pids` lists
    /// all instances' processes; it is called if no control group counts their time.
    pub fn share(&self, cgroups: &Cgroups, cpus: u32, pids: impl FnOnce() -> Vec<i32>) -> f64 {
        let mut seen = self.0.lock();
        let now = Instant::now();
        if let Some(seen) = *seen
            && now - seen.at < CLOSEST
        {
            return seen.share;
        }
        let used = cgroups.processor_time();
        let used = used.unwrap_or_else(|| of_processes(pids()));
        let next = LoadSample::after(*seen, now, used, cpus);
        *seen = Some(next);
        next.share
    }
}

impl LoadSample {
    fn after(before: Option<Self>, at: Instant, used: Duration, cpus: u32) -> Self {
        let Some(before) = before else {
            return Self { at, used, share: 0.0 };
        };
        let passed = at - before.at;
        // Instances that end take their processor time with them.
        let spent = used.saturating_sub(before.used).as_secs_f64();
        let spent = spent / (passed.as_secs_f64() * f64::from(cpus.max(1)));
        let fresh = 1.0 - (-passed.as_secs_f64() / FADING.as_secs_f64()).exp();
        Self {
            at,
            used,
            share: (before.share + (spent.min(1.0) - before.share) * fresh).clamp(0.0, 1.0),
        }
    }
}

/// Returns the processor time of these processes so far, including their children that have ended.
fn of_processes(pids: Vec<i32>) -> Duration {
    // A process that vanishes in between has ended.
    let ticks = pids
        .into_iter()
        .filter_map(|pid| ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?));
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Returns the ticks of 10 ms in user and kernel mode from a process's `stat`. They include those of its children that
/// were waited for.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // utime is the 14th field; the state after the name is the 3rd.
    let times = after_name.split_whitespace().skip(11).take(4);
    times.map(|field| u64::try_from(field.parse::<i64>().ok()?).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_time_is_read_whatever_its_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 5 0 20 0 1 0 100 1 1";
        assert_eq!(ticks(stat), Some(47));
        assert_eq!(ticks("7 (a) S 1"), Some(0));
        assert!(ticks(&fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }

    #[test]
    fn the_share_follows_what_is_used_and_fades() {
        let start = Instant::now();
        let mut seen = LoadSample::after(None, start, Duration::from_secs(100), 4);
        let mut step = |second: u64, used_s: u64| {
            let at = start + Duration::from_secs(second);
            seen = LoadSample::after(Some(seen), at, Duration::from_secs(used_s), 4);
            seen.share
        };
        // Two of four processors.
        let first = step(1, 102);
        assert!(first > 0.0 && first < 0.2, "{first}");
        let later = (2..30).map(|s| step(s, 100 + 2 * s)).last().unwrap();
        assert!((later - 0.5).abs() < 0.01, "{later}");
        // An instance ended, and with it the time that it had used.
        let ended = step(30, 20);
        assert!(ended < later);
        let idle = (31..60).map(|s| step(s, 20)).last().unwrap();
        assert!(idle < 0.01, "{idle}");
    }
}
