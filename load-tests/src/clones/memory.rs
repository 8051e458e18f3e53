//! The memory of an instance's processes, by the kernel's own sums (`/proc/PID/smaps_rollup`).

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

const CGROUPS: &str = "/sys/fs/cgroup";
/// The sandbox's own first process, which is not the function's.
const INIT: &str = "rekindle-init";

/// Memory of an instance, all its processes but init together, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// Mapped and in memory.
    pub(super) resident: u64,
    /// Private memory.
    pub(super) private: u64,
    /// Private memory and its share of what others map too (PSS).
    pub(super) proportional: u64,
    /// Charged to its control group: its own memory, files in /tmp, and the kernel's for it.
    pub(super) charged: u64,
    /// The kernel's part of that: page tables, processes, sockets.
    pub(super) kernel: u64,
}

/// Memory of the instance with this id, which runs on this host.
pub(super) fn of_instance(id: &str) -> Result<Held> {
    let group = group(id)?;
    let procs = fs::read_to_string(group.join("cgroup.procs")).context("no processes")?;
    let mut held = Held {
        charged: number(&group, &["memory.usage_in_bytes", "memory.current"])?,
        kernel: kernel(&group),
        ..Held::default()
    };
    for pid in procs.lines() {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let Ok(rollup) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            // It ended meanwhile.
            continue;
        };
        if comm.trim() == INIT {
            continue;
        }
        held.resident += field(&rollup, "Rss:");
        held.private += field(&rollup, "Private_Clean:") + field(&rollup, "Private_Dirty:");
        held.proportional += field(&rollup, "Pss:");
    }
    if held.resident == 0 {
        bail!("instance {id} has no process in memory");
    }
    Ok(held)
}

/// The instance's group of the memory controller, wherever the platform's groups are.
fn group(id: &str) -> Result<PathBuf> {
    for top in ["memory", "."] {
        let top = PathBuf::from(CGROUPS).join(top);
        for entry in fs::read_dir(&top).into_iter().flatten().flatten() {
            let group = entry.path().join(id);
            let has_memory = ["memory.usage_in_bytes", "memory.current"]
                .iter()
                .any(|f| group.join(f).exists());
            if has_memory {
                return Ok(group);
            }
        }
    }
    bail!("instance {id} has no control group below {CGROUPS}")
}

fn number(group: &std::path::Path, names: &[&str]) -> Result<u64> {
    let text = names.iter().find_map(|name| fs::read_to_string(group.join(name)).ok());
    let text = text.with_context(|| format!("{}: no count of its memory", group.display()))?;
    text.trim().parse().context("not a number")
}

/// The kernel's memory for the group; 0 if it is not reported separately.
fn kernel(group: &std::path::Path) -> u64 {
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let told = stat.lines().find_map(|l| l.strip_prefix("kernel ")?.parse().ok());
    told.or_else(|| number(group, &["memory.kmem.usage_in_bytes"]).ok())
        .unwrap_or(0)
}

fn field(rollup: &str, name: &str) -> u64 {
    let line = rollup.lines().find_map(|l| l.strip_prefix(name));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let rollup =
            "7f00-7fff ---p 00000000 00:00 0 [rollup]\nRss:      2000 kB\nPss:       700 kB\nPss_Anon:  300 kB\n";
        assert_eq!((field(rollup, "Pss:"), field(rollup, "Rss:")), (700 << 10, 2000 << 10));
        assert_eq!(field(rollup, "Shared_Clean:"), 0);
    }

    #[test]
    fn an_instance_that_is_not_here_is_an_error_that_names_it() {
        assert!(of_instance("i-nobody").unwrap_err().to_string().contains("i-nobody"));
    }
}
