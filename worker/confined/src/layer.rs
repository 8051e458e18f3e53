//! Unpacks a layer's archive into an empty directory. Blocking.
//!
//! The archive is not trusted. Nothing is written outside the directory, and nothing is overwritten. Only plain kinds
//! of files are created, and no more is read than the layer's size.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::{fs, time};

use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use tar::{Archive, Entry, EntryType};

use serde::{Deserialize, Serialize};

use crate::{Cause, attributes};

/// The expected contents of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// BLAKE3 of the tar in hexadecimal.
    pub digest: String,
    /// Size of the tar in bytes.
    pub tar_bytes: u64,
}

/// Why an archive was not unpacked.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub enum UnpackError {
    /// The archive cannot be read: not zstd, not a tar, or truncated.
    #[error("archive cannot be read")]
    Read(#[source] Cause),
    /// The bytes do not match the layer's digest.
    #[error("archive is corrupt: its tar has {bytes} bytes with the digest {found}")]
    Digest {
        /// Size of the tar in bytes, at most one more than expected.
        bytes: u64,
        /// Their digest.
        found: String,
    },
    /// An entry would be written outside the directory.
    #[error("archive entry \"{0}\" leads out of the layer")]
    Escape(String),
    /// An entry that is neither a file, a directory nor a link.
    #[error("archive entry \"{entry}\" is of the kind {kind}: leave devices, pipes and sparse files out of layers")]
    Kind {
        /// Its path.
        entry: String,
        /// Its kind.
        kind: String,
    },
    /// An entry could not be written.
    #[error("could not write archive entry \"{entry}\"")]
    Write {
        /// Its path.
        entry: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
}

/// Maximum characters of an entry's name in an error.
const NAME_MAX: usize = 4096;

/// Hashes and counts what is read through it, and rejects more than a maximum of bytes.
struct HashingReader<R> {
    inner: io::Take<R>,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        self.hasher.update(&into[..n]);
        Ok(n)
    }
}

/// Unpacks the zstd-compressed tar `packed` into the empty directory `dir`. After an error, `dir` contains part of it
/// and must be removed.
///
/// # Errors
/// See [`UnpackError`].
pub fn unpack(packed: impl Read, dir: &Path, name: &Name) -> Result<(), UnpackError> {
    let plain = zstd::Decoder::new(packed).map_err(unread)?;
    let checked = HashingReader {
        inner: plain.take(name.tar_bytes.saturating_add(1)),
        hasher: blake3::Hasher::new(),
    };
    let mut archive = Archive::new(checked);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_preserve_ownerships(false);
    archive.set_overwrite(false);
    let unpacked = unpack_entries(&mut archive, dir);
    let mut checked = archive.into_inner();
    // Reads to the end, whatever follows the last entry. If an entry failed, a corrupt archive is the likelier cause.
    let drained = io::copy(&mut checked, &mut io::sink());
    let found = checked.hasher.finalize().to_hex().to_string();
    let bytes = checked.hasher.count();
    drained.map_err(unread)?;
    if found != name.digest || bytes != name.tar_bytes {
        return Err(UnpackError::Digest { bytes, found });
    }
    unpacked
}

fn unread(cause: io::Error) -> UnpackError {
    UnpackError::Read(cause.into())
}

fn unpack_entries(archive: &mut Archive<impl Read>, dir: &Path) -> Result<(), UnpackError> {
    // Creating files in a directory changes its time, so directories get their times at the end.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(unread)? {
        let mut entry = entry.map_err(unread)?;
        let path = entry.path().map_err(unread)?.into_owned();
        let name: String = path.display().to_string().chars().take(NAME_MAX).collect();
        check(&entry, &path, &name)?;
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            continue;
        }
        let writing = |cause: io::Error| UnpackError::Write {
            entry: name.clone(),
            cause: cause.into(),
        };
        let attributes = attributes::of_entry(&mut entry).map_err(unread)?;
        // Refuses to follow a symbolic link out of `dir`.
        if !entry.unpack_in(dir).map_err(writing)? {
            return Err(UnpackError::Escape(name));
        }
        if !attributes.is_empty() {
            attributes::replace(&dir.join(&path), &attributes).map_err(writing)?;
        }
        if entry.header().entry_type().is_dir() {
            let mode = entry.header().mode().map_err(writing)?;
            let mtime = entry.header().mtime().map_err(writing)?;
            directories.push((path, mode, mtime));
        }
    }
    for (path, mode, mtime) in directories.iter().rev() {
        finish_directory(dir, path, *mode, *mtime).map_err(|cause| UnpackError::Write {
            entry: path.display().to_string(),
            cause: cause.into(),
        })?;
    }
    Ok(())
}

fn check<R: Read>(entry: &Entry<'_, R>, path: &Path, name: &str) -> Result<(), UnpackError> {
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::Directory | EntryType::Symlink | EntryType::Link => {}
        EntryType::XGlobalHeader => return Ok(()),
        _ => {
            return Err(UnpackError::Kind {
                entry: name.to_owned(),
                kind: format!("{kind:?}"),
            });
        }
    }
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.components().all(inside) {
        Ok(())
    } else {
        Err(UnpackError::Escape(name.to_owned()))
    }
}

fn finish_directory(dir: &Path, path: &Path, mode: u32, mtime: u64) -> io::Result<()> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let relative: PathBuf = parts.collect();
    let full = if relative.as_os_str().is_empty() {
        // The archive's own top directory, which `unpack_in` leaves unchanged.
        fs::set_permissions(dir, fs::Permissions::from_mode(mode & 0o7777))?;
        dir.to_owned()
    } else {
        dir.join(relative)
    };
    let time = TimeSpec::from(time::Duration::from_secs(mtime));
    utimensat(
        nix::fcntl::AT_FDCWD,
        &full,
        &time,
        &time,
        UtimensatFlags::NoFollowSymlink,
    )?;
    Ok(())
}
