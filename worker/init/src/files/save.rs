//! Packs the folders into an archive.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use rustix::fs::{OFlags, ResolveFlags, fgetxattr, flistxattr, flistxattr_query, openat2};
use serde::{Deserialize, Serialize};
use tar::{Builder, EntryType, Header};

use super::numbers::{RESERVED, gaps};
use super::records::{Attribute, Records, USER};
use super::{SAVED, WHITEOUT, WRITTEN};

/// Maximum depth of directories. Each is open while its contents are visited.
const DEPTH_MAX: usize = 128;
/// The kernel's limits in bytes on the list of a file's extended attributes, and on an attribute's value.
const ATTRIBUTES_MAX: usize = 64 * 1024;

/// Flags that open no symbolic link, do not wait for the other end of a pipe, and do not change the access time.
const CAREFUL: OFlag = OFlag::O_CLOEXEC
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOATIME);
/// Resolves from a mount's root, through no link and into no other mount.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Figures about an archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Number of inode numbers that a restore skips so that files get theirs back.
    pub skipped: u64,
    /// Number of folders whose inode numbers are too far apart. Their files get other numbers.
    pub unreached: u64,
}

/// A file with all its names.
struct FoundFile {
    names: Vec<PathBuf>,
    stat: FileStat,
}

/// Writes an archive of the folders below `root` to `out`. Symbolic links are stored as such. Nothing may change
/// meanwhile.
///
/// # Errors
/// If a file cannot be read or `out` cannot be written. The error names the file.
pub fn save(root: &Path, out: OwnedFd) -> io::Result<Saved> {
    let mut archive = Builder::new(BufWriter::new(File::from(out)));
    let mut saved = Saved::default();
    for directory in SAVED {
        let folder = match open(&root.join(directory), CAREFUL | OFlag::O_DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) if directory == WRITTEN => continue,
            opened => opened?,
        };
        let own = fstat(&folder)?;
        describe(&mut archive, &own, Vec::new())?;
        archive.append_data(&mut header(EntryType::Directory, &own), directory, io::empty())?;
        let mut tree = Tree::default();
        tree.walk(folder.try_clone()?, Path::new(""), 0)?;
        let mut files = tree.files;
        // In the order in which a restore creates them.
        files.sort_unstable_by_key(|found| found.stat.st_ino);
        let before = if directory == WRITTEN { RESERVED } else { own.st_ino };
        match gaps(files.iter().map(|found| found.stat.st_ino), before) {
            Some(skipped) => saved.skipped += skipped,
            None => saved.unreached += 1,
        }
        let mut names: Vec<(PathBuf, PathBuf)> = Vec::new();
        for FoundFile { names: all, stat } in files {
            let Some((first, others)) = all.split_first() else {
                continue;
            };
            append(&mut archive, &folder, Path::new(directory), first, &stat).map_err(|e| named(first, e))?;
            names.extend(others.iter().map(|other| (other.clone(), first.clone())));
        }
        // By then, every file and directory that these names refer to exists.
        for (other, first) in names {
            let (other, first) = (Path::new(directory).join(other), Path::new(directory).join(first));
            archive.append_link(&mut empty(EntryType::Link), &other, &first)?;
        }
    }
    archive.into_inner()?.flush()?;
    Ok(saved)
}

fn named(name: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", name.display()))
}

/// The contents of a folder.
#[derive(Default)]
struct Tree {
    files: Vec<FoundFile>,
    /// Indices in `files` of the files with several names, by inode.
    linked: HashMap<u64, usize>,
}

impl Tree {
    fn walk(&mut self, from: OwnedFd, name: &Path, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!(
                "{} is nested in more than {DEPTH_MAX} directories",
                name.display()
            )));
        }
        let mut directory = Dir::from_fd(from)?;
        let entries = directory.iter().map(|e| e.map(|e| e.file_name().to_owned()));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        for entry in entries.iter().filter(|e| !matches!(e.to_bytes(), b"." | b"..")) {
            let name = name.join(OsStr::from_bytes(entry.to_bytes()));
            let entry: &CStr = entry;
            let stat = fstatat(&directory, entry, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    let opened = openat(&directory, entry, CAREFUL | OFlag::O_DIRECTORY, Mode::empty())?;
                    self.add(name.clone(), stat);
                    self.walk(opened, &name, depth + 1)?;
                }
                libc::S_IFREG | libc::S_IFLNK | libc::S_IFIFO => self.add(name, stat),
                libc::S_IFCHR if stat.st_rdev == WHITEOUT => self.add(name, stat),
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, name: PathBuf, stat: FileStat) {
        let may_be_known = stat.st_nlink > 1 && stat.st_mode & libc::S_IFMT != libc::S_IFDIR;
        if may_be_known {
            let at = *self.linked.entry(stat.st_ino).or_insert(self.files.len());
            if let Some(found) = self.files.get_mut(at) {
                return found.names.push(name);
            }
        }
        self.files.push(FoundFile {
            names: vec![name],
            stat,
        });
    }
}

/// Appends the file at `name` in `folder`, which is `directory` in the archive.
fn append(
    archive: &mut Builder<impl Write>,
    folder: &OwnedFd,
    directory: &Path,
    name: &Path,
    stat: &FileStat,
) -> io::Result<()> {
    let opened = |flags: OFlags| -> io::Result<OwnedFd> {
        let careful = OFlags::from_bits_retain(CAREFUL.bits().cast_unsigned());
        Ok(openat2(
            folder,
            name,
            flags | careful,
            rustix::fs::Mode::empty(),
            WITHIN,
        )?)
    };
    let in_archive = directory.join(name);
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => {
            let mut file = File::from(opened(OFlags::RDONLY)?);
            describe(archive, stat, attributes(&file)?)?;
            archive.append_file(&in_archive, &mut file)
        }
        libc::S_IFDIR => {
            describe(archive, stat, attributes(&opened(OFlags::DIRECTORY)?)?)?;
            archive.append_data(&mut header(EntryType::Directory, stat), &in_archive, io::empty())
        }
        libc::S_IFLNK => {
            let above = match name.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                Some(parent) => openat2(
                    folder,
                    parent,
                    OFlags::PATH | OFlags::CLOEXEC,
                    rustix::fs::Mode::empty(),
                    WITHIN,
                )?,
                None => folder.try_clone()?,
            };
            let target = readlinkat(&above, name.file_name().unwrap_or_default())?;
            describe(archive, stat, Vec::new())?;
            archive.append_link(&mut header(EntryType::Symlink, stat), &in_archive, target)
        }
        kind => {
            let kind = match kind {
                libc::S_IFCHR => EntryType::Char,
                _ => EntryType::Fifo,
            };
            describe(archive, stat, Vec::new())?;
            let mut header = header(kind, stat);
            if kind == EntryType::Char {
                header.set_device_major(0)?;
                header.set_device_minor(0)?;
            }
            archive.append_data(&mut header, &in_archive, io::empty())
        }
    }
}

/// Writes into the archive what the next entry's header has no room for.
fn describe(archive: &mut Builder<impl Write>, stat: &FileStat, attributes: Vec<Attribute>) -> io::Result<()> {
    let records = Records::of(stat, attributes).encode();
    archive.append_pax_extensions(records.iter().map(|(key, value)| (key.as_ref(), value.as_bytes())))
}

/// A file's extended attributes that the function has set.
fn attributes(file: &impl AsFd) -> io::Result<Vec<Attribute>> {
    match flistxattr_query(file) {
        // None, or a file system without attributes.
        Ok(0) | Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    let mut list = vec![0_u8; ATTRIBUTES_MAX];
    let length = flistxattr(file, list.as_mut_slice())?;
    let mut found = Vec::new();
    let mut value = vec![0_u8; ATTRIBUTES_MAX];
    for name in list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(USER.as_bytes()))
    {
        let name = str::from_utf8(name).map_err(|_| io::Error::other("an extended attribute's name is not UTF-8"))?;
        let length = fgetxattr(file, name, value.as_mut_slice())?;
        found.push((name.to_owned(), value[..length].to_vec()));
    }
    Ok(found)
}

fn empty(kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header
}

fn header(kind: EntryType, found: &FileStat) -> Header {
    let mut header = empty(kind);
    header.set_mode(found.st_mode & 0o7777);
    header.set_uid(found.st_uid.into());
    header.set_gid(found.st_gid.into());
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    header
}
