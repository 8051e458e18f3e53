//! Unpacks an uploaded folder (`tar.gz`) without trusting it.
//!
//! - Nothing is written outside the target. Symbolic links are created last, so no name can lead through one. Then the
//!   kernel checks that each stays inside (`openat2`, RESOLVE_BENEATH).
//! - Sizes and counts are limited during unpacking, including those of tar's own extension records.
//! - Only files, directories and links are created. A hard link becomes a copy. Owners, times and special mode bits are
//!   ignored.

mod extension;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use serde::{Deserialize, Serialize};

pub use self::extension::{EXTENSION_MAX, Extension};
use crate::links::{self, LinkError};
use crate::{Cause, is_control};

/// Maximum length of a path in bytes. The kernel accepts no longer one.
const PATH_MAX: usize = 4_000;
/// Maximum number of directories above a file.
const DEPTH_MAX: usize = 64;
/// Name of what the platform itself puts into the folder.
const RESERVED: &str = ".rekindle";

/// Maximum characters of a name in an error.
const TOLD_MAX: usize = 200;

/// Limits on the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Total size of all files in bytes.
    pub unpacked_bytes: u64,
    /// Number of files, directories and links.
    pub files: u64,
}

/// Why an uploaded folder was rejected.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub enum UnpackError {
    /// It is not a `tar.gz`, or an incomplete one.
    #[error("the uploaded folder is not a whole tar.gz archive: upload it again ({0})")]
    Malformed(String),
    /// A name leads outside.
    #[error(
        "the uploaded folder names \"{0}\", which is not a path inside it: pack it with relative paths and without \
         \"..\""
    )]
    Outside(String),
    /// A name contains a control character.
    #[error("the uploaded folder names \"{0}\", which has a control character: rename the file")]
    Control(String),
    /// A link leads outside.
    #[error("link \"{path}\" in the uploaded folder leads outside it, to \"{target}\": put a copy of the file there")]
    Link {
        /// The link.
        path: String,
        /// Its target.
        target: String,
    },
    /// An entry is neither a file, a directory nor a link.
    #[error(
        "\"{path}\" in the uploaded folder is {kind}: remove it, only files, directories and links can be deployed"
    )]
    Kind {
        /// The entry.
        path: String,
        /// Its kind.
        kind: String,
    },
    /// Two entries have the same name.
    #[error("\"{0}\" is in the uploaded folder twice: pack it again")]
    Twice(String),
    /// The name is reserved for the platform.
    #[error("\"{0}\" in the uploaded folder is a name the platform uses itself: rename it")]
    Reserved(String),
    /// Too many bytes.
    #[error(
        "the uploaded folder is larger than {limit} bytes unpacked: leave out what the function does not need \
         (.fnignore)"
    )]
    TooLarge {
        /// In bytes, unpacked.
        limit: u64,
    },
    /// Too many files.
    #[error("the uploaded folder has more than {limit} files: leave out what the function does not need (.fnignore)")]
    TooMany {
        /// The limit.
        limit: u64,
    },
    /// The worker's own disk failed.
    #[error("write \"{0}\" of the uploaded folder")]
    Write(String, #[source] Cause),
}

/// Fails once more than `left` bytes have been read, so that a bomb is not unpacked to its end.
pub(crate) struct BoundedReader<R> {
    pub(crate) inner: R,
    pub(crate) left: u64,
    pub(crate) exceeded: Rc<Cell<bool>>,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        match self.left.checked_sub(length as u64) {
            Some(left) => self.left = left,
            None => {
                self.exceeded.set(true);
                return Err(io::Error::other("too large"));
            }
        }
        Ok(length)
    }
}

/// Unpacks `archive` into the empty directory `into`. Blocks.
///
/// # Errors
/// See [`UnpackError`]. `into` contains part of the folder then.
pub fn unpack(archive: impl Read, into: &Path, limits: &Limits) -> Result<(), UnpackError> {
    let exceeded = Rc::new(Cell::new(false));
    let bounded = BoundedReader {
        inner: MultiGzDecoder::new(BufReader::new(archive)),
        // Headers and padding for the maximum number of files, on top of their contents.
        left: limits
            .unpacked_bytes
            .saturating_add(limits.files.saturating_mul(4 * 512))
            .saturating_add(1 << 20),
        exceeded: Rc::clone(&exceeded),
    };
    let mut unpacking = Unpacking {
        into,
        limits,
        bytes: 0,
        files: 0,
        directories: HashSet::new(),
        links: Vec::new(),
    };
    let done = unpacking.all(bounded);
    if exceeded.get() {
        Err(UnpackError::TooLarge {
            limit: limits.unpacked_bytes,
        })
    } else {
        done
    }
}

struct Unpacking<'a> {
    into: &'a Path,
    limits: &'a Limits,
    bytes: u64,
    files: u64,
    directories: HashSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
}

fn malformed(e: impl ToString) -> UnpackError {
    UnpackError::Malformed(truncated(&e.to_string()))
}

impl Unpacking<'_> {
    fn all<R: Read>(&mut self, from: R) -> Result<(), UnpackError> {
        let mut archive = Archive::new(from);
        let mut extension = Extension::default();
        // Raw: the tar crate would read extension records of any length into memory.
        for entry in archive.entries().map_err(malformed)?.raw(true) {
            let mut entry = entry.map_err(malformed)?;
            if !extension.read(&mut entry)? {
                self.entry(&mut entry, std::mem::take(&mut extension))?;
            }
        }
        // To the end, so that the checksum is verified.
        io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(malformed)?;
        self.make_links()
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, extension: Extension) -> Result<(), UnpackError> {
        let name = extension
            .path
            .unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let kind = entry.header().entry_type();
        let path = inside(&name)?;
        let shown = || path.display().to_string();
        if path.as_os_str().is_empty() {
            return if kind.is_dir() {
                Ok(())
            } else {
                Err(UnpackError::Outside(lossy(&name)))
            };
        }
        if path.starts_with(RESERVED) {
            return Err(UnpackError::Reserved(shown()));
        }
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        let link = extension
            .link
            .or_else(|| entry.header().link_name_bytes().map(|l| l.into_owned()));
        match kind {
            EntryType::Regular | EntryType::Continuous => self.file(&path, entry),
            EntryType::Directory => self.directory(&path),
            EntryType::Symlink => {
                let target = link.unwrap_or_default();
                if has_control(&target) {
                    return Err(UnpackError::Control(truncated(
                        &lossy(&target).escape_debug().to_string(),
                    )));
                }
                let target = PathBuf::from(OsStr::from_bytes(&target));
                self.count_file()?;
                if !links::stays_inside(&path, &target) {
                    return Err(UnpackError::Link {
                        path: shown(),
                        target: target.display().to_string(),
                    });
                }
                self.links.push((path, target));
                Ok(())
            }
            EntryType::Link => self.copy_of(&path, &inside(&link.unwrap_or_default())?),
            other => Err(UnpackError::Kind {
                path: shown(),
                kind: named(other).to_owned(),
            }),
        }
    }

    fn count_file(&mut self) -> Result<(), UnpackError> {
        self.files += 1;
        let limit = self.limits.files;
        if self.files > limit {
            Err(UnpackError::TooMany { limit })
        } else {
            Ok(())
        }
    }

    fn count_bytes(&mut self, bytes: u64) -> Result<(), UnpackError> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = self.limits.unpacked_bytes;
        if self.bytes > limit {
            Err(UnpackError::TooLarge { limit })
        } else {
            Ok(())
        }
    }

    /// Creates a directory and its parents. No link exists yet, so existing entries are directories or files.
    fn directory(&mut self, path: &Path) -> Result<(), UnpackError> {
        if path.as_os_str().is_empty() || self.directories.contains(path) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        self.count_file()?;
        let full = self.into.join(path);
        match fs::create_dir(&full) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(UnpackError::Twice(path.display().to_string()));
            }
            Err(e) => return Err(unwritten(path, e)),
        }
        self.directories.insert(path.to_owned());
        Ok(())
    }

    fn new_file(&self, path: &Path, mode: u32) -> Result<File, UnpackError> {
        let full = self.into.join(path);
        let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
        match File::options().write(true).create_new(true).mode(mode).open(&full) {
            Ok(file) => Ok(file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(UnpackError::Twice(path.display().to_string())),
            Err(e) => Err(unwritten(path, e)),
        }
    }

    fn file<R: Read>(&mut self, path: &Path, entry: &mut Entry<'_, R>) -> Result<(), UnpackError> {
        self.count_file()?;
        let size = entry.header().entry_size().map_err(malformed)?;
        self.count_bytes(size)?;
        let mut file = self.new_file(path, entry.header().mode().map_err(malformed)?)?;
        write_content(entry, size, &mut file, path, malformed, |e| unwritten(path, e))
    }

    fn copy_of(&mut self, path: &Path, target: &Path) -> Result<(), UnpackError> {
        self.count_file()?;
        let source = self.into.join(target);
        let there = fs::symlink_metadata(&source).ok().filter(fs::Metadata::is_file);
        let Some(metadata) = there else {
            return Err(UnpackError::Link {
                path: path.display().to_string(),
                target: target.display().to_string(),
            });
        };
        self.count_bytes(metadata.len())?;
        let mut file = self.new_file(path, metadata.permissions().mode())?;
        let copied = File::open(&source).and_then(|mut from| io::copy(&mut from, &mut file));
        copied.map(|_| ()).map_err(|e| unwritten(path, e))
    }

    fn make_links(&mut self) -> Result<(), UnpackError> {
        for (path, target) in &self.links {
            symlink(target, self.into.join(path)).map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => UnpackError::Twice(path.display().to_string()),
                _ => unwritten(path, e),
            })?;
        }
        for (path, target) in &self.links {
            links::check(self.into, path).map_err(|e| match e {
                LinkError::Outside => UnpackError::Link {
                    path: path.display().to_string(),
                    target: target.display().to_string(),
                },
                LinkError::Kernel(e) => unwritten(path, e),
            })?;
        }
        Ok(())
    }
}

/// Writes the `size` bytes of an entry's content, whose path is `path`, to `file`.
///
/// # Errors
/// What `malformed` makes of an archive that cannot be read or is cut short, and `unwritten` of a file that cannot be
/// written.
pub(crate) fn write_content<E>(
    entry: &mut impl Read,
    size: u64,
    file: &mut File,
    path: &Path,
    malformed: impl Fn(String) -> E,
    unwritten: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut buffer = vec![0; 64 * 1024];
    let mut left = size;
    while left > 0 {
        let length = entry.read(&mut buffer).map_err(|e| malformed(e.to_string()))?;
        if length == 0 {
            return Err(malformed(format!("{} is cut short", path.display())));
        }
        io::Write::write_all(file, &buffer[..length]).map_err(&unwritten)?;
        left = left.saturating_sub(length as u64);
    }
    Ok(())
}

fn unwritten(path: &Path, cause: io::Error) -> UnpackError {
    UnpackError::Write(path.display().to_string(), cause.into())
}

fn truncated(text: &str) -> String {
    text.chars().take(TOLD_MAX).collect()
}

fn lossy(name: &[u8]) -> String {
    truncated(&String::from_utf8_lossy(name))
}

/// Whether a terminal or a list of lines would misinterpret part of the name.
fn has_control(name: &[u8]) -> bool {
    match std::str::from_utf8(name) {
        Ok(text) => text.chars().any(is_control),
        Err(_) => name.iter().any(u8::is_ascii_control),
    }
}

/// The name as a path inside the folder, without `.`. Empty for the folder itself.
pub fn inside(name: &[u8]) -> Result<PathBuf, UnpackError> {
    let refused = || UnpackError::Outside(lossy(name));
    if name.is_empty() || name.len() > PATH_MAX || name.contains(&0) {
        return Err(refused());
    }
    if has_control(name) {
        return Err(UnpackError::Control(truncated(&lossy(name).escape_debug().to_string())));
    }
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) if part.len() <= 255 => path.push(part),
            Component::CurDir => {}
            _ => return Err(refused()),
        }
    }
    if path.components().count() > DEPTH_MAX {
        Err(refused())
    } else {
        Ok(path)
    }
}

fn named(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Char | EntryType::Block => "a device node",
        EntryType::Fifo => "a named pipe",
        EntryType::GNUSparse => "a sparse file",
        _ => "of an unknown kind",
    }
}
