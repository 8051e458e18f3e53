//! The files that a function sees:
//!
//! ```text
//! /          the root filesystem, read-only (but an image's) /proc   its own processes; the rest masked or read-only
//! /app       the function's files, read-only                 /dev    null zero full random urandom tty, fd, shm, pts
//! /tmp       a private tmpfs with a limit                    /run    root only: CRIU's probe cache
//! /sys       control groups, processors ([`machine`])        /etc    hosts; resolv.conf, if network egress is possible
//! /run/secrets   the function's secrets, if it has any, read-only ([`secrets`])
//! ```

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::unistd::{chdir, pivot_root};

use crate::files;
use crate::machine;
use crate::mounts::{NO_EXEC, QUIET, RootfsError, bind_read_only, mounted, tmpfs, write};
use crate::protocol::{CRIU_PROBE_CACHE, FUNCTION_UID, Setup};
use crate::secrets;

/// For mounts with devices of their own.
const NO_DEVICES: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC);
/// `MS_NOSYMFOLLOW` of Linux 5.10: no symbolic link on the mount is followed. Older kernels ignore it.
const NO_LINKS: MsFlags = MsFlags::from_bits_retain(256);
/// The mounts that a function writes to, with their flags.
const OWN: [(&str, MsFlags); 2] = [("/tmp", QUIET), ("/dev/shm", NO_EXEC)];

/// Prepared on the stage, and moved to the new root.
pub(crate) const READY: [&str; 3] = ["proc", "run", "sys"];
/// Where pseudoterminals are, on the stage.
const PTS: &str = "dev/pts";
/// A sandbox's own pseudoterminals: anyone may open them, with group `tty`. There are few, since all of a host share
/// 4,096.
const PTYS: &str = "newinstance,ptmxmode=0666,mode=0620,gid=5,max=8";

/// Where an overlay prepares what it writes, beside [`files::WRITTEN`].
const WORK: &str = "run/root/work";

/// Where CRIU looks for its kernel probe while the root is the host's.
const COVERED: &str = "/run";

/// The first lines of `/etc/hosts`.
const LOOPBACK: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// A file on the stage that sets the last process id of the writer's pid namespace.
const LAST_PID: &str = "proc/sys/kernel/ns_last_pid";

/// A file on the stage with the first port that needs no right. Programs of container images listen on port 80, and the
/// sandbox's ports are its own.
const LOW_PORTS: &str = "proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Files of /proc on the stage that reveal or reach the host. An empty file covers each of them.
const MASKED_FILES: [&str; 6] = [
    "proc/kcore",
    "proc/keys",
    "proc/timer_list",
    "proc/kallsyms",
    "proc/sysrq-trigger",
    "proc/kpagecount",
];
/// Directories of /proc that an empty directory covers.
const MASKED_DIRECTORIES: [&str; 3] = ["proc/acpi", "proc/scsi", "proc/driver"];
/// Directories of /proc that stay visible but are read-only.
const READ_ONLY: [&str; 4] = ["proc/sys", "proc/irq", "proc/bus", "proc/fs"];

/// A file on the stage with the number of inotify watches that all processes of a sandbox may have. A move stands still
/// for each: 192,000 took 22 s.
const WATCHES: &str = "proc/sys/user/max_inotify_watches";
const WATCHES_MAX: &str = "16384";

/// Prepares on the stage what does not depend on the function: `/proc`, `/run`, `/sys` and terminals, and control
/// groups if the sandbox `has_groups`. Called in pid 1, in its own mount namespace, with the stage as working
/// directory. Returns the file that sets the process id after which the kernel searches for the next: the function's
/// /proc/sys is read-only.
///
/// # Errors
/// If a mount is refused.
pub(crate) fn make_ready(has_groups: bool) -> Result<File, RootfsError> {
    let mut kernels = [("proc", "proc", NO_EXEC, None), ("devpts", PTS, NO_DEVICES, Some(PTYS))].into_iter();
    kernels.try_for_each(|(kind, at, flags, options)| {
        mounted(kind, Some(Path::new(kind)), Path::new(at), Some(kind), flags, options)
    })?;
    tmpfs("run", Path::new("run"), QUIET, "mode=700,size=4m,nr_inodes=256")?;
    for (file, setting) in [(LOW_PORTS, "0"), (WATCHES, WATCHES_MAX)] {
        fs::write(file, setting).map_err(|e| RootfsError::Make(PathBuf::from(file), e))?;
    }
    let last_pid = OpenOptions::new()
        .write(true)
        .open(LAST_PID)
        .map_err(|e| RootfsError::Make(PathBuf::from(LAST_PID), e))?;
    mask_proc()?;
    machine::make_ready(has_groups)?;
    Ok(last_pid)
}

/// Lays out the files and makes them the root. They consist of what [`make_ready`] has prepared, and of the layers and
/// devices mounted on the stage.
///
/// # Errors
/// If a mount is refused or a mount point is missing in the root filesystem.
pub(crate) fn enter(setup: &Setup) -> Result<(), RootfsError> {
    let root = Path::new("new");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mounted("private", None, Path::new("/"), None, private, None)?;
    let bind_tree = |what, from: &str, at: &Path| {
        // A mount propagated from the host is locked in its place, so it is mounted again.
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mounted(what, Some(Path::new(from)), at, None, flags, None)
    };
    match setup.root_bytes {
        None => {
            bind_tree("root", "root", root)?;
            bind_tree("app", "app", &root.join("app"))?;
        }
        Some(bytes) => written_apart(root, bytes)?,
    }
    for ready in READY {
        mounted(
            ready,
            Some(Path::new(ready)),
            &root.join(ready),
            None,
            MsFlags::MS_MOVE,
            None,
        )?;
    }
    if setup.secrets {
        secrets::mount(&root.join("run"))?;
    }
    let tmp = format!("mode=1777,size={},nr_inodes=65536", setup.tmp_bytes);
    tmpfs("tmp", &root.join("tmp"), QUIET | NO_LINKS, &tmp)?;
    let dev = root.join("dev");
    bind_tree("dev", "dev", &dev)?;
    let shm = format!("mode=1777,size={},nr_inodes=4096", setup.shm_bytes);
    tmpfs("shm", &dev.join("shm"), NO_EXEC | NO_LINKS, &shm)?;

    chdir(root).map_err(|e| RootfsError::Call("chdir to the new root", e))?;
    // With both arguments the same directory, the old root ends up mounted over the new one, and needs no place of its
    // own.
    pivot_root(".", ".").map_err(|e| RootfsError::Call("pivot_root", e))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(|e| RootfsError::Call("leave the old root", e))?;
    chdir("/").map_err(|e| RootfsError::Call("chdir to /", e))?;
    machine::show(&setup.machine)
}

/// Covers files of `/etc` with the sandbox's own. Where the root is written apart, this comes after what is loaded
/// there: an overlay does not see what is added to a directory that it has looked at.
///
/// # Errors
/// If a mount is refused.
pub(crate) fn cover(setup: &Setup) -> Result<(), RootfsError> {
    over(
        Path::new("/etc/hosts"),
        &format!("{LOOPBACK}127.0.0.1 {}\n", setup.hostname),
    )?;
    if let Some(text) = &setup.resolv_conf {
        over(Path::new("/etc/resolv.conf"), text)?;
    }
    Ok(())
}

/// Lays the root filesystem at `root` so that what the function writes there is kept apart, in memory. No symbolic link
/// that it makes is followed until [`follow_links`]. The image's own are not, either.
fn written_apart(root: &Path, bytes: u64) -> Result<(), RootfsError> {
    let (upper, work) = (Path::new(files::WRITTEN), Path::new(WORK));
    let apart = upper.parent().unwrap_or(upper);
    fs::create_dir(apart).map_err(|e| RootfsError::Make(apart.to_owned(), e))?;
    tmpfs(
        "what is written",
        apart,
        QUIET,
        &format!("mode=700,size={bytes},nr_inodes=262144"),
    )?;
    for directory in [upper, work] {
        let made = fs::create_dir(directory)
            .and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755)))
            .and_then(|()| lchown(directory, Some(FUNCTION_UID), Some(FUNCTION_UID)));
        made.map_err(|e| RootfsError::Make(directory.to_owned(), e))?;
    }
    // With xino all files have the overlay's device number, by which CRIU finds the file of a UNIX socket.
    let options = format!(
        "lowerdir=root,upperdir={},workdir={},userxattr,xino=on",
        upper.display(),
        work.display()
    );
    let kind = Path::new("overlay");
    mounted(
        "root",
        Some(kind),
        root,
        Some("overlay"),
        QUIET | NO_LINKS,
        Some(&options),
    )?;
    files::reserve(upper).map_err(|e| RootfsError::Make(upper.to_owned(), e))
}

/// Has the kernel look again at what it has looked up on an image's root, once files were loaded below it. An overlay
/// does not see what is added to a directory that it has looked at. CRIU looks for settings in `/etc` when it starts.
///
/// # Errors
/// If a mount is refused.
pub(crate) fn look_again() -> Result<(), RootfsError> {
    if !Path::new("/").join(files::WRITTEN).exists() {
        return Ok(());
    }
    // It changes nothing: the kernel forgets the names of a file system that is mounted again.
    let flags = MsFlags::MS_REMOUNT | QUIET | NO_LINKS;
    mounted("root again", None, Path::new("/"), None, flags, None)
}

/// Makes symbolic links in `/tmp` and `/dev/shm` work from now on. Until then, they cannot mislead root processes that
/// open paths there, such as CRIU when it restores a process.
///
/// # Errors
/// If a mount is refused.
pub fn follow_links() -> Result<(), RootfsError> {
    let change = MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    let root = Path::new("/").join(files::WRITTEN).exists().then_some(("/", QUIET));
    OWN.into_iter()
        .chain(root)
        .try_for_each(|(at, flags)| mounted("with its links", None, Path::new(at), None, change | flags, None))
}

/// Covers the host's /run, in this mount namespace only, with one that contains CRIU's kernel probe and nothing else.
///
/// # Errors
/// If a mount is refused. /run is the host's then.
pub fn show_probe(probe: &[u8]) -> Result<(), RootfsError> {
    tmpfs("run", Path::new(COVERED), QUIET, "mode=700,size=128k,nr_inodes=16")?;
    fs::write(CRIU_PROBE_CACHE, probe).map_err(|e| {
        // The first of the two errors is reported.
        let _uncovered = hide_probe();
        RootfsError::Make(PathBuf::from(CRIU_PROBE_CACHE), e)
    })
}

/// Uncovers the host's /run again.
///
/// # Errors
/// If the unmount is refused.
pub fn hide_probe() -> Result<(), RootfsError> {
    umount2(COVERED, MntFlags::MNT_DETACH).map_err(|e| RootfsError::Call("uncover /run", e))
}

/// Covers the file at a path of the root filesystem or the kernel with `content`.
pub(crate) fn over(at: &Path, content: &str) -> Result<(), RootfsError> {
    if !at.exists() {
        // An older root filesystem may lack it, and is read-only.
        return Ok(());
    }
    let name = at.file_name().unwrap_or_default().to_string_lossy();
    let file = PathBuf::from(format!("/run/.{name}"));
    write(&file, content)?;
    bind_read_only("a file of the sandbox's own", &file, at, NO_EXEC)
}

fn mask_proc() -> Result<(), RootfsError> {
    // An empty file and an empty directory to cover others with, in the root-only /run.
    let (file, directory) = (Path::new("run/.nothing"), Path::new("run/.none"));
    File::create(file).map_err(|e| RootfsError::Make(file.to_owned(), e))?;
    fs::create_dir(directory).map_err(|e| RootfsError::Make(directory.to_owned(), e))?;
    for path in [file, directory] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o444))
            .map_err(|e| RootfsError::Make(path.to_owned(), e))?;
    }
    for (covers, over) in [(file, &MASKED_FILES[..]), (directory, &MASKED_DIRECTORIES[..])] {
        for at in over.iter().map(Path::new).filter(|p| p.exists()) {
            bind_read_only("mask", covers, at, NO_EXEC)?;
        }
    }
    for at in READ_ONLY.iter().map(Path::new).filter(|p| p.exists()) {
        bind_read_only("read-only", at, at, NO_EXEC)?;
    }
    Ok(())
}
