//! Checks of the kernel's memory interfaces: userfaultfd with its features, and PAGEMAP_SCAN. Each opens a descriptor,
//! asks, and closes it. Numbers are those of linux/userfaultfd.h.
#![allow(unsafe_code, reason = "the ioctl has no safe wrapper; it only asks")]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rekindle_worker::idle::kernel::{HostKernel, RemoteMemory as _};

use super::Check;

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;

/// Features that the pager requires.
const NEEDED: [(&str, u64); 4] = [
    ("EVENT_FORK", 1 << 1),
    ("EVENT_REMAP", 1 << 2),
    ("EVENT_REMOVE", 1 << 3),
    ("EVENT_UNMAP", 1 << 6),
];
/// Features that template mapping uses: clones of a snapshot then share its clean pages.
const TEMPLATE: [(&str, u64); 2] = [("MISSING_SHMEM", 1 << 5), ("MINOR_SHMEM", 1 << 10)];

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
    // SAFETY: the call takes flags and returns a new descriptor or -1; no memory is passed.
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

fn pagemap_scan() -> Check {
    match HostKernel::Scans.look(std::process::id().cast_signed()) {
        Ok(_) => Check::ok("PAGEMAP_SCAN", "dirty pages are found by one call"),
        Err(e) => Check::weaker(
            "PAGEMAP_SCAN",
            e.to_string(),
            "dirty pages are found by reading /proc/PID/pagemap; use Linux 6.7 or later for the faster way",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_has_the_size_that_its_ioctl_number_carries() {
        assert_eq!(size_of::<UffdioApi>() as u64, (UFFDIO_API >> 16) & 0x3fff);
    }

    #[test]
    fn missing_features_are_named() {
        assert_eq!(lacking(0, &TEMPLATE), ["MISSING_SHMEM", "MINOR_SHMEM"]);
        assert_eq!(lacking(1 << 5, &TEMPLATE), ["MINOR_SHMEM"]);
    }
}
