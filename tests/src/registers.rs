//! All registers of a process's threads, read from outside: the general ones, and the processor's extended state.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// `NT_PRSTATUS`.
const GENERAL: usize = 1;
/// `NT_X86_XSTATE`.
const EXTENDED: usize = 0x202;
/// Room for AVX-512 and more.
const BYTES_MAX: usize = 16 << 10;
/// Where the extended state says which of its parts are in use. One that is not reads as what it is at first.
const PARTS_IN_USE: std::ops::Range<usize> = 512..528;

/// The registers of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registers {
    /// The general ones, as the kernel's `user_regs_struct`.
    pub general: Vec<u8>,
    /// The others, in XSAVE's layout.
    pub extended: Vec<u8>,
}

/// The registers of each thread of process `pid` (an id of the host), by the thread's id inside. No thread may run
/// meanwhile, but for a system call.
///
/// # Panics
/// If a thread ends.
pub fn of(pid: i32) -> BTreeMap<i32, Registers> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let task = task.unwrap();
            let status = fs::read_to_string(task.path().join("status")).unwrap();
            let ids = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap();
            let inner = ids.split_whitespace().next_back().unwrap().parse().unwrap();
            let id = Pid::from_raw(task.file_name().to_str().unwrap().parse().unwrap());
            ptrace::seize(id, Options::empty()).unwrap();
            ptrace::interrupt(id).unwrap();
            waitpid(id, Some(nix::sys::wait::WaitPidFlag::__WALL)).unwrap();
            let general = read(id, GENERAL);
            let mut extended = read(id, EXTENDED);
            extended[PARTS_IN_USE].fill(0);
            ptrace::detach(id, None).unwrap();
            (inner, Registers { general, extended })
        })
        .collect()
}

#[allow(unsafe_code, reason = "the library reads only the sets that it knows")]
fn read(thread: Pid, set: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; BYTES_MAX];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel writes at most the vector's length into the buffer, which outlives the call.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, thread.as_raw(), set, &raw mut part) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    bytes.truncate(part.iov_len);
    bytes
}
