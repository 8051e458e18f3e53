//! All registers of a process's threads, read from outside: the general ones, and the processor's extended state.

use std::collections::BTreeMap;

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::host;

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
    /// What the kernel has of memory of the thread: where its restartable sequences are, and its robust futexes.
    pub registered: Registered,
}

/// Addresses that a thread has given to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registered {
    /// Of its restartable sequences; 0 for none.
    pub rseq: u64,
    rseq_bytes: u32,
    rseq_signature: u32,
    rseq_flags: u32,
    padding: u32,
    /// Of its list of robust futexes; 0 for none.
    robust: u64,
    robust_bytes: u64,
}

/// The registers of each thread of process `pid` (an id of the host), by the thread's id inside. No thread may run
/// meanwhile, but for a system call.
///
/// # Panics
/// If a thread ends.
pub fn of(pid: i32) -> BTreeMap<i32, Registers> {
    let threads = host::threads(pid).into_iter();
    threads
        .map(|thread| {
            let inner = host::inner_pid(thread).unwrap();
            let id = Pid::from_raw(thread);
            ptrace::seize(id, Options::empty()).unwrap();
            ptrace::interrupt(id).unwrap();
            waitpid(id, Some(nix::sys::wait::WaitPidFlag::__WALL)).unwrap();
            let general = read(id, GENERAL);
            let mut extended = read(id, EXTENDED);
            extended[PARTS_IN_USE].fill(0);
            let registered = registered(id);
            ptrace::detach(id, None).unwrap();
            let registers = Registers {
                general,
                extended,
                registered,
            };
            (inner, registers)
        })
        .collect()
}

/// Where the registers of two processes' threads differ, each difference on a line.
///
/// # Panics
/// If they have not the same threads.
pub fn compare(one: &BTreeMap<i32, Registers>, other: &BTreeMap<i32, Registers>) -> Vec<String> {
    assert!(one.keys().eq(other.keys()), "{one:?} {other:?}");
    let mut differences = Vec::new();
    for ((thread, ours), theirs) in one.iter().zip(other.values()) {
        for (what, a, b) in [
            ("general", &ours.general, &theirs.general),
            ("extended", &ours.extended, &theirs.extended),
        ] {
            if a != b {
                differences.push(format!("thread {thread}, {what}: {:?}", host::difference(a, b)));
            }
        }
        if ours.registered != theirs.registered {
            differences.push(format!(
                "thread {thread}: {:?}, {:?}",
                ours.registered, theirs.registered
            ));
        }
    }
    differences
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

#[allow(unsafe_code, reason = "the libraries do not have it")]
fn registered(thread: Pid) -> Registered {
    const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
    const RSEQ_BYTES: usize = 24;
    let mut told = Registered::default();
    // SAFETY: the kernel writes at most so many bytes, which the value begins with.
    let result = unsafe { libc::ptrace(GET_RSEQ_CONFIGURATION, thread.as_raw(), RSEQ_BYTES, &raw mut told) };
    assert!(result > 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel writes to two numbers of 8 bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            thread.as_raw(),
            &raw mut told.robust,
            &raw mut told.robust_bytes,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    told
}
