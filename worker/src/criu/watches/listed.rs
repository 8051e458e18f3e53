//! What the kernel tells of the watches of a sandbox's processes.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::Pid;
use rekindle_init::protocol::FUNCTION_PID;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

use crate::host::own_mounts::OwnMount;
use crate::host::sandbox::InnerProc;

/// More watches of one sandbox are not looked at. CRIU, which is told nothing of them, refuses those that need it.
const WATCHES_MAX: usize = 100_000;
/// Bytes, more than any line about a watch has.
const LINE_MAX: u64 = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watch {
    /// The process's id in its pid namespace.
    pub(super) pid: i32,
    pub(super) descriptor: u32,
    /// The device number, in the kernel's form.
    pub(super) device: u32,
    /// The file's.
    pub(super) inode: u64,
}

/// Returns a device number as the kernel shows it of watches: 12 bits and 20.
pub(super) fn in_kernel(device: u64) -> u32 {
    libc::major(device) << 20 | libc::minor(device)
}

/// Lists what the function's processes watch.
pub(super) fn watches(proc: &InnerProc) -> io::Result<Vec<Watch>> {
    let mut found = Vec::new();
    let mut pids = proc.pids()?;
    pids.retain(|pid| *pid >= FUNCTION_PID);
    pids.sort_unstable();
    for pid in pids {
        let descriptors = proc.path().join(format!("{pid}/fd"));
        // A process that has ended has none.
        for entry in fs::read_dir(descriptors).into_iter().flatten().flatten() {
            let is_inotify = fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("anon_inode:inotify"));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(descriptor) = number.filter(|_| is_inotify) else {
                continue;
            };
            let about = proc.open(&format!("{pid}/fdinfo/{descriptor}"), OFlags::RDONLY);
            let Ok(about) = about else { continue };
            let room = WATCHES_MAX.saturating_sub(found.len());
            let lines = BufReader::new(about.take(LINE_MAX * (room as u64 + 1))).lines();
            let watched = lines.map_while(Result::ok).filter_map(|line| watched(&line));
            found.extend(watched.take(room).map(|(device, inode)| Watch {
                pid,
                descriptor,
                device,
                inode,
            }));
            if found.len() >= WATCHES_MAX {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// Returns device and inode number of a line about a watch.
fn watched(line: &str) -> Option<(u32, u64)> {
    let words = line.strip_prefix("inotify ")?.split(' ');
    let after = |key: &'static str| words.clone().find_map(|word| word.strip_prefix(key));
    let device = u32::from_str_radix(after("sdev:")?, 16).ok()?;
    Some((device, u64::from_str_radix(after("ino:")?, 16).ok()?))
}

/// Returns the first process that watches what is at this path, which is the function's: no link of it is followed.
pub(crate) fn watcher_of(init: Pid, proc: &InnerProc, path: &str) -> Option<u32> {
    const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS);
    let look = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{init}/root"), look, Mode::empty()).ok()?;
    let file = openat2(&root, path, look | OFlags::NOFOLLOW, Mode::empty(), INSIDE).ok()?;
    let about = fstat(file).ok()?;
    let mut found = watches(proc).ok()?.into_iter();
    let found = found.find(|watch| watch.inode == about.st_ino && watch.device == in_kernel(about.st_dev));
    found.map(|watch| watch.pid.cast_unsigned())
}

/// Returns a process that watches something else than files of the root, `/tmp` or `/dev/shm`, in a user's words.
pub(crate) fn of_kernel(init: Pid, proc: &InnerProc) -> Option<String> {
    let own = OwnMount::ALL.into_iter().map(|mount| mount.device(init).ok());
    let root = fs::metadata(format!("/proc/{init}/root")).ok().map(|root| root.dev());
    let own: Vec<_> = own.chain([root]).flatten().map(in_kernel).collect();
    let mut found = watches(proc).ok()?.into_iter();
    let watch = found.find(|watch| !own.contains(&watch.device))?;
    let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap_or_default();
    let below = mounts.lines().find_map(|line| mounted(line, watch.device));
    let process = proc.named(watch.pid.cast_unsigned());
    let descriptor = watch.descriptor;
    Some(match below {
        Some(below) => format!("{process} watches by descriptor {descriptor} (inotify) a file of {below}"),
        None => format!("{process} watches a file by descriptor {descriptor} (inotify)"),
    })
}

/// Returns where a device is mounted, if this line is about that.
fn mounted(line: &str, device: u32) -> Option<&str> {
    let mut fields = line.split(' ').skip(2);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?;
    fields.nth(1).filter(|_| number == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_watches_and_mounts_are_understood() {
        let line = "inotify wd:3 ino:4000000000001d sdev:1000029 mask:2 ignored_mask:0 fhandle-bytes:8";
        assert_eq!(watched(line), Some((0x100_0029, 0x40_0000_0000_001d)));
        assert_eq!(watched("flags:\t00"), None);
        let line = "28 21 16:41 / /sys/fs/cgroup ro,nosuid shared:5 - cgroup2 cgroup2 rw";
        assert_eq!(mounted(line, 0x100_0029), Some("/sys/fs/cgroup"));
        assert_eq!(mounted(line, 0x29), None);
    }
}
