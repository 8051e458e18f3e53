//! The region codec: encodes a region as nothing (all zero), as its own bytes (raw), or as one LZ4 block. Pure.
//!
//! liblz4 encodes blocks: lz4_flex lacks its `acceleration`, and liblz4's blocks are 1 % smaller. `block` decodes them.
//! The encoder's input is our own memory. The decoder's input comes from a store, so it is safe Rust (decision 4).

mod block;
mod settings;
#[cfg(test)]
mod tests;

use crate::digest::Digest;

pub use block::BlockError;
pub use rekindle_criu::PAGE_BYTES;
pub use settings::{Acceleration, Codec, RegionSize, SettingError};

/// How a region's payload is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Uncompressed: LZ4 would save less than an eighth.
    Raw,
    /// One LZ4 block without a header.
    Lz4,
}

/// Result of [`encode`] for a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// All bytes are zero. Nothing is stored.
    Zero,
    /// The payload is the region itself.
    Raw,
    /// The payload is this LZ4 block.
    Lz4(Vec<u8>),
}

/// Why a payload could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A raw payload whose size is not the region's.
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
        /// The decoder's error.
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
    /// The bytes do not match the digest.
    #[error("bytes have the digest {found}, not {expected}")]
    Digest {
        /// Digest of the decoded bytes.
        found: Digest,
        /// Digest in the page map.
        expected: Digest,
    },
}

/// Whether every byte is zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // The loop over a block has no early exit, so the compiler turns it into SIMD.
    bytes
        .chunks(1024)
        .all(|block| block.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Classifies and compresses a region. Raw if LZ4 needs 7/8 of its size or more, as the saving is not worth the
/// decoding then.
pub fn encode(plain: &[u8], acceleration: Acceleration) -> Encoded {
    if is_zero(plain) {
        return Encoded::Zero;
    }
    match Compressor::new(acceleration).block(plain) {
        Some(block) => Encoded::Lz4(block.to_vec()),
        None => Encoded::Raw,
    }
}

/// Makes LZ4 blocks, one at a time, in one buffer.
#[derive(Debug)]
pub struct Compressor {
    acceleration: Acceleration,
    buffer: Vec<u8>,
}

impl Compressor {
    /// A compressor with an empty buffer.
    pub fn new(acceleration: Acceleration) -> Self {
        Self {
            acceleration,
            buffer: Vec::new(),
        }
    }

    /// The region as one LZ4 block of less than 7/8 of its size. `None` if there is none.
    pub fn block(&mut self, plain: &[u8]) -> Option<&[u8]> {
        // One byte more would be 7/8. With this limit, LZ4 itself gives up as soon as its block is useless.
        let most = (plain.len() * 7).checked_sub(1)? / 8;
        if self.buffer.len() < most {
            self.buffer.resize(most, 0);
        }
        let mode = lz4::block::CompressionMode::FAST(self.acceleration.get().into());
        let len = lz4::block::compress_to_buffer(plain, Some(mode), false, &mut self.buffer[..most]).ok()?;
        self.buffer.get(..len)
    }
}

/// Decodes `stored` into `plain`, whose length is the region's, without checking the digest.
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

/// Decodes `stored` into `plain` and checks the digest. On error `plain` holds garbage and must not be used.
pub fn decode(encoding: Encoding, stored: &[u8], expected: Digest, plain: &mut [u8]) -> Result<(), DecodeError> {
    decode_unchecked(encoding, stored, plain)?;
    check(plain, expected)
}

/// Checks the digest of a region's decoded bytes.
pub fn check(plain: &[u8], expected: Digest) -> Result<(), DecodeError> {
    let found = Digest::of(plain);
    if found == expected {
        Ok(())
    } else {
        Err(DecodeError::Digest { found, expected })
    }
}
