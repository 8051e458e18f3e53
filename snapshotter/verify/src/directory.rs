//! Takes images from a directory, or from memory, within a bound on memory, whatever the images are.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::Images;
use crate::error::VerifyError;
use crate::expected::Expected;
use crate::kinds::{FILES_MAX, Kind};

/// Maximum size of all images together, except pages, in bytes. It includes unlinked files and the queues of sockets
/// and pipes.
const BYTES_MAX: u64 = 256 << 20;

/// The files by name. Files whose contents are not checked come without their bytes.
pub(crate) fn read(dir: &Path, expected: &Expected) -> Result<Vec<(String, Vec<u8>)>, VerifyError> {
    let failed = |e| VerifyError::Read(dir.to_owned(), e);
    let (mut files, mut room) = (Vec::new(), BYTES_MAX);
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type().map_err(failed)?.is_file() {
            return Err(VerifyError::NotAFile(name));
        }
        if expected.other_files.contains(&name) {
            continue;
        }
        if files.len() == FILES_MAX {
            return Err(too_many_files(dir.display().to_string()));
        }
        let bytes = match Kind::of(&name)? {
            kind if kind.is_opaque() => Vec::new(),
            _ => read_within(&entry.path(), &name, &mut room)?,
        };
        files.push((name, bytes));
    }
    Ok(files)
}

/// Returns what [`read`] would return of a directory with these images and no other files.
pub(crate) fn bounded<'a>(images: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Images<'a>, VerifyError> {
    let (mut files, mut room) = (Images::new(), BYTES_MAX);
    for (name, bytes) in images {
        if files.len() == FILES_MAX {
            return Err(too_many_files(name.to_owned()));
        }
        let bytes = match Kind::of(name)? {
            kind if kind.is_opaque() => &[],
            _ => bytes,
        };
        room = room
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| VerifyError::Read(name.into(), too_large()))?;
        files.insert(name, bytes);
    }
    Ok(files)
}

fn too_many_files(image: String) -> VerifyError {
    VerifyError::TooMuch {
        image,
        what: "files",
        limit: FILES_MAX as u64,
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "the images are too large")
}

fn read_within(path: &Path, name: &str, room: &mut u64) -> Result<Vec<u8>, VerifyError> {
    let failed = |e| VerifyError::Read(path.to_owned(), e);
    // Opens neither a link nor a pipe that has replaced the file since.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(VerifyError::NotAFile(name.to_owned()));
    }
    let mut bytes = Vec::new();
    let read = file.take(*room + 1).read_to_end(&mut bytes).map_err(failed)?;
    let left = u64::try_from(read).ok().and_then(|read| room.checked_sub(read));
    *room = left.ok_or_else(|| failed(too_large()))?;
    Ok(bytes)
}
