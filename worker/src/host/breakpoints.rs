//! Keeps hardware breakpoints immediate. CRIU stops what it restores, and what it has dumped, at a hardware breakpoint,
//! which is an event of the kernel's perf subsystem.
//!
//! The first event of any task on a host enables the scheduler's perf hooks and waits until all processors know
//! (`synchronize_rcu`, 5 to 22 ms). A second after the last event has gone, the hooks are disabled again. Holding an
//! event that counts nothing keeps them enabled. So a start does not wait for them on a host where nothing restored is
//! running.

#![expect(
    unsafe_code,
    reason = "perf_event_open has no safe wrapper; it takes a structure of numbers"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `perf_event_attr` in its first published form, which all kernels accept (`perf_event_open(2)`,
/// `PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
/// `disabled`, the first of the flags.
const DISABLED: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Opens an event of this process's first thread, to be held as long as breakpoints are to be immediate.
///
/// # Errors
/// Returns the error of `perf_event_open`, for example if the kernel has no perf events or a filter forbids them.
pub(crate) fn ready() -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: PERF_COUNT_SW_DUMMY,
        flags: DISABLED,
        ..Attributes::default()
    };
    let first_thread = std::process::id() as libc::pid_t;
    let (any_cpu, no_group) = (-1, -1);
    // SAFETY: the kernel reads `size` bytes of the attributes, which are alive, and touches no other memory of this
    // process.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            first_thread,
            any_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_event_is_held_and_goes_with_its_descriptor() {
        assert_eq!(size_of::<Attributes>(), 64, "PERF_ATTR_SIZE_VER0");
        let held = ready().expect("an event");
        let path = format!("/proc/self/fd/{}", held.as_raw_fd());
        let kind = std::fs::read_link(&path).expect("the descriptor");
        assert_eq!(kind.to_str(), Some("anon_inode:[perf_event]"));
    }
}
