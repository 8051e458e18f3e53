//! What the filter tells of.

#![expect(
    unsafe_code,
    reason = "the kernel's requests for a filter's messages take its own structures"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Calls that are let go without a pause.
const AT_ONCE: usize = 16;
/// No call was told of.
const NONE: i32 = -1;
/// One was, which has not been read yet.
const UNKNOWN: i32 = i32::MAX;

/// The end of a filter that is told of calls. Whoever is told must let them go on, or the process waits forever.
#[derive(Debug)]
pub struct ToldCalls {
    descriptor: OwnedFd,
    /// The first call, `UNKNOWN` until it is read, or `NONE`.
    first: AtomicI32,
    /// Held by whoever lets calls go, or keeps them back.
    held: Mutex<()>,
}

impl AsFd for ToldCalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl std::os::fd::AsRawFd for ToldCalls {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// Whether a filter has something to tell.
fn is_waiting(descriptor: BorrowedFd<'_>) -> io::Result<PollFlags> {
    let mut asked = [PollFd::new(descriptor, PollFlags::POLLIN)];
    while let Err(e) = poll(&mut asked, PollTimeout::ZERO) {
        if e != Errno::EINTR {
            return Err(e.into());
        }
    }
    Ok(asked[0].revents().unwrap_or(PollFlags::empty()))
}

/// What waits after calls were let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing, or what is held back.
    Nothing,
    /// Maybe more: whoever asks should let others have their turn first.
    More,
    /// Nothing any more: the process has ended.
    Ended,
}

impl ToldCalls {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            first: AtomicI32::new(NONE),
            held: Mutex::new(()),
        }
    }

    /// The first call that it was told of, also if that still waits.
    pub(crate) fn first(&self) -> io::Result<Option<i32>> {
        // What waits is made known before it is taken from there.
        let waits = is_waiting(self.descriptor.as_fd())?.contains(PollFlags::POLLIN);
        let first = Some(self.first.load(Ordering::Acquire)).filter(|call| *call != NONE);
        Ok(first.or(waits.then_some(UNKNOWN)))
    }

    /// Holds calls back as long as the result lives: none goes on meanwhile.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets calls go on that wait here, unless they are held back. Does not block.
    ///
    /// # Errors
    /// Returns an error when the kernel does not let it.
    pub fn let_go(&self) -> io::Result<Waiting> {
        let Ok(_held) = self.held.try_lock() else {
            return Ok(Waiting::Nothing);
        };
        for _ in 0..AT_ONCE {
            let waiting = is_waiting(self.descriptor.as_fd())?;
            if !waiting.contains(PollFlags::POLLIN) {
                return Ok(match waiting.contains(PollFlags::POLLHUP) {
                    true => Waiting::Ended,
                    false => Waiting::Nothing,
                });
            }
            // Before the call can go on, or be given up, which would leave nothing to see here.
            let _ = self
                .first
                .compare_exchange(NONE, UNKNOWN, Ordering::AcqRel, Ordering::Acquire);
            // SAFETY: a plain structure of numbers, which must be zero.
            let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            match self.request(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut told) {
                // Given up meanwhile.
                Err(Errno::ENOENT | Errno::EINTR) => continue,
                received => received?,
            }
            let number = told.data.nr;
            let _ = self
                .first
                .compare_exchange(UNKNOWN, number, Ordering::AcqRel, Ordering::Acquire);
            let mut answer = libc::seccomp_notif_resp {
                id: told.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            };
            match self.request(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) {
                Err(Errno::ENOENT | Errno::EINPROGRESS) => continue,
                sent => sent?,
            }
        }
        Ok(Waiting::More)
    }

    fn request<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the structure is the one that the request takes, and lives as long as the call.
        Errno::result(unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, &raw mut *argument) }).map(drop)
    }
}
