mod disk;
mod freezing;
mod reuse;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::testing::skipped;

const LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    cpu_cores: 0.5,
    pids: 32,
};

fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn v1_fixture() -> tempfile::TempDir {
    fixture(&[
        ("memory/cgroup.procs", ""),
        ("cpu,cpuacct/cgroup.procs", ""),
        ("pids/cgroup.procs", ""),
        ("freezer/cgroup.procs", ""),
        ("unified/cgroup.controllers", "hugetlb\n"),
    ])
}

fn v2_fixture() -> tempfile::TempDir {
    fixture(&[
        ("cgroup.controllers", "cpuset cpu io memory hugetlb pids\n"),
        ("cgroup.subtree_control", "memory\n"),
    ])
}

fn content(root: &tempfile::TempDir, path: &str) -> String {
    fs::read_to_string(root.path().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn v1_limits_are_written_under_every_controller() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    assert_eq!(groups.version(), 1);
    let group = groups.create("i-1", LIMITS).unwrap();
    assert_eq!(content(&root, "memory/rekindle/i-1/memory.limit_in_bytes"), "67108864");
    assert_eq!(content(&root, "cpu,cpuacct/rekindle/i-1/cpu.cfs_period_us"), "100000");
    assert_eq!(content(&root, "cpu,cpuacct/rekindle/i-1/cpu.cfs_quota_us"), "50000");
    assert_eq!(content(&root, "cpu,cpuacct/rekindle/i-1/cpu.shares"), "512");
    assert_eq!(content(&root, "pids/rekindle/i-1/pids.max"), "32");
    let files = group.procs_files();
    assert_eq!(files.len(), 4);
    assert!(files.contains(&root.path().join("freezer/rekindle/i-1/cgroup.procs")));
    group.remove().unwrap();
    assert!(!root.path().join("memory/rekindle/i-1").exists());
    assert!(!root.path().join("cpu,cpuacct/rekindle/i-1").exists());
}

#[test]
fn v1_counters_and_freezer_are_read_from_their_files() {
    let root = v1_fixture();
    let group = Cgroups::detect(root.path()).unwrap().create("i-1", LIMITS).unwrap();
    let memory = root.path().join("memory/rekindle/i-1");
    fs::write(memory.join("memory.usage_in_bytes"), "4096\n").unwrap();
    fs::write(memory.join("memory.max_usage_in_bytes"), "8192\n").unwrap();
    fs::write(
        memory.join("memory.oom_control"),
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    )
    .unwrap();
    assert_eq!(group.memory_current().unwrap(), 4096);
    assert_eq!(group.memory_peak().unwrap(), 8192);
    assert_eq!(group.oom_kills().unwrap(), 3);
    group.freeze().unwrap();
    assert_eq!(content(&root, "freezer/rekindle/i-1/function/freezer.state"), "FROZEN");
    group.thaw().unwrap();
    assert_eq!(content(&root, "freezer/rekindle/i-1/function/freezer.state"), "THAWED");
}

#[test]
fn the_processor_time_of_all_groups_is_told_where_the_host_tells_it() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    assert_eq!(groups.processor_time(), None);
    fs::write(root.path().join("cpu,cpuacct/rekindle/cpuacct.usage"), "1500000000\n").unwrap();
    assert_eq!(groups.processor_time(), Some(Duration::from_millis(1_500)));
    let root = v2_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    fs::write(
        root.path().join("rekindle/cpu.stat"),
        "usage_usec 2500\nuser_usec 2000\n",
    )
    .unwrap();
    assert_eq!(groups.processor_time(), Some(Duration::from_micros(2_500)));
}

#[test]
fn v2_hands_controllers_down_and_writes_one_directory() {
    let root = v2_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    assert_eq!(groups.version(), 2);
    assert_eq!(content(&root, "cgroup.subtree_control"), "+cpu +pids");
    assert_eq!(content(&root, "rekindle/cgroup.subtree_control"), "+memory +cpu +pids");
    let group = groups
        .create(
            "i-1",
            Limits {
                cpu_cores: 2.0,
                ..LIMITS
            },
        )
        .unwrap();
    assert_eq!(content(&root, "rekindle/i-1/memory.max"), "67108864");
    assert_eq!(content(&root, "rekindle/i-1/memory.oom.group"), "1");
    assert_eq!(content(&root, "rekindle/i-1/cpu.max"), "200000 100000");
    assert_eq!(content(&root, "rekindle/i-1/cpu.weight"), "200");
    assert_eq!(content(&root, "rekindle/i-1/pids.max"), "32");
    assert_eq!(group.procs_files(), vec![root.path().join("rekindle/i-1/cgroup.procs")]);

    let directory = root.path().join("rekindle/i-1");
    fs::write(
        directory.join("memory.events"),
        "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 1\n",
    )
    .unwrap();
    assert_eq!(group.oom_kills().unwrap(), 2);
    fs::write(directory.join("function/cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
    group.freeze().unwrap();
    assert_eq!(content(&root, "rekindle/i-1/function/cgroup.freeze"), "1");
    group.thaw().unwrap();
    assert_eq!(content(&root, "rekindle/i-1/function/cgroup.freeze"), "0");
    drop(group);
    assert!(!directory.exists());
}

#[test]
fn processes_that_do_not_freeze_are_thawed_and_told_of() {
    let root = v2_fixture();
    let group = Cgroups::detect(root.path()).unwrap().create("i-1", LIMITS).unwrap();
    fs::write(
        root.path().join("rekindle/i-1/function/cgroup.events"),
        "populated 1\nfrozen 0\n",
    )
    .unwrap();
    let mut sleeper = Command::new("sleep").arg("100").spawn().unwrap();
    let procs = root.path().join("rekindle/i-1/function/cgroup.procs");
    fs::write(procs, format!("{}\n", sleeper.id())).unwrap();
    let error = group.freeze().unwrap_err();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(matches!(error, FreezeError::StillRunning { .. }), "{error}");
    assert!(error.to_string().contains("cgroup.events: sleep (S, "), "{error}");
    assert_eq!(content(&root, "rekindle/i-1/function/cgroup.freeze"), "0");
}

#[test]
fn missing_controllers_are_named() {
    let root = fixture(&[("memory/cgroup.procs", ""), ("freezer/cgroup.procs", "")]);
    let error = Cgroups::detect(root.path()).unwrap_err().to_string();
    assert!(error.contains("cpu, pids"), "{error}");
    let root = fixture(&[("cgroup.controllers", "cpu memory\n")]);
    let error = Cgroups::detect(root.path()).unwrap_err().to_string();
    assert!(error.contains("controllers pids are not"), "{error}");
}

#[test]
fn everybody_may_enter_groups_whatever_the_umask() {
    for (root, inner) in [
        (v1_fixture(), "memory/above/rekindle"),
        (v2_fixture(), "above/rekindle"),
    ] {
        // As a worker with the umask 077 has made it before.
        let parent = root.path().join(inner);
        fs::create_dir_all(&parent).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700)).unwrap();
        let groups = Cgroups::detect_below(root.path(), "above/rekindle").unwrap();
        let group = groups.create("i-1", LIMITS).unwrap();
        for path in [group.function(), parent.join("i-1"), parent] {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{}", path.display());
        }
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    for name in ["", "..", "a/b", ".hidden", "a\nb"] {
        assert!(
            matches!(groups.create(name, LIMITS), Err(CreateError::Name(_))),
            "{name}"
        );
    }
    assert!(matches!(
        Cgroups::detect_below(root.path(), "../x"),
        Err(DetectError::Name(_))
    ));
}

#[test]
fn a_group_that_exists_is_neither_taken_over_nor_removed() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    let group = groups.create("i-1", LIMITS).unwrap();
    assert!(matches!(groups.create("i-1", LIMITS), Err(CreateError::File { .. })));
    assert!(root.path().join("pids/rekindle/i-1/pids.max").exists());
    drop(group);
    // Only one hierarchy has a left-over group. The directories created before that was found are removed again.
    fs::create_dir(root.path().join("pids/rekindle/i-2")).unwrap();
    assert!(groups.create("i-2", LIMITS).is_err());
    assert!(!root.path().join("memory/rekindle/i-2").exists());
    assert!(root.path().join("pids/rekindle/i-2").exists());
}

#[test]
fn sweep_finds_groups_of_every_level_and_hierarchy() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    fs::create_dir_all(root.path().join("memory/rekindle/i-1/inner")).unwrap();
    fs::create_dir_all(root.path().join("pids/rekindle/i-2")).unwrap();
    let names: Vec<String> = groups.sweep().unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["i-1/inner", "i-1", "i-2"]);
    assert_eq!(groups.sweep().unwrap(), Vec::new());
}

/// A parent of its own on this machine's real cgroups, removed at the end.
struct Real {
    groups: Cgroups,
    parent: String,
}

impl Real {
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !nix::unistd::geteuid().is_root() {
            skipped("needs root");
            return None;
        }
        let parent = format!(
            "rekindle-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        match Cgroups::detect_below(Path::new(CGROUP_ROOT), &parent) {
            Ok(groups) => Some(Self { groups, parent }),
            Err(e) => {
                skipped(&e.to_string());
                None
            }
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.groups.sweep();
        let _ = self.groups.remove_parent();
    }
}

/// Builds a shell that joins `group`, then runs `script`.
fn shell(group: &Cgroup, script: &str) -> Command {
    let joins: Vec<String> = group
        .procs_files()
        .into_iter()
        .chain([group.function().join(PROCS)])
        .map(|f| format!("echo 0 > {}", f.display()))
        .collect();
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(format!("set -e; {}; set +e; {script}", joins.join("; ")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let ended = poll_until(Duration::from_secs(20), Duration::from_millis(2), || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(ended, "the process did not end");
    status.unwrap()
}

#[test]
fn memory_over_the_limit_is_killed_and_counted() {
    let Some(real) = Real::new() else { return };
    let group = real
        .groups
        .create(
            "memory",
            Limits {
                memory_bytes: 24 << 20,
                ..LIMITS
            },
        )
        .unwrap();
    assert_eq!(group.oom_kills().unwrap(), 0);
    // `tail` keeps the whole of an endless line in memory.
    let mut child = shell(&group, "head -c 200000000 /dev/zero | tail").spawn().unwrap();
    assert!(!wait(&mut child).success());
    assert!(group.oom_kills().unwrap() >= 1);
    let peak = group.memory_peak().unwrap();
    assert!(((12 << 20)..=(24 << 20)).contains(&peak), "{peak}");
    assert!(group.memory_current().unwrap() <= peak);
    group.kill().unwrap();
    group.remove().unwrap();
}

#[test]
fn a_fork_over_the_limit_fails_and_kill_ends_the_rest() {
    let Some(real) = Real::new() else { return };
    let group = real.groups.create("pids", Limits { pids: 3, ..LIMITS }).unwrap();
    let mut child = shell(&group, "for i in 1 2 3 4 5; do sleep 300 & done; wait")
        .spawn()
        .unwrap();
    // The shell gives up at the third child; the two it has stay.
    assert!(!wait(&mut child).success());
    assert_eq!(group.pids().unwrap().len(), 2);
    group.kill().unwrap();
    assert_eq!(group.pids().unwrap(), Vec::<i32>::new());
    group.remove().unwrap();
}

#[test]
fn sweep_kills_what_a_dead_worker_left() {
    let Some(real) = Real::new() else { return };
    let mut group = real.groups.create("left-over", LIMITS).unwrap();
    let mut child = shell(&group, "sleep 300 & sleep 300").spawn().unwrap();
    assert!(poll_until(Duration::from_secs(10), Duration::from_millis(2), || group
        .pids()
        .unwrap()
        .len()
        == 3));
    // The worker died: nothing runs its destructors.
    group.removed = true;
    drop(group);
    let swept = real.groups.sweep().unwrap();
    assert_eq!(swept.len(), 1);
    assert_eq!(swept[0].name, "left-over");
    assert_eq!(swept[0].pids.len(), 3);
    assert!(!wait(&mut child).success());
    assert_eq!(real.groups.sweep().unwrap(), Vec::new());
}

#[test]
fn dropping_a_group_kills_and_removes_it() {
    let Some(real) = Real::new() else { return };
    let group = real.groups.create("dropped", LIMITS).unwrap();
    let directories = group.layout.all();
    let mut child = shell(&group, "exec sleep 300").spawn().unwrap();
    assert!(poll_until(Duration::from_secs(10), Duration::from_millis(2), || group
        .pids()
        .unwrap()
        .len()
        == 1));
    drop(group);
    assert!(!wait(&mut child).success());
    assert!(directories.iter().all(|d| !d.exists()));
}

#[test]
fn real_v2_is_used_where_the_machine_has_it() {
    match v2::Directory::detect(Path::new(CGROUP_ROOT)) {
        Ok(Some(_)) => {
            let Some(real) = Real::new() else { return };
            assert_eq!(real.groups.version(), 2);
        }
        Ok(None) => {
            let Some(real) = Real::new() else { return };
            assert_eq!(real.groups.version(), 1);
        }
        Err(e) => skipped(&e.to_string()),
    }
}

#[test]
fn on_v2_swap_holds_what_was_lent_and_both_together_no_more_than_the_limit() {
    let root = v2_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    let group = groups.create("i-1", LIMITS).unwrap();
    let limits = |swap: &str, memory: &str| {
        let file = |name: &str| content(&root, &format!("rekindle/i-1/{name}"));
        assert_eq!(
            (file("memory.swap.max"), file("memory.max")),
            (swap.to_owned(), memory.to_owned())
        );
    };
    let holds = |swapped: u64, memory: u64| {
        let directory = root.path().join("rekindle/i-1");
        fs::write(directory.join("memory.swap.current"), swapped.to_string()).unwrap();
        fs::write(
            directory.join("memory.stat"),
            format!("anon {memory}\nfile 1\nshmem 0\n"),
        )
        .unwrap();
    };
    holds(1 << 20, 20 << 20);
    group.lend_swap(1 << 20).unwrap();
    limits("2097152", "67108864");
    group.hold_swap(LIMITS.memory_bytes).unwrap();
    limits("1048576", "67108864");
    // It has grown by what was swapped out, and a page more.
    holds(40 << 20, (24 << 20) + 4096);
    group.hold_swap(LIMITS.memory_bytes).unwrap();
    limits("41943040", "25165824");
    holds(40 << 20, 24 << 20);
    group.hold_swap(LIMITS.memory_bytes).unwrap();
    limits("41943040", "67108864");
    // It has more for the moment: for its checkpoint.
    group.raise_memory(2 * LIMITS.memory_bytes).unwrap();
    holds(40 << 20, 30 << 20);
    group.hold_swap(LIMITS.memory_bytes).unwrap();
    limits("41943040", "134217728");
    // A limit for which the kernel would kill it is refused, as v1 refuses it.
    holds(40 << 20, LIMITS.memory_bytes + 1);
    group.lower_memory(LIMITS.memory_bytes).unwrap_err();
    limits("41943040", "134217728");
    holds(40 << 20, LIMITS.memory_bytes);
    group.lower_memory(LIMITS.memory_bytes).unwrap();
    limits("41943040", "67108864");
}
