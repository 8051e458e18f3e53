//! An instance as the host sees it: its processes, and their memory, read from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::IoSliceMut;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rekindle_restore_program::window;

use crate::leftovers::group_name;
use crate::{Client, Platform, until};

/// Limit for a sandbox to be taken from the pool or made.
const GROUP_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A mapping of private anonymous memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// As in /proc/PID/maps, such as `rw-p`.
    pub access: String,
    /// `[heap]`, `[stack]` or empty.
    pub name: String,
}

/// The processes of an instance by their pids inside; without the sandbox's init.
pub fn processes(platform: &Platform, instance: &str) -> BTreeMap<i32, i32> {
    processes_below(platform, &platform.directory("run"), instance)
}

/// The processes of an instance of the worker with this run directory.
pub fn processes_below(client: &Client, run: &Path, instance: &str) -> BTreeMap<i32, i32> {
    let directories = groups_below(client, run, instance);
    let files = directories.iter().map(|d| d.join("cgroup.procs"));
    let text = files.filter_map(|f| fs::read_to_string(f).ok()).next();
    let text = text.unwrap_or_else(|| panic!("{instance} has no control group: {directories:?}"));
    by_inner_pid(text.lines().map(|l| l.parse::<i32>().unwrap()))
        .filter(|(inner, _)| *inner != 1)
        .collect()
}

/// The host's users of an instance's processes; without the sandbox's init.
pub fn users(platform: &Platform, instance: &str) -> BTreeSet<u32> {
    let user = |pid| fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    processes(platform, instance).into_values().map(user).collect()
}

/// The directories of an instance's control group: one with cgroup v2; with v1, one in each hierarchy.
pub fn groups_below(client: &Client, run: &Path, instance: &str) -> Vec<PathBuf> {
    let group = group_name(run);
    // An instance that was only just placed has none yet.
    let own = until(&format!("a control group for {instance}"), GROUP_LIMIT, || {
        group_of(&client.log(), instance)
    });
    let root = Path::new("/sys/fs/cgroup");
    let mut parents = vec![root.to_owned()];
    parents.extend(fs::read_dir(root).unwrap().flatten().map(|e| e.path()));
    parents.retain(|p| !p.is_symlink());
    parents.iter_mut().for_each(|p| *p = p.join(&group).join(&own));
    parents.retain(|p| p.is_dir());
    parents
}

/// The name of an instance's control group, as the worker last logged it. A kernel with cgroup v2 does not rename
/// groups, so it may be the one with which its sandbox was made.
fn group_of(log: &str, instance: &str) -> Option<String> {
    let taken = log
        .lines()
        .rfind(|l| l.contains("took a sandbox") && l.contains(instance))?;
    let (_, group) = taken.split_once("group=\"")?;
    group.split('"').next().map(str::to_owned)
}

/// The processes of the sandbox with this init by their pids inside; without the init.
pub fn descendants(init: i32) -> BTreeMap<i32, i32> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(init);
    assert!(own.is_some(), "init {init} is gone");
    by_inner_pid(pids().filter(|pid| *pid != init && namespace(*pid) == own)).collect()
}

/// The process that forks inits for the worker in process `worker`.
pub fn zygote(worker: i32) -> i32 {
    let groups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
    let is_init = |pid: &i32| {
        let named = status_line(*pid, "Name:").is_some_and(|name| name.starts_with("rekindle-init"));
        let child = status_line(*pid, "PPid:").is_some_and(|parent| parent == worker.to_string());
        // A process that makes a sandbox, or is in one, is in the sandbox's control groups.
        named && child && runs(*pid) && groups(*pid) == groups(worker)
    };
    // A process about to become an init is briefly another match.
    until("one process that forks inits", GROUP_LIMIT, || {
        let all: Vec<_> = pids().filter(is_init).collect();
        <[i32; 1]>::try_from(all).ok().map(|[one]| one)
    })
}

/// The hollow processes that wait in sandboxes of the worker in process `worker`, for a program or for a restore to
/// begin.
pub fn hollows(worker: i32) -> Vec<i32> {
    // Not its command line: to read that of a process whose memory is being made grows a stack above that place.
    let waits = |pid: &i32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let first = maps
            .split_once('-')
            .and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
        first.is_some_and(|start| start < window::END)
    };
    let parent = |pid: &i32| status_line(*pid, "PPid:")?.parse().ok();
    let is_own = |pid: &i32| std::iter::successors(Some(*pid), parent).any(|ancestor| ancestor == worker);
    pids().filter(waits).filter(is_own).collect()
}

/// Those of them in which a restore has begun: they have the function's program.
pub fn begun(worker: i32) -> Vec<i32> {
    let has_own = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program != Path::new("/memfd:hollow (deleted)"))
    };
    hollows(worker).into_iter().filter(has_own).collect()
}

/// What a line of `/proc/PID/status` says.
pub(crate) fn status_line(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

/// The ids of all processes of this host.
fn pids() -> impl Iterator<Item = i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
}

/// The processes of this host that have `NAME=value` in the environment with which they were started.
pub fn with_variable(variable: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == variable.as_bytes())
    };
    pids().filter(has).collect()
}

/// The threads of a process; none if it is gone.
pub fn threads(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads
        .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether every thread of a process is stopped by a signal and not traced.
pub fn is_stopped(pid: i32) -> bool {
    let stopped = |status: String| status.contains("\nState:\tT") && status.contains("\nTracerPid:\t0\n");
    let threads = threads(pid);
    let mut statuses = threads
        .iter()
        .map(|t| fs::read_to_string(format!("/proc/{pid}/task/{t}/status")));
    !threads.is_empty() && statuses.all(|status| status.is_ok_and(stopped))
}

/// Processes by their pids inside.
pub(crate) fn by_inner_pid(pids: impl Iterator<Item = i32>) -> impl Iterator<Item = (i32, i32)> {
    pids.filter_map(|host| Some((inner_pid(host)?, host)))
}

/// Whether a process still runs; a zombie does not.
pub fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The id inside of a process or thread.
pub(crate) fn inner_pid(host: i32) -> Option<i32> {
    status_line(host, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

/// The private anonymous mappings of a process that it may read.
pub fn anonymous(pid: i32) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let parsed = maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?.to_owned();
        let inode = words.nth(2)?;
        let name = words.next().unwrap_or_default().to_owned();
        let at = |text| usize::from_str_radix(text, 16).unwrap();
        let kernels = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&name.as_str());
        let wanted = access.starts_with('r') && access.ends_with('p') && inode == "0" && !kernels;
        wanted.then(|| Mapping {
            start: at(start),
            end: at(end),
            access,
            name,
        })
    });
    parsed.collect()
}

/// Reads a process's memory. A page that a pager has yet to bring is brought, as by the process's own touch.
///
/// # Panics
/// If some of it cannot be read.
pub fn read(pid: i32, start: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        let remote = [RemoteIoVec {
            base: start + done,
            len: len - done,
        }];
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut bytes[done..])], &remote);
        match read {
            Ok(n) if n > 0 => done += n,
            other => panic!("process {pid} at {:#x}: {other:?}", start + done),
        }
    }
    bytes
}

/// Writes to the memory of a process.
pub fn write(pid: i32, start: usize, bytes: &[u8]) {
    let memory = fs::File::options().write(true).open(format!("/proc/{pid}/mem"));
    memory.unwrap().write_all_at(bytes, start as u64).unwrap();
}

/// The ranges, as offsets into the page, at which two pages differ; `None` for equal ones.
pub fn difference(a: &[u8], b: &[u8]) -> Option<std::ops::Range<usize>> {
    let first = a.iter().zip(b).position(|(x, y)| x != y)?;
    let last = a.iter().zip(b).rposition(|(x, y)| x != y)?;
    Some(first..last + 1)
}
