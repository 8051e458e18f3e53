//! Groups that are used again.

use super::*;

#[test]
fn a_clean_v1_group_is_used_again_and_one_with_something_left_is_not() {
    let root = v1_fixture();
    let groups = Cgroups::detect(root.path()).unwrap();
    let memory = |name: &str| root.path().join("memory/rekindle").join(name);
    let prepare = |name: &str, usage: &str, kills: &str| {
        fs::write(memory(name).join("memory.usage_in_bytes"), usage).unwrap();
        fs::write(memory(name).join("memory.max_usage_in_bytes"), "9000000\n").unwrap();
        fs::write(
            memory(name).join("memory.oom_control"),
            format!("under_oom 0\noom_kill {kills}\n"),
        )
        .unwrap();
    };
    let (mut first, again) = groups.ready("empty-0", LIMITS).unwrap();
    assert!(!again);
    groups.assign(&mut first, "i-1", LIMITS).unwrap();
    prepare("i-1", "4096\n", "0");
    fs::write(
        root.path().join("freezer/rekindle/i-1/function/freezer.state"),
        "FROZEN",
    )
    .unwrap();
    drop(first);
    assert!(!memory("i-1").exists(), "its user's name is free");
    let (second, again) = groups.ready("empty-1", Limits { pids: 7, ..LIMITS }).unwrap();
    assert!(again);
    assert_eq!(second.name(), "empty-1");
    assert_eq!(content(&root, "memory/rekindle/empty-1/memory.max_usage_in_bytes"), "0");
    assert_eq!(
        content(&root, "freezer/rekindle/empty-1/function/freezer.state"),
        "THAWED"
    );
    assert_eq!(content(&root, "pids/rekindle/empty-1/pids.max"), "7");

    for (usage, kills) in [("2000000\n", "0"), ("0\n", "1")] {
        let (group, _) = groups.ready("left", LIMITS).unwrap();
        prepare("left", usage, kills);
        drop(group);
        assert!(!memory("left").exists());
        assert_eq!(groups.spare_counts().spare, 0, "{usage} {kills}");
    }
    prepare("empty-1", "0\n", "0");
    fs::create_dir(memory("empty-1").join("below")).unwrap();
    drop(second);
    let counts = groups.spare_counts();
    assert_eq!((counts.spare, counts.refused), (0, 3));
    fs::remove_dir_all(memory("empty-1")).unwrap();
    for hierarchy in ["pids", "freezer", "cpu,cpuacct"] {
        let _ = fs::remove_dir_all(root.path().join(hierarchy).join("rekindle/empty-1"));
    }

    let (last, _) = groups.ready("last", LIMITS).unwrap();
    prepare("last", "0\n", "0");
    drop(last);
    assert_eq!(groups.spare_counts().spare, 1);
    groups.close();
    assert_eq!((groups.spare_counts().spare, groups.count()), (0, 0));
    let (after, _) = groups.ready("after", LIMITS).unwrap();
    prepare("after", "0\n", "0");
    drop(after);
    assert_eq!(groups.count(), 0);
}

#[test]
fn a_real_group_is_used_again_with_its_counters_at_nothing() {
    let Some(real) = Real::new() else { return };
    let (group, _) = real.groups.ready("first", LIMITS).unwrap();
    let mut child = shell(&group, "head -c 8000000 /dev/zero | tail > /dev/null; sleep 300 & true")
        .spawn()
        .unwrap();
    wait(&mut child);
    drop(group);
    let counts = real.groups.spare_counts();
    if counts.spare == 0 {
        // The kernel frees memory later: then the group is removed, like any that is not clean.
        assert_eq!((counts.refused, real.groups.count()), (1, 0));
        return;
    }
    let (group, again) = real.groups.ready("second", LIMITS).unwrap();
    assert!(again);
    assert_eq!(group.pids().unwrap(), Vec::<i32>::new());
    assert_eq!(group.oom_kills().unwrap(), 0);
    assert!(group.memory_current().unwrap() <= 1 << 20);
    if real.groups.version() == 1 {
        assert!(group.memory_peak().unwrap() <= 1 << 20);
    }
    // Processes may be started in it: the limit that prevented forks at its end is gone.
    let mut child = shell(&group, "true | true").spawn().unwrap();
    assert!(wait(&mut child).success());
    drop(group);
    real.groups.close();
    assert_eq!(real.groups.count(), 0);
}
