//! Writes an object file: the body as it comes, hashed block by block, then the footer that seals it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;

use super::checksums::{ChecksumError, ChecksumVerifier};
use super::durable::{IoError, TempDir, TempFile};
use super::format::{BLOCK_LEN, HASH_LEN, Meta, encode_meta_and_trailer};

/// Why a body could not become a sealed file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error(transparent)]
    Io(#[from] IoError),
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    #[error("{found} bytes came where {declared} were declared")]
    Length { declared: u64, found: u64 },
    #[error("cannot write the metadata")]
    Meta(#[from] serde_json::Error),
}

/// A body being written. All of it blocks, and belongs on a blocking thread. Dropping it leaves nothing behind.
pub(crate) struct BodyWriter {
    temps: Arc<TempDir>,
    /// Created with the first bytes.
    temp: Option<TempFile>,
    checks: ChecksumVerifier,
    block: blake3::Hasher,
    filled: usize,
    /// 32 bytes per 64 KiB of body: 2.5 MiB for the 5 GiB that S3 allows in one put.
    table: Vec<u8>,
    len: u64,
}

/// A complete, durable object file that has no name yet.
pub(crate) struct SealedObject {
    pub(super) temp: TempFile,
    pub(crate) meta: Meta,
}

impl BodyWriter {
    pub(crate) fn new(temps: Arc<TempDir>, checks: ChecksumVerifier) -> BodyWriter {
        BodyWriter {
            temps,
            temp: None,
            checks,
            block: blake3::Hasher::new(),
            filled: 0,
            table: Vec::new(),
            len: 0,
        }
    }

    fn file(&mut self) -> Result<(&mut File, &Path), IoError> {
        let temp = match self.temp.take() {
            Some(temp) => temp,
            None => self.temps.create()?,
        };
        let temp = self.temp.insert(temp);
        Ok((&mut temp.file, &temp.path))
    }

    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        self.checks.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(BLOCK_LEN - self.filled));
            self.block.update(piece);
            self.filled += piece.len();
            if self.filled == BLOCK_LEN {
                self.end_block();
            }
            rest = after;
        }
        self.len += bytes.len() as u64;
        let (file, path) = self.file()?;
        file.write_all(bytes).map_err(IoError::at("write", path))
    }

    fn end_block(&mut self) {
        self.table.extend_from_slice(self.block.finalize().as_bytes());
        self.block.reset();
        self.filled = 0;
    }

    /// Appends the rest of the body and the footer, and makes the file durable. `meta` lacks only what follows from the
    /// body. An upload with `meta.part_lens.len()` parts shows that number in its ETag.
    pub(crate) fn seal(
        mut self,
        rest: &[Bytes],
        declared: Option<u64>,
        trailers: Option<&HeaderMap>,
        mut meta: Meta,
    ) -> Result<SealedObject, SealError> {
        for bytes in rest {
            self.write(bytes)?;
        }
        if let Some(declared) = declared.filter(|declared| *declared != self.len) {
            return Err(SealError::Length {
                declared,
                found: self.len,
            });
        }
        if self.filled > 0 {
            self.end_block();
        }
        meta.sums = std::mem::take(&mut self.checks).finish(trailers)?;
        let root = blake3::hash(&self.table).to_hex();
        meta.root = root.to_string();
        // Not an MD5: the dash is how S3 says so. It covers all of the content, as an ETag should.
        meta.etag = format!("{}-{}", &root[..HASH_LEN], meta.part_lens.len().max(1));
        meta.modified_ms = now_ms();

        let mut footer = std::mem::take(&mut self.table);
        let body_len = self.len;
        footer.extend_from_slice(&encode_meta_and_trailer(&meta, body_len)?);
        let (file, path) = self.file()?;
        file.write_all(&footer).map_err(IoError::at("write", path))?;
        // fdatasync suffices: a new file's length and blocks are written with it, and its times need not be.
        file.sync_data().map_err(IoError::at("make durable", path))?;
        match self.temp {
            Some(temp) => Ok(SealedObject { temp, meta }),
            // Unreachable: `file` has just created or used it.
            None => {
                Err(IoError::at("find", Path::new("the temporary file"))(std::io::ErrorKind::NotFound.into()).into())
            }
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
