//! A userfaultfd of a CRIU that waits, by which a pager gets the memory of what CRIU restores without a word of CRIU's; and a time namespace
//! for what it restores, whose clocks can be set until it does.
//!
//! Both belong to the process that makes them, so CRIU is made to call the kernel while it stands still:
//!
//! ```text
//! init                         CRIU, waiting for its order
//!   │── stop ───────────────────>│
//!   │── a new userfaultfd, mmap,  │   in its place, by ptrace; init copies the descriptor before it is closed
//!   │   close, unshare ──────────>│
//!   │── go on ──────────────────>│   it waits as before
//! ```
//!
//! The call of this name is the host's root's, and CRIU is the sandbox's: `/dev/userfaultfd` makes one for whoever may open it.
//!
//! With that page registered, the kernel hands whoever reads the descriptor another one for each process that CRIU forks.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::criu::USERFAULT_FD;

const PAGE: u64 = 4096;
/// `USERFAULTFD_IOC_NEW`.
const NEW_USERFAULT: u64 = 0xaa00;
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
/// When the kernel refuses a part; `EBADF` where it was given no device; `EBUSY` when it does not wait; `ENOSYS` on a processor whose calls are not known here.
pub fn of(pid: i32) -> Result<Ancestor, Errno> {
    in_place_of(pid, |call| make(Pid::from_raw(pid), call))
}

/// Has our child `pid`, which waits in a system call that can be made again, or soon will, make the calls that `work` asks for; it goes on waiting.
///
/// # Errors
/// As [`of`].
pub(crate) fn in_place_of<T>(
    pid: i32,
    mut work: impl FnMut(&mut dyn FnMut(Call) -> Result<u64, Errno>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let pid = Pid::from_raw(pid);
    let mut looks = 0;
    loop {
        looks += 1;
        ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
        let done = interrupted(pid).and_then(|()| calls::in_place(pid, &mut work));
        let released = ptrace::detach(pid, None);
        match done {
            // Longer each time, so that it comes to run on a busy host.
            Err(Errno::EBUSY) if looks < LOOKS => std::thread::sleep(PAUSE * looks),
            done => return done.and_then(|done| released.map(|()| done)),
        }
    }
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
pub(crate) type Call = (libc::c_long, [u64; 6]);

fn make(pid: Pid, call: &mut dyn FnMut(Call) -> Result<u64, Errno>) -> Result<Ancestor, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let device = USERFAULT_FD as u64;
    let fd = call((libc::SYS_ioctl, [device, NEW_USERFAULT, flags, 0, 0, 0]))?;
    let userfault = copy(pid, fd);
    // Whom CRIU restores inherits nothing of them.
    call((libc::SYS_close, [fd, 0, 0, 0, 0, 0]))?;
    call((libc::SYS_close, [device, 0, 0, 0, 0, 0]))?;
    call((libc::SYS_unshare, [libc::CLONE_NEWTIME as u64, 0, 0, 0, 0, 0]))?;
    let userfault = userfault?;
    let (readable, own) = (libc::PROT_READ as u64, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64);
    let page = call((libc::SYS_mmap, [0, PAGE, readable, own, u64::MAX, 0]))?;
    Ok(Ancestor { userfault, page })
}

/// A fresh userfaultfd of a process that CRIU has restored and holds, which is the sandbox's root still. It opens `device`, which is ours, by our number of it; nothing is left
/// in it.
///
/// # Errors
/// As [`of`].
pub fn userfault_of(pid: i32, device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/1/fd/{}", device.as_raw_fd());
    in_place_of(pid, |call| {
        let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let own = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let page = call((libc::SYS_mmap, [0, PAGE, rights, own, u64::MAX, 0]))?;
        let made = (|| {
            for (at, bytes) in (page..).step_by(8).zip(path.as_bytes().chunks(8)) {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                ptrace::write(Pid::from_raw(pid), at as ptrace::AddressType, i64::from_le_bytes(word))?;
            }
            let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
            let opened = call((libc::SYS_openat, [libc::AT_FDCWD as u64, page, flags, 0, 0, 0]))?;
            let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
            let made = call((libc::SYS_ioctl, [opened, NEW_USERFAULT, flags, 0, 0, 0])).and_then(|fd| {
                let userfault = copy(Pid::from_raw(pid), fd);
                call((libc::SYS_close, [fd, 0, 0, 0, 0, 0]))?;
                userfault
            });
            call((libc::SYS_close, [opened, 0, 0, 0, 0, 0]))?;
            made
        })();
        call((libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0]))?;
        made
    })
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
        let given = format!("exec {USERFAULT_FD}<>/dev/userfaultfd; exec cat");
        let mut waits = Command::new("bash")
            .args(["-c", &given])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = waits.id() as i32;
        let of_cat = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
        let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        while of_cat("comm") != "cat\n" {
            std::thread::yield_now();
        }
        let had = descriptors();
        let ancestor = of(pid).unwrap();
        assert_eq!(descriptors(), had - 1, "the device is gone, and nothing is left in the process");
        assert_eq!(of(pid).unwrap_err(), Errno::EBADF);
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
