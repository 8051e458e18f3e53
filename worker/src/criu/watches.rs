//! What processes watch (inotify) on a container image's root. It is an overlay, whose files cannot be opened by their
//! handles, and the kernel tells no more of a watch than handle and inode number. So paths are looked up by inode
//! number, and given to CRIU. A copy watches what is at the same path.
//!
//! ```text
//! CRIU starts, processes run ─> look ahead ─> processes stop ─> confirm, look for the rest ─> CRIU dumps
//! ```

mod listed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rekindle_criu::images::{KNOWN_PATHS, KnownPath, known_paths};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

use self::listed::{Watch, in_kernel, watches};
pub(super) use self::listed::{of_kernel, watcher_of};
use crate::host::own_mounts::root_device;
use crate::host::sandbox::InnerProc;

/// Why what is watched cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The processes cannot be looked at.
    #[error("look at what the processes watch")]
    Look(#[source] io::Error),
    /// The paths cannot be given to CRIU.
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// A file has no path any more, or too many others come before it.
    #[error(
        "{process} watches by descriptor {descriptor} (inotify) a file or directory of the image's root that has no \
         path any more, or is not found among {} files in {} ms: end the watch before the snapshot, or turn off what \
         reloads files that change",
        STOPPED.entries,
        STOPPED.time.as_millis()
    )]
    NoPath {
        /// The process, by id and name.
        process: String,
        /// The inotify.
        descriptor: u32,
    },
}

/// How far files are looked for.
struct Bounds {
    /// Names of files that are read.
    entries: usize,
    /// It ends with the directory that is being read then.
    time: Duration,
}

/// As the kernel has it.
const PATH_MAX: usize = 4096;
/// Bytes of the paths of directories that are still to be read. A function could have millions of long ones.
const LEFT_BYTES: usize = 32 << 20;

/// While the processes run.
const AHEAD: Bounds = Bounds {
    entries: 2_000_000,
    time: Duration::from_secs(5),
};
/// While they are stopped.
const STOPPED: Bounds = Bounds {
    entries: 200_000,
    time: Duration::from_millis(500),
};

/// Files by inode number.
type Paths = BTreeMap<u64, PathBuf>;

/// Paths of what is watched on the root, found while the processes run.
#[derive(Debug, Default)]
pub(super) struct WatchedPaths(Paths);

impl WatchedPaths {
    /// Looks while the processes below `init` run. What it misses is looked for again. Blocks.
    pub(super) fn look_ahead(init: Pid) -> Self {
        let found = Root::of(init).and_then(|root| match root {
            Some(root) => Ok(root.find(&root.watched(init)?, &AHEAD)),
            None => Ok(Paths::new()),
        });
        Self(found.unwrap_or_default())
    }

    /// Finds the paths of all that is watched on the root, and leaves them for CRIU in the directory of its images. The
    /// processes must be stopped. Blocks.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub(super) fn give(self, init: Pid, dir: &Path) -> Result<(), WatchError> {
        let Some(root) = Root::of(init).map_err(WatchError::Look)? else {
            return Ok(());
        };
        let watched = root.watched(init).map_err(WatchError::Look)?;
        let paths = root.confirm(self.0, &watched);
        if let Some(lost) = watched.iter().find(|watch| !paths.contains_key(&watch.inode)) {
            let proc = InnerProc::of(init).map_err(WatchError::Look)?;
            return Err(WatchError::NoPath {
                process: proc.named(lost.pid.cast_unsigned()),
                descriptor: lost.descriptor,
            });
        }
        if paths.is_empty() {
            return Ok(());
        }
        let known: Vec<_> = paths
            .into_iter()
            .map(|(inode, path)| KnownPath {
                device: root.device,
                inode,
                path: from_root(path),
            })
            .collect();
        let file = dir.join(KNOWN_PATHS);
        fs::write(&file, known_paths(&known)).map_err(|e| WatchError::Write(file, e))
    }
}

/// Returns a path from the root. CRIU, which strips the first character, has `/.` for the root itself.
fn from_root(path: PathBuf) -> Vec<u8> {
    let relative = match path.as_os_str().is_empty() {
        true => b".".to_vec(),
        false => path.into_os_string().into_vec(),
    };
    [b"/".as_slice(), &relative].concat()
}

/// A container image's root. Its paths are relative.
struct Root {
    directory: OwnedFd,
    /// Its device number, in the kernel's form.
    device: u32,
}

impl Root {
    /// Opens the root of the sandbox with this init. `None` if it is none of an image.
    fn of(init: Pid) -> io::Result<Option<Self>> {
        let Some(device) = root_device(init)? else {
            return Ok(None);
        };
        let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, format!("/proc/{init}/root"), look, Mode::empty())?;
        Ok(Some(Self {
            directory,
            device: in_kernel(device),
        }))
    }

    fn watched(&self, init: Pid) -> io::Result<Vec<Watch>> {
        let mut all = watches(&InnerProc::of(init)?)?;
        all.retain(|watch| watch.device == self.device);
        Ok(all)
    }

    /// Returns the paths of what is watched: known ones that still lead there, and others.
    fn confirm(&self, mut known: Paths, watched: &[Watch]) -> Paths {
        let inodes: BTreeSet<u64> = watched.iter().map(|watch| watch.inode).collect();
        known.retain(|inode, path| inodes.contains(inode) && self.has(path, *inode));
        let rest: Vec<_> = watched
            .iter()
            .filter(|watch| !known.contains_key(&watch.inode))
            .cloned()
            .collect();
        known.extend(self.find(&rest, &STOPPED));
        known
    }

    /// Looks for files by their inode numbers, those near the root first.
    fn find(&self, watched: &[Watch], bounds: &Bounds) -> Paths {
        let mut wanted: BTreeSet<u64> = watched.iter().map(|watch| watch.inode).collect();
        let mut found = Paths::new();
        let (until, mut left) = (Instant::now() + bounds.time, bounds.entries);
        let itself = PathBuf::new();
        if let Some(inode) = self.inode(&itself).filter(|inode| wanted.remove(inode)) {
            found.insert(inode, itself.clone());
        }
        let (mut directories, mut bytes) = (VecDeque::from([itself]), 0);
        while let Some(directory) = directories.pop_front() {
            bytes -= directory.as_os_str().len();
            if wanted.is_empty() || Instant::now() > until {
                break;
            }
            let opened = self.open(&directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK);
            // One that is gone, or is another mount's.
            let Ok(listed) = opened.and_then(|opened| Ok(Dir::read_from(opened)?)) else {
                continue;
            };
            for entry in listed.flatten() {
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                if left == 0 {
                    return found;
                }
                left -= 1;
                let path = || directory.join(std::ffi::OsString::from_vec(name.to_vec()));
                if wanted.contains(&entry.ino()) && self.has(&path(), entry.ino()) {
                    wanted.remove(&entry.ino());
                    found.insert(entry.ino(), path());
                }
                if entry.file_type() != FileType::Directory {
                    continue;
                }
                let path = path();
                let length = path.as_os_str().len();
                if length < PATH_MAX && bytes + length <= LEFT_BYTES {
                    bytes += length;
                    directories.push_back(path);
                }
            }
        }
        found
    }

    /// Returns whether the file with this inode number is at a path.
    fn has(&self, path: &Path, inode: u64) -> bool {
        self.inode(path) == Some(inode)
    }

    /// Returns the inode number of the file at a path, if it is one of the root.
    fn inode(&self, path: &Path) -> Option<u64> {
        let about = fstat(self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?).ok()?;
        (in_kernel(about.st_dev) == self.device).then_some(about.st_ino)
    }

    /// Opens a path on this mount, through no link.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        const PLAIN: ResolveFlags = ResolveFlags::BENEATH
            .union(ResolveFlags::NO_SYMLINKS)
            .union(ResolveFlags::NO_XDEV);
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        Ok(openat2(
            &self.directory,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            PLAIN,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn root(directory: &Path) -> Root {
        let about = fs::metadata(directory).unwrap();
        Root {
            directory: fs::File::open(directory).unwrap().into(),
            device: in_kernel(about.dev()),
        }
    }

    fn watch(inode: u64) -> Watch {
        Watch {
            pid: 501,
            descriptor: 3,
            device: 0,
            inode,
        }
    }

    #[test]
    fn watched_files_are_found_by_their_inode_numbers_within_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("etc/deep");
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("conf"), "").unwrap();
        std::os::unix::fs::symlink(&inside, directory.path().join("link")).unwrap();
        let inode = |path: &str| fs::metadata(directory.path().join(path)).unwrap().ino();
        let (own, deep, conf) = (inode("."), inode("etc/deep"), inode("etc/deep/conf"));
        let watched = [watch(own), watch(deep), watch(conf), watch(deep)];
        let root = root(directory.path());
        let found = root.find(&watched, &STOPPED);
        let expected = [(own, ""), (deep, "etc/deep"), (conf, "etc/deep/conf")];
        assert_eq!(found, expected.map(|(inode, path)| (inode, path.into())).into());
        let few = Bounds {
            entries: 2,
            time: Duration::from_secs(9),
        };
        assert!(!root.find(&watched, &few).contains_key(&conf));
        // What was renamed meanwhile is found anew, and what is not watched any more is forgotten.
        fs::rename(inside.join("conf"), directory.path().join("moved")).unwrap();
        let confirmed = root.confirm(found, &watched[2..]);
        let expected = [(deep, "etc/deep"), (conf, "moved")];
        assert_eq!(confirmed, expected.map(|(inode, path)| (inode, path.into())).into());
        fs::remove_file(directory.path().join("moved")).unwrap();
        assert!(root.confirm(confirmed, &watched[2..3]).is_empty());
        assert_eq!(from_root(PathBuf::new()), b"/.");
        assert_eq!(from_root("etc/deep".into()), b"/etc/deep");
    }
}
