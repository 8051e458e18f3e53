//! Reads plain pages from a pagemap and its pages image, whatever their form. Blocking.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rekindle_criu::images::{BLOCK_BYTES_MAX, StoredPagemap};

use super::error::{InterchangeError, io_at};
use crate::codec::{self, Encoding, PAGE_BYTES};

/// A pagemap with its pages image. Reading forward is cheap. A step back within a compressed run starts at the run's
/// beginning.
pub(crate) struct PageFile {
    pub(super) map: StoredPagemap,
    /// The pages image.
    pub(super) path: PathBuf,
    file: File,
    offsets: Vec<u64>,
    cursor: Cursor,
    /// The decoded block at the cursor, if it was needed.
    block: Vec<u8>,
    packed: Vec<u8>,
}

/// A block of a compressed run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    run: usize,
    block: usize,
    /// Offset of the block in the pages image.
    offset: u64,
    decoded: bool,
}

impl PageFile {
    /// Opens the pages image at `path`, whose size must match `map`.
    pub(super) fn open(path: &Path, map: StoredPagemap) -> Result<Self, InterchangeError> {
        let file = match File::open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(InterchangeError::Missing(path.to_owned()));
            }
            opened => opened.map_err(io_at("open", path))?,
        };
        let found = file.metadata().map_err(io_at("read", path))?.len();
        let (offsets, expected) = map.layout();
        if found != expected {
            return Err(InterchangeError::Size {
                path: path.to_owned(),
                found,
                expected,
            });
        }
        let cursor = Cursor {
            run: usize::MAX,
            ..Cursor::default()
        };
        Ok(Self {
            map,
            path: path.to_owned(),
            file,
            offsets,
            cursor,
            block: Vec::new(),
            packed: Vec::new(),
        })
    }

    /// The run that contains the page at `address`.
    pub(super) fn run_at(&self, address: u64) -> Option<usize> {
        let after = self.map.runs.partition_point(|r| r.address <= address);
        let at = after.checked_sub(1)?;
        (address < self.map.runs[at].end()).then_some(at)
    }

    /// Fills `out` with pages of the run `run`, starting at its page `from`. The run is present and has all of them.
    pub(super) fn read(&mut self, run: usize, mut from: u64, out: &mut [u8]) -> Result<(), InterchangeError> {
        let page = PAGE_BYTES as u64;
        let Some(per_block) = self.map.runs[run].blocks.as_ref().map(|b| u64::from(b.pages_per_block)) else {
            let offset = self.offsets[run] + from * page;
            return self.file.read_exact_at(out, offset).map_err(io_at("read", &self.path));
        };
        let mut rest = out;
        while !rest.is_empty() {
            self.seek(run, from / per_block)?;
            // A block has at most 4 MiB.
            let skip = (from % per_block) as usize * PAGE_BYTES;
            let take = rest.len().min(self.block.len() - skip);
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&self.block[skip..skip + take]);
            rest = later;
            from += (take / PAGE_BYTES) as u64;
        }
        Ok(())
    }

    /// Makes `block` the wanted block of a compressed run.
    fn seek(&mut self, run: usize, wanted: u64) -> Result<(), InterchangeError> {
        let Some(blocks) = &self.map.runs[run].blocks else {
            return Ok(());
        };
        // A run has one size per block.
        let wanted = wanted as usize;
        let mut cursor = self.cursor;
        if cursor.run != run || cursor.block > wanted {
            cursor = Cursor {
                run,
                block: 0,
                offset: self.offsets[run],
                decoded: false,
            };
        }
        if cursor.block < wanted {
            cursor.offset += blocks.sizes[cursor.block..wanted]
                .iter()
                .map(|s| u64::from(*s))
                .sum::<u64>();
            cursor.block = wanted;
            cursor.decoded = false;
        }
        if !cursor.decoded {
            let per_block = u64::from(blocks.pages_per_block);
            let pages = per_block.min(self.map.runs[run].pages - wanted as u64 * per_block);
            let stored = blocks.sizes[wanted] as usize;
            // If this fails, the previous contents are no longer intact.
            self.cursor.decoded = false;
            self.decode(stored, cursor.offset, pages as usize * PAGE_BYTES)?;
            cursor.decoded = true;
        }
        self.cursor = cursor;
        Ok(())
    }

    fn decode(&mut self, stored: usize, offset: u64, plain: usize) -> Result<(), InterchangeError> {
        debug_assert!(plain <= BLOCK_BYTES_MAX);
        self.block.clear();
        self.block.resize(plain, 0);
        if stored == 0 {
            return Ok(());
        }
        let reading = io_at("read", &self.path);
        if stored == plain {
            return self.file.read_exact_at(&mut self.block, offset).map_err(reading);
        }
        self.packed.resize(stored, 0);
        self.file.read_exact_at(&mut self.packed, offset).map_err(reading)?;
        let decoded = codec::decode_unchecked(Encoding::Lz4, &self.packed, &mut self.block);
        decoded.map_err(|_| InterchangeError::Block {
            path: self.path.clone(),
            offset,
            expected: plain,
        })
    }
}
