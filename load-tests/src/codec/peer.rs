//! liblz4 as CRIU 4.3 uses it (references: its pull request 2895), with one thread. A block of zeros is not stored. One
//! that LZ4 does not compress below 7/8 is stored as it is. Each block takes four bytes for its size. Nothing is
//! hashed, and nothing leaves the machine.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use rekindle_snapshotter::Codec;
use rekindle_snapshotter::codec::is_zero;

use super::memory::Memory;
use super::ours::Store;
use super::{Clock, Elapsed};

/// Buffer between the file and us.
const BUFFER: usize = 4 << 20;

/// The measurements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    /// Blocks and their sizes.
    pub(super) stored_bytes: u64,
    /// From the dump to a file on tmpfs.
    pub(super) capture: Elapsed,
    /// From that file to plain memory.
    pub(super) restore: Elapsed,
    /// From the dump to an object of the store to which ours is published: to a file, then from there.
    pub(super) shipped: Elapsed,
    /// From that object to plain memory: to a file, then from there.
    pub(super) fetched: Elapsed,
}

/// Seconds to read the memory and write it to another file.
pub(super) fn copy(memory: &Path, scratch: &Path) -> Result<f64> {
    let path = scratch.join("copy");
    let mut buffer = vec![0; BUFFER];
    let begun = Instant::now();
    let (mut from, mut to) = (File::open(memory)?, File::create(&path)?);
    while let read @ 1.. = from.read(&mut buffer)? {
        to.write_all(&buffer[..read])?;
    }
    let taken = begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(taken)
}

/// Compresses the memory block by block into a file, and reads it back into `plain`; then the same through `store`.
pub(super) fn measure(from: &Path, scratch: &Path, codec: Codec, store: &Store, plain: &Memory) -> Result<Figures> {
    let (path, back) = (scratch.join("peer"), scratch.join("peer.back"));
    let begun = Clock::start();
    let sizes = compress(from, &path, codec)?;
    let captured = begun.elapsed();
    plain.clear();
    let begun = Clock::start();
    decompress(&path, &sizes, codec.region.bytes(), plain)?;
    let restored = begun.elapsed();
    std::fs::remove_file(&path)?;

    let begun = Clock::start();
    let sizes = compress(from, &path, codec)?;
    store.ship(&path)?;
    let shipped = begun.elapsed();
    plain.clear();
    let begun = Clock::start();
    store.fetch(&back)?;
    decompress(&back, &sizes, codec.region.bytes(), plain)?;
    let fetched = begun.elapsed();
    for path in [path, back] {
        std::fs::remove_file(&path)?;
    }
    let payload: u64 = sizes.iter().map(|size| *size as u64).sum();
    Ok(Figures {
        stored_bytes: payload + sizes.len() as u64 * 4,
        capture: captured,
        restore: restored,
        shipped,
        fetched,
    })
}

fn compress(memory: &Path, to: &Path, codec: Codec) -> Result<Vec<usize>> {
    let block = codec.region.bytes();
    let mut input = BufReader::with_capacity(BUFFER, File::open(memory)?);
    let mut output = BufWriter::with_capacity(BUFFER, File::create(to)?);
    let mode = CompressionMode::FAST(codec.acceleration.get().into());
    let (mut plain, mut packed) = (vec![0; block], vec![0; block * 7 / 8]);
    let mut sizes = Vec::new();
    let blocks = std::fs::metadata(memory)?.len() / block as u64;
    for _ in 0..blocks {
        input.read_exact(&mut plain)?;
        let size = if is_zero(&plain) {
            0
        } else if let Some(size) = compress_to_buffer(&plain, Some(mode), false, &mut packed)
            .ok()
            .filter(|n| n * 8 < block * 7)
        {
            output.write_all(&packed[..size])?;
            size
        } else {
            output.write_all(&plain)?;
            block
        };
        sizes.push(size);
    }
    // Durable, as our objects are: it costs nothing on a tmpfs.
    output.into_inner().context("the file cannot be written")?.sync_data()?;
    Ok(sizes)
}

fn decompress(from: &Path, sizes: &[usize], block: usize, plain: &Memory) -> Result<()> {
    let mut input = BufReader::with_capacity(BUFFER, File::open(from)?);
    let mut packed = vec![0; block];
    let mut sizes = sizes.iter();
    plain.fill_blocks(block, |own| {
        match *sizes.next().context("more memory than blocks")? {
            0 => own.fill(0),
            size if size == block => input.read_exact(own)?,
            size => {
                input.read_exact(&mut packed[..size])?;
                let expected = i32::try_from(block)?;
                let found = decompress_to_buffer(&packed[..size], Some(expected), own).context("a block is corrupt")?;
                if found != block {
                    bail!("a block holds {found} bytes instead of {block}");
                }
            }
        }
        Ok(())
    })
}
