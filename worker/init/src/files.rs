//! The private files of a sandbox that belong to a snapshot: `/tmp` and `/dev/shm`, as one tar. Done here and not by the
//! worker, since a path inside a sandbox is safe to follow only from inside. Sockets and pipes are left out: CRIU makes
//! them again from the processes that hold them.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// What is saved, relative to `/`.
pub const SAVED: [&str; 2] = ["tmp", "dev/shm"];

/// Writes the archive to `out`. Symbolic links are stored as such.
///
/// # Errors
/// When a file cannot be read or `out` cannot be written.
pub fn save(out: OwnedFd) -> io::Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(File::from(out)));
    archive.follow_symlinks(false);
    for directory in SAVED {
        append(
            &mut archive,
            Path::new("/").join(directory).as_path(),
            Path::new(directory),
        )?;
    }
    archive.into_inner()?.flush()
}

fn append<W: Write>(archive: &mut tar::Builder<W>, from: &Path, name: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            continue;
        }
        archive.append_path_with_name(&path, &name)?;
        if kind.is_dir() {
            append(archive, &path, &name)?;
        }
    }
    Ok(())
}

/// Unpacks an archive made by [`save`].
///
/// # Errors
/// When it is malformed, names a place outside, or does not fit.
pub fn load(from: OwnedFd) -> io::Result<()> {
    let mut archive = tar::Archive::new(BufReader::new(File::from(from)));
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if !SAVED.iter().any(|directory| path.starts_with(directory)) {
            return Err(io::Error::other(format!(
                "archive names {}, which is no private file",
                path.display()
            )));
        }
        if !entry.unpack_in("/")? {
            return Err(io::Error::other(format!(
                "archive entry {} leads outside",
                path.display()
            )));
        }
    }
    Ok(())
}
