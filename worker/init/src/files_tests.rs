use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;

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

fn load_bytes(root: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = root.join("crafted.tar");
    fs::write(&path, bytes).unwrap();
    load(root, File::open(path).unwrap().into(), own())
}

/// Whom these tests run as.
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

/// An entry with a name that the archiver itself would refuse.
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
    let crafted: [(&str, &[Entry<'_>]); 7] = [
        (
            "symbolic link",
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
            "symbolic link",
            &[
                (EntryType::Symlink, "tmp/x", target),
                (EntryType::Fifo, "tmp/x/pipe", ""),
            ],
        ),
        ("never saved", &[(EntryType::Link, "tmp/x", "/etc/passwd")]),
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
    for _ in 0..DEPTH_MAX + 2 {
        at.push("d");
        fs::create_dir(&at).unwrap();
    }
    let error = save(&root, File::create(root.join("a.tar")).unwrap().into()).unwrap_err();
    assert!(error.to_string().contains("nested"), "{error}");
}
