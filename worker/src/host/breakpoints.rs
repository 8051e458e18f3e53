//! Breakpoints at once. CRIU stops what it restores, and what it has dumped, at a hardware breakpoint, which is an event of the kernel's perf subsystem. The
//! first event of any task on a host switches the scheduler's perf hooks on and waits until all processors know (`synchronize_rcu`, 5 to 22 ms); a second
//! after the last one has gone they are off again. An event that is held, and counts nothing, keeps them on: so a start on a host where nothing restored is
//! running does not wait for it.

#![expect(
    unsafe_code,
    reason = "perf_event_open has no safe wrapper; it takes a structure of numbers"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `perf_event_attr` in its first published form, which all kernels take (`perf_event_open(2)`, `PERF_ATTR_SIZE_VER0`).
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
/// An event that never happens.
const PERF_COUNT_SW_DUMMY: u64 = 9;
/// `disabled`, the first of the flags.
const DISABLED: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// An event of this process's first thread, to be held as long as breakpoints are to be at once.
///
/// # Errors
/// What `perf_event_open` says, as where the kernel has no perf events or a filter forbids them.
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
    // SAFETY: the kernel reads `size` bytes of the attributes, which live, and touches no memory of ours.
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
    // SAFETY: it was just opened, and nobody else has it.
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
