//! PAGEMAP_SCAN, of Linux 6.7, which tells of a process's pages in ranges.
#![expect(unsafe_code, reason = "the ioctl takes a structure with an address")]

use std::fs::File;
use std::os::fd::AsRawFd as _;

use linux_raw_sys::general::{page_region, pm_scan_arg};
use nix::errno::Errno;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// Nothing is asked for, of no pages.
pub const NOTHING: pm_scan_arg = pm_scan_arg {
    size: size_of::<pm_scan_arg>() as u64,
    flags: 0,
    start: 0,
    end: 0,
    walk_end: 0,
    vec: 0,
    vec_len: 0,
    max_pages: 0,
    category_inverted: 0,
    category_mask: 0,
    category_anyof_mask: 0,
    return_mask: 0,
};

/// Room for this many ranges.
#[must_use]
pub fn room(ranges: usize) -> Vec<page_region> {
    let empty = page_region {
        start: 0,
        end: 0,
        categories: 0,
    };
    vec![empty; ranges]
}

/// Asks for ranges of pages, by the `/proc/PID/pagemap` of their process. Returns the first that `room` holds. Where
/// the kernel stopped is in `asked.walk_end` then.
///
/// # Errors
/// Returns an error when the process is gone, or the kernel is older.
pub fn scan<'a>(
    pagemap: &File,
    asked: &mut pm_scan_arg,
    room: &'a mut [page_region],
) -> nix::Result<&'a [page_region]> {
    asked.vec = room.as_mut_ptr() as u64;
    asked.vec_len = room.len() as u64;
    // SAFETY: the kernel writes at most `vec_len` ranges to `room`, which lives as long as the call.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut *asked) };
    let count = Errno::result(count)?;
    Ok(&room[..count.unsigned_abs() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_has_the_size_that_the_ioctl_s_number_carries() {
        assert_eq!(NOTHING.size, (PAGEMAP_SCAN >> 16) & 0x3fff);
    }
}
