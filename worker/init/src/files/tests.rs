use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Whence, lseek, mkfifo};
use rustix::fs::{XattrFlags, getxattr, lsetxattr};
use tar::{EntryType, Header};

use super::numbers::SKIPPED_MAX;
use super::*;

/// A sandbox's root with its two folders.
fn root() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for directory in SAVED {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    (dir, root)
}

fn archive_of(root: &Path) -> OwnedFd {
    let path = root.join("archive.tar");
    save(root, File::create(&path).unwrap().into()).unwrap();
    File::open(path).unwrap().into()
}

/// A sandbox's root whose two folders are separate mounts, visible to this thread only. `None` where that is not
/// permitted.
fn mounted_root() -> Option<(tempfile::TempDir, PathBuf)> {
    if own() != 0 {
        println!("skipped: only root mounts");
        return None;
    }
    let (dir, root) = root();
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    for folder in SAVED {
        let options = Some("mode=1777,size=64m,nr_inodes=65536");
        mount(
            Some("tmpfs"),
            &root.join(folder),
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
    }
    Some((dir, root))
}

/// The properties of each file that must be kept, by path.
fn identities(root: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for folder in SAVED {
        let mut left = vec![root.join(folder)];
        while let Some(path) = left.pop() {
            let found = fs::symlink_metadata(&path).unwrap();
            let told = format!(
                "{} {:o} {} {} {}.{:09} {}.{:09}",
                found.ino(),
                found.mode(),
                found.nlink(),
                found.blocks(),
                found.atime(),
                found.atime_nsec(),
                found.mtime(),
                found.mtime_nsec()
            );
            all.push((path.strip_prefix(root).unwrap().to_owned(), told));
            if found.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
    all.sort();
    all
}

fn load_bytes(root: &Path, bytes: &[u8]) -> io::Result<Loaded> {
    let path = root.join("crafted.tar");
    fs::write(&path, bytes).unwrap();
    load(root, File::open(path).unwrap().into(), own())
}

/// The user that runs these tests.
fn own() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[test]
fn files_of_every_kind_that_is_kept_come_back() {
    let ((_a, from), (_b, to)) = (root(), root());
    let deep = from.join("tmp").join("x".repeat(120)).join("y".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "content").unwrap();
    fs::set_permissions(&deep, Permissions::from_mode(0o750)).unwrap();
    let sparse = File::create(from.join("dev/shm/sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    symlink("/etc/passwd", from.join("tmp/link")).unwrap();
    let pipe = from.join("tmp/pipe");
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o640)).unwrap();
    let _socket = UnixListener::bind(from.join("tmp/socket")).unwrap();

    load(&to, archive_of(&from), own()).unwrap();
    let deep = to.join("tmp").join("x".repeat(120)).join("y".repeat(120));
    assert_eq!(fs::read(deep.join("file")).unwrap(), b"content");
    assert_eq!(fs::metadata(&deep).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(to.join("dev/shm/sparse")).unwrap().len(), 8 << 20);
    assert_eq!(fs::read_link(to.join("tmp/link")).unwrap(), Path::new("/etc/passwd"));
    let pipe = fs::symlink_metadata(to.join("tmp/pipe")).unwrap();
    assert!(pipe.file_type().is_fifo());
    assert_eq!(pipe.mode() & 0o7777, 0o640);
    assert!(!to.join("tmp/socket").exists());
}

#[test]
fn a_file_keeps_its_number_names_times_attributes_and_holes() {
    let (Some((_a, from)), Some((_b, to))) = (mounted_root(), mounted_root()) else {
        return;
    };
    let tmp = from.join("tmp");
    for gone in 0..300 {
        let path = tmp.join(format!("gone-{gone}"));
        fs::write(&path, "x").unwrap();
        fs::remove_file(path).unwrap();
    }
    fs::write(tmp.join("database"), "content").unwrap();
    fs::create_dir(tmp.join("later")).unwrap();
    // Their numbers are smaller than that of their directory.
    fs::create_dir(tmp.join("moved")).unwrap();
    fs::write(tmp.join("moved/old"), "old").unwrap();
    symlink("/nowhere", tmp.join("moved/link")).unwrap();
    mkfifo(&tmp.join("moved/pipe"), Mode::from_bits_truncate(0o600)).unwrap();
    fs::create_dir_all(tmp.join("new/er")).unwrap();
    fs::rename(tmp.join("moved"), tmp.join("new/er/moved")).unwrap();
    fs::rename(tmp.join("database"), tmp.join("new/database")).unwrap();
    fs::hard_link(tmp.join("new/database"), tmp.join("later/name")).unwrap();
    fs::hard_link(tmp.join("new/er/moved/link"), tmp.join("later/link")).unwrap();
    fs::write(from.join("dev/shm/segment"), vec![1; 9000]).unwrap();
    let mut sparse = File::create(tmp.join("sparse")).unwrap();
    // Written zeros are not a hole.
    for at in [1 << 20, 3 << 20] {
        sparse.seek(SeekFrom::Start(at)).unwrap();
        sparse.write_all(&[0; 4096]).unwrap();
    }
    sparse.set_len(5 << 20).unwrap();
    let value: Vec<u8> = (0..=255).collect();
    for (name, attribute) in [("new/database", "user.a=b\nc d"), ("later", "user.x")] {
        lsetxattr(tmp.join(name), attribute, &value, XattrFlags::CREATE).unwrap();
    }
    // Ensures that what follows does not change the access times of either.
    identities(&from);
    fs::read_link(tmp.join("later/link")).unwrap();
    let before = identities(&from);

    let saved = from.join("archive.tar");
    let told = save(&from, File::create(&saved).unwrap().into()).unwrap();
    assert_eq!((told.skipped, told.unreached), (300, 0));
    assert_eq!(identities(&from), before, "saving leaves no trace");
    let loaded = load(&to, File::open(&saved).unwrap().into(), own()).unwrap();
    assert_eq!(loaded.renumbered, 0);
    assert_eq!(identities(&to), before);
    for (name, attribute) in [("new/database", "user.a=b\nc d"), ("later", "user.x")] {
        let mut found = [0; 300];
        let length = getxattr(to.join("tmp").join(name), attribute, found.as_mut_slice()).unwrap();
        assert_eq!(found[..length], value, "{name}");
    }
    let sparse = File::open(to.join("tmp/sparse")).unwrap();
    for (from, whence, found) in [
        (0, Whence::SeekData, 1 << 20),
        (1 << 20, Whence::SeekHole, (1 << 20) + 4096),
        ((1 << 20) + 4096, Whence::SeekData, 3 << 20),
        (3 << 20, Whence::SeekHole, (3 << 20) + 4096),
    ] {
        assert_eq!(lseek(&sparse, from, whence).unwrap(), found);
    }
    // As binding a socket does.
    fs::write(to.join("tmp/later/socket"), "").unwrap();
    fs::remove_file(to.join("tmp/later/socket")).unwrap();
    loaded.settle().unwrap();
    assert_eq!(identities(&to), before);
    // The next number is one that the original has not assigned.
    fs::write(to.join("tmp/next"), "").unwrap();
    let last = before.iter().filter(|(path, _)| path.starts_with("tmp"));
    let last = last
        .map(|(_, told)| told.split(' ').next().unwrap().parse::<u64>().unwrap())
        .max();
    assert_eq!(fs::metadata(to.join("tmp/next")).unwrap().ino(), last.unwrap() + 2);
}

#[test]
fn numbers_too_far_apart_are_told_and_everything_else_is_kept() {
    let (Some((_a, from)), Some((_b, to))) = (mounted_root(), mounted_root()) else {
        return;
    };
    fs::write(from.join("tmp/near"), "near").unwrap();
    for _ in 0..=SKIPPED_MAX {
        let nameless = OFlag::O_TMPFILE | OFlag::O_WRONLY;
        drop(open(&from.join("tmp"), nameless, Mode::empty()).unwrap());
    }
    fs::write(from.join("tmp/far"), "far").unwrap();
    let saved = from.join("archive.tar");
    let told = save(&from, File::create(&saved).unwrap().into()).unwrap();
    assert_eq!(
        told,
        Saved {
            skipped: 0,
            unreached: 1
        }
    );
    let loaded = load(&to, File::open(&saved).unwrap().into(), own()).unwrap();
    assert_eq!(loaded.renumbered, 1);
    let number = |root: &Path, name: &str| fs::metadata(root.join("tmp").join(name)).unwrap().ino();
    assert_eq!(number(&to, "near"), number(&from, "near"));
    assert_eq!(fs::read(to.join("tmp/far")).unwrap(), b"far");
}

/// As an earlier platform made it: in directory order, and without records.
#[test]
fn an_archive_without_records_still_loads() {
    let (_dir, root) = root();
    let mut archive = tar::Builder::new(Vec::new());
    entry(&mut archive, EntryType::Directory, "tmp/dir", "", b"");
    entry(&mut archive, EntryType::Regular, "tmp/dir/file", "", b"content");
    entry(&mut archive, EntryType::Symlink, "tmp/dir/link", "/etc/passwd", b"");
    entry(&mut archive, EntryType::Regular, "dev/shm/file", "", b"shared");
    let loaded = load_bytes(&root, &archive.into_inner().unwrap()).unwrap();
    assert_eq!(loaded.renumbered, 0);
    assert_eq!(fs::read(root.join("tmp/dir/file")).unwrap(), b"content");
    assert_eq!(fs::read(root.join("dev/shm/file")).unwrap(), b"shared");
    assert_eq!(
        fs::read_link(root.join("tmp/dir/link")).unwrap(),
        Path::new("/etc/passwd")
    );
    assert_eq!(fs::metadata(root.join("tmp/dir/file")).unwrap().mtime(), 0);
}

#[test]
fn an_attribute_that_is_not_the_function_s_is_refused() {
    let (_dir, root) = root();
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_pax_extensions([("LIBARCHIVE.xattr.security%2Ecapability", b"AAAA".as_slice())])
        .unwrap();
    entry(&mut archive, EntryType::Regular, "tmp/file", "", b"");
    let error = load_bytes(&root, &archive.into_inner().unwrap()).unwrap_err();
    assert!(error.to_string().contains("security.capability"), "{error}");
}

/// An entry with a name that the archiver itself would reject.
fn entry(archive: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o777);
    header.set_uid(fs::metadata("/proc/self").unwrap().uid().into());
    header.set_gid(fs::metadata("/proc/self").unwrap().gid().into());
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    archive.append(&header, content).unwrap();
}

#[test]
fn an_archive_that_leads_outside_is_refused_and_writes_nothing_there() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    let before = fs::metadata(outside.path()).unwrap().mode();
    type Entry<'a> = (EntryType, &'a str, &'a str);
    let crafted: [(&str, &[Entry<'_>]); 10] = [
        (
            "in no directory",
            &[
                (EntryType::Symlink, "tmp/x", target),
                (EntryType::Regular, "tmp/x/file", ""),
            ],
        ),
        (
            "there already",
            &[
                (EntryType::Symlink, "tmp/x", target),
                (EntryType::Directory, "tmp/x", ""),
            ],
        ),
        (
            "in no directory",
            &[
                (EntryType::Symlink, "tmp/x", target),
                (EntryType::Fifo, "tmp/x/pipe", ""),
            ],
        ),
        (
            "there already",
            &[
                (EntryType::Regular, "tmp/x", ""),
                (EntryType::Regular, "tmp/y", ""),
                (EntryType::Link, "tmp/x", "tmp/y"),
            ],
        ),
        (
            "in no directory",
            &[
                (EntryType::Symlink, "tmp/x", target),
                (EntryType::Regular, "tmp/y", ""),
                (EntryType::Link, "tmp/x/z", "tmp/y"),
            ],
        ),
        (
            "in no directory",
            &[
                (EntryType::Symlink, "tmp/x", "/etc"),
                (EntryType::Link, "tmp/y", "tmp/x/passwd"),
            ],
        ),
        ("no private file", &[(EntryType::Link, "tmp/x", "/etc/passwd")]),
        ("never saved", &[(EntryType::Char, "tmp/x", "")]),
        ("outside", &[(EntryType::Regular, "tmp/../file", "")]),
        ("no private file", &[(EntryType::Regular, "run/criu.kdat", "")]),
    ];
    for (why, entries) in crafted {
        let (_dir, root) = root();
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, link) in entries {
            let content: &[u8] = if *kind == EntryType::Regular { b"bad" } else { b"" };
            entry(&mut archive, *kind, name, link, content);
        }
        let error = load_bytes(&root, &archive.into_inner().unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{entries:?}: {error}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{entries:?}");
        assert_eq!(fs::metadata(outside.path()).unwrap().mode(), before, "{entries:?}");
    }
}

#[test]
fn what_an_archive_says_of_owners_is_not_believed_and_modes_are_kept() {
    let (_dir, root) = root();
    let owner = if own() == 0 { 100_001 } else { own() };
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, name, link) in [
        (EntryType::Directory, "tmp/dir", ""),
        (EntryType::Regular, "tmp/dir/file", ""),
        (EntryType::Fifo, "tmp/pipe", ""),
        (EntryType::Symlink, "tmp/link", "/etc/passwd"),
    ] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6755);
        header.set_uid(0);
        header.set_gid(u64::from(u32::MAX) + 1);
        header.set_mtime(0);
        header.set_size(0);
        header.set_path(name).unwrap();
        if !link.is_empty() {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        archive.append(&header, io::empty()).unwrap();
    }
    let path = root.join("crafted.tar");
    fs::write(&path, archive.into_inner().unwrap()).unwrap();
    load(&root, File::open(path).unwrap().into(), owner).unwrap();
    for name in ["tmp/dir", "tmp/dir/file", "tmp/pipe", "tmp/link"] {
        let found = fs::symlink_metadata(root.join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (owner, owner), "{name}");
        assert!(found.is_symlink() || found.mode() & 0o7777 == 0o6755, "{name}");
    }
}

#[test]
fn a_tree_too_deep_to_be_walked_is_an_error_and_no_overflow() {
    let (_dir, root) = root();
    let mut at = root.join("tmp");
    for _ in 0..130 {
        at.push("d");
        fs::create_dir(&at).unwrap();
    }
    let error = save(&root, File::create(root.join("a.tar")).unwrap().into()).unwrap_err();
    assert!(error.to_string().contains("nested"), "{error}");
}

#[test]
fn what_an_image_s_root_no_longer_has_comes_back_as_gone() {
    if own() != 0 {
        println!("skipped: only root makes devices everywhere");
        return;
    }
    let (_from, from) = root();
    let upper = from.join(WRITTEN);
    fs::create_dir(upper.join("etc")).unwrap();
    fs::write(upper.join("etc/passwd"), "changed").unwrap();
    mknod(&upper.join("etc/services"), SFlag::S_IFCHR, Mode::empty(), WHITEOUT).unwrap();
    let opaque = "user.overlay.opaque";
    let has_attributes = lsetxattr(upper.join("etc"), opaque, b"y", XattrFlags::CREATE).is_ok();
    // A device that is no whiteout is not kept, nor is a whiteout elsewhere loaded.
    mknod(&upper.join("zero"), SFlag::S_IFCHR, Mode::empty(), makedev(1, 5)).unwrap();
    let archive = archive_of(&from);
    let (_to, to) = root();
    load(&to, archive, own()).unwrap();
    let upper = to.join(WRITTEN);
    assert_eq!(fs::read_to_string(upper.join("etc/passwd")).unwrap(), "changed");
    let gone = fs::symlink_metadata(upper.join("etc/services")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == WHITEOUT);
    assert!(!upper.join("zero").exists());
    if has_attributes {
        let mut value = [0; 8];
        assert_eq!(getxattr(upper.join("etc"), opaque, &mut value[..]), Ok(1));
    }
    fs::remove_dir_all(from.join(WRITTEN)).unwrap();
    mknod(&from.join("tmp/gone"), SFlag::S_IFCHR, Mode::empty(), WHITEOUT).unwrap();
    let archive = archive_of(&from);
    let error = load(&root().1, archive, own()).unwrap_err();
    assert!(error.to_string().contains("never saved"), "{error}");
}
