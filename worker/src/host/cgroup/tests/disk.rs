//! Limits of the disk.

use std::time::Instant;

use super::*;

#[test]
fn limits_of_the_disk_are_written_as_each_version_wants_them() {
    let root = v1_fixture();
    fs::create_dir_all(root.path().join("blkio")).unwrap();
    fs::write(root.path().join("blkio/cgroup.procs"), "").unwrap();
    let mut groups = Cgroups::detect(root.path()).unwrap();
    let on_disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(disk) = groups.limit_disk(root.path(), PARENT, on_disk, 1 << 20) else {
        println!("not bounded here: the sources lie on no disk");
        return;
    };
    let group = groups.create("i-1", LIMITS).unwrap();
    let written = content(&root, "blkio/rekindle/i-1/blkio.throttle.read_bps_device");
    assert_eq!(written, format!("{disk} 1048576"));
    assert_eq!(group.procs_files().len(), 5);
    assert!(!root.path().join("blkio/rekindle/disk-probe").exists());

    let root = v2_fixture();
    let mut groups = Cgroups::detect(root.path()).unwrap();
    groups.limit_disk(root.path(), PARENT, on_disk, 1 << 20).unwrap();
    assert_eq!(content(&root, "rekindle/cgroup.subtree_control"), "+io");
    let _group = groups.create("i-1", LIMITS).unwrap();
    assert_eq!(content(&root, "rekindle/i-1/io.max"), format!("{disk} rbps=1048576"));

    let root = v1_fixture();
    let mut groups = Cgroups::detect(root.path()).unwrap();
    let error = groups.limit_disk(root.path(), PARENT, on_disk, 1).unwrap_err();
    assert!(matches!(error, DiskError::NoController(_)), "{error}");
    let error = groups
        .limit_disk(root.path(), PARENT, Path::new("/proc"), 1)
        .unwrap_err();
    assert!(matches!(error, DiskError::NoDisk(_)), "{error}");
}

/// Two megabytes at one a second take at least a second, however busy the machine is. A machine that cannot limit reads
/// says so.
#[test]
fn reading_past_the_page_cache_waits_for_the_limit_of_the_disk() {
    let Some(mut real) = Real::new() else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = directory.path().join("two-megabytes");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let parent = real.parent.clone();
    if let Err(e) = real.groups.limit_disk(Path::new(CGROUP_ROOT), &parent, &file, 1 << 20) {
        println!("not bounded here: {e:?}");
        return;
    }
    let group = real.groups.create("reader", LIMITS).unwrap();
    let read = format!("dd if={} of=/dev/null bs=64k iflag=direct", file.display());
    let started = Instant::now();
    assert!(wait(&mut shell(&group, &read).spawn().unwrap()).success());
    assert!(started.elapsed() > Duration::from_secs(1), "{:?}", started.elapsed());
}
