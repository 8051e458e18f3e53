//! Freezing and killing.

use std::thread;

use super::*;

#[test]
fn a_frozen_process_does_nothing_until_thawed_and_can_be_killed() {
    let Some(real) = Real::new() else { return };
    let group = real.groups.create("freezer", LIMITS).unwrap();
    let mut child = shell(&group, "exec cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut answered = |text: &str, limit_ms: u16| {
        input.write_all(text.as_bytes()).unwrap();
        let mut fds = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(limit_ms)).unwrap() == 0 {
            return None;
        }
        let mut buffer = [0; 16];
        let length = output.read(&mut buffer).unwrap();
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    assert_eq!(answered("a", 10_000).as_deref(), Some("a"));
    group.freeze().unwrap();
    assert_eq!(answered("b", 200), None);
    group.thaw().unwrap();
    assert_eq!(answered("", 10_000).as_deref(), Some("b"));

    group.freeze().unwrap();
    group.kill().unwrap();
    assert!(!wait(&mut child).success());
    group.remove().unwrap();
}

/// Returns the processor time of a process in ticks, or `None` if it is gone.
fn ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(11)?.parse().ok()
}

/// Waits until each process runs, and returns whether all did.
fn all_run(pids: &[i32]) -> bool {
    let before: Vec<_> = pids.iter().map(|pid| ticks(*pid).unwrap()).collect();
    poll_until(Duration::from_secs(20), Duration::from_millis(5), || {
        pids.iter()
            .zip(&before)
            .all(|(pid, before)| ticks(*pid).unwrap() > before + 1)
    })
}

/// A parent that is held stays frozen while its child runs, and can be killed or let go of.
fn holds_a_parent(group: &Cgroup) {
    let mut child = shell(group, "while :; do :; done & while :; do :; done")
        .spawn()
        .unwrap();
    let parent = i32::try_from(child.id()).unwrap();
    assert!(poll_until(Duration::from_secs(10), Duration::from_millis(2), || {
        group.function_pids().unwrap().len() == 2
    }));
    let mut pids = group.function_pids().unwrap();
    pids.retain(|pid| *pid != parent);
    let other = pids[0];
    assert!(all_run(&[parent, other]));
    for end in ["released", "killed"] {
        group.freeze().unwrap();
        group.hold(&[parent]).unwrap();
        assert_eq!(group.function_pids().unwrap(), [other]);
        group.thaw().unwrap();
        let held_at = ticks(parent).unwrap();
        assert!(all_run(&[other]));
        assert!(ticks(parent).unwrap() <= held_at + 1, "what is held runs");
        if end == "released" {
            group.release().unwrap();
            assert!(all_run(&[parent, other]));
            assert!(!group.function().join(HELD).exists());
        }
    }
    group.kill().unwrap();
    assert!(!wait(&mut child).success());
}

#[test]
fn a_held_parent_stands_still_while_its_child_runs() {
    let Some(real) = Real::new() else { return };
    let group = real.groups.create("held", LIMITS).unwrap();
    holds_a_parent(&group);
    group.remove().unwrap();
}

#[test]
fn a_held_parent_stands_still_in_a_real_v2_group() {
    let Some(mount) = v2_mount() else {
        skipped("needs root and a cgroup2 mount");
        return;
    };
    let directory = v2::Directory(mount.join(format!("rekindle-test-v2-held-{}", std::process::id())));
    fs::create_dir_all(directory.function()).unwrap();
    let group = Cgroup {
        name: "v2-held".to_owned(),
        layout: Layout::V2(directory.clone()),
        removed: false,
        home: Weak::new(),
    };
    holds_a_parent(&group);
    group.remove().unwrap();
    assert!(!directory.0.exists());
}

/// Finds this machine's v2 hierarchy, whatever controllers it has. Beside v1 hierarchies it usually has none.
fn v2_mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let at = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(at))
    });
    found.filter(|_| nix::unistd::geteuid().is_root())
}

/// Operations that need no controller run on the kernel's own group here: membership, freezing, killing, removal.
/// Limits are written as `v2_hands_controllers_down_…` shows.
#[test]
fn a_real_v2_group_freezes_kills_and_goes_without_any_controller() {
    let Some(mount) = v2_mount() else {
        skipped("needs root and a cgroup2 mount");
        return;
    };
    let directory = v2::Directory(mount.join(format!("rekindle-test-v2-{}", std::process::id())));
    fs::create_dir_all(directory.function()).unwrap();
    let group = Cgroup {
        name: "v2".to_owned(),
        layout: Layout::V2(directory.clone()),
        removed: false,
        home: Weak::new(),
    };
    let mut child = shell(&group, "while :; do :; done").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    assert!(poll_until(Duration::from_secs(10), Duration::from_millis(2), || {
        group.pids().unwrap() == [pid]
    }));
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let user = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(11)
            .unwrap()
            .to_owned();
        user.parse::<u64>().unwrap()
    };
    assert!(poll_until(Duration::from_secs(20), Duration::from_millis(5), || ticks() > 2));
    group.freeze().unwrap();
    let frozen_at = ticks();
    thread::sleep(Duration::from_millis(200));
    assert!(ticks() <= frozen_at + 1, "a frozen process runs");
    group.thaw().unwrap();
    assert!(poll_until(Duration::from_secs(20), Duration::from_millis(5), || {
        ticks() > frozen_at + 2
    }));
    group.freeze().unwrap();
    group.kill().unwrap();
    assert!(!wait(&mut child).success());
    group.remove().unwrap();
    assert!(!directory.0.exists());
}
