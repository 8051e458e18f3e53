//! A process with all its descendants, and their processor time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Milliseconds of a tick, in which the kernel counts.
const MS_PER_TICK: f64 = 10.0;

/// One process, as in /proc/PID/stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// Ticks of its children that were waited for.
    waited: u64,
}

/// Every process, by its id.
fn all() -> BTreeMap<u32, Process> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        // A process that is gone by now had its time.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(process) = parse(&stat) {
            all.insert(pid, process);
        }
    }
    all
}

/// The process and its descendants.
pub fn tree(root: u32) -> BTreeSet<u32> {
    tree_of(root, &all())
}

fn tree_of(root: u32, all: &BTreeMap<u32, Process>) -> BTreeSet<u32> {
    let mut tree = BTreeSet::from([root]);
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(pid, p)| tree.contains(&p.parent) && !tree.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return tree;
        }
        tree.extend(more);
    }
}

/// Milliseconds that the process and its descendants have used. Ended processes are included only if they were waited
/// for below the process itself. So nothing is counted twice, and what a sandbox's init has reaped counts as long as
/// the sandbox lives.
///
/// A process's own time comes from its clock: ticks are cut off, and a copy lives for less than one.
pub fn cpu_ms(root: u32) -> f64 {
    let all = all();
    let tree = tree_of(root, &all);
    let waited: u64 = tree
        .iter()
        .filter(|pid| **pid != root)
        .filter_map(|pid| Some(all.get(pid)?.waited))
        .sum();
    let own: Duration = tree.iter().filter_map(|pid| own_time(*pid)).sum();
    own.as_secs_f64() * 1_000.0 + waited as f64 * MS_PER_TICK
}

/// Processor time of a process alone, threads that have ended included. `None` if it has gone.
fn own_time(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// The name may hold anything, so it ends at the last parenthesis.
fn parse(stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        waited: number(13)? + number(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_line_is_read_whatever_its_name() {
        let line = "77 (a) b) S 5 77 77 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0";
        let process = parse(line).unwrap();
        assert_eq!((process.parent, process.waited), (5, 70));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn less_than_a_tick_counts() {
        let before = cpu_ms(std::process::id());
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(3) {
            std::hint::black_box(parse("77 (a) S 5"));
        }
        let used = cpu_ms(std::process::id()) - before;
        assert!(used > 0.0 && used.fract() > 0.0, "{used}");
    }
}
