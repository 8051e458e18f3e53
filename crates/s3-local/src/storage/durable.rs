//! What makes a change survive a power cut: temporary files, renames that replace or refuse to, shared directory
//! fsyncs.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use parking_lot::{Condvar, Mutex};

/// An I/O error with the path at which it happened.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}", path.display())]
pub struct IoError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl IoError {
    pub(crate) fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> IoError + 'a {
        move |source| IoError {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the cause is a lack of room.
    pub(crate) fn is_fullness(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded)
    }

    /// Whether the cause is that something does not exist.
    pub(crate) fn is_absence(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// The directory of files being written. Its owner empties it at start, so names need only be unique within one run.
#[derive(Debug)]
pub(crate) struct TempDir {
    path: PathBuf,
    next: AtomicU64,
}

impl TempDir {
    pub(crate) fn new(path: PathBuf) -> TempDir {
        TempDir {
            path,
            next: AtomicU64::new(0),
        }
    }

    /// A unique path.
    pub(crate) fn fresh_path(&self) -> PathBuf {
        self.path.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(crate) fn create(&self) -> Result<TempFile, IoError> {
        let path = self.fresh_path();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(IoError::at("create", &path))?;
        Ok(TempFile {
            file,
            path,
            placed: false,
        })
    }
}

/// A file that is unlinked on drop unless it was placed under its real name.
#[derive(Debug)]
pub(crate) struct TempFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    placed: bool,
}

impl TempFile {
    /// Renames to `target`, replacing what is there. Durable only after an fsync of the directory.
    pub(crate) fn replace(mut self, target: &Path) -> Result<(), IoError> {
        std::fs::rename(&self.path, target).map_err(IoError::at("rename to", target))?;
        self.placed = true;
        Ok(())
    }

    /// Renames to `target` if nothing is there, otherwise returns `false`. The kernel decides atomically.
    pub(crate) fn place_new(mut self, target: &Path) -> Result<bool, IoError> {
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, target, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => self.placed = true,
            Err(Errno::EEXIST) => return Ok(false),
            // File systems without the flag (NFS, some FUSE): a hard link also refuses to replace. Drop unlinks the
            // other name.
            Err(Errno::EINVAL | Errno::ENOSYS) => match std::fs::hard_link(&self.path, target) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                Err(error) => return Err(IoError::at("link to", target)(error)),
            },
            Err(errno) => return Err(IoError::at("rename to", target)(errno.into())),
        }
        Ok(true)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.placed {
            // A leftover is removed at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a directory's entries durable. Callers that wait at the same time share one fsync.
///
/// ```text
///   idle ──sync──► running(n) ──done──► idle
///                    ▲    │ callers that came meanwhile need n+1: one of them runs it for all
///                    └────┘
/// ```
#[derive(Debug)]
pub(crate) struct DirSync {
    path: PathBuf,
    dir: File,
    state: Mutex<SyncState>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Number of the fsync that was started last.
    started: u64,
    /// Number of the fsync that ended last.
    done: u64,
    running: bool,
    /// After a failed fsync the kernel forgets what it could not write, and the next one succeeds. Only a restart,
    /// which reads what is really there, makes such a directory trustworthy again.
    failed: Option<Arc<str>>,
}

impl DirSync {
    pub(crate) fn open(path: &Path) -> Result<DirSync, IoError> {
        let dir = File::open(path).map_err(IoError::at("open directory", path))?;
        Ok(DirSync {
            path: path.to_owned(),
            dir,
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// Blocks until every change made to the directory before this call is durable.
    pub(crate) fn sync(&self) -> Result<(), IoError> {
        let mut state = self.state.lock();
        // An fsync that is already running may have missed our change.
        let needed = state.started + 1;
        while state.done < needed && state.failed.is_none() {
            if state.running {
                self.finished.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let number = state.started;
            drop(state);
            let result = self.dir.sync_all();
            state = self.state.lock();
            state.running = false;
            state.done = number;
            if let Err(error) = result {
                state.failed = Some(error.to_string().into());
            }
            self.finished.notify_all();
        }
        match &state.failed {
            Some(cause) => Err(IoError::at(
                "make durable (restart the server once its disk is well)",
                &self.path,
            )(io::Error::other(cause.to_string()))),
            None => Ok(()),
        }
    }
}

/// Fsyncs a directory that is used once.
pub(crate) fn sync_dir(path: &Path) -> Result<(), IoError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(IoError::at("make durable", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_temporary_file_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let temps = TempDir::new(root.path().to_owned());
        let (one, two) = (temps.create().unwrap(), temps.create().unwrap());
        let target = root.path().join("x");
        assert!(one.place_new(&target).unwrap());
        assert!(!two.place_new(&target).unwrap());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn syncs_of_many_threads_all_return() {
        let root = tempfile::tempdir().unwrap();
        let dir = DirSync::open(root.path()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..20).for_each(|_| dir.sync().unwrap()));
            }
        });
        let state = dir.state.lock();
        assert!(!state.running && state.done == state.started && state.done <= 320);
    }
}
