//! The cost of a role's process to the host, under the names that Prometheus' own clients use.

use std::fs;

use super::description::{Desc, Kind};
use super::registry::Registry;

const CPU: Desc = Desc::new(
    "process.cpu.seconds",
    "s",
    &[],
    "CPU time of the process that this role runs in.",
);
const RESIDENT: Desc = Desc::new("process.resident.memory", "By", &[], "Its resident memory.");
const DESCRIPTORS: Desc = Desc::new("process.open_fds", "{descriptor}", &[], "Its open descriptors.");
const THREADS: Desc = Desc::new(
    "process.threads",
    "{thread}",
    &[],
    "Its threads: one for each restored instance among them.",
);

/// Linux' `USER_HZ`, the same on every architecture that has userfaultfd.
const TICKS_PER_S: f64 = 100.0;

/// Registers the process's metrics. Roles that share a process (`fn up`) report the same values.
pub fn observe_process(registry: &Registry) {
    registry.observe_one(Kind::Counter, &CPU, || stat(&[13, 14]) / TICKS_PER_S);
    registry.observe_one(Kind::Gauge, &RESIDENT, resident);
    registry.observe_one(Kind::Gauge, &DESCRIPTORS, || {
        fs::read_dir("/proc/self/fd").map_or(0.0, |all| all.count() as f64)
    });
    registry.observe_one(Kind::Gauge, &THREADS, || stat(&[19]));
}

/// The sum of fields of `/proc/self/stat`, counted from 0 as proc(5) minus one; an unreadable field counts as 0.
fn stat(fields: &[usize]) -> f64 {
    let Ok(text) = fs::read_to_string("/proc/self/stat") else {
        return 0.0;
    };
    // The second field is the name in parentheses, which may contain blanks.
    let rest: Vec<&str> = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let one = |field: &usize| field.checked_sub(2).and_then(|i| rest.get(i)?.parse::<f64>().ok());
    fields.iter().filter_map(one).sum()
}

fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        assert!(resident() > 1e6);
        assert!((1.0..10_000.0).contains(&stat(&[19])));
        let registry = Registry::new("test");
        observe_process(&registry);
        assert_eq!(CPU.prometheus_name() + "_total", "process_cpu_seconds_total");
        assert_eq!(RESIDENT.prometheus_name(), "process_resident_memory_bytes");
        assert_eq!(registry.read().len(), 4);
    }
}
