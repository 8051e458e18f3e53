//! The private files of a sandbox that belong to a snapshot: `/tmp` and `/dev/shm`, as one tar. Done here and not by the
//! worker, since a path inside a sandbox is safe to follow only from inside. Named pipes are kept, since CRIU opens them by
//! name; sockets are left out: CRIU makes them again from the processes that hold them.
//!
//! Neither the function's files nor an archive are trusted: saving walks by descriptor and follows no symbolic link, loading
//! writes only below the two folders, behind no symbolic link, and over nothing.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use nix::unistd::mkfifo;
use tar::{EntryType, Header};

/// What is saved, relative to `/`.
pub const SAVED: [&str; 2] = ["tmp", "dev/shm"];
/// Directories in each other at most; each is open while what is in it is saved.
const DEPTH_MAX: usize = 128;

/// Opens no symbolic link, and does not wait for the other end of a pipe.
const CAREFUL: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK);

/// Writes the archive of what is below `root` to `out`. Symbolic links are stored as such.
///
/// # Errors
/// When a file cannot be read or `out` cannot be written.
pub fn save(root: &Path, out: OwnedFd) -> io::Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(File::from(out)));
    for directory in SAVED {
        let opened = open(&root.join(directory), CAREFUL | OFlag::O_DIRECTORY, Mode::empty())?;
        append(&mut archive, opened, Path::new(directory), 0)?;
    }
    archive.into_inner()?.flush()
}

fn append<W: Write>(archive: &mut tar::Builder<W>, from: OwnedFd, name: &Path, depth: usize) -> io::Result<()> {
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
        let found = fstatat(&directory, entry, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        match found.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                let opened = openat(&directory, entry, CAREFUL | OFlag::O_RDONLY, Mode::empty())?;
                archive.append_file(&name, &mut File::from(opened))?;
            }
            libc::S_IFDIR => {
                let opened = openat(&directory, entry, CAREFUL | OFlag::O_DIRECTORY, Mode::empty())?;
                archive.append_data(&mut header(EntryType::Directory, &found), &name, io::empty())?;
                append(archive, opened, &name, depth + 1)?;
            }
            libc::S_IFLNK => {
                let target = readlinkat(&directory, entry)?;
                archive.append_link(&mut header(EntryType::Symlink, &found), &name, target)?;
            }
            libc::S_IFIFO => archive.append_data(&mut header(EntryType::Fifo, &found), &name, io::empty())?,
            _ => {}
        }
    }
    Ok(())
}

fn header(kind: EntryType, found: &FileStat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(found.st_mode & 0o7777);
    header.set_uid(found.st_uid.into());
    header.set_gid(found.st_gid.into());
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    header
}

/// Unpacks an archive made by [`save`] below `root`, which nobody else writes to meanwhile. All of it is the user's and group's `owner` then, whatever the
/// archive says: nobody else writes there. So a bit that gives the owner's rights to others gives none that a function lacks, besides which both folders are
/// mounted without such bits and without devices.
///
/// # Errors
/// When it is malformed, names a place outside, or does not fit.
pub fn load(root: &Path, from: OwnedFd, owner: u32) -> io::Result<()> {
    let mut archive = tar::Archive::new(BufReader::new(File::from(from)));
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(false);
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let to = place(root, &entry.path()?)?;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::GNUSparse | EntryType::Directory | EntryType::Symlink => {
                entry.unpack(&to)?;
            }
            EntryType::Fifo => mkfifo(&to, Mode::empty())?,
            other => return Err(refused(&to, &format!("is of a kind that is never saved ({other:?})"))),
        }
        lchown(&to, Some(owner), Some(owner))?;
        if entry.header().entry_type() != EntryType::Symlink {
            // After the owner, with whom the kernel takes bits away.
            fs::set_permissions(&to, Permissions::from_mode(entry.header().mode()? & 0o7777))?;
        }
    }
    Ok(())
}

fn refused(name: &Path, why: &str) -> io::Error {
    io::Error::other(format!("archive entry {} {why}", name.display()))
}

/// Where an entry of this name goes: below one of the folders, behind no symbolic link, and nothing may be there.
fn place(root: &Path, name: &Path) -> io::Result<PathBuf> {
    let inside = SAVED.iter().find_map(|d| Some((d, name.strip_prefix(d).ok()?)));
    let (directory, rest) = inside.ok_or_else(|| refused(name, "is no private file"))?;
    let plain = |c: Component<'_>| matches!(c, Component::Normal(_));
    if rest.as_os_str().is_empty() || !rest.components().all(plain) {
        return Err(refused(name, "leads outside"));
    }
    let to = root.join(directory).join(rest);
    let parent = to.parent().unwrap_or(root);
    if fs::canonicalize(parent)? != parent {
        return Err(refused(name, "lies behind a symbolic link"));
    }
    match fs::symlink_metadata(&to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(to),
        Err(e) => Err(e),
        Ok(_) => Err(refused(name, "is there already")),
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
