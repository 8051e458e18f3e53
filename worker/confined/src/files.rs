//! The files that a confined process sees:
//!
//! ```text
//! unpacking:  /      the directory that is written to, nothing else
//! a program:  /      the root filesystem, read-only    /proc   its own processes only
//!             /run   and elsewhere: files of the host  /dev    null zero full random urandom, fd, shm
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};
use nix::unistd::{chdir, pivot_root};

use crate::order::{BindMount, Order, Program, Work};

/// Why the files could not be laid out.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub(crate) struct FilesError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> FilesError {
    let path = path.to_owned();
    move |e| FilesError {
        action,
        path,
        source: e.into(),
    }
}

/// Lays out the files and makes them the root. Runs in pid 1, in its own mount namespace, still with all privileges.
pub(crate) fn enter(order: &Order) -> Result<(), FilesError> {
    let slash = Path::new("/");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, slash, None::<&str>, private, None::<&str>).map_err(failed("make private", slash))?;
    let root = match &order.work {
        Work::Program(program) => program_files(program)?,
        Work::Upload { into, .. } | Work::Image { into, .. } | Work::Layer { into, .. } => {
            bind(into, into, QUIET)?;
            into.as_path()
        }
    };
    chdir(root).map_err(failed("enter", root))?;
    // With both arguments the same directory, the old root ends up mounted over the new one, and needs no place of its
    // own.
    pivot_root(".", ".").map_err(failed("make the root", root))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(failed("leave the old root for", root))?;
    chdir(slash).map_err(failed("enter", slash))
}

/// Lays out a program's files and returns their root.
fn program_files(program: &Program) -> Result<&Path, FilesError> {
    let missing = failed::<io::Error>("find the root filesystem", Path::new("/"));
    let root = program
        .root
        .first()
        .ok_or_else(|| missing(io::ErrorKind::NotFound.into()))?;
    if program.root.len() == 1 {
        bind(root, root, QUIET | MsFlags::MS_RDONLY)?;
    } else {
        overlay(root, &program.root)?;
    }
    proc(&root.join("proc"))?;
    devices(&root.join("dev"))?;
    tmpfs(&root.join("run"), QUIET, "mode=755,size=1m,nr_inodes=256")?;
    program.shown.iter().try_for_each(|shown| show(root, shown))?;
    Ok(root)
}

/// Stacks directories, and mounts the result over the uppermost one. Their names are ours: digests.
fn overlay(at: &Path, layers: &[PathBuf]) -> Result<(), FilesError> {
    let names: Vec<_> = layers.iter().map(|l| l.to_string_lossy()).collect();
    let options = format!("lowerdir={}", names.join(":"));
    let flags = QUIET | MsFlags::MS_RDONLY;
    mount(Some("overlay"), at, Some("overlay"), flags, Some(options.as_str())).map_err(failed("lay an overlay at", at))
}

fn bind(source: &Path, at: &Path, flags: MsFlags) -> Result<(), FilesError> {
    let none = None::<&str>;
    mount(Some(source), at, none, MsFlags::MS_BIND, none).map_err(failed("bind", source))?;
    let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    mount(none, at, none, flags, none).map_err(failed("bind", source))
}

fn tmpfs(at: &Path, flags: MsFlags, options: &str) -> Result<(), FilesError> {
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options)).map_err(failed("mount", at))
}

/// Processes only, where the kernel supports it (Linux 5.8): nothing of the host.
fn proc(at: &Path) -> Result<(), FilesError> {
    let mounted = |options| mount(Some("proc"), at, Some("proc"), QUIET | MsFlags::MS_NOEXEC, options);
    match mounted(Some("subset=pid")) {
        Err(Errno::EINVAL) => mounted(None),
        other => other,
    }
    .map_err(failed("mount", at))
}

fn devices(dev: &Path) -> Result<(), FilesError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    tmpfs(dev, flags, "mode=755,size=64k,nr_inodes=64")?;
    let before = umask(Mode::empty());
    let all = Mode::from_bits_retain(0o666);
    for (name, minor) in [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)] {
        let path = dev.join(name);
        mknod(&path, SFlag::S_IFCHR, all, makedev(1, minor)).map_err(failed("make", &path))?;
    }
    umask(before);
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ] {
        let link = dev.join(name);
        symlink(target, &link).map_err(failed("make", &link))?;
    }
    let shm = dev.join("shm");
    fs::create_dir(&shm).map_err(failed("make", &shm))?;
    tmpfs(&shm, QUIET | MsFlags::MS_NOEXEC, "mode=1777,size=64m,nr_inodes=4096")
}

fn show(root: &Path, shown: &BindMount) -> Result<(), FilesError> {
    let at = root.join(shown.at.strip_prefix("/").unwrap_or(&shown.at));
    if shown.at.starts_with("/run") {
        let made = if shown.source.is_dir() {
            fs::create_dir_all(&at)
        } else {
            let parent = at.parent().unwrap_or(root);
            fs::create_dir_all(parent).and_then(|()| File::create(&at).map(drop))
        };
        made.map_err(failed("make", &at))?;
    }
    let flags = if shown.write {
        QUIET
    } else {
        QUIET | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY
    };
    bind(&shown.source, &at, flags)
}
