//! The host's memory pressure as the kernel reports it: pressure stall information (PSI, Linux's
//! Documentation/accounting/psi.rst) and available memory.
//!
//! If the worker sees a control group of its own as the root (a container with a cgroup namespace, cgroup v2), that
//! group's values count too. The worse of both is reported. Values that the kernel does not have are left out.

use std::path::{Path, PathBuf};

use rekindle_wire::internal::MemoryPressure;

/// Where the kernel reports them.
#[derive(Debug, Clone)]
pub struct PressureFiles {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
}

impl PressureFiles {
    /// Reads the values. Blocks for some small reads of kernel files.
    pub fn read(&self) -> MemoryPressure {
        read(&self.proc, &self.cgroup_root)
    }
}

/// Reads the values. `proc` is usually `/proc`, and `cgroup_root` `/sys/fs/cgroup`. Blocks for some small reads of
/// kernel files.
fn read(proc: &Path, cgroup_root: &Path) -> MemoryPressure {
    let text = |root: &Path, file: &str| std::fs::read_to_string(root.join(file)).ok();
    let host = text(proc, "pressure/memory");
    let group = text(cgroup_root, "memory.pressure");
    let worst = |line: &str| {
        let of = |text: &Option<String>| text.as_ref().and_then(|text| avg10(text, line));
        higher(of(&host), of(&group))
    };
    let of_host = text(proc, "meminfo").and_then(|text| {
        let kib = |name| Some(meminfo_kib(&text, name)? as f64);
        Some(100.0 * kib("MemAvailable:")? / kib("MemTotal:")?.max(1.0))
    });
    let of_group = || {
        // The file contains "max" if there is no limit.
        let limit: f64 = text(cgroup_root, "memory.max")?.trim().parse().ok()?;
        let used: f64 = text(cgroup_root, "memory.current")?.trim().parse().ok()?;
        // Files that it read are charged to the group, and reclaimed when memory is short.
        let files = text(cgroup_root, "memory.stat").and_then(|text| field(&text, "inactive_file"));
        Some(100.0 * (limit - used + files.unwrap_or(0.0)).clamp(0.0, limit) / limit.max(1.0))
    };
    MemoryPressure {
        some: worst("some"),
        full: worst("full"),
        available: match (of_host, of_group()) {
            (Some(host), Some(group)) => Some(host.min(group)),
            (host, group) => host.or(group),
        },
    }
}

fn higher(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the `avg10` of one line of a PSI file, in per cent.
fn avg10(text: &str, line: &str) -> Option<f64> {
    let fields = text.lines().find_map(|l| l.strip_prefix(line))?;
    let avg10 = fields.split_whitespace().find_map(|f| f.strip_prefix("avg10="))?;
    avg10.parse().ok().filter(|share: &f64| share.is_finite())
}

fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Returns a value of `/proc/meminfo`, in KiB.
pub(crate) fn meminfo_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PSI: &str = "some avg10=12.50 avg60=0.12 avg300=0.38 total=35082065\n\
        full avg10=1.25 avg60=0.12 avg300=0.35 total=16844401\n";
    const MEMINFO: &str = "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    2000000 kB\n";

    fn roots(proc: &[(&str, &str)], group: &[(&str, &str)]) -> (tempfile::TempDir, MemoryPressure) {
        let dir = tempfile::tempdir().unwrap();
        let (at_proc, at_group) = (dir.path().join("proc"), dir.path().join("cgroup"));
        std::fs::create_dir_all(at_proc.join("pressure")).unwrap();
        std::fs::create_dir_all(&at_group).unwrap();
        for (root, files) in [(&at_proc, proc), (&at_group, group)] {
            for (file, text) in files {
                std::fs::write(root.join(file), text).unwrap();
            }
        }
        let read = read(&at_proc, &at_group);
        (dir, read)
    }

    #[test]
    fn the_hosts_figures_are_read_and_what_the_kernel_lacks_is_left_out() {
        let (_dir, all) = roots(&[("pressure/memory", PSI), ("meminfo", MEMINFO)], &[]);
        assert_eq!(
            (all.some, all.full, all.available),
            (Some(12.5), Some(1.25), Some(25.0))
        );
        let (_dir, old) = roots(&[("meminfo", MEMINFO)], &[]);
        assert_eq!((old.some, old.full, old.available), (None, None, Some(25.0)));
        let (_dir, odd) = roots(
            &[
                ("pressure/memory", "some avg10=NaN\nfull avg10"),
                ("meminfo", "MemTotal: x"),
            ],
            &[],
        );
        assert_eq!(odd, MemoryPressure::default());
    }

    #[test]
    fn of_host_and_control_group_the_shorter_one_counts() {
        let group = [
            (
                "memory.pressure",
                "some avg10=3.00 avg60=0 avg300=0 total=1\nfull avg10=2.00 avg60=0 avg300=0 total=1\n",
            ),
            ("memory.max", "1000\n"),
            ("memory.current", "950\n"),
            ("memory.stat", "anon 900\ninactive_file 50\n"),
        ];
        let (_dir, both) = roots(&[("pressure/memory", PSI), ("meminfo", MEMINFO)], &group);
        assert_eq!(
            (both.some, both.full, both.available),
            (Some(12.5), Some(2.0), Some(10.0))
        );
        let (_dir, unlimited) = roots(
            &[("meminfo", MEMINFO)],
            &[("memory.max", "max\n"), ("memory.current", "950\n")],
        );
        assert_eq!(unlimited.available, Some(25.0));
    }

    #[test]
    fn this_kernels_own_figures_can_be_read() {
        let real = read(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
        assert!(
            real.available.is_some_and(|share| (0.0..=100.0).contains(&share)),
            "{real:?}"
        );
    }
}
