//! The `/dev` of all sandboxes: five harmless devices, the terminal of the calling process, and names that programs
//! expect there. It is created once on the host, since a user namespace cannot create devices, and mounted read-only in
//! each sandbox. Each sandbox has its own pseudoterminals, on a mount over `pts`.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The device on the stage that creates userfaultfds. A function cannot see it.
pub(crate) const USERFAULT: &str = "own/userfaultfd";
/// Names and minor numbers of the devices with major number 1.
const DEVICES: [(&str, u64); 5] = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
/// The terminal of a process's own session.
const TTY: (u64, u64) = (5, 0);
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Creates a node of the host's `/dev/userfaultfd` (Linux 6.1) that each sandbox's root may open. Creates none if the
/// host has none.
///
/// # Errors
/// If it cannot be created.
pub fn make_userfault(path: &Path) -> io::Result<()> {
    match fs::metadata("/dev/userfaultfd") {
        Ok(found) => {
            mknod(path, SFlag::S_IFCHR, Mode::empty(), found.rdev())?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Fills the empty directory `dev`, which must be on a file system that permits devices.
///
/// # Errors
/// If a device cannot be created.
pub fn make(dev: &Path) -> io::Result<()> {
    let memory = DEVICES.map(|(name, minor)| (name, (1, minor)));
    for (name, (major, minor)) in memory.into_iter().chain([("tty", TTY)]) {
        let path = dev.join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for (target, name) in LINKS {
        symlink(target, dev.join(name))?;
    }
    for over in ["shm", "pts"] {
        let over = dev.join(over);
        fs::create_dir(&over)?;
        fs::set_permissions(&over, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
