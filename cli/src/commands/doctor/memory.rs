//! Checks of what the pager asks of the kernel: userfaultfd with its features, and PAGEMAP_SCAN. Each opens a
//! descriptor, asks one ioctl, and closes it. Numbers are those of linux/userfaultfd.h and linux/fs.h.
#![allow(unsafe_code, reason = "these two ioctls have no safe wrapper; they only ask")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use super::Check;

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;

/// Features the pager cannot do without.
const NEEDED: [(&str, u64); 4] = [
    ("EVENT_FORK", 1 << 1),
    ("EVENT_REMAP", 1 << 2),
    ("EVENT_REMOVE", 1 << 3),
    ("EVENT_UNMAP", 1 << 6),
];
/// Features template mapping uses: clones of a snapshot then share its clean pages.
const TEMPLATE: [(&str, u64); 2] = [("MISSING_SHMEM", 1 << 5), ("MINOR_SHMEM", 1 << 10)];

const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    vec![userfaultfd(), template(), pagemap_scan()]
}

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The features of the kernel's userfaultfd, as bits.
fn features() -> io::Result<u64> {
    // SAFETY: the call takes flags and returns a new descriptor or -1; no memory is handed over.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = UffdioApi {
        api: UFFD_API,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: UFFDIO_API reads and writes one struct uffdio_api, which `api` is and which outlives the call.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) };
    if answer == 0 {
        Ok(api.features)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn lacking(features: u64, wanted: &[(&'static str, u64)]) -> Vec<&'static str> {
    wanted
        .iter()
        .filter(|(_, bit)| features & bit == 0)
        .map(|(name, _)| *name)
        .collect()
}

fn userfaultfd() -> Check {
    match features() {
        Ok(features) => match lacking(features, &NEEDED) {
            none if none.is_empty() => Check::ok("userfaultfd", "with remove, unmap, remap and fork events"),
            some => Check::lack(
                "userfaultfd",
                format!("without {}", some.join(", ")),
                "use Linux 5.14 or later",
            ),
        },
        Err(e) => Check::lack(
            "userfaultfd",
            e.to_string(),
            "use a kernel with CONFIG_USERFAULTFD, and run as root or set vm.unprivileged_userfaultfd=1",
        ),
    }
}

fn template() -> Check {
    match lacking(features().unwrap_or(0), &TEMPLATE) {
        none if none.is_empty() => Check::ok("shared faults", "MISSING_SHMEM and MINOR_SHMEM"),
        some => Check::weaker(
            "shared faults",
            format!("without {}", some.join(", ")),
            "clones of a snapshot cannot share pages; use Linux 5.14 or later",
        ),
    }
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

fn pagemap_scan() -> Check {
    match scan_own_page() {
        Ok(()) => Check::ok("PAGEMAP_SCAN", "dirty pages are found by one call"),
        Err(e) => Check::weaker(
            "PAGEMAP_SCAN",
            e.to_string(),
            "dirty pages are found by reading /proc/PID/pagemap; use Linux 6.7 or later for the faster way",
        ),
    }
}

fn scan_own_page() -> io::Result<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let page = vec![1_u8; 8192];
    let start = (page.as_ptr().addr() as u64).next_multiple_of(4096);
    let mut found = [0_u64; 3];
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        start,
        end: start + 4096,
        vec: found.as_mut_ptr().addr() as u64,
        vec_len: 1,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..PmScanArg::default()
    };
    // SAFETY: PAGEMAP_SCAN reads and writes one struct pm_scan_arg and writes at most one page_region (three u64) to
    // `vec`; both outlive the call.
    let answer = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
    if answer >= 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_have_the_sizes_that_their_ioctl_numbers_carry() {
        assert_eq!(size_of::<UffdioApi>() as u64, (UFFDIO_API >> 16) & 0x3fff);
        assert_eq!(size_of::<PmScanArg>() as u64, (PAGEMAP_SCAN >> 16) & 0x3fff);
    }

    #[test]
    fn missing_features_are_named() {
        assert_eq!(lacking(0, &TEMPLATE), ["MISSING_SHMEM", "MINOR_SHMEM"]);
        assert_eq!(lacking(1 << 5, &TEMPLATE), ["MINOR_SHMEM"]);
    }
}
