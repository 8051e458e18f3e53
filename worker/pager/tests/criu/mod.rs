//! CRIU's part, played by a test in its own process: mappings, their userfaultfd, and the words on the socket.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use rekindle_pager::handshake::FINISHED;
use rekindle_pager::userfault::Userfault;
use rekindle_pager::{AheadPage, LostPage, PAGE, Pager, PagerConfig};

/// For everything that is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Whether there is a userfaultfd; says so if not.
pub(crate) fn is_possible() -> bool {
    if Userfault::create().is_ok() {
        return true;
    }
    assert!(
        std::env::var_os("REKINDLE_REQUIRE_ALL").is_none(),
        "userfaultfd is needed"
    );
    println!("skipped: no userfaultfd without root");
    false
}

/// A template's file, sparse.
pub(crate) fn template() -> File {
    // SAFETY: a new descriptor, owned by nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"template".as_ptr(), 0)) });
    file.set_len(1 << 40).unwrap();
    file
}

/// A new mapping, at a page where nothing may be; answers its first page.
pub(crate) fn map(at: u64, pages: u64, flags: i32, fd: i32) -> u64 {
    map_from(at, pages, flags, fd, 0)
}

/// The same, of a file from its byte `offset` on.
pub(crate) fn map_from(at: u64, pages: u64, flags: i32, fd: i32, offset: i64) -> u64 {
    let (address, length) = ((at * PAGE) as *mut _, (pages * PAGE) as usize);
    // SAFETY: a new mapping, in nobody's way: at an address of the kernel's choice, or within a range this test has
    // made.
    let mapped = unsafe { libc::mmap(address, length, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as u64 / PAGE
}

/// A userfaultfd as CRIU makes it.
pub(crate) fn userfaultfd() -> Userfault {
    let userfault = Userfault::create().unwrap();
    userfault.agree_on_events().unwrap();
    userfault
}

/// A child of this process that does this and ends with what it answers, or with the test that made it. Not by the C
/// library's fork, which holds the allocator's locks while the kernel waits for the pager, which is in this process
/// here.
pub(crate) fn fork(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child only makes system calls, looks at memory, and ends.
    match unsafe { libc::syscall(libc::SYS_fork) as libc::pid_t } {
        0 => {
            // SAFETY: only a setting.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let status = work();
            // SAFETY: the end.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

/// Ends the test: no page may be lost.
pub(crate) fn abort(lost: LostPage) {
    eprintln!("lost: {lost}");
    std::process::abort();
}

/// Starts the pager, hands it the userfaultfd of process `pid`, and fills `ahead`.
pub(crate) fn serve(
    config: impl FnOnce(UnixListener) -> PagerConfig,
    pid: i32,
    userfault: &Userfault,
    ahead: &[AheadPage],
) -> Pager {
    let dir = std::env::temp_dir().join(format!(
        "rekindle-pager-{}-{}",
        std::process::id(),
        userfault.as_fd().as_raw_fd()
    ));
    let _ = std::fs::remove_file(&dir);
    let listener = UnixListener::bind(&dir).unwrap();
    let pager = Pager::start(config(listener)).unwrap();
    let mut criu = UnixStream::connect(&dir).unwrap();
    std::fs::remove_file(&dir).unwrap();
    criu.write_all(&pid.to_ne_bytes()).unwrap();
    let fds = [userfault.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    let byte = [IoSlice::new(b"x")];
    sendmsg::<UnixAddr>(criu.as_raw_fd(), &byte, &rights, MsgFlags::empty(), None).unwrap();
    pager
        .prepare(Vec::new(), Arc::from(ahead))
        .unwrap()
        .done(LIMIT)
        .unwrap();
    criu.write_all(&FINISHED.to_ne_bytes()).unwrap();
    pager
}
