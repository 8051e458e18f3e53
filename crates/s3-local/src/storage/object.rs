//! Reads an object file: nothing of it is trusted before its hash matches.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::durable::IoError;
use super::format::{self, BLOCK_LEN, HASH_LEN, Meta, TRAILER_LEN, Trailer};

/// Read at once on open: the whole of a small object, otherwise the end of its footer.
const TAIL_LEN: u64 = 16 * 1024;
/// Body bytes per step of a read, held by one streaming reader.
pub(crate) const BATCH_LEN: usize = 8 * BLOCK_LEN;

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("no such object")]
    Absent,
    #[error("the object file {} {what}; delete or replace the object", path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error(transparent)]
    Io(#[from] IoError),
}

/// An open object file. Its content stays what it was when it was opened, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    file: File,
    path: PathBuf,
    tail: Tail,
    trailer: Trailer,
    pub(crate) meta: Meta,
}

#[derive(Debug)]
struct Tail {
    start: u64,
    bytes: Vec<u8>,
}

impl ObjectFile {
    /// Opens the file and checks the footer. Blocks.
    pub(crate) fn open(path: &Path) -> Result<ObjectFile, ReadError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ReadError::Absent);
            }
            Err(error) => return Err(IoError::at("open", path)(error).into()),
        };
        let damaged = |what| ReadError::Damaged {
            path: path.to_owned(),
            what,
        };
        let file_len = file.metadata().map_err(IoError::at("look at", path))?.len();
        let start = file_len.saturating_sub(TAIL_LEN);
        // At most TAIL_LEN, which fits.
        let mut bytes = vec![0; (file_len - start) as usize];
        file.read_exact_at(&mut bytes, start)
            .map_err(IoError::at("read", path))?;
        let last = bytes
            .last_chunk::<TRAILER_LEN>()
            .ok_or_else(|| damaged("is too short to be one"))?;
        let trailer = format::decode_trailer(last, file_len).map_err(damaged)?;
        let mut object = ObjectFile {
            file,
            path: path.to_owned(),
            tail: Tail { start, bytes },
            trailer,
            meta: Meta::default(),
        };
        let covered = object.bytes_at(trailer.meta_offset(), format::covered_len(&trailer))?;
        object.meta = format::decode_meta(&covered, &trailer).map_err(damaged)?;
        Ok(object)
    }

    pub(crate) fn body_len(&self) -> u64 {
        self.trailer.body_len
    }

    pub(crate) fn damaged(&self, what: &'static str) -> ReadError {
        ReadError::Damaged {
            path: self.path.clone(),
            what,
        }
    }

    fn bytes_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        if let Some(skip) = offset
            .checked_sub(self.tail.start)
            .and_then(|skip| usize::try_from(skip).ok())
            && let Some(bytes) = self.tail.bytes.get(skip..).and_then(|bytes| bytes.get(..len))
        {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; len];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("was cut short while being read"))
            }
            Err(error) => Err(IoError::at("read", &self.path)(error).into()),
        }
    }

    /// Reads `range` of the body (within `0..body_len`), batch by batch.
    pub(crate) fn read(self, range: Range<u64>) -> RangeReader {
        let whole = (range == (0..self.body_len())).then(blake3::Hasher::new);
        RangeReader {
            object: self,
            next: range.start,
            end: range.end,
            whole,
        }
    }
}

/// A read in progress.
#[derive(Debug)]
pub(crate) struct RangeReader {
    object: ObjectFile,
    next: u64,
    end: u64,
    /// Over all block hashes, if all are read.
    whole: Option<blake3::Hasher>,
}

impl RangeReader {
    pub(crate) fn remaining(&self) -> u64 {
        self.end - self.next
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.object.meta
    }

    /// The next bytes, at most [`BATCH_LEN`], checked; `None` at the end. Blocks.
    pub(crate) fn next_batch(&mut self) -> Result<Option<Bytes>, ReadError> {
        const BLOCK: u64 = BLOCK_LEN as u64;
        if self.next >= self.end {
            return Ok(None);
        }
        let first = self.next / BLOCK;
        let start = first * BLOCK;
        // Whole blocks are read, since only they can be checked; batches end on block boundaries.
        let body_end = self.object.body_len();
        let until = self
            .end
            .next_multiple_of(BLOCK)
            .min(start + BATCH_LEN as u64)
            .min(body_end);
        // At most BATCH_LEN, and a hash for each of its blocks.
        let body = self.object.bytes_at(start, (until - start) as usize)?;
        let table_at = self.object.trailer.table_offset() + first * HASH_LEN as u64;
        let hashes = self
            .object
            .bytes_at(table_at, body.len().div_ceil(BLOCK_LEN) * HASH_LEN)?;
        for (block, hash) in body.chunks(BLOCK_LEN).zip(hashes.chunks(HASH_LEN)) {
            if blake3::hash(block).as_bytes() != hash {
                return Err(self.object.damaged("holds a block that does not match its hash"));
            }
        }
        if let Some(whole) = &mut self.whole {
            whole.update(&hashes);
            if until == body_end && whole.finalize().to_hex().as_str() != self.object.meta.root {
                return Err(self.object.damaged("holds block hashes that do not match its metadata"));
            }
        }
        let from = (self.next - start) as usize;
        let to = (until.min(self.end) - start) as usize;
        self.next = until.min(self.end);
        Ok(Some(Bytes::from(body).slice(from..to)))
    }
}
