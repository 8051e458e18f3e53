//! What a function sees of files:
//!
//! ```text
//! /          the runtime's root filesystem, read-only        /proc   its own processes; the rest masked or read-only
//! /app       the function's files, read-only                 /dev    null zero full random urandom, fd, shm; read-only
//! /tmp       a private tmpfs with a limit                    /run    root only: CRIU's probe cache
//! /etc/resolv.conf  the platform's name server, where there is a way out
//! ```

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};

use crate::protocol::{CRIU_PROBE_CACHE, Setup};

/// Why the files could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A mount failed.
    #[error("mount {what} at {}", .at.display())]
    Mount {
        /// Which.
        what: &'static str,
        /// Where.
        at: PathBuf,
        /// Why.
        #[source]
        source: nix::Error,
    },
    /// Another call failed.
    #[error("{0}")]
    Call(&'static str, #[source] nix::Error),
    /// A file or directory could not be made.
    #[error("make {}", .0.display())]
    Make(PathBuf, #[source] std::io::Error),
}

const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
/// `MS_NOSYMFOLLOW` of Linux 5.10, which an older kernel ignores: no symbolic link on the mount is followed.
const NO_LINKS: MsFlags = MsFlags::from_bits_retain(256);
/// The mounts that a function writes to, and how.
const OWN: [(&str, MsFlags); 2] = [("/tmp", QUIET), ("/dev/shm", QUIET.union(MsFlags::MS_NOEXEC))];

/// Where CRIU looks for its kernel probe, as long as the root is the host's.
const COVERED: &str = "/run";

/// Sets the last process id of the writer's pid namespace.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Files of /proc that tell of the host or reach it, and are covered by an empty file.
const MASKED_FILES: [&str; 6] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/kallsyms",
    "/proc/sysrq-trigger",
    "/proc/kpagecount",
];
/// Directories of /proc that are covered by an empty one.
const MASKED_DIRECTORIES: [&str; 3] = ["/proc/acpi", "/proc/scsi", "/proc/driver"];
/// Directories of /proc that stay visible but cannot be written.
const READ_ONLY: [&str; 4] = ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"];

fn mounted(
    what: &'static str,
    source: Option<&Path>,
    at: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<(), RootfsError> {
    mount(source, at, kind, flags, options).map_err(|e| RootfsError::Mount {
        what,
        at: at.to_owned(),
        source: e,
    })
}

fn bind_read_only(what: &'static str, source: &Path, at: &Path, extra: MsFlags) -> Result<(), RootfsError> {
    mounted(what, Some(source), at, None, MsFlags::MS_BIND, None)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | extra;
    mounted(what, None, at, None, flags, None)
}

fn tmpfs(what: &'static str, at: &Path, extra: MsFlags, options: &str) -> Result<(), RootfsError> {
    let source = Some(Path::new("tmpfs"));
    mounted(what, source, at, Some("tmpfs"), extra, Some(options))
}

/// Lays the files out and makes them the root. Called in pid 1, in its own mount namespace, whose working directory
/// is the stage, with the layers and devices mounted there. Answers the file that sets the process id after which the
/// kernel looks for the next: the function's /proc/sys is read-only.
///
/// # Errors
/// When a mount is refused or a mount point is missing in the root filesystem.
pub fn enter(setup: &Setup) -> Result<File, RootfsError> {
    let root = Path::new("new");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mounted("private", None, Path::new("/"), None, private, None)?;
    let bind = |what, from: &str, at: &Path| {
        // A mount that came from the host is locked to its place: another of the same is made.
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mounted(what, Some(Path::new(from)), at, None, flags, None)
    };
    bind("root", "root", root)?;
    bind("app", "app", &root.join("app"))?;
    let proc = root.join("proc");
    mounted(
        "proc",
        Some(Path::new("proc")),
        &proc,
        Some("proc"),
        QUIET | MsFlags::MS_NOEXEC,
        None,
    )?;
    tmpfs("run", &root.join("run"), QUIET, "mode=700,size=4m,nr_inodes=256")?;
    let tmp = format!("mode=1777,size={},nr_inodes=65536", setup.tmp_bytes);
    tmpfs("tmp", &root.join("tmp"), QUIET | NO_LINKS, &tmp)?;
    let dev = root.join("dev");
    bind("dev", "dev", &dev)?;
    let shm = format!("mode=1777,size={},nr_inodes=4096", setup.shm_bytes);
    let flags = QUIET | MsFlags::MS_NOEXEC | NO_LINKS;
    tmpfs("shm", &dev.join("shm"), flags, &shm)?;

    chdir(root).map_err(|e| RootfsError::Call("chdir to the new root", e))?;
    // With both arguments the same directory the old root ends up mounted over the new one, and needs no place of its own.
    pivot_root(".", ".").map_err(|e| RootfsError::Call("pivot_root", e))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(|e| RootfsError::Call("leave the old root", e))?;
    chdir("/").map_err(|e| RootfsError::Call("chdir to /", e))?;
    let last_pid = OpenOptions::new()
        .write(true)
        .open(LAST_PID)
        .map_err(|e| RootfsError::Make(PathBuf::from(LAST_PID), e))?;
    mask_proc()?;
    if let Some(text) = &setup.resolv_conf {
        name_servers(text)?;
    }
    Ok(last_pid)
}

/// Has symbolic links of `/tmp` and `/dev/shm` be followed, from now on. Until then whoever opens a path there as root, such as CRIU for a process
/// that it restores, is not led elsewhere.
///
/// # Errors
/// When a mount is refused.
pub fn follow_links() -> Result<(), RootfsError> {
    let change = MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    OWN.into_iter()
        .try_for_each(|(at, flags)| mounted("with its links", None, Path::new(at), None, change | flags, None))
}

/// Covers the host's /run, for this mount namespace alone, by one that has CRIU's kernel probe and nothing else.
///
/// # Errors
/// When a mount is refused; /run is the host's then.
pub fn show_probe(probe: &[u8]) -> Result<(), RootfsError> {
    tmpfs("run", Path::new(COVERED), QUIET, "mode=700,size=128k,nr_inodes=16")?;
    fs::write(CRIU_PROBE_CACHE, probe).map_err(|e| {
        // Of the two errors the first is told.
        let _uncovered = hide_probe();
        RootfsError::Make(PathBuf::from(CRIU_PROBE_CACHE), e)
    })
}

/// Takes that away again.
///
/// # Errors
/// When it is refused.
pub fn hide_probe() -> Result<(), RootfsError> {
    umount2(COVERED, MntFlags::MNT_DETACH).map_err(|e| RootfsError::Call("uncover /run", e))
}

/// Has programs ask the name servers of `text`.
fn name_servers(text: &str) -> Result<(), RootfsError> {
    let file = Path::new("/run/.resolv.conf");
    fs::write(file, text)
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o444)))
        .map_err(|e| RootfsError::Make(file.to_owned(), e))?;
    let over = Path::new("/etc/resolv.conf");
    // An older root filesystem may lack it, and cannot be written.
    if over.exists() {
        bind_read_only("resolv.conf", file, over, QUIET | MsFlags::MS_NOEXEC)?;
    }
    Ok(())
}

fn mask_proc() -> Result<(), RootfsError> {
    // Two empty things to cover others with, in the root-only /run.
    let (file, directory) = (Path::new("/run/.nothing"), Path::new("/run/.none"));
    File::create(file).map_err(|e| RootfsError::Make(file.to_owned(), e))?;
    fs::create_dir(directory).map_err(|e| RootfsError::Make(directory.to_owned(), e))?;
    for path in [file, directory] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o444))
            .map_err(|e| RootfsError::Make(path.to_owned(), e))?;
    }
    for (covers, over) in [(file, &MASKED_FILES[..]), (directory, &MASKED_DIRECTORIES[..])] {
        for at in over.iter().map(Path::new).filter(|p| p.exists()) {
            bind_read_only("mask", covers, at, QUIET | MsFlags::MS_NOEXEC)?;
        }
    }
    for at in READ_ONLY.iter().map(Path::new).filter(|p| p.exists()) {
        bind_read_only("read-only", at, at, QUIET | MsFlags::MS_NOEXEC)?;
    }
    Ok(())
}
