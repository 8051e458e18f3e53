//! Inode numbers of a tmpfs. Since Linux 5.9 each mount counts its own, from 1 at its root, and never reuses a number.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat};

/// Maximum number of inode numbers skipped per mount. Each costs the creation of an inode, some 8 µs.
pub(super) const SKIPPED_MAX: u64 = 100_000;

/// The last number on the mount of [`WRITTEN`](super::WRITTEN) that is no function's. An overlay takes some when it is
/// mounted, of which each kernel has its own idea.
pub(super) const RESERVED: u64 = 24;

/// Uses up the numbers that are reserved, on the mount of [`WRITTEN`](super::WRITTEN), once its overlay is there.
///
/// # Errors
/// If no file can be made there.
pub fn reserve(upper: &Path) -> io::Result<()> {
    let numbers = Numbers::of(upper)?;
    for _ in 0..RESERVED {
        // A mount that does not count its own is far above from the start.
        if numbers.pass_over()?.st_ino >= RESERVED {
            break;
        }
    }
    Ok(())
}

/// The number of unused numbers between each of `numbers`, which are ascending, and the one before, starting from the
/// root's. `None` beyond [`SKIPPED_MAX`].
pub(super) fn gaps(numbers: impl IntoIterator<Item = u64>, root: u64) -> Option<u64> {
    let (mut last, mut skipped) = (root, 0_u64);
    for number in numbers {
        skipped = skipped.checked_add(number.checked_sub(last)?.checked_sub(1)?)?;
        last = number;
    }
    (skipped <= SKIPPED_MAX).then_some(skipped)
}

/// The numbers of a mount to which nothing else adds files.
pub(super) struct Numbers {
    mount: OwnedFd,
    /// The last number assigned. `None` if numbers are not known to count up.
    last: Option<u64>,
    left: u64,
}

impl Numbers {
    /// For an empty mount at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mount = open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let last = Some(fstat(&mount)?.st_ino);
        Ok(Self {
            mount,
            last,
            left: SKIPPED_MAX,
        })
    }

    /// For what the function has written at `upper`, where [`reserve`] has been called.
    pub(super) fn of_written(upper: &Path) -> io::Result<Self> {
        let last = Some(RESERVED);
        Ok(Self {
            last,
            ..Self::of(upper)?
        })
    }

    /// Makes the next created file get this number, if possible.
    pub(super) fn reach(&mut self, number: u64) -> io::Result<()> {
        let Some(last) = self.last else { return Ok(()) };
        let gap = number.saturating_sub(last).saturating_sub(1);
        if gap > self.left {
            return Ok(());
        }
        self.left -= gap;
        for expected in last + 1..=last + gap {
            let passed = self.pass_over()?;
            self.last = (passed.st_ino == expected).then_some(expected);
            if self.last.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Records the number that a file got. Returns whether it is the wanted one.
    pub(super) fn given(&mut self, number: u64, wanted: u64) -> bool {
        self.last = self.last.filter(|last| *last < number).map(|_| number);
        number == wanted
    }

    /// Creates an unnamed file and drops it.
    fn pass_over(&self) -> io::Result<FileStat> {
        let nameless = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        Ok(fstat(openat(&self.mount, ".", nameless, Mode::empty())?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_lies_between_the_root_and_the_numbers() {
        assert_eq!(gaps([], 1), Some(0));
        assert_eq!(gaps([2, 3, 4], 1), Some(0));
        assert_eq!(gaps([3, 10], 1), Some(1 + 6));
        assert_eq!(gaps([SKIPPED_MAX + 2], 1), Some(SKIPPED_MAX));
        assert_eq!(gaps([2, SKIPPED_MAX + 4], 1), None);
        // Not the numbers of a tmpfs that counts its own.
        assert_eq!(gaps([2], 1 << 40), None);
    }
}
