//! Flags of open files.

use rekindle_verify::messages::Owner;

pub(crate) const ACCESS: u32 = 3;
const CLOEXEC: u32 = 0o2_000_000;
pub(crate) const NONBLOCK: u32 = 0o4_000;
pub(crate) const WRITE_ONLY: u32 = 1;
/// The kernel sets it for every file.
pub(crate) const LARGE_FILE: u32 = 0o100_000;
pub(crate) const ASYNC: u32 = 0o20_000;
/// The flags that a file without a path may have here.
pub(crate) const PLAIN: u32 = ACCESS | NONBLOCK | LARGE_FILE;

/// What a file is opened with by its name. One that was made without a name (`O_TMPFILE`, which asks for a directory)
/// is opened as any other.
pub(crate) fn opened_with(status: u32) -> u32 {
    const NAMELESS: u32 = 0o20_000_000;
    const DIRECTORY: u32 = 0o200_000;
    match status & NAMELESS {
        0 => status,
        _ => status & !(NAMELESS | DIRECTORY),
    }
}

/// Whether nobody gets signals from a file.
pub(crate) fn is_owned_by_nobody(owner: &Owner) -> bool {
    (owner.signum, owner.pid_type, owner.pid) == (0, 0, 0)
}

/// What a file without a path is made with, from its status flags and its descriptor's flags.
pub(crate) fn made_with(status: u32, descriptor: u32) -> u32 {
    let close = if descriptor & 1 != 0 { CLOEXEC } else { 0 };
    status & NONBLOCK | close
}
