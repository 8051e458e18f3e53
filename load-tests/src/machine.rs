//! The measuring machine: what it is, how busy it is, and how steady.

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Rounds of the fixed loop: about 5 ms on a core of 2024.
const LOOP_ROUNDS: u64 = 4_000_000;

/// Properties needed to interpret the figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Kernel release.
    kernel: String,
    /// Processor model.
    cpu: String,
    /// Number of usable cores.
    pub(crate) cores: usize,
    /// Memory, MiB.
    memory_mib: u64,
}

impl Machine {
    /// The properties of this machine.
    pub(crate) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let meminfo = read("/proc/meminfo");
        let memory = meminfo
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: cpu.map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory.and_then(|kb| kb.parse::<u64>().ok()).unwrap_or_default() / 1024,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            cpu,
            cores,
            memory_mib,
        } = self;
        write!(f, "{cpu}, {cores} cores, {memory_mib} MiB, Linux {kernel}")
    }
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or_default()
}

/// Share of all cores that others keep busy, from 0 to 1, watched for this long. It blocks and does nothing itself.
pub(crate) fn busy(watched: Duration) -> f64 {
    let before = ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
    std::thread::sleep(watched);
    let after = ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
    match (before, after) {
        (Some((idle_0, all_0)), Some((idle_1, all_1))) if all_1 > all_0 => 1.0 - (idle_1 - idle_0) / (all_1 - all_0),
        _ => 0.0,
    }
}

/// Processor time of all cores since the start of the machine, for any process, milliseconds. The kernel counts in
/// ticks of ten.
pub(crate) fn busy_ms() -> f64 {
    const MS_PER_TICK: f64 = 10.0;
    let now = ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
    now.map_or(0.0, |(idle, all)| (all - idle) * MS_PER_TICK)
}

/// Idle ticks (including waiting for disks) and all ticks, of all cores since the start of the machine.
fn ticks(stat: &str) -> Option<(f64, f64)> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user nice system idle iowait irq softirq steal; guests' time is already in the user's.
    let ticks: Vec<f64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

/// A fixed piece of work on one core, milliseconds. Its spread is the machine's, not that of what is measured.
pub(crate) fn cpu_loop() -> f64 {
    let started = Instant::now();
    let mut state = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..LOOP_ROUNDS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
    started.elapsed().as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_cores_and_memory() {
        let machine = Machine::this();
        assert!(
            !machine.kernel.is_empty() && machine.cores > 0 && machine.memory_mib > 0,
            "{machine}"
        );
        assert!(cpu_loop() > 0.0);
    }

    #[test]
    fn busy_ticks_are_all_but_idle_and_waiting_ones() {
        assert_eq!(
            ticks("cpu  10 1 5 70 10 1 1 2 3 0\ncpu0 5 0 2 35 5 0 0 1 1 0"),
            Some((80.0, 100.0))
        );
        assert_eq!(ticks("intr 5"), None);
    }
}
