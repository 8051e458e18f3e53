//! A userfaultfd of a CRIU that waits, by which a pager gets the memory of what CRIU restores without a word of CRIU's.
//!
//! A userfaultfd belongs to the memory of the process that makes it, so CRIU is made to call the kernel while it stands still:
//!
//! ```text
//! init                         CRIU, waiting for its order
//!   │── stop ───────────────────>│
//!   │── userfaultfd, mmap, close >│   in its place, by ptrace; init has copied the descriptor before the last
//!   │── go on ──────────────────>│   it waits as before
//! ```
//!
//! With that page registered, the kernel hands whoever reads the descriptor another one for each process that CRIU forks.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PAGE: u64 = 4096;
/// How often it is looked whether the process waits, which does so in a moment, and the pause between.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_micros(200);

/// A process's userfaultfd, and a page of it for whoever has that.
#[derive(Debug)]
pub struct Ancestor {
    /// Fresh: its version has not been agreed on.
    pub userfault: OwnedFd,
    /// The address of a page that is mapped in the process for nothing else.
    pub page: u64,
}

/// Makes one of our child `pid`, which waits in a system call that can be made again, or soon will; it goes on waiting.
///
/// # Errors
/// When the kernel refuses a part; `EBUSY` when it does not wait; `ENOSYS` on a processor whose calls are not known here.
pub fn of(pid: i32) -> Result<Ancestor, Errno> {
    let pid = Pid::from_raw(pid);
    let mut looks = 0;
    loop {
        looks += 1;
        match attempt(pid) {
            // Longer each time, so that it comes to run on a busy host.
            Err(Errno::EBUSY) if looks < LOOKS => std::thread::sleep(PAUSE * looks),
            other => return other,
        }
    }
}

fn attempt(pid: Pid) -> Result<Ancestor, Errno> {
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
    let made = interrupted(pid).and_then(|()| calls::in_place(pid, |call| make(pid, call)));
    let released = ptrace::detach(pid, None);
    let made = made?;
    released.map(|()| made)
}

/// Waits until it stands still.
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
type Call = (libc::c_long, [u64; 6]);

fn make(pid: Pid, mut call: impl FnMut(Call) -> Result<u64, Errno>) -> Result<Ancestor, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let fd = call((libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]))?;
    let userfault = copy(pid, fd);
    // Whom CRIU restores inherits nothing of it.
    call((libc::SYS_close, [fd, 0, 0, 0, 0, 0]))?;
    let userfault = userfault?;
    let (readable, own) = (libc::PROT_READ as u64, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64);
    let page = call((libc::SYS_mmap, [0, PAGE, readable, own, u64::MAX, 0]))?;
    Ok(Ancestor { userfault, page })
}

/// Another process's descriptor `fd`, as our own.
#[expect(
    unsafe_code,
    reason = "pidfd_getfd has no safe wrapper; takes ownership of what it makes"
)]
fn copy(pid: Pid, fd: u64) -> Result<OwnedFd, Errno> {
    let made = |result: libc::c_long| {
        // SAFETY: the call before made this descriptor for this function alone.
        Errno::result(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    // SAFETY: takes a number and gives a new descriptor, or -1.
    let process = made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    let process = std::os::fd::AsRawFd::as_raw_fd(&process);
    // SAFETY: as before.
    made(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) })
}

#[cfg(target_arch = "x86_64")]
mod calls {
    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::sys::wait::WaitStatus;
    use nix::unistd::Pid;

    use super::{Call, stop};

    /// The instruction that calls the kernel.
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// What a call that is to be made again answers inside the kernel: `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`.
    const AGAIN: std::ops::RangeInclusive<i64> = -514..=-512;

    /// Has `pid`, which stands still in a system call, make others that `work` asks for; then it is as it was, and makes its own anew.
    pub(super) fn in_place<T>(
        pid: Pid,
        work: impl FnOnce(&mut dyn FnMut(Call) -> Result<u64, Errno>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let before = ptrace::getregs(pid)?;
        let instruction = before.rip.wrapping_sub(SYSCALL.len() as u64);
        // Nothing is mapped where it has not begun to run.
        let word = ptrace::read(pid, instruction as ptrace::AddressType).map_err(|_| Errno::EBUSY)?;
        let waits = before.orig_rax.cast_signed() >= 0 && AGAIN.contains(&before.rax.cast_signed());
        if !waits || word.to_le_bytes()[..2] != SYSCALL {
            return Err(Errno::EBUSY);
        }
        let mut call = |(number, arguments): Call| {
            let mut regs = before;
            regs.rip = instruction;
            regs.rax = number as u64;
            // It is in no call any more that the kernel would make again.
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
        let mut again = before;
        (again.rip, again.rax, again.orig_rax) = (instruction, before.orig_rax, u64::MAX);
        ptrace::setregs(pid, again)?;
        done
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod calls {
    use nix::errno::Errno;
    use nix::unistd::Pid;

    use super::Call;

    pub(super) fn in_place<T>(
        _: Pid,
        _: impl FnOnce(&mut dyn FnMut(Call) -> Result<u64, Errno>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        Err(Errno::ENOSYS)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_waits_makes_one_and_waits_on() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: root is needed");
            return;
        }
        let mut waits = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = waits.id() as i32;
        let of_cat = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
        let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // Perhaps before it runs `cat` at all.
        let first = of(pid).unwrap();
        let had = descriptors();
        let ancestor = of(pid).unwrap();
        drop(first);
        assert_eq!(descriptors(), had, "nothing is left in the process");
        let link = std::fs::read_link(format!("/proc/self/fd/{}", ancestor.userfault.as_raw_fd())).unwrap();
        assert!(link.to_string_lossy().contains("userfaultfd"), "{}", link.display());
        assert!(of_cat("maps").contains(&format!("{:x}-", ancestor.page)));
        assert!(of_cat("status").contains("TracerPid:\t0"));
        // What it was about to read it still reads.
        waits.stdin.take().unwrap().write_all(b"on").unwrap();
        let mut said = String::new();
        waits.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "on");
        assert!(waits.wait().unwrap().success());
    }

    #[test]
    fn one_that_is_gone_is_said_to_be() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(of(child.id() as i32).unwrap_err(), Errno::ESRCH);
    }
}
