//! System calls in the place of another process: of CRIU, or of a process that CRIU has restored and holds. The process
//! is stopped by ptrace while it waits in a call, issues other calls, and then waits as before.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PAGE: u64 = 4096;
/// Number of checks whether the process waits, which it will do in a moment, and the pause between them.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_micros(200);

/// Makes our child `pid` issue the system calls that `work` requests. The child must be waiting in a restartable system
/// call, or be about to. Afterwards it waits as before.
///
/// # Errors
/// Errors of `work`, or the kernel refuses a step. `EBUSY` if the child does not wait, and `ENOSYS` on a processor
/// whose system calls are not known here.
pub(crate) fn of<T>(pid: i32, mut work: impl FnMut(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    let pid = Pid::from_raw(pid);
    let mut looks = 0;
    loop {
        looks += 1;
        ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
        let done = interrupted(pid).and_then(|()| calls::in_place(pid, &mut work));
        let released = ptrace::detach(pid, None);
        match done {
            // Longer each time, so that the process gets to run on a busy host.
            Err(Errno::EBUSY) if looks < LOOKS => std::thread::sleep(PAUSE * looks),
            done => return done.and_then(|done| released.map(|()| done)),
        }
    }
}

/// Makes a process that has just been forked, and that its tracer sees stopped before its first instruction, issue the
/// system calls that `work` requests. It then begins as if nothing had been.
///
/// # Errors
/// Errors of `work`, or the kernel refuses a step. `ENOSYS` on a processor whose system calls are not known here.
pub(crate) fn at_birth<T>(pid: Pid, work: impl FnOnce(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    calls::at_birth(pid, work)
}

/// Waits until it is stopped.
fn interrupted(pid: Pid) -> Result<(), Errno> {
    ptrace::interrupt(pid)?;
    match stop(pid)? {
        WaitStatus::PtraceEvent(..) => Ok(()),
        _ => Err(Errno::EBUSY),
    }
}

fn stop(pid: Pid) -> Result<WaitStatus, Errno> {
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Err(Errno::ESRCH),
            other => return other,
        }
    }
}

/// A system call's number and its arguments.
pub(crate) type Call = (libc::c_long, [u64; 6]);
/// Makes the process issue a call, and returns the kernel's result.
pub(crate) type Caller<'a> = &'a mut dyn FnMut(Call) -> Result<u64, Errno>;

/// Places `bytes` at the start of a page in the memory of the process, which issues calls through `call`. `work` gets
/// the page's address.
///
/// # Errors
/// Errors of `work`, or the kernel refuses a step.
pub(crate) fn with_bytes<T>(
    pid: i32,
    call: Caller<'_>,
    bytes: &[u8],
    work: impl FnOnce(Caller<'_>, u64) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let own = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let page = call((libc::SYS_mmap, [0, PAGE, rights, own, u64::MAX, 0]))?;
    let words = (page..).step_by(size_of::<i64>()).zip(bytes.chunks(size_of::<i64>()));
    let written = words.into_iter().try_for_each(|(at, bytes)| {
        let mut word = [0; size_of::<i64>()];
        word[..bytes.len()].copy_from_slice(bytes);
        ptrace::write(Pid::from_raw(pid), at as ptrace::AddressType, i64::from_le_bytes(word))
    });
    let done = written.and_then(|()| work(&mut *call, page));
    call((libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0]))?;
    done
}

#[cfg(target_arch = "x86_64")]
mod calls {
    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::sys::wait::WaitStatus;
    use nix::unistd::Pid;

    use super::{Call, Caller, stop};

    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// Internal results of a call that the kernel will restart: `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`.
    const AGAIN: std::ops::RangeInclusive<i64> = -514..=-512;

    /// Makes `pid`, which is stopped in a system call, issue others that `work` requests. Then its registers are
    /// restored, and it restarts its own call.
    pub(super) fn in_place<T>(pid: Pid, work: impl FnOnce(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let before = ptrace::getregs(pid)?;
        let instruction = before.rip.wrapping_sub(SYSCALL.len() as u64);
        // Nothing is mapped there if the process has not begun to run.
        let word = ptrace::read(pid, instruction as ptrace::AddressType).map_err(|_| Errno::EBUSY)?;
        let waits = before.orig_rax.cast_signed() >= 0 && AGAIN.contains(&before.rax.cast_signed());
        if !waits || word.to_le_bytes()[..2] != SYSCALL {
            return Err(Errno::EBUSY);
        }
        let mut again = before;
        (again.rip, again.rax, again.orig_rax) = (instruction, before.orig_rax, u64::MAX);
        issue(pid, before, again, work)
    }

    /// The same for a process that has just been forked, and has issued nothing.
    pub(super) fn at_birth<T>(pid: Pid, work: impl FnOnce(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let before = ptrace::getregs(pid)?;
        let mut again = before;
        again.orig_rax = u64::MAX;
        issue(pid, before, again, work)
    }

    /// Issues the calls by the instruction before that at which `pid` stands. It goes on with the registers `again`.
    fn issue<T>(
        pid: Pid,
        before: libc::user_regs_struct,
        again: libc::user_regs_struct,
        work: impl FnOnce(Caller<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let instruction = before.rip.wrapping_sub(SYSCALL.len() as u64);
        let mut call = |(number, arguments): Call| {
            let mut regs = before;
            regs.rip = instruction;
            regs.rax = number as u64;
            // It is no longer in a call that the kernel would restart.
            regs.orig_rax = u64::MAX;
            [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = arguments;
            ptrace::setregs(pid, regs)?;
            // Into the call, and to its end.
            for _ in 0..2 {
                ptrace::syscall(pid, None)?;
                if !matches!(stop(pid)?, WaitStatus::PtraceSyscall(_)) {
                    return Err(Errno::EINTR);
                }
            }
            let answer = ptrace::getregs(pid)?.rax;
            match answer.cast_signed() {
                error @ -4095..0 => Err(Errno::from_raw(-error as i32)),
                _ => Ok(answer),
            }
        };
        let done = work(&mut call);
        ptrace::setregs(pid, again)?;
        done
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod calls {
    use nix::errno::Errno;
    use nix::unistd::Pid;

    use super::Caller;

    pub(super) fn in_place<T>(_: Pid, _: impl FnOnce(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn at_birth<T>(_: Pid, _: impl FnOnce(Caller<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        Err(Errno::ENOSYS)
    }
}
