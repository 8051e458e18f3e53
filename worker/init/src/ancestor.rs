//! Creates a userfaultfd for a waiting CRIU, by which a pager gets the memory of the processes that CRIU restores,
//! without CRIU's cooperation. Also creates a time namespace for these processes, whose clocks can be set until CRIU
//! restores them.
//!
//! Both belong to the calling process, so CRIU is made to issue the system calls while it is stopped:
//!
//! ```text
//! init                         CRIU, waiting for its order
//!   │── stop ───────────────────>│
//!   │── a new userfaultfd, mmap,  │   in its place, by ptrace; init copies the descriptor before it is closed
//!   │   close, unshare ──────────>│
//!   │── go on ──────────────────>│   it waits as before
//! ```
//!
//! The system call `userfaultfd` requires the host's root, and CRIU is only the sandbox's root. `/dev/userfaultfd`
//! creates one for anyone who may open it.
//!
//! With that page registered, whoever reads the descriptor gets another one from the kernel for each process that CRIU
//! forks.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::criu::USERFAULT_FD;
use crate::in_place::{self, Caller, with_bytes};

const PAGE: u64 = 4096;
/// `USERFAULTFD_IOC_NEW`.
const NEW_USERFAULT: u64 = 0xaa00;

/// A process's userfaultfd, and a page of the process for the owner of the userfaultfd.
#[derive(Debug)]
pub struct Ancestor {
    /// Fresh: its version has not been negotiated.
    pub userfault: OwnedFd,
    /// Address of a page that is mapped in the process for this purpose only.
    pub page: u64,
}

/// Creates both in our child `pid`. The child must be waiting in a restartable system call, or be about to. Afterwards
/// it waits as before.
///
/// # Errors
/// If the kernel refuses a step. `EBADF` if the child was given no device, `EBUSY` if it does not wait, and `ENOSYS` on
/// a processor whose system calls are not known here.
pub fn of(pid: i32) -> Result<Ancestor, Errno> {
    in_place::of(pid, |call| make(Pid::from_raw(pid), call))
}

fn make(pid: Pid, call: Caller<'_>) -> Result<Ancestor, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let device = USERFAULT_FD as u64;
    let fd = call((libc::SYS_ioctl, [device, NEW_USERFAULT, flags, 0, 0, 0]))?;
    let userfault = copy(pid, fd);
    // Restored processes must not inherit either.
    call((libc::SYS_close, [fd, 0, 0, 0, 0, 0]))?;
    call((libc::SYS_close, [device, 0, 0, 0, 0, 0]))?;
    call((libc::SYS_unshare, [libc::CLONE_NEWTIME as u64, 0, 0, 0, 0, 0]))?;
    let userfault = userfault?;
    let (readable, own) = (libc::PROT_READ as u64, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64);
    let page = call((libc::SYS_mmap, [0, PAGE, readable, own, u64::MAX, 0]))?;
    Ok(Ancestor { userfault, page })
}

/// Creates a fresh userfaultfd for a process that CRIU has restored and holds, and that is still the sandbox's root.
/// The process opens `device`, which is ours, by our number of it. Nothing is left open in the process.
///
/// # Errors
/// As for [`of`].
pub fn userfault_of(pid: i32, device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/1/fd/{}", device.as_raw_fd());
    in_place::of(pid, |call| {
        with_bytes(pid, call, path.as_bytes(), |call, path| {
            let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
            let opened = call((libc::SYS_openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0]))?;
            let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
            let made = call((libc::SYS_ioctl, [opened, NEW_USERFAULT, flags, 0, 0, 0])).and_then(|fd| {
                let userfault = copy(Pid::from_raw(pid), fd);
                call((libc::SYS_close, [fd, 0, 0, 0, 0, 0]))?;
                userfault
            });
            call((libc::SYS_close, [opened, 0, 0, 0, 0, 0]))?;
            made
        })
    })
}

/// Another process's descriptor `fd`, as our own.
#[expect(
    unsafe_code,
    reason = "pidfd_getfd has no safe wrapper; takes ownership of what it makes"
)]
fn copy(pid: Pid, fd: u64) -> Result<OwnedFd, Errno> {
    let made = |result: libc::c_long| {
        // SAFETY: the preceding call created this descriptor for this function only.
        Errno::result(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    // SAFETY: takes a number and returns a new descriptor, or -1.
    let process = made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    let process = std::os::fd::AsRawFd::as_raw_fd(&process);
    // SAFETY: as above.
    made(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) })
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
        // Once it answers, it has loaded its libraries.
        waits.stdin.as_ref().unwrap().write_all(b".").unwrap();
        waits.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let had = descriptors();
        let ancestor = of(pid).unwrap();
        assert_eq!(
            descriptors(),
            had - 1,
            "the device is gone, and nothing is left in the process"
        );
        assert_eq!(of(pid).unwrap_err(), Errno::EBADF);
        let link = std::fs::read_link(format!("/proc/self/fd/{}", ancestor.userfault.as_raw_fd())).unwrap();
        assert!(link.to_string_lossy().contains("userfaultfd"), "{}", link.display());
        assert!(of_cat("maps").contains(&format!("{:x}-", ancestor.page)));
        assert!(of_cat("status").contains("TracerPid:\t0"));
        // It still reads what it was about to read.
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
