//! Applies the layers of an image, the lowest first: entries replace, and whiteouts remove, what lower layers have.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::layout::{Blob, Descriptor, Layout};
use super::root::remove;
use super::{ImageError, malformed, refused_kind, unwritten};
use crate::attributes::{self, ATTRIBUTES_MAX, Attribute};
use crate::upload::{BoundedReader, Extension, Limits, UnpackError, write_content};

/// Begins the name of a whiteout: what follows is removed.
const WHITEOUT: &[u8] = b".wh.";
/// Says that a directory has nothing of lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum number of directories above a file.
const DEPTH_MAX: usize = 128;
/// Maximum length of a symbolic link's target in bytes.
const LINK_MAX: usize = 4_095;
/// Maximum length of a path in bytes. The kernel takes 4,095, with the directory that it is unpacked in.
const PATH_MAX: usize = 3_840;

/// Applies the layers of `layout` to the empty directory `into`.
pub(super) fn apply(layout: &Layout, layers: &[Descriptor], into: &Path, limits: &Limits) -> Result<(), ImageError> {
    let mut bytes_left = limits.unpacked_bytes;
    let mut files_left = limits.files;
    for layer in layers {
        let blob = Rc::new(Cell::new(None));
        let exceeded = Rc::new(Cell::new(false));
        let mut source = BufReader::new(ReturnOnDrop {
            blob: Some(layout.blob(layer)?),
            to: Rc::clone(&blob),
        });
        let start = source.fill_buf().map_err(malformed)?;
        let plain: Box<dyn Read> = if start.starts_with(&GZIP) {
            Box::new(MultiGzDecoder::new(source))
        } else if start.starts_with(&ZSTD) {
            Box::new(zstd::Decoder::with_buffer(source).map_err(malformed)?)
        } else {
            Box::new(source)
        };
        let bounded = BoundedReader {
            inner: plain,
            // Headers and padding for the remaining files, on top of their contents.
            left: bytes_left
                .saturating_add(files_left.saturating_mul(4 * 512))
                .saturating_add(1 << 20),
            exceeded: Rc::clone(&exceeded),
        };
        let mut applying = Layer {
            into,
            limits,
            bytes_left,
            files_left,
            own: HashSet::new(),
        };
        let applied = applying.all(bounded);
        // A corrupt blob is the likelier cause of an archive that cannot be read.
        if let Some(blob) = blob.take() {
            Blob::end(blob)?;
        }
        if exceeded.get() {
            return Err(ImageError::TooLarge {
                limit: limits.unpacked_bytes,
            });
        }
        applied?;
        (bytes_left, files_left) = (applying.bytes_left, applying.files_left);
    }
    Ok(())
}

/// A blob that is given back on drop, when its decoder is done with it.
struct ReturnOnDrop {
    blob: Option<Blob>,
    to: Rc<Cell<Option<Blob>>>,
}

impl Read for ReturnOnDrop {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.blob.as_mut().map_or(Ok(0), |blob| blob.read(into))
    }
}

impl Drop for ReturnOnDrop {
    fn drop(&mut self) {
        self.to.set(self.blob.take());
    }
}

struct Layer<'a> {
    into: &'a Path,
    limits: &'a Limits,
    bytes_left: u64,
    files_left: u64,
    /// What this layer has created.
    own: HashSet<PathBuf>,
}

impl Layer<'_> {
    fn all(&mut self, from: impl Read) -> Result<(), ImageError> {
        let mut archive = Archive::new(from);
        let mut extension = Extension::default();
        // Raw: the tar crate would read extension records of any length into memory.
        for entry in archive.entries().map_err(malformed)?.raw(true) {
            let mut entry = entry.map_err(malformed)?;
            let extends = extension.read(&mut entry).map_err(|e| match e {
                UnpackError::Malformed(why) => malformed(why),
                other => malformed(other),
            })?;
            if !extends {
                self.entry(&mut entry, std::mem::take(&mut extension))?;
            }
        }
        io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(malformed)?;
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, extension: Extension) -> Result<(), ImageError> {
        let name = extension
            .path
            .unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let path = inside(&name)?;
        let Some(file_name) = path.file_name().map(OsStr::as_bytes) else {
            // The root itself.
            return Ok(());
        };
        self.count()?;
        let parent = path.parent().unwrap_or(Path::new(""));
        self.directories(parent)?;
        if file_name == OPAQUE {
            return self.clear(parent);
        }
        if let Some(removed) = file_name.strip_prefix(WHITEOUT) {
            // Not the directory itself, nor the one above.
            if matches!(removed, b"" | b"." | b"..") {
                return Err(refused_kind(&path, "a whiteout that names no file"));
            }
            let removed = parent.join(OsString::from_vec(removed.to_vec()));
            return match self.own.contains(&removed) {
                true => Ok(()),
                false => remove(&self.into.join(removed)),
            };
        }
        let link = extension
            .link
            .or_else(|| entry.header().link_name_bytes().map(|l| l.into_owned()))
            .unwrap_or_default();
        let full = self.into.join(&path);
        let attributes = extension.attributes;
        match entry.header().entry_type() {
            EntryType::Directory => {
                if !fs::symlink_metadata(&full).is_ok_and(|m| m.is_dir()) {
                    remove(&full)?;
                    fs::create_dir(&full).map_err(|e| unwritten(&path, e))?;
                }
                let mode = entry.header().mode().map_err(malformed)?;
                let set = fs::set_permissions(&full, permissions(mode, true));
                set.map_err(|e| unwritten(&path, e))?;
                give(&full, &path, &attributes)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                remove(&full)?;
                self.file(&path, entry)?;
                if !attributes.is_empty() {
                    give(&full, &path, &attributes)?;
                }
            }
            EntryType::Symlink => {
                if !(1..=LINK_MAX).contains(&link.len()) {
                    let kind = format!("a link to a path of {} bytes, which no system takes", link.len());
                    return Err(refused_kind(&path, kind));
                }
                remove(&full)?;
                symlink(OsStr::from_bytes(&link), &full).map_err(|e| unwritten(&path, e))?;
            }
            EntryType::Link => {
                let target = inside(&link)?;
                if target != path {
                    remove(&full)?;
                    fs::hard_link(self.into.join(&target), &full).map_err(|e| match e.kind() {
                        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                            let kind = format!("a link to \"{}\", which is no file of it", target.display());
                            refused_kind(&path, kind)
                        }
                        io::ErrorKind::TooManyLinks => {
                            refused_kind(&path, "one name more than a file may have on the worker's disk")
                        }
                        _ => unwritten(&path, e),
                    })?;
                }
            }
            // A function has the platform's devices, and could not open others.
            EntryType::Char | EntryType::Block | EntryType::Fifo => remove(&full)?,
            EntryType::GNUSparse => {
                return Err(refused_kind(&path, "a sparse file"));
            }
            // As the standard has it: what is not known is skipped.
            _ => {}
        }
        self.own.insert(path);
        Ok(())
    }

    fn count(&mut self) -> Result<(), ImageError> {
        let limit = self.limits.files;
        self.files_left = self.files_left.checked_sub(1).ok_or(ImageError::TooMany { limit })?;
        Ok(())
    }

    /// Creates missing directories. A link to a directory is followed, within the root of this process.
    fn directories(&mut self, path: &Path) -> Result<(), ImageError> {
        if path.as_os_str().is_empty() || fs::metadata(self.into.join(path)).is_ok_and(|m| m.is_dir()) {
            return Ok(());
        }
        self.directories(path.parent().unwrap_or(Path::new("")))?;
        self.count()?;
        let full = self.into.join(path);
        remove(&full)?;
        fs::create_dir(&full).map_err(|e| unwritten(path, e))?;
        self.own.insert(path.to_owned());
        Ok(())
    }

    /// Removes what lower layers have in a directory.
    fn clear(&self, directory: &Path) -> Result<(), ImageError> {
        let full = self.into.join(directory);
        for child in fs::read_dir(&full).map_err(|e| unwritten(directory, e))? {
            let name = child.map_err(|e| unwritten(directory, e))?.file_name();
            let path = directory.join(&name);
            // A directory that this layer only has files in belongs to both.
            if !self.own.iter().any(|own| own.starts_with(&path)) {
                remove(&full.join(&name))?;
            }
        }
        Ok(())
    }

    fn file<R: Read>(&mut self, path: &Path, entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        let size = entry.header().entry_size().map_err(malformed)?;
        let limit = self.limits.unpacked_bytes;
        self.bytes_left = self
            .bytes_left
            .checked_sub(size)
            .ok_or(ImageError::TooLarge { limit })?;
        let mode = entry.header().mode().map_err(malformed)?;
        let mut file = File::create_new(self.into.join(path)).map_err(|e| unwritten(path, e))?;
        let set = file.set_permissions(permissions(mode, false));
        set.map_err(|e| unwritten(path, e))?;
        write_content(entry, size, &mut file, path, malformed, |e| unwritten(path, e))
    }
}

/// The owner may do what root may in a container, whatever the mode says: the function is no root and owns all files.
/// Set-user-id bits are left out.
fn permissions(mode: u32, is_directory: bool) -> Permissions {
    let owner = if is_directory || mode & 0o111 != 0 {
        0o700
    } else {
        0o600
    };
    let kept = if is_directory { 0o1077 } else { 0o077 };
    Permissions::from_mode(owner | (mode & kept))
}

/// Gives a file or directory its attributes, and no others.
fn give(full: &Path, path: &Path, attributes: &[Attribute]) -> Result<(), ImageError> {
    let bytes = attributes::bytes(attributes);
    if bytes > ATTRIBUTES_MAX {
        let kind = format!("a file with extended attributes of {bytes} bytes, more than {ATTRIBUTES_MAX}");
        return Err(refused_kind(path, kind));
    }
    attributes::replace(full, attributes).map_err(|e| match e.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::StorageFull => refused_kind(
            path,
            "a file with extended attributes that the worker's disk does not keep",
        ),
        _ => unwritten(path, e),
    })
}

/// The name as a path inside the root, without `.` and a leading `/`.
fn inside(name: &[u8]) -> Result<PathBuf, ImageError> {
    let refused = || ImageError::Outside(String::from_utf8_lossy(name).chars().take(200).collect());
    if name.contains(&0) {
        return Err(refused());
    }
    if name.len() > PATH_MAX {
        let shown: String = String::from_utf8_lossy(name).chars().take(200).collect();
        return Err(refused_kind(
            Path::new(&format!("{shown}…")),
            format!("a path of more than {PATH_MAX} bytes"),
        ));
    }
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) if part.len() <= 255 => path.push(part),
            Component::CurDir | Component::RootDir => {}
            _ => return Err(refused()),
        }
    }
    match path.components().count() > DEPTH_MAX {
        true => Err(refused()),
        false => Ok(path),
    }
}
