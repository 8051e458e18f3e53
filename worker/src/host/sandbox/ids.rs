//! The host's user and group ids of sandboxes. Each sandbox has a range of its own. Workers of one host divide the
//! ranges in blocks, by locks on files. The ids of a range mean nothing beyond the sandbox's life.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_init::protocol::IDS;
use rustix::fs::{FlockOperation, flock};

pub(super) const LOCKS: &str = "/run/rekindle-ids";
/// The ids that systemd reserves for containers, except the first, with which others begin.
const FIRST: u32 = 0x1000_0000;
const BLOCK: u32 = 1 << 26;
const BLOCKS: u32 = 24;

/// Why there are no ids.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// A lock cannot be taken.
    #[error("lock {}", .0.display())]
    Lock(PathBuf, #[source] io::Error),
    /// All ranges are taken.
    #[error("all {} ranges of user ids are taken, by this worker or by others on this host", BLOCKS * (BLOCK / IDS))]
    None,
}

/// A range of ids, returned on drop.
#[derive(Debug)]
pub(super) struct IdRange {
    first: u32,
    all: Arc<Ids>,
}

impl IdRange {
    /// Returns the host's id of id 0 inside.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the host's id of `id` inside.
    pub(super) fn of(&self, id: u32) -> u32 {
        self.first + id
    }
}

impl Drop for IdRange {
    fn drop(&mut self) {
        self.all.state.lock().free.push(self.first);
    }
}

#[derive(Debug)]
pub(super) struct Ids {
    locks: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Locks held as long as the worker lives.
    blocks: Vec<File>,
    /// The first ids of free ranges.
    free: Vec<u32>,
}

impl Ids {
    /// Creates it with locks in this directory.
    pub(super) fn new(locks: &Path) -> Arc<Self> {
        Arc::new(Self {
            locks: locks.to_owned(),
            state: Mutex::default(),
        })
    }

    /// Takes a range.
    ///
    /// # Errors
    /// See [`IdsError`].
    pub(super) fn take(self: &Arc<Self>) -> Result<IdRange, IdsError> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            let (block, lock) = self.claim()?;
            state.blocks.push(lock);
            let first = FIRST + block * BLOCK;
            state.free = (0..BLOCK / IDS).rev().map(|range| first + range * IDS).collect();
        }
        let first = state.free.pop().ok_or(IdsError::None)?;
        let all = Arc::clone(self);
        Ok(IdRange { first, all })
    }

    /// Claims a block that nobody has.
    fn claim(&self) -> Result<(u32, File), IdsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |e| IdsError::Lock(path, e)
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.locks);
        made.map_err(failed(&self.locks))?;
        for block in 0..BLOCKS {
            let path = self.locks.join(block.to_string());
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(failed(&path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok((block, file)),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(IdsError::Lock(path, e.into())),
            }
        }
        Err(IdsError::None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn two_workers_have_no_id_in_common_and_what_is_given_back_is_had_again() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Ids::new(dir.path()), Ids::new(dir.path()));
        let ranges: Vec<_> = (0..1500).map(|_| one.take().unwrap()).collect();
        let others: Vec<_> = (0..10).map(|_| other.take().unwrap()).collect();
        let firsts: HashSet<u32> = ranges.iter().chain(&others).map(IdRange::first).collect();
        assert_eq!(firsts.len(), 1510);
        assert!(firsts.iter().all(|first| first % IDS == 0 && *first >= FIRST));
        let given_back = ranges[7].first();
        drop(ranges);
        let again: Vec<_> = (0..1500).map(|_| one.take().unwrap()).collect();
        assert!(again.iter().any(|range| range.first() == given_back));
        assert!(others[0].of(1000) > others[0].first());
    }

    #[test]
    fn blocks_end() {
        let dir = tempfile::tempdir().unwrap();
        let all: Vec<_> = (0..BLOCKS).map(|_| Ids::new(dir.path())).collect();
        let taken: Vec<_> = all.iter().map(|ids| ids.take().unwrap()).collect();
        assert!(u64::from(taken.iter().map(IdRange::first).max().unwrap()) + u64::from(BLOCK) <= 0x7000_0000);
        assert!(matches!(Ids::new(dir.path()).take(), Err(IdsError::None)));
    }
}
