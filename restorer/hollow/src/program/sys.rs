//! System calls, without a C library.

use core::arch::asm;

/// The kernel's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) const EACCES: Errno = Errno(13);
pub(crate) const EINVAL: Errno = Errno(22);
pub(crate) const ENOEXEC: Errno = Errno(8);
pub(crate) const ENOTCONN: Errno = Errno(107);

/// The result of a call.
pub(crate) type Outcome = Result<u64, Errno>;

/// Numbers of system calls.
pub(crate) mod nr {
    pub(crate) const READ: u64 = 0;
    pub(crate) const CLOSE: u64 = 3;
    pub(crate) const LSEEK: u64 = 8;
    pub(crate) const MMAP: u64 = 9;
    pub(crate) const MPROTECT: u64 = 10;
    pub(crate) const MUNMAP: u64 = 11;
    pub(crate) const RT_SIGACTION: u64 = 13;
    pub(crate) const RT_SIGPROCMASK: u64 = 14;
    pub(crate) const IOCTL: u64 = 16;
    pub(crate) const PWRITE: u64 = 18;
    pub(crate) const MREMAP: u64 = 25;
    pub(crate) const MADVISE: u64 = 28;
    pub(crate) const SETITIMER: u64 = 38;
    pub(crate) const SENDFILE: u64 = 40;
    pub(crate) const SOCKET: u64 = 41;
    pub(crate) const CONNECT: u64 = 42;
    pub(crate) const SENDTO: u64 = 44;
    pub(crate) const RECVFROM: u64 = 45;
    pub(crate) const SENDMSG: u64 = 46;
    pub(crate) const RECVMSG: u64 = 47;
    pub(crate) const BIND: u64 = 49;
    pub(crate) const SHUTDOWN: u64 = 48;
    pub(crate) const LISTEN: u64 = 50;
    pub(crate) const SOCKETPAIR: u64 = 53;
    pub(crate) const SETSOCKOPT: u64 = 54;
    pub(crate) const WAIT4: u64 = 61;
    pub(crate) const FCNTL: u64 = 72;
    pub(crate) const FLOCK: u64 = 73;
    pub(crate) const FTRUNCATE: u64 = 77;
    pub(crate) const CHDIR: u64 = 80;
    pub(crate) const LINK: u64 = 86;
    pub(crate) const UNLINK: u64 = 87;
    pub(crate) const CHMOD: u64 = 90;
    pub(crate) const FCHMOD: u64 = 91;
    pub(crate) const UMASK: u64 = 95;
    pub(crate) const SETGROUPS: u64 = 116;
    pub(crate) const SETRESUID: u64 = 117;
    pub(crate) const SETRESGID: u64 = 119;
    pub(crate) const SETPGID: u64 = 109;
    pub(crate) const CLONE3: u64 = 435;
    pub(crate) const SETSID: u64 = 112;
    pub(crate) const SETPRIORITY: u64 = 141;
    pub(crate) const SCHED_SETSCHEDULER: u64 = 144;
    pub(crate) const CAPSET: u64 = 126;
    pub(crate) const PRCTL: u64 = 157;
    pub(crate) const ARCH_PRCTL: u64 = 158;
    pub(crate) const SETRLIMIT: u64 = 160;
    pub(crate) const RT_SIGQUEUEINFO: u64 = 129;
    pub(crate) const FUTEX: u64 = 202;
    pub(crate) const TIMER_CREATE: u64 = 222;
    pub(crate) const TIMER_SETTIME: u64 = 223;
    pub(crate) const TIMER_DELETE: u64 = 226;
    pub(crate) const SET_TID_ADDRESS: u64 = 218;
    pub(crate) const CLOCK_GETTIME: u64 = 228;
    pub(crate) const EXIT_GROUP: u64 = 231;
    pub(crate) const EPOLL_CTL: u64 = 233;
    pub(crate) const INOTIFY_ADD_WATCH: u64 = 254;
    pub(crate) const INOTIFY_INIT1: u64 = 294;
    pub(crate) const UNSHARE: u64 = 272;
    pub(crate) const SET_ROBUST_LIST: u64 = 273;
    pub(crate) const UTIMENSAT: u64 = 280;
    pub(crate) const TIMERFD_CREATE: u64 = 283;
    pub(crate) const TIMERFD_SETTIME: u64 = 286;
    pub(crate) const SIGNALFD4: u64 = 289;
    pub(crate) const ACCEPT4: u64 = 288;
    pub(crate) const EVENTFD2: u64 = 290;
    pub(crate) const EPOLL_CREATE1: u64 = 291;
    pub(crate) const DUP3: u64 = 292;
    pub(crate) const PIPE2: u64 = 293;
    pub(crate) const PREADV: u64 = 295;
    pub(crate) const RT_TGSIGQUEUEINFO: u64 = 297;
    pub(crate) const SETNS: u64 = 308;
    pub(crate) const SECCOMP: u64 = 317;
    pub(crate) const MEMFD_CREATE: u64 = 319;
    pub(crate) const MEMBARRIER: u64 = 324;
    pub(crate) const RSEQ: u64 = 334;
    pub(crate) const CLOSE_RANGE: u64 = 436;
    pub(crate) const OPENAT2: u64 = 437;
    pub(crate) const OPENAT: u64 = 257;
    pub(crate) const WRITE: u64 = 1;
}

/// Issues a system call with six arguments.
///
/// # Safety
/// The kernel does as it is told: what the call does to memory must be what the caller wants.
pub(crate) unsafe fn call6(number: u64, arguments: [u64; 6]) -> Outcome {
    let [a, b, c, d, e, f] = arguments;
    let result: i64;
    // SAFETY: the registers are those of the kernel's convention; the caller answers for the call.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    match result {
        -4095..0 => Err(Errno(-result as i32)),
        _ => Ok(result as u64),
    }
}

/// Like [`call6`], with the arguments given and zeros for the rest.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let given: &[u64] = &[$($argument as u64),*];
        let mut arguments = [0u64; 6];
        let mut at = 0;
        while at < given.len() {
            arguments[at] = given[at];
            at += 1;
        }
        // SAFETY: what the call does is what the place of use is there for.
        unsafe { $crate::sys::call6($number, arguments) }
    }};
}
pub(crate) use call;

/// Ends the process.
pub(crate) fn exit(code: i32) -> ! {
    loop {
        let _ = call!(nr::EXIT_GROUP, code);
    }
}

/// Copies bytes. The compiler calls these four by name.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: as the caller's.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack))
    };
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: as the caller's.
    unsafe { asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8, options(nostack)) };
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: as the caller's.
        let (a, b) = unsafe { (*a.add(at), *b.add(at)) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}
