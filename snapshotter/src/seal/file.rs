//! Files that are sealed or opened block by block. Everything here blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rekindle_store::StoreError;

use super::form::{BLOCK, HEADER, Header, TAG, sealed_len};
use super::key::{OpenSealError, SealError, SealingKey};
use super::keyring::Keyring;

/// Blocks written at once.
const WRITTEN: usize = 16;

/// A file could not be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("a file could not be read or written")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Open(#[from] OpenSealError),
}

impl FileError {
    /// The store's error for it.
    pub(super) fn at(self, key: &str, place: &str, path: &Path) -> StoreError {
        match self {
            Self::Io(cause) => StoreError::file("encrypt or decrypt", path)(cause),
            Self::Seal(cause) => StoreError::file("encrypt", path)(io::Error::other(cause)),
            Self::Open(cause) => StoreError::Sealed {
                key: key.to_owned(),
                place: place.to_owned(),
                cause: Box::new(cause),
            },
        }
    }
}

/// A file that is removed when dropped, unless it was kept.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A new file beside `path`, for this user only.
    fn beside(path: &Path) -> io::Result<(Self, File)> {
        let mut name = path.as_os_str().to_owned();
        name.push(".sealing");
        let path = PathBuf::from(name);
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        Ok((Self(path), file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may have got another name.
        drop(fs::remove_file(&self.0));
    }
}

/// Seals a file as the object `name`, into a file beside it.
pub(super) fn seal_file(key: &SealingKey, name: &str, path: &Path) -> Result<Scratch, FileError> {
    let mut from = File::open(path)?;
    let len = from.metadata()?.len();
    let cipher = key.new_cipher(name, len)?;
    let (scratch, mut to) = Scratch::beside(path)?;
    let mut sealed = cipher.header().to_vec();
    let mut block = vec![0; BLOCK];
    let (mut left, mut number) = (len, 0);
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        from.read_exact(&mut block[..part])?;
        cipher.seal(number, &block[..part], &mut sealed)?;
        if sealed.len() >= WRITTEN * BLOCK {
            to.write_all(&sealed)?;
            sealed.clear();
        }
        left -= part as u64;
        number += 1;
    }
    to.write_all(&sealed)?;
    Ok(scratch)
}

/// Opens the object `name` in a file, in its place. Returns its plain length; `None` if it is not sealed.
pub(super) fn open_file(keys: &Keyring, name: &str, path: &Path) -> Result<Option<u64>, FileError> {
    let mut from = File::open(path)?;
    let len = from.metadata()?.len();
    let mut head = [0; HEADER];
    if len < HEADER as u64 {
        return Ok(None);
    }
    from.read_exact(&mut head)?;
    let Some(header) = Header::parse(&head) else {
        return Ok(None);
    };
    let key = keys.get(header.key).ok_or(OpenSealError::OtherKey(header.key))?;
    if sealed_len(header.len) != len {
        return Err(OpenSealError::Changed(header.key).into());
    }
    let cipher = key.cipher(name, header).ok_or(OpenSealError::Changed(header.key))?;
    let (scratch, mut to) = Scratch::beside(path)?;
    let (mut block, mut plain) = (vec![0; BLOCK + TAG], vec![0; BLOCK]);
    let (mut left, mut number) = (header.len, 0);
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        from.read_exact(&mut block[..part + TAG])?;
        let opened = cipher.open(number, &block[..part + TAG], &mut plain[..part]);
        opened.ok_or(OpenSealError::Changed(header.key))?;
        to.write_all(&plain[..part])?;
        left -= part as u64;
        number += 1;
    }
    fs::rename(scratch.path(), path)?;
    Ok(Some(header.len))
}
