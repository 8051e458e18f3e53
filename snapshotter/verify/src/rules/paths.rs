//! The paths that an image may have. CRIU opens them as root, exactly as written.
//!
//! A symbolic link may still lead elsewhere. The comparison with the processes' real files detects that.

/// Maximum length of a path in bytes.
const PATH_MAX: usize = 4095;
/// Directories that functions write to.
const WRITABLE: [&[u8]; 2] = [b"/tmp", b"/dev/shm"];
/// Paths of the kernel or the sandbox. Some of these names are usually links there.
const FORBIDDEN: [&[u8]; 7] = [
    b"/proc",
    b"/sys",
    b"/dev",
    b"/run",
    b"/var/run",
    b"/var/lock",
    b"/etc/mtab",
];
/// Those of them that are the kernel's.
const OF_KERNEL: [&[u8]; 2] = [b"/proc", b"/sys"];
const DEVICES: [&[u8]; 5] = [
    b"/dev/null",
    b"/dev/zero",
    b"/dev/full",
    b"/dev/random",
    b"/dev/urandom",
];

/// Files of cgroup v2 and v1, below [`GROUPS`], that programs keep open: Go's processor limits, and the use of memory
/// that ClickHouse and others watch. The kernel reports size 0 for all files of control groups, so those of a copy have
/// the same size.
const GROUPS: &[u8] = b"/sys/fs/cgroup/";
const WATCHED: [&[u8]; 6] = [
    b"/cpu.max",
    b"/cpu.cfs_quota_us",
    b"/cpu.cfs_period_us",
    b"/memory.stat",
    b"/memory.current",
    b"/memory.usage_in_bytes",
];

/// Files of a process's directory in `/proc` that programs keep open to look at themselves. They have no state.
const OF_PROCESS: [&str; 7] = ["stat", "statm", "status", "schedstat", "cmdline", "comm", "limits"];

/// Absolute, without empty, `.` or `..` components, and without NUL.
pub(super) fn is_plain(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/") else {
        return false;
    };
    path.len() <= PATH_MAX
        && !path.contains(&0)
        && (rest.is_empty()
            || rest
                .split(|c| *c == b'/')
                .all(|part| !matches!(part, b"" | b"." | b"..")))
}

/// A plain path in a file system of the kernel's.
pub(super) fn is_of_kernel(path: &[u8]) -> bool {
    is_plain(path) && OF_KERNEL.iter().any(|dir| is_in(path, dir))
}

/// Whether `path` is `dir` or below it.
fn is_in(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

/// A plain path to or in a directory that functions write to: with `writes_root`, any that is not the kernel's or the
/// sandbox's.
pub(super) fn is_writable(path: &[u8], writes_root: bool) -> bool {
    let written = WRITABLE.iter().any(|dir| is_in(path, dir));
    is_plain(path) && (written || (writes_root && !FORBIDDEN.iter().any(|dir| is_in(path, dir))))
}

/// A plain path below such a directory.
pub(super) fn is_below_writable(path: &[u8], writes_root: bool) -> bool {
    is_writable(path, writes_root) && path != b"/" && !WRITABLE.contains(&path)
}

/// A plain path of what a program may watch of its control group.
fn is_watched(path: &[u8]) -> bool {
    is_plain(path) && path.starts_with(GROUPS) && WATCHED.iter().any(|name| path.ends_with(name))
}

/// A process by whose `/proc` directory this plain path leads to a file that tells of the process alone, and is read.
pub fn shown_process(path: &[u8]) -> Option<u32> {
    let path = str::from_utf8(path).ok()?.strip_prefix("/proc/")?;
    let (pid, name) = path.split_once('/')?;
    let number: u32 = pid.parse().ok().filter(|_| OF_PROCESS.contains(&name))?;
    (number.to_string() == pid).then_some(number)
}

/// A plain path that a function may watch. CRIU has `/.` for the root.
pub(super) fn may_be_watched(path: &[u8]) -> bool {
    path == b"/." || is_allowed(path)
}

pub(super) fn is_device(path: &[u8]) -> bool {
    DEVICES.contains(&path)
}

/// A plain path that a function may have open.
pub(super) fn is_allowed(path: &[u8]) -> bool {
    is_plain(path)
        && (is_writable(path, false)
            || is_device(path)
            || is_watched(path)
            || !FORBIDDEN.iter().any(|dir| is_in(path, dir)))
        && !is_name_of_inherited(path)
}

/// CRIU treats a file in the root directory with such a name as an inherited one.
fn is_name_of_inherited(path: &[u8]) -> bool {
    [b"/pipe:[".as_slice(), b"/socket:[", b"/file[", b"/tty["]
        .iter()
        .any(|name| path.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain_and_lead_to_no_place_of_the_kernel_or_the_sandbox() {
        for path in [
            "/",
            "/usr/bin/python3",
            "/app/a b",
            "/tmp",
            "/dev/shm/x",
            "/dev/null",
            "/processes",
            "/tmp/..x",
            "/sys/fs/cgroup/function/cpu.max",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us",
            "/sys/fs/cgroup/memory/memory.stat",
        ] {
            assert!(is_allowed(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "x",
            "//",
            "/tmp/",
            "/tmp//x",
            "/tmp/../etc",
            "/tmp/.",
            "/a\0b",
            "/proc",
            "/proc/1/mem",
            "/sys/x",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/../../cpu.max",
            "/sys/devices/cpu.max",
            "/dev",
            "/dev/mem",
            "/dev/null/x",
            "/dev/shmx",
            "/run/criu",
            "/var/run/x",
            "/pipe:[5]",
            "/file[1:2]",
        ] {
            assert!(!is_allowed(path.as_bytes()), "{path}");
        }
        for (path, of) in [("/proc/501/statm", Some(501)), ("/proc/501/comm", Some(501))] {
            assert_eq!(shown_process(path.as_bytes()), of, "{path}");
        }
        for path in [
            "/proc/501/mem",
            "/proc/501/maps",
            "/proc/0501/statm",
            "/proc/+501/statm",
            "/proc/self/statm",
            "/proc/501/task/502/stat",
            "/proc/501/../502/stat",
            "/tmp/proc/501/statm",
        ] {
            assert_eq!(shown_process(path.as_bytes()), None, "{path}");
        }
        assert!(may_be_watched(b"/.") && may_be_watched(b"/etc") && !may_be_watched(b"/run/x"));
        assert!(!is_allowed(b"/."));
        assert!(!is_plain(&[b"/".as_slice(), &[b'a'; PATH_MAX]].concat()));
        let below = |path: &[u8]| [false, true].map(|writes_root| is_below_writable(path, writes_root));
        assert_eq!((below(b"/tmp/x"), below(b"/tmp")), ([true; 2], [false; 2]));
        for path in [b"/tmpx".as_slice(), b"/srv/x", b"/etc/hosts", b"/app/x", b"/usr/bin/x"] {
            assert_eq!(below(path), [false, true], "{}", String::from_utf8_lossy(path));
        }
        for path in [
            b"/".as_slice(),
            b"/dev/x",
            b"/proc/1/x",
            b"/run/x",
            b"/sys/x",
            b"/srv/../dev/x",
        ] {
            assert_eq!(below(path), [false; 2], "{}", String::from_utf8_lossy(path));
        }
    }
}
