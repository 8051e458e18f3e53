//! Compresses an image directory in place, as CRIU 4.3 does with `--compress-block`, and decompresses it. Blocking.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::Path;

use lz4::block::{CompressionMode, compress_bound, compress_to_buffer};
use rekindle_criu::images::{BLOCK_BYTES_MAX, Blocks, ImageError, PE_PAYLOAD_ALIGNED, StoredRun};
use serde::Serialize;

use super::directory::{Directory, INVENTORY, Pair};
use super::error::{InterchangeError, image_at, io_at};
use super::pages::PageFile;
use super::replace::Replacement;
use crate::codec::{PAGE_BYTES, is_zero};

/// Highest acceleration that LZ4 supports.
const ACCELERATION_MAX: i32 = 65_537;
/// Decompressed bytes copied at once.
const COPY_BYTES: usize = 4 << 20;

/// Settings of the compression.
#[derive(Debug, Clone, Copy)]
pub struct Compression {
    /// Bytes of memory per block: a multiple of 4096, at most 4 MiB.
    pub block_bytes: u64,
    /// 1 compresses best, higher is faster.
    pub acceleration: i32,
}

/// A converted pages image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Its name.
    pub name: String,
    /// Number of pages.
    pub pages: u64,
    /// Size before.
    pub before_bytes: u64,
    /// Size after.
    pub after_bytes: u64,
}

/// Compresses the pages images in `dir`. `None` if they are compressed already. With `backups`, replaced files are kept
/// as `NAME.bak`.
///
/// # Errors
/// If a file cannot be read or written, or is not a valid image. Nothing is changed then.
pub fn compress(dir: &Path, how: &Compression, backups: bool) -> Result<Option<Vec<Converted>>, InterchangeError> {
    let page = PAGE_BYTES as u64;
    if how.block_bytes == 0 || !how.block_bytes.is_multiple_of(page) || how.block_bytes > BLOCK_BYTES_MAX as u64 {
        return Err(InterchangeError::BlockSize(how.block_bytes));
    }
    if !(1..=ACCELERATION_MAX).contains(&how.acceleration) {
        return Err(InterchangeError::Acceleration(how.acceleration));
    }
    convert(dir, false, backups, |directory, replacement| {
        // At most 4 MiB, as checked.
        let block_bytes = how.block_bytes as u32;
        let mut done = Vec::new();
        for pair in &directory.pairs {
            if let Some(run) = pair.map.runs.iter().find(|r| r.blocks.is_some()) {
                let address = run.address;
                return Err(image_at(&directory.path.join(&pair.pagemap))(ImageError::Blocks {
                    address,
                }));
            }
            let raw = raw_ranges(directory, pair)?;
            let compressor = Compressor::new(how, raw);
            done.push(rewrite(directory, pair, replacement, compressor, Compressor::run)?);
        }
        let inventory = directory.inventory()?.encode_compressed(block_bytes);
        Ok((done, inventory.map_err(image_at(&directory.path.join(INVENTORY)))?))
    })
}

/// Undoes [`compress`], `crit compress` or a compressed dump. `None` if nothing is compressed.
///
/// # Errors
/// As for [`compress`].
pub fn decompress(dir: &Path, backups: bool) -> Result<Option<Vec<Converted>>, InterchangeError> {
    convert(dir, true, backups, |directory, replacement| {
        let mut done = Vec::new();
        for pair in &directory.pairs {
            let copier = Copier {
                buffer: vec![0; COPY_BYTES],
            };
            done.push(rewrite(directory, pair, replacement, copier, Copier::run)?);
        }
        let has_parent = directory.has_parent || directory.pairs.iter().any(|p| p.map.needs_parent());
        let inventory = directory.inventory()?.encode_plain(has_parent);
        Ok((done, inventory.map_err(image_at(&directory.path.join(INVENTORY)))?))
    })
}

fn convert(
    dir: &Path,
    compressed: bool,
    backups: bool,
    work: impl FnOnce(&Directory, &mut Replacement) -> Result<(Vec<Converted>, Vec<u8>), InterchangeError>,
) -> Result<Option<Vec<Converted>>, InterchangeError> {
    let mut replacement = Replacement::begin(dir)?;
    let directory = Directory::read(dir)?;
    if directory.inventory()?.compressed != compressed {
        return Ok(None);
    }
    let (done, inventory) = work(&directory, &mut replacement)?;
    let path = dir.join(INVENTORY);
    let mut file = replacement.stage(INVENTORY)?;
    file.write_all(&inventory).map_err(io_at("write", &path))?;
    replacement.commit(backups)?;
    Ok(Some(done))
}

/// A pages image that is being written.
struct Output {
    file: BufWriter<File>,
    bytes: u64,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn align(&mut self) -> std::io::Result<()> {
        let padding = self.bytes.next_multiple_of(PAGE_BYTES as u64) - self.bytes;
        // Less than a page.
        self.push(&[0; PAGE_BYTES][..padding as usize])
    }
}

type RunWriter<S> = fn(&mut S, &mut PageFile, usize, &mut Output) -> Result<StoredRun, InterchangeError>;

/// Rewrites pagemap and pages image, each run by `write`.
fn rewrite<S>(
    directory: &Directory,
    pair: &Pair,
    replacement: &mut Replacement,
    mut state: S,
    write: RunWriter<S>,
) -> Result<Converted, InterchangeError> {
    let mut input = directory.open(pair)?;
    let path = directory.path.join(&pair.pages);
    let mut output = Output {
        file: BufWriter::with_capacity(1 << 20, replacement.stage(&pair.pages)?),
        bytes: 0,
    };
    let mut runs = Vec::with_capacity(pair.map.runs.len());
    let mut pages = 0;
    for (at, run) in pair.map.runs.iter().enumerate() {
        if run.is_present() {
            pages += run.pages;
            runs.push(write(&mut state, &mut input, at, &mut output)?);
        } else {
            runs.push(run.clone());
        }
    }
    output.file.flush().map_err(io_at("write", &path))?;
    let mut file = replacement.stage(&pair.pagemap)?;
    let encoded = pair.map.with_runs(runs).encode();
    file.write_all(&encoded)
        .map_err(io_at("write", &directory.path.join(&pair.pagemap)))?;
    Ok(Converted {
        name: pair.pages.clone(),
        pages,
        before_bytes: pair.map.layout().1,
        after_bytes: output.bytes,
    })
}

/// Compresses block by block.
struct Compressor {
    mode: CompressionMode,
    plain: Vec<u8>,
    packed: Vec<u8>,
    /// Addresses that must be uncompressed for CRIU.
    raw: Vec<Range<u64>>,
}

impl Compressor {
    fn new(how: &Compression, raw: Vec<Range<u64>>) -> Self {
        // A block has at most 4 MiB, so its bound is known and fits.
        let bytes = how.block_bytes as usize;
        let bound = compress_bound(bytes).unwrap_or(bytes + bytes / 128 + 16);
        Self {
            mode: CompressionMode::FAST(how.acceleration),
            plain: vec![0; bytes],
            packed: vec![0; bound],
            raw,
        }
    }

    fn run(&mut self, input: &mut PageFile, at: usize, output: &mut Output) -> Result<StoredRun, InterchangeError> {
        let page = PAGE_BYTES as u64;
        let per_block = (self.plain.len() / PAGE_BYTES) as u64;
        let run = input.map.runs[at].clone();
        let (mut flags, mut sizes, mut any_packed) = (run.flags, Vec::new(), false);
        let mut write = || -> Result<(), InterchangeError> {
            let mut from = 0;
            let mut started = false;
            while from < run.pages {
                let bytes = (per_block.min(run.pages - from) * page) as usize;
                let start = run.address + from * page;
                input.read(at, from, &mut self.plain[..bytes])?;
                from += (bytes / PAGE_BYTES) as u64;
                let plain = &self.plain[..bytes];
                if is_zero(plain) {
                    sizes.push(0);
                    any_packed = true;
                    continue;
                }
                let must_be_raw = self.raw.iter().any(|r| r.start < start + bytes as u64 && start < r.end);
                let packed = if must_be_raw {
                    bytes
                } else {
                    compress_to_buffer(plain, Some(self.mode), false, &mut self.packed).map_err(|cause| {
                        InterchangeError::Compress {
                            path: input.path.clone(),
                            cause,
                        }
                    })?
                };
                // As in CRIU: a block that LZ4 does not shrink below 7/8 is not worth decoding.
                let stored: &[u8] = if packed >= bytes / 8 * 7 {
                    plain
                } else {
                    &self.packed[..packed]
                };
                any_packed |= stored.len() < bytes;
                if stored.len() == bytes && !started {
                    output.align().map_err(io_at("write", &input.path))?;
                    flags |= PE_PAYLOAD_ALIGNED;
                }
                started = true;
                output.push(stored).map_err(io_at("write", &input.path))?;
                // A block has at most 4 MiB.
                sizes.push(stored.len() as u32);
            }
            Ok(())
        };
        write()?;
        // A run with only raw blocks is stored in the plain form.
        let blocks = any_packed.then_some(Blocks {
            sizes,
            pages_per_block: per_block as u32,
        });
        run.stored_as(flags, blocks).map_err(image_at(&input.path))
    }
}

/// Copies uncompressed pages.
struct Copier {
    buffer: Vec<u8>,
}

impl Copier {
    fn run(&mut self, input: &mut PageFile, at: usize, output: &mut Output) -> Result<StoredRun, InterchangeError> {
        let run = input.map.runs[at].clone();
        let most = (self.buffer.len() / PAGE_BYTES) as u64;
        let mut from = 0;
        while from < run.pages {
            let pages = most.min(run.pages - from);
            let bytes = &mut self.buffer[..pages as usize * PAGE_BYTES];
            input.read(at, from, bytes)?;
            output.push(bytes).map_err(io_at("write", &input.path))?;
            from += pages;
        }
        let flags = run.flags & !PE_PAYLOAD_ALIGNED;
        run.stored_as(flags, None).map_err(image_at(&input.path))
    }
}

/// Address ranges of this pagemap whose pages CRIU's restore requires to be uncompressed.
fn raw_ranges(directory: &Directory, pair: &Pair) -> Result<Vec<Range<u64>>, InterchangeError> {
    let mut found = Vec::new();
    for name in super::directory::image_names(&directory.path)? {
        let Some(pid) = name.strip_prefix("mm-").and_then(|n| n.strip_suffix(".img")) else {
            continue;
        };
        let path = directory.path.join(&name);
        let bytes = std::fs::read(&path).map_err(io_at("read", &path))?;
        for mapping in rekindle_criu::images::parse_mappings(&bytes).map_err(image_at(&path))? {
            if !mapping.is_kept_raw() {
                continue;
            }
            let (pagemap, range) = match mapping.shared_object() {
                Some(object) => {
                    let bytes = mapping.end - mapping.start;
                    let range = mapping.offset..mapping.offset.saturating_add(bytes);
                    (format!("pagemap-shmem-{object}.img"), range)
                }
                None => (format!("pagemap-{pid}.img"), mapping.start..mapping.end),
            };
            if pagemap == pair.pagemap {
                found.push(range);
            }
        }
    }
    Ok(found)
}
