//! Checks that each path CRIU will open as root at every restore leads to the file that the function has. The
//! comparison runs while the function is stopped.
//!
//! The images contain the paths. The kernel shows, through `/proc`, which files the processes really have: open,
//! mapped, as directories and as their program. A path that now leads to another file, or through a symbolic link,
//! would give each copy what its original never had.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use rekindle_verify::{OpenedPath, Process, Purpose, Verified, shown_process};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2, stat};

use crate::host::sandbox::InnerProc;

/// CRIU's flags for file mappings: private, shared.
const FILE_MAPPING: u32 = 1 << 6 | 1 << 7;
/// Inspects a file without reading it, and a link itself rather than its target.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Resolves from the sandbox's root and through no link of any kind.
const PLAIN: ResolveFlags = ResolveFlags::IN_ROOT
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Why a copy would have another file than its original.
#[derive(Debug, thiserror::Error)]
pub enum OtherFileError {
    /// The path leads to another file.
    #[error(
        "{} no longer leads to the file that process {pid} has {held}: a copy would have another one; leave the paths \
         of open files alone, or set snapshot = false in fn.toml",
        shown(.path)
    )]
    Elsewhere {
        /// The path.
        path: Vec<u8>,
        /// The process's id in its pid namespace.
        pid: u32,
        /// How the process holds the file.
        held: FileUse,
    },
    /// The path leads nowhere, or through a symbolic link.
    #[error("{}, which process {pid} has {held}, cannot be reached without following a link", shown(.path))]
    Path {
        /// The path.
        path: Vec<u8>,
        /// The process's id in its pid namespace.
        pid: u32,
        /// How the process holds the file.
        held: FileUse,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The process's file cannot be inspected.
    #[error("look at what process {pid} has {held}")]
    Process {
        /// The process's id in its pid namespace.
        pid: u32,
        /// How the process holds the file.
        held: FileUse,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The directory of a file that CRIU would create or bind cannot be reached.
    #[error("the directory of {} cannot be reached without following a link", shown(.path))]
    Directory {
        /// The path.
        path: Vec<u8>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The sandbox's root cannot be opened.
    #[error("open {}", .0.display())]
    Root(PathBuf, #[source] io::Error),
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// How a process holds a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileUse {
    /// Open, with this descriptor number.
    Open(u32),
    /// Mapped, in this range of addresses.
    Mapped(u64, u64),
    /// As its working directory.
    WorkingDirectory,
    /// As its root.
    Root,
    /// As its program.
    Program,
    /// Watched, through this descriptor.
    Watched(u32),
}

impl fmt::Display for FileUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(fd) => write!(f, "open as descriptor {fd}"),
            Self::Mapped(start, end) => write!(f, "mapped at {start:x}-{end:x}"),
            Self::WorkingDirectory => f.write_str("as its working directory"),
            Self::Root => f.write_str("as its root"),
            Self::Program => f.write_str("as its program"),
            Self::Watched(fd) => write!(f, "under watch by descriptor {fd}"),
        }
    }
}

/// What identifies a file, apart from its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    kind: FileType,
    mode: u32,
    owner: (u32, u32),
    /// Size of a regular file, in bytes.
    size: Option<i64>,
}

impl From<Stat> for Identity {
    fn from(stat: Stat) -> Self {
        let kind = FileType::from_raw_mode(stat.st_mode);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            kind,
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            size: (kind == FileType::RegularFile).then_some(stat.st_size),
        }
    }
}

/// A stopped function and the contents of its images.
struct FileComparison<'a> {
    /// The proc of its pid namespace, as seen from the worker.
    proc: PathBuf,
    root: OwnedFd,
    verified: &'a Verified,
    /// Replacements for files that had no name any more: the entry of another name, or `None` if no file exists.
    remaps: BTreeMap<u32, Option<u32>>,
    /// What now lies at the paths of files, by file id.
    found: BTreeMap<u32, Identity>,
}

/// Compares every path that `verified` makes CRIU open with the files of the processes below `init`, a process id of
/// the host. Blocks for some microseconds a file. The processes must stay stopped meanwhile.
///
/// # Errors
/// Returns the first difference.
pub fn compare(init: Pid, verified: &Verified) -> Result<(), OtherFileError> {
    let root = PathBuf::from(format!("/proc/{init}/root"));
    let opened = open(&root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let proc = InnerProc::of(init).map_err(|e| OtherFileError::Root(root.join("proc"), e))?;
    let mut look = FileComparison {
        proc: proc.path(),
        root: opened.map_err(|e| OtherFileError::Root(root, e.into()))?,
        verified,
        remaps: verified.remaps.iter().map(|r| (r.orig_id, r.link())).collect(),
        found: BTreeMap::new(),
    };
    for process in &verified.processes {
        look.process(process)?;
    }
    // CRIU creates these files under their names instead of opening them. Their directories must be reachable without a
    // link.
    let made = |path: &&OpenedPath| matches!(path.purpose, Purpose::Ghost | Purpose::Socket | Purpose::Link);
    for path in verified.opened_paths().filter(made) {
        let parent = Path::new(OsStr::from_bytes(&path.path))
            .parent()
            .unwrap_or(Path::new("/"));
        look.at(parent).map_err(|source| OtherFileError::Directory {
            path: path.path.clone(),
            source,
        })?;
    }
    Ok(())
}

impl FileComparison<'_> {
    fn process(&mut self, process: &Process) -> Result<(), OtherFileError> {
        let Process {
            tree,
            memory,
            directories,
            descriptors,
            ..
        } = process;
        let (pid, own) = (tree.pid, self.proc.join(tree.pid.to_string()));
        for (fd, descriptor) in &**descriptors {
            self.held(pid, FileUse::Open(*fd), descriptor.id, || own.join(format!("fd/{fd}")))?;
            self.watched(pid, *fd, descriptor.id)?;
        }
        if let Some(memory) = memory {
            self.held(pid, FileUse::Program, memory.exe_file_id, || own.join("exe"))?;
            for vma in memory.vmas.iter().filter(|vma| vma.status & FILE_MAPPING != 0) {
                let Ok(file) = u32::try_from(vma.shmid) else { continue };
                let mapping = || own.join(format!("map_files/{:x}-{:x}", vma.start, vma.end));
                self.held(pid, FileUse::Mapped(vma.start, vma.end), file, mapping)?;
            }
        }
        if let Some(directories) = directories {
            self.held(pid, FileUse::WorkingDirectory, directories.cwd_id, || own.join("cwd"))?;
            self.held(pid, FileUse::Root, directories.root_id, || own.join("root"))?;
        }
        Ok(())
    }

    /// Compares one file, if it has a path, with what the kernel shows at `real`.
    fn held(
        &mut self,
        pid: u32,
        held: FileUse,
        file: u32,
        real: impl FnOnce() -> PathBuf,
    ) -> Result<(), OtherFileError> {
        let of_pipe = |id: u32| self.verified.files.get(&id)?.fifo.as_ref()?.regf_id;
        let id = of_pipe(file).unwrap_or(file);
        let Some(id) = self.remaps.get(&id).copied().unwrap_or(Some(id)) else {
            return Ok(());
        };
        let entry = self.verified.files.get(&id).and_then(|entry| entry.reg.as_ref());
        let Some(entry) = entry else { return Ok(()) };
        if entry.ext.is_some() {
            // A template is found by no path. The kernel has told it apart from others.
            return Ok(());
        }
        let real = real();
        if shown_process(&entry.name) == Some(pid) {
            // The kernel forgets the inodes of `/proc`, so the same file may have another number.
            let is_same = fs::read_link(&real).is_ok_and(|path| path.as_os_str().as_bytes() == entry.name);
            return if is_same {
                Ok(())
            } else {
                Err(OtherFileError::Elsewhere {
                    path: entry.name.clone(),
                    pid,
                    held,
                })
            };
        }
        let real = stat(real).map_err(|e| OtherFileError::Process {
            pid,
            held,
            source: e.into(),
        })?;
        let found = match self.found.get(&id) {
            Some(found) => *found,
            None => {
                let found = self.at(Path::new(OsStr::from_bytes(&entry.name)));
                let found = found.map_err(|source| OtherFileError::Path {
                    path: entry.name.clone(),
                    pid,
                    held,
                    source,
                })?;
                self.found.insert(id, found);
                found
            }
        };
        let said = (
            entry.mode.is_none_or(|mode| mode == found.mode),
            entry
                .size
                .zip(found.size)
                .is_none_or(|(said, size)| said.cast_signed() == size),
        );
        match Identity::from(real) == found && said == (true, true) {
            true => Ok(()),
            false => Err(OtherFileError::Elsewhere {
                path: entry.name.clone(),
                pid,
                held,
            }),
        }
    }

    /// Checks that the file watched by this descriptor is still at its path.
    fn watched(&self, pid: u32, fd: u32, file: u32) -> Result<(), OtherFileError> {
        let watches = self.verified.files.get(&file).and_then(|entry| entry.ify.as_ref());
        for watch in watches.iter().flat_map(|watches| &watches.wd) {
            let (held, path) = (FileUse::Watched(fd), watch.f_handle.path.clone().unwrap_or_default());
            match self.at(Path::new(OsStr::from_bytes(&path))) {
                Ok(found) if found.inode == watch.i_ino => {}
                Ok(_) => return Err(OtherFileError::Elsewhere { path, pid, held }),
                Err(source) => {
                    return Err(OtherFileError::Path {
                        path,
                        pid,
                        held,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns what lies at a path inside the sandbox, reached through no link.
    fn at(&self, path: &Path) -> io::Result<Identity> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = if relative.as_os_str().is_empty() {
            Path::new(".")
        } else {
            relative
        };
        let found = openat2(&self.root, relative, LOOK, Mode::empty(), PLAIN)?;
        Ok(fstat(found)?.into())
    }
}
