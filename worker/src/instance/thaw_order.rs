//! The order in which the processes of a parked instance go on: children first.
//!
//! ```text
//! parked: all frozen, parents in a group of their own
//! thawed: children run, parents are frozen ──knock──children asleep, or too late──> all run
//! ```
//!
//! Clocks run on while an instance is parked. A master that watches its workers (gunicorn, Puma, uvicorn) finds on
//! waking that none has reported for as long, and kills them. They report as soon as they run, so they run first.
//!
//! A thaw by itself does not wake a process in `select`: the kernel goes on with the time that was left. A connection
//! wakes all that wait for one, but a process that comes too late to take it waits on. So each gets its own.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::host::cgroup::{Cgroup, FileError};
use crate::host::sandbox::Sandbox;

/// How long parents wait for their children at most.
const LIMIT: Duration = Duration::from_millis(250);
/// Maximum number of connections that wake them.
const KNOCKS_MAX: usize = 16;
/// Interval between checks whether the children sleep.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of checks in a row that find them asleep.
const ASLEEP: u32 = 2;

/// Processes whose parents stay frozen when they go on.
#[derive(Debug)]
pub(super) struct ThawedChildren(Vec<i32>);

/// A process, as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    state: char,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: i32, stat: &str) -> Option<Self> {
        // The name before it may contain anything.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let state = words.next()?.chars().next()?;
        let parent = words.next()?.parse().ok()?;
        Some(Self { pid, parent, state })
    }
}

/// Returns the processes that are parents of others, and those that are not.
fn split(processes: &[Process]) -> (Vec<i32>, Vec<i32>) {
    let parents: BTreeSet<i32> = processes.iter().map(|process| process.parent).collect();
    let pids = processes.iter().map(|process| process.pid);
    pids.partition(|pid| parents.contains(pid))
}

/// Holds back the parents among the processes of a frozen group, if there are any. Blocks for some milliseconds then.
/// If the kernel refuses, all of them will go on at once.
pub(super) fn hold_parents(cgroup: &Cgroup) -> Option<ThawedChildren> {
    let held = try_hold(cgroup).or_else(|e| {
        tracing::warn!(
            group = cgroup.name(),
            error = &e as &dyn std::error::Error,
            "parents are not held back"
        );
        cgroup.release().map(|()| None)
    });
    held.unwrap_or_else(|e| {
        tracing::error!(
            group = cgroup.name(),
            error = &e as &dyn std::error::Error,
            "processes stay frozen"
        );
        None
    })
}

fn try_hold(cgroup: &Cgroup) -> Result<Option<ThawedChildren>, FileError> {
    let processes: Vec<_> = cgroup.function_pids()?.into_iter().filter_map(Process::read).collect();
    let (parents, children) = split(&processes);
    if parents.is_empty() {
        return Ok(None);
    }
    cgroup.hold(&parents)?;
    Ok(Some(ThawedChildren(children)))
}

impl ThawedChildren {
    /// Gives them their turn before their parents go on. `port` is where their function listens in `sandbox`.
    pub(super) async fn take_turn(self, sandbox: &Sandbox, port: u16) {
        let until = Instant::now() + LIMIT;
        // None need succeed: what does not listen has no workers that wait for connections.
        let knocks = (0..self.0.len().min(KNOCKS_MAX)).map(|_| sandbox.connect(port));
        drop(tokio::time::timeout(LIMIT, join_all(knocks)).await);
        let mut asleep = 0;
        while asleep < ASLEEP && Instant::now() < until {
            tokio::time::sleep(PAUSE).await;
            asleep = if self.sleep() { asleep + 1 } else { 0 };
        }
    }

    /// Returns whether none of them runs. One that has ended does not.
    fn sleep(&self) -> bool {
        let states = self.0.iter().filter_map(|pid| Process::read(*pid));
        states
            .map(|process| process.state)
            .all(|state| !matches!(state, 'R' | 'D'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_told_from_children_whatever_they_are_called() {
        let stats = [
            (10, "10 (sh) S 1 10 10 0"),
            (11, "11 (gunicorn: ma) D) D 10 10 10 0"),
            (12, "12 (worker) (1)) R 11 10 10 0"),
            (13, "13 (worker 2) S 11 10 10 0"),
        ];
        let processes = stats.map(|(pid, stat)| Process::parse(pid, stat).unwrap());
        assert_eq!(processes.map(|p| p.state), ['S', 'D', 'R', 'S']);
        assert_eq!(split(&processes), (vec![10, 11], vec![12, 13]));
        assert_eq!(split(&processes[..1]), (vec![], vec![10]));
        assert_eq!(Process::parse(1, "1 (sh"), None);
    }
}
