//! The region codec: a region's bytes become nothing (all zero), themselves (raw) or one LZ4 block. Pure.
//!
//! Blocks are made by liblz4, whose `acceleration` lz4_flex lacks and whose blocks are 1 % smaller, and are read by `block`: what is
//! written is our own memory, what is read comes from a store, and safe Rust reads that (decision 4).

mod block;
mod settings;
#[cfg(test)]
mod tests;

use crate::digest::Digest;

pub use block::BlockError;
pub use settings::{Acceleration, Codec, RegionSize, SettingError};

/// Bytes of a page. The format is for 4 KiB pages; a manifest with others is refused.
pub const PAGE_BYTES: usize = 4096;

/// How a region's payload is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As it is: LZ4 would not have saved an eighth.
    Raw,
    /// One LZ4 block without a header.
    Lz4,
}

/// What [`encode`] made of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// All bytes are zero; nothing is stored.
    Zero,
    /// The payload is the region itself.
    Raw,
    /// The payload is this LZ4 block.
    Lz4(Vec<u8>),
}

/// Why a payload could not be turned back into its region.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Raw payload of another size than the region.
    #[error("raw payload has {found} bytes, the region {expected}")]
    RawLength {
        /// Bytes of the payload.
        found: usize,
        /// Bytes of the region.
        expected: usize,
    },
    /// Not an LZ4 block, or one that does not fit in the region.
    #[error("payload is not an lz4 block of at most {expected} bytes")]
    Lz4 {
        /// Bytes of the region.
        expected: usize,
        /// What the decoder says.
        #[source]
        cause: BlockError,
    },
    /// An LZ4 block of fewer bytes than the region.
    #[error("lz4 block holds {found} bytes, the region {expected}")]
    Lz4Length {
        /// Bytes in the block.
        found: usize,
        /// Bytes of the region.
        expected: usize,
    },
    /// The bytes are not those that were hashed.
    #[error("bytes have the digest {found}, not {expected}")]
    Digest {
        /// Digest of what was decoded.
        found: Digest,
        /// Digest in the page map.
        expected: Digest,
    },
}

/// Whether every byte is zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Whole words at a time; the loop over a block without early exit is what the compiler turns into SIMD.
    bytes
        .chunks(1024)
        .all(|block| block.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Classify and compress a region. Raw when LZ4 needs 7/8 of its size or more: then decoding is not worth the saving.
pub fn encode(plain: &[u8], acceleration: Acceleration) -> Encoded {
    if is_zero(plain) {
        return Encoded::Zero;
    }
    match Compressor::new(acceleration).block(plain) {
        Some(block) => Encoded::Lz4(block.to_vec()),
        None => Encoded::Raw,
    }
}

/// Makes LZ4 blocks, one after the other, in one buffer.
#[derive(Debug)]
pub struct Compressor {
    acceleration: Acceleration,
    buffer: Vec<u8>,
}

impl Compressor {
    /// One that has made none yet.
    pub fn new(acceleration: Acceleration) -> Self {
        Self {
            acceleration,
            buffer: Vec::new(),
        }
    }

    /// The region as one LZ4 block of less than 7/8 of its size; `None` if there is no such block.
    pub fn block(&mut self, plain: &[u8]) -> Option<&[u8]> {
        // One byte more would be 7/8: so LZ4 itself gives up as soon as its block cannot be used.
        let most = (plain.len() * 7).checked_sub(1)? / 8;
        if self.buffer.len() < most {
            self.buffer.resize(most, 0);
        }
        let mode = lz4::block::CompressionMode::FAST(self.acceleration.get().into());
        let len = lz4::block::compress_to_buffer(plain, Some(mode), false, &mut self.buffer[..most]).ok()?;
        self.buffer.get(..len)
    }
}

/// Decode `stored` into `plain`, whose length is the region's, without checking the digest.
pub fn decode_unchecked(encoding: Encoding, stored: &[u8], plain: &mut [u8]) -> Result<(), DecodeError> {
    let expected = plain.len();
    match encoding {
        Encoding::Raw if stored.len() != expected => Err(DecodeError::RawLength {
            found: stored.len(),
            expected,
        }),
        Encoding::Raw => {
            plain.copy_from_slice(stored);
            Ok(())
        }
        Encoding::Lz4 => match block::decode(stored, plain) {
            Ok(found) if found == expected => Ok(()),
            Ok(found) => Err(DecodeError::Lz4Length { found, expected }),
            Err(cause) => Err(DecodeError::Lz4 { expected, cause }),
        },
    }
}

/// Decode `stored` into `plain` and check the digest. On an error `plain` holds garbage and must not be used.
pub fn decode(encoding: Encoding, stored: &[u8], expected: Digest, plain: &mut [u8]) -> Result<(), DecodeError> {
    decode_unchecked(encoding, stored, plain)?;
    check(plain, expected)
}

/// Check the digest of a region's plain bytes.
pub fn check(plain: &[u8], expected: Digest) -> Result<(), DecodeError> {
    let found = Digest::of(plain);
    if found == expected {
        Ok(())
    } else {
        Err(DecodeError::Digest { found, expected })
    }
}
