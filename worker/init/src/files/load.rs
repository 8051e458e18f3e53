//! Unpacks an archive into the folders.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::mkfifo;
use rustix::fs::{XattrFlags, lsetxattr};
use tar::{Entry, EntryType};

use super::numbers::Numbers;
use super::records::{Records, USER};
use super::{SAVED, WHITEOUT, WRITTEN};

/// Prefix of the name under which an entry waits in a folder until its directory exists. A number follows.
const WAITING: &str = ".rekindle-waits-";

/// Maximum number of additional names. More do not fit into the folders, where each counts as an inode.
const LINKS_MAX: usize = 1 << 17;

/// Result of unpacking an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of files whose inode number has changed.
    pub renumbered: u64,
    /// Times of directories. Creating files in a directory changes them.
    times: Vec<(PathBuf, [TimeSpec; 2])>,
}

impl Loaded {
    /// Sets the times of directories again, after CRIU has bound sockets and created unnamed files in them.
    ///
    /// # Errors
    /// If a directory no longer exists.
    pub fn settle(&self) -> io::Result<()> {
        self.times.iter().try_for_each(|(at, times)| set_times(at, *times))
    }
}

/// Unpacks an archive made by [`save`](super::save()) below `root`, where nothing else writes meanwhile. All files
/// belong to the user and group `owner`, whatever the archive says. So a set-id bit grants nothing that a function
/// lacks. Besides, both folders are mounted without such bits and without devices.
///
/// # Errors
/// If the archive is malformed, names a place outside, or does not fit.
pub fn load(root: &Path, from: OwnedFd, owner: u32) -> io::Result<Loaded> {
    let mut archive = tar::Archive::new(BufReader::new(File::from(from)));
    archive.set_overwrite(false);
    archive.set_preserve_mtime(false);
    archive.set_unpack_xattrs(false);
    let mut loading = FileLoader {
        root,
        owner,
        directories: SAVED.into_iter().map(PathBuf::from).collect(),
        numbers: None,
        waiting: Vec::new(),
        links: Vec::new(),
        loaded: Loaded::default(),
    };
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        loading.entry(&name, &mut entry).map_err(|e| named(&name, &e))?;
    }
    loading.end()
}

fn named(name: &Path, e: &io::Error) -> io::Error {
    let why = match e.kind() {
        io::ErrorKind::AlreadyExists => "is there already".to_owned(),
        _ => e.to_string(),
    };
    io::Error::new(e.kind(), format!("archive entry {}: {why}", name.display()))
}

struct FileLoader<'a> {
    root: &'a Path,
    owner: u32,
    /// Names of existing directories: the folders, and those created.
    directories: HashSet<PathBuf>,
    /// Inode numbers of the folder being filled.
    numbers: Option<(&'static str, Numbers)>,
    /// Names of entries that wait in their folder until their directory exists, and their paths until then.
    waiting: Vec<(PathBuf, PathBuf)>,
    /// Additional names, each with the first name of the same file.
    links: Vec<(PathBuf, PathBuf)>,
    loaded: Loaded,
}

impl FileLoader<'_> {
    fn entry(&mut self, name: &Path, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let folder = folder_of(name)?;
        let kind = entry.header().entry_type();
        if kind == EntryType::Link {
            let first = entry.link_name()?.unwrap_or_default().into_owned();
            if folder_of(&first)? != folder {
                return Err(io::Error::other("is a link to another folder"));
            }
            if self.links.len() == LINKS_MAX {
                return Err(io::Error::other("is one link more than a folder takes"));
            }
            self.links.push((name.to_owned(), first));
            return Ok(());
        }
        let records = Records::read(entry)?;
        if name == Path::new(folder) && kind == EntryType::Directory {
            // The platform has already created it.
            self.loaded.times.push((self.root.join(name), times(entry, &records)?));
            return Ok(());
        }
        let at = if self.has_parent(name) {
            self.root.join(name)
        } else {
            let at = self.root.join(folder).join(format!("{WAITING}{}", self.waiting.len()));
            self.waiting.push((name.to_owned(), at.clone()));
            at
        };
        match records.inode {
            Some(inode) => {
                let numbers = self.numbers(folder)?;
                numbers.reach(inode)?;
                make(entry, kind, folder, &at)?;
                let is_kept = numbers.given(fs::symlink_metadata(&at)?.ino(), inode);
                self.loaded.renumbered += u64::from(!is_kept);
            }
            None => make(entry, kind, folder, &at)?,
        }
        lchown(&at, Some(self.owner), Some(self.owner))?;
        if kind != EntryType::Symlink {
            // After the owner, because a change of owner makes the kernel clear bits.
            fs::set_permissions(&at, Permissions::from_mode(entry.header().mode()? & 0o7777))?;
        }
        for (name, value) in &records.attributes {
            if !name.starts_with(USER) {
                return Err(io::Error::other(format!(
                    "has the attribute {name}, which is never saved"
                )));
            }
            lsetxattr(&at, name, value, XattrFlags::CREATE)?;
        }
        let times = times(entry, &records)?;
        if kind == EntryType::Directory {
            self.loaded.times.push((self.root.join(name), times));
            if at == self.root.join(name) {
                self.directories.insert(name.to_owned());
            }
            return Ok(());
        }
        set_times(&at, times)
    }

    /// Whether the parent directory exists, with no link on the way to it.
    fn has_parent(&self, name: &Path) -> bool {
        name.parent().is_some_and(|parent| self.directories.contains(parent))
    }

    fn numbers(&mut self, folder: &'static str) -> io::Result<&mut Numbers> {
        let known = self.numbers.take().filter(|(of, _)| *of == folder);
        let (_, numbers) = self.numbers.insert(match known {
            Some(known) => known,
            None if folder == WRITTEN => (folder, Numbers::of_written(&self.root.join(folder))?),
            None => (folder, Numbers::of(&self.root.join(folder))?),
        });
        Ok(numbers)
    }

    /// Moves waiting entries to their places.
    fn end(mut self) -> io::Result<Loaded> {
        // A directory before its contents.
        self.waiting.sort_unstable();
        for (name, at) in std::mem::take(&mut self.waiting) {
            self.is_to_be_placed(&name)
                .and_then(|()| {
                    let to = self.root.join(&name);
                    Ok(renameat2(AT_FDCWD, &at, AT_FDCWD, &to, RenameFlags::RENAME_NOREPLACE)?)
                })
                .map_err(|e| named(&name, &e))?;
            if fs::symlink_metadata(self.root.join(&name))?.is_dir() {
                self.directories.insert(name);
            }
        }
        for (name, first) in &self.links {
            self.is_to_be_placed(name)
                .and_then(|()| self.is_to_be_placed(first))
                .and_then(|()| fs::hard_link(self.root.join(first), self.root.join(name)))
                .map_err(|e| named(name, &e))?;
        }
        self.loaded.settle()?;
        Ok(self.loaded)
    }

    fn is_to_be_placed(&self, name: &Path) -> io::Result<()> {
        match self.has_parent(name) {
            true => Ok(()),
            false => Err(io::Error::other("lies in no directory of the archive")),
        }
    }
}

fn make(entry: &mut Entry<'_, impl Read>, kind: EntryType, folder: &str, at: &Path) -> io::Result<()> {
    match kind {
        EntryType::Regular | EntryType::GNUSparse => entry.unpack(at).map(drop),
        EntryType::Directory => fs::create_dir(at),
        EntryType::Symlink => symlink(entry.link_name()?.unwrap_or_default(), at),
        EntryType::Fifo => Ok(mkfifo(at, Mode::empty())?),
        // The only device that needs no right.
        EntryType::Char if folder == WRITTEN => Ok(mknod(at, SFlag::S_IFCHR, Mode::empty(), WHITEOUT)?),
        other => Err(io::Error::other(format!(
            "is of a kind that is never saved ({other:?})"
        ))),
    }
}

fn times(entry: &Entry<'_, impl Read>, records: &Records) -> io::Result<[TimeSpec; 2]> {
    let modified = match records.modified {
        Some(modified) => modified,
        None => TimeSpec::new(entry.header().mtime()?.try_into().unwrap_or(i64::MAX), 0),
    };
    Ok([records.accessed.unwrap_or(modified), modified])
}

fn set_times(at: &Path, [accessed, modified]: [TimeSpec; 2]) -> io::Result<()> {
    Ok(utimensat(
        AT_FDCWD,
        at,
        &accessed,
        &modified,
        UtimensatFlags::NoFollowSymlink,
    )?)
}

/// The folder that an entry of this name is in.
fn folder_of(name: &Path) -> io::Result<&'static str> {
    let inside = SAVED.iter().find_map(|d| Some((*d, name.strip_prefix(d).ok()?)));
    let (directory, rest) = inside.ok_or_else(|| io::Error::other("is no private file"))?;
    let plain = |c: Component<'_>| matches!(c, Component::Normal(_));
    match rest.components().all(plain) {
        true => Ok(directory),
        false => Err(io::Error::other("leads outside")),
    }
}
