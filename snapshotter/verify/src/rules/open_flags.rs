//! The flags with which files are opened. CRIU passes on all flags in the image, including `O_CREAT`.

use super::paths;

pub(super) const ACCESS: u32 = libc::O_ACCMODE.cast_unsigned();
pub(super) const PATH_ONLY: u32 = libc::O_PATH.cast_unsigned();
/// The flags that the kernel keeps for an open file.
const KEPT: u32 = (libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_PATH)
    .cast_unsigned()
    | LARGE_FILE;
/// Defined as 0 by the C library, but not by the kernel.
const LARGE_FILE: u32 = 0o100_000;
/// Only the owner of a file may read it unnoticed, and only a writable directory has unnamed files.
const KEPT_OF_OWN: u32 = (libc::O_NOATIME | libc::O_TMPFILE).cast_unsigned();
/// Status flags of files that are not opened by path.
const STATUS: u32 =
    (libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT).cast_unsigned() | LARGE_FILE;
const READ_ONLY: u32 = libc::O_RDONLY.cast_unsigned();

/// Whether the file at this path may be opened with these flags.
pub(super) fn may_open(path: &[u8], flags: u32, writes_root: bool) -> bool {
    let own = paths::is_writable(path, writes_root);
    let allowed = if own { KEPT | KEPT_OF_OWN } else { KEPT };
    let writes = flags & ACCESS != READ_ONLY;
    flags & !allowed == 0 && is_access(flags) && (!writes || own || paths::is_device(path))
}

/// Whether a file without a path may have these flags.
pub(super) fn may_be(flags: u32) -> bool {
    flags & !STATUS == 0 && is_access(flags)
}

/// Read, write, or both. The fourth value means none of them.
fn is_access(flags: u32) -> bool {
    flags & ACCESS != ACCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_function_writes_is_opened_to_be_written() {
        let may_open = |path: &[u8], flags| super::may_open(path, flags, false);
        let (read, both) = (libc::O_RDONLY.cast_unsigned(), libc::O_RDWR.cast_unsigned());
        assert!(may_open(b"/usr/bin/python3", read) && !may_open(b"/usr/bin/python3", both));
        assert!(may_open(b"/tmp/x", both) && may_open(b"/dev/null", both));
        for flag in [
            libc::O_CREAT,
            libc::O_TRUNC,
            libc::O_EXCL,
            libc::O_NOCTTY,
            libc::O_CLOEXEC,
            3,
        ] {
            assert!(!may_open(b"/tmp/x", flag.cast_unsigned()), "{flag:#o}");
        }
        assert!(may_open(b"/tmp/x", libc::O_NOATIME.cast_unsigned()));
        assert!(!may_open(b"/etc/x", libc::O_NOATIME.cast_unsigned()));
        assert!(super::may_open(b"/srv/x", both, true) && !super::may_open(b"/proc/x", both, true));
        assert!(may_be(both | LARGE_FILE) && !may_be(libc::O_CREAT.cast_unsigned()));
    }
}
