//! The machine that a sandbox appears to be: it has as much memory and as many processors as its function may use,
//! whatever the host has. Programs size their heaps and pools by it.
//!
//! ```text
//! /sys/fs/cgroup                   the sandbox's own control groups, as hosts mount them, read-only
//! /sys/devices/system/cpu          the number of processors
//! /proc/meminfo, cpuinfo and stat  constant files of ours, over the kernel's
//! ```
//!
//! The groups are the kernel's own, at the root of the sandbox's cgroup namespace. So `/proc/self/cgroup`, mounts and
//! files agree, and the files' sizes in images are always 0: Go keeps its limit's file open. Only the memory limit's
//! file is ours, because the kernel's value includes what init and CRIU need. Everything is mounted ahead of time, and
//! filled when the sandbox is furnished.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::OnceLock;

use nix::mount::MsFlags;
use nix::time::{ClockId, clock_gettime};

use crate::mounts::{NO_EXEC, RootfsError, bind, bind_read_only, mounted, tmpfs, write};
use crate::protocol::Machine;

const GROUPS: &str = "fs/cgroup";
const PROCESSORS: &str = "devices/system/cpu";
const ONLINE: &str = "online";
/// Contents that cover files of `/proc`.
const OVER: [(&str, Content); 3] = [("meminfo", meminfo), ("cpuinfo", cpuinfo), ("stat", stat)];
/// The hierarchies of cgroup v1 that runtimes look for. A JVM ignores all of them unless it finds these four.
const WANTED: [&str; 4] = ["memory", "cpu", "cpuacct", "cpuset"];
/// The hierarchies in which a sandbox has its own group. The others are the worker's, and nothing of them is shown.
const OWN: [&str; 2] = ["memory", "cpu"];
/// The files that limit memory, of cgroup v1 and v2.
const MEMORY_LIMITS: [&str; 2] = ["memory/memory.limit_in_bytes", "memory.max"];
/// The group of the function's processes, below the sandbox's group. On v2 it has no limits of its own.
const FUNCTION: &str = "function";
/// Fields of a processor in the kernel's file that are numbered, and fields that depend on the number of processors.
const NUMBERED: [&str; 4] = ["processor", "core id", "apicid", "initial apicid"];
const COUNTED: [&str; 2] = ["siblings", "cpu cores"];
/// A file's contents for a machine.
type Content = fn(&Machine) -> Result<String, RootfsError>;

/// The kernel's description of the host's first processor, line by line.
static PROCESSOR: OnceLock<Vec<String>> = OnceLock::new();

/// Called in the zygote: reads the description of the host's first processor for all sandboxes. The kernel may need to
/// take measurements for that.
///
/// # Errors
/// If /proc cannot be read.
pub(crate) fn look_at_processor() -> io::Result<()> {
    let lines = BufReader::new(File::open("/proc/cpuinfo")?).lines();
    let first = lines
        .take_while(|line| line.as_ref().map_or(true, |line| !line.is_empty()))
        .collect::<io::Result<_>>()?;
    // Only the first call has an effect.
    let _already = PROCESSOR.set(first);
    Ok(())
}

/// Prepares on the stage `/sys` and the files that cover those of `/proc`, which are still empty. If this process
/// `has_groups` of its own, `/sys` contains its control groups.
///
/// # Errors
/// If the kernel refuses a mount.
pub(crate) fn make_ready(has_groups: bool) -> Result<(), RootfsError> {
    let sys = Path::new("sys");
    tmpfs("sys", sys, NO_EXEC, "mode=755,size=4m,nr_inodes=4096")?;
    let (groups, processors) = (sys.join(GROUPS), sys.join(PROCESSORS));
    for made in ["fs", GROUPS, "devices", "devices/system", PROCESSORS] {
        make(&sys.join(made))?;
    }
    write(&processors.join(ONLINE), "")?;
    for name in ["possible", "present"] {
        link(ONLINE, &processors.join(name))?;
    }
    for (name, _) in OVER {
        let file = Path::new("run").join(format!(".{name}"));
        write(&file, "")?;
        bind_read_only("a file of the machine's", &file, &Path::new("proc").join(name), NO_EXEC)?;
    }
    if !has_groups {
        return Ok(());
    }
    let file = Path::new("/proc/self/cgroup");
    let told = fs::read_to_string(file).map_err(|e| RootfsError::Read(file.to_owned(), e))?;
    let hierarchies = hierarchies(&told);
    if hierarchies.is_empty() {
        return cgroups(&groups, "cgroup2", None);
    }
    for controllers in hierarchies {
        let at = groups.join(controllers);
        make(&at)?;
        cgroups(&at, "cgroup", Some(controllers))?;
        let each = controllers.split(',');
        if !each.clone().any(|c| OWN.contains(&c)) {
            let flags = NO_EXEC | MsFlags::MS_RDONLY;
            tmpfs("what is not the sandbox's", &at, flags, "mode=555,nr_inodes=2")?;
        }
        // As on hosts where controllers are mounted together.
        for name in each.filter(|name| *name != controllers) {
            link(controllers, &groups.join(name))?;
        }
    }
    Ok(())
}

/// The wanted hierarchies of cgroup v1, each named by its controllers, from the contents of `/proc/self/cgroup`. Empty
/// if the host uses cgroup v2 for its limits.
fn hierarchies(told: &str) -> Vec<&str> {
    let of_each = told.lines().filter_map(|line| line.split(':').nth(1));
    let wanted = |controllers: &&str| controllers.split(',').any(|c| WANTED.contains(&c));
    let found: Vec<&str> = of_each.filter(wanted).collect();
    let limits = |controllers: &&str| controllers.split(',').any(|c| c == "memory");
    if found.iter().any(limits) { found } else { Vec::new() }
}

fn cgroups(at: &Path, kind: &'static str, controllers: Option<&str>) -> Result<(), RootfsError> {
    let flags = NO_EXEC | MsFlags::MS_RDONLY;
    mounted(kind, Some(Path::new(kind)), at, Some(kind), flags, controllers)
}

/// Makes the sandbox, whose root is the current root by now, look like `machine`.
///
/// # Errors
/// If a file or a mount is refused.
pub(crate) fn show(machine: &Machine) -> Result<(), RootfsError> {
    let sys = Path::new("/sys");
    let processors = sys.join(PROCESSORS);
    let all = match machine.processors {
        0 | 1 => "0\n".to_owned(),
        more => format!("0-{}\n", more - 1),
    };
    fill(&processors.join(ONLINE), &all)?;
    // Older C libraries count these.
    for number in 0..machine.processors {
        make(&processors.join(format!("cpu{number}")))?;
    }
    let groups = sys.join(GROUPS);
    let limit = Path::new("/run/.memory");
    write(limit, &format!("{}\n", machine.memory_bytes))?;
    for at in MEMORY_LIMITS
        .map(|name| groups.join(name))
        .iter()
        .filter(|at| at.exists())
    {
        bind("the limit of memory", limit, at)?;
    }
    let function = groups.join(FUNCTION);
    if function.exists() {
        // The function's processes are in this group, but their limits are those of the group above.
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mounted("cgroup2", Some(&groups), &function, None, flags, None)?;
    }
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | NO_EXEC;
    mounted("sys, read-only", None, sys, None, flags, None)?;
    for (name, content) in OVER {
        fill(&Path::new("/run").join(format!(".{name}")), &content(machine)?)?;
    }
    Ok(())
}

/// A restored sandbox's clock since boot continues from `boottime`, in seconds. So the sandbox appears to have booted
/// that long ago.
///
/// # Errors
/// If the clock or the file is refused.
pub(crate) fn booted_before(machine: &Machine, boottime: i64) -> Result<(), RootfsError> {
    let booted = seconds(ClockId::CLOCK_REALTIME)? - boottime;
    fill(Path::new("/run/.stat"), &times(machine.processors, booted))
}

fn seconds(clock: ClockId) -> Result<i64, RootfsError> {
    let read = clock_gettime(clock).map_err(|e| RootfsError::Call("read a clock", e))?;
    Ok(read.tv_sec())
}

/// Writes the contents of a prepared file.
fn fill(file: &Path, content: &str) -> Result<(), RootfsError> {
    fs::write(file, content).map_err(|e| RootfsError::Make(file.to_owned(), e))
}

fn link(to: &str, at: &Path) -> Result<(), RootfsError> {
    symlink(to, at).map_err(|e| RootfsError::Make(at.to_owned(), e))
}

fn make(path: &Path) -> Result<(), RootfsError> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|e| RootfsError::Make(path.to_owned(), e))
}

/// All memory is free: usage is in the control group.
fn meminfo(machine: &Machine) -> Result<String, RootfsError> {
    const NOTHING: [&str; 32] = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "Active(anon)",
        "Inactive(anon)",
        "Active(file)",
        "Inactive(file)",
        "Unevictable",
        "Mlocked",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "AnonPages",
        "Mapped",
        "Shmem",
        "KReclaimable",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
        "KernelStack",
        "PageTables",
        "NFS_Unstable",
        "Bounce",
        "WritebackTmp",
        "Committed_AS",
        "VmallocUsed",
        "VmallocChunk",
        "Percpu",
        "AnonHugePages",
    ];
    let kib = machine.memory_bytes / 1024;
    let mut text = String::with_capacity(1536);
    let mut line = |name: &str, kib: u64| {
        let name = format!("{name}:");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<15} {kib:>8} kB");
    };
    for name in ["MemTotal", "MemFree", "MemAvailable"] {
        line(name, kib);
    }
    NOTHING.iter().for_each(|name| line(name, 0));
    line("CommitLimit", kib);
    line("VmallocTotal", 34_359_738_367);
    Ok(text)
}

fn cpuinfo(machine: &Machine) -> Result<String, RootfsError> {
    let processor = PROCESSOR.get().map(Vec::as_slice).unwrap_or_default();
    Ok(cores(processor, machine.processors))
}

/// `count` processors like this one, as cores of one chip.
fn cores(processor: &[String], count: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        for line in processor {
            let (key, _) = line.split_once(':').unwrap_or((line, ""));
            let _ = match key.trim_end() {
                name if NUMBERED.contains(&name) => writeln!(text, "{key}: {number}"),
                name if COUNTED.contains(&name) => writeln!(text, "{key}: {count}"),
                "physical id" => writeln!(text, "{key}: 0"),
                _ => writeln!(text, "{line}"),
            };
        }
        text.push('\n');
    }
    text
}

fn stat(machine: &Machine) -> Result<String, RootfsError> {
    let booted = seconds(ClockId::CLOCK_REALTIME)? - seconds(ClockId::CLOCK_BOOTTIME)?;
    Ok(times(machine.processors, booted))
}

/// `count` processors, whose times are constant.
fn times(count: u32, booted_unix_s: i64) -> String {
    let none = " 0 0 0 0 0 0 0 0 0 0\n";
    let mut text = format!("cpu {none}");
    for number in 0..count {
        let _ = write!(text, "cpu{number}{none}");
    }
    let _ = write!(
        text,
        "intr 0\nctxt 0\nbtime {booted_unix_s}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\n\
         softirq 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_version_1_are_those_that_runtimes_look_for_and_version_2_has_none() {
        let v1 = "9:name=systemd:/\n6:freezer:/\n4:memory:/\n3:cpuset:/\n2:cpu,cpuacct:/\n0::/\n";
        assert_eq!(hierarchies(v1), ["memory", "cpuset", "cpu,cpuacct"]);
        assert!(hierarchies("0::/function\n").is_empty());
        // A host where only hierarchies without limits are v1.
        assert!(hierarchies("3:cpuset:/\n0::/function\n").is_empty());
    }

    #[test]
    fn processors_are_numbered_and_counted_whatever_the_host_s_first_one_says_of_itself() {
        let host = [
            "processor\t: 0",
            "model name\t: A",
            "siblings\t: 64",
            "core id\t\t: 7",
            "power management:",
        ];
        let text = cores(&host.map(str::to_owned), 2);
        let one = |number| {
            format!(
                "processor\t: {number}\nmodel name\t: A\nsiblings\t: 2\ncore id\t\t: {number}\npower management:\n\n"
            )
        };
        assert_eq!(text, one(0) + &one(1));
    }

    #[test]
    fn memory_is_all_there_and_free() {
        let machine = Machine {
            memory_bytes: 256 << 20,
            processors: 1,
        };
        let text = meminfo(&machine).unwrap();
        for name in ["MemTotal:", "MemFree:", "MemAvailable:"] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(line.ends_with("  262144 kB"), "{line}");
        }
        assert!(text.lines().any(|line| line == "SwapTotal:             0 kB"));
    }
}
