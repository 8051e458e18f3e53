//! liblz4 as CRIU 4.3 uses it (references: its pull request 2895): one thread; a block that is all zero is not stored, one that LZ4 does
//! not bring below 7/8 is stored as it is; four bytes a block for its size. Nothing is hashed, and nothing leaves the machine.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use rekindle_snapshotter::Codec;
use rekindle_snapshotter::codec::is_zero;
use serde::Serialize;

use super::middle;

/// Buffer between the file and us.
const BUFFER: usize = 4 << 20;

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    /// Blocks and their sizes.
    pub(super) stored_bytes: u64,
    /// From the dump to a file on tmpfs.
    pub(super) capture_s: f64,
    /// From that file to plain memory.
    pub(super) restore_s: f64,
}

/// The one in the middle by its capture.
pub(super) fn median(figures: Vec<Figures>) -> Option<Figures> {
    middle(figures, |f| f.capture_s)
}

/// Seconds to read the memory and write it to another file.
pub(super) fn copy(memory: &Path, scratch: &Path, buffer: &mut [u8]) -> Result<f64> {
    let path = scratch.join("copy");
    let begun = Instant::now();
    File::open(memory)?.read_exact(buffer)?;
    File::create(&path)?.write_all(buffer)?;
    let taken = begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(taken)
}

/// Compresses the memory block by block into a file, and reads it back into `plain`.
pub(super) fn measure(memory: &Path, scratch: &Path, codec: Codec, plain: &mut [u8]) -> Result<Figures> {
    let path = scratch.join("peer");
    let begun = Instant::now();
    let sizes = compress(memory, &path, codec)?;
    let capture_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    decompress(&path, &sizes, codec.region.bytes(), plain)?;
    let restore_s = begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    let payload: u64 = sizes.iter().map(|size| *size as u64).sum();
    Ok(Figures {
        stored_bytes: payload + sizes.len() as u64 * 4,
        capture_s,
        restore_s,
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
    output.flush()?;
    Ok(sizes)
}

fn decompress(from: &Path, sizes: &[usize], block: usize, plain: &mut [u8]) -> Result<()> {
    let mut input = BufReader::with_capacity(BUFFER, File::open(from)?);
    let mut packed = vec![0; block];
    for (size, own) in sizes.iter().zip(plain.chunks_exact_mut(block)) {
        match *size {
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
    }
    Ok(())
}
