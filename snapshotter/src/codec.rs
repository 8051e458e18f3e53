//! The region codec: a region's bytes become nothing (all zero), themselves (raw) or one LZ4 block. Pure.

use crate::digest::Digest;

/// Bytes of a page. The format is for 4 KiB pages; a manifest with others is refused.
pub const PAGE_BYTES: usize = 4096;
/// Most bytes of a region, and the alignment of region starts in the address space.
pub const REGION_BYTES: usize = 64 << 10;
/// Most pages of a region.
pub const REGION_PAGES: u16 = 16;

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
        cause: lz4_flex::block::DecompressError,
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
pub fn encode(plain: &[u8]) -> Encoded {
    if is_zero(plain) {
        return Encoded::Zero;
    }
    let block = lz4_flex::block::compress(plain);
    if block.len() * 8 >= plain.len() * 7 {
        Encoded::Raw
    } else {
        Encoded::Lz4(block)
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
        Encoding::Lz4 => match lz4_flex::block::decompress_into(stored, plain) {
            Ok(found) if found == expected => Ok(()),
            Ok(found) => Err(DecodeError::Lz4Length { found, expected }),
            Err(cause) => Err(DecodeError::Lz4 { expected, cause }),
        },
    }
}

/// Decode `stored` into `plain` and check the digest. On an error `plain` holds garbage and must not be used.
pub fn decode(encoding: Encoding, stored: &[u8], expected: Digest, plain: &mut [u8]) -> Result<(), DecodeError> {
    decode_unchecked(encoding, stored, plain)?;
    let found = Digest::of(plain);
    if found == expected {
        Ok(())
    } else {
        Err(DecodeError::Digest { found, expected })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region_bytes() -> impl Strategy<Value = Vec<u8>> {
        let pages = 1..=usize::from(REGION_PAGES);
        prop_oneof![
            pages.clone().prop_map(|n| vec![0; n * PAGE_BYTES]),
            (pages.clone(), any::<u64>()).prop_map(|(n, seed)| noise(n * PAGE_BYTES, seed)),
            (pages, any::<u64>(), 0..PAGE_BYTES).prop_map(|(n, seed, filled)| {
                let mut bytes = vec![0; n * PAGE_BYTES];
                bytes[..filled].copy_from_slice(&noise(filled, seed));
                bytes
            }),
        ]
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new()
            .update(&seed.to_le_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_region_comes_back_as_it_was(plain in region_bytes()) {
            let mut back = vec![0xaa; plain.len()];
            let hash = Digest::of(&plain);
            match encode(&plain) {
                Encoded::Zero => prop_assert!(plain.iter().all(|b| *b == 0)),
                Encoded::Raw => {
                    decode(Encoding::Raw, &plain, hash, &mut back).unwrap();
                    prop_assert_eq!(&back, &plain);
                }
                Encoded::Lz4(block) => {
                    prop_assert!(block.len() * 8 < plain.len() * 7);
                    decode(Encoding::Lz4, &block, hash, &mut back).unwrap();
                    prop_assert_eq!(&back, &plain);
                }
            }
        }

        #[test]
        fn bytes_that_are_no_payload_are_an_error_and_never_a_panic(
            stored in proptest::collection::vec(any::<u8>(), 0..5000), pages in 1..=16_usize, lz4: bool,
        ) {
            let mut plain = vec![0; pages * PAGE_BYTES];
            let encoding = if lz4 { Encoding::Lz4 } else { Encoding::Raw };
            let error = decode(encoding, &stored, Digest::of(b"something else"), &mut plain);
            prop_assert!(error.is_err());
        }

        #[test]
        fn a_flipped_bit_never_gives_wrong_bytes(seed: u64, at: prop::sample::Index, bit in 0..8_u32) {
            let mut plain = vec![7; PAGE_BYTES * 4];
            plain[..2000].copy_from_slice(&noise(2000, seed));
            let hash = Digest::of(&plain);
            let Encoded::Lz4(mut block) = encode(&plain) else { panic!("compressible") };
            let at = at.index(block.len());
            block[at] ^= 1 << bit;
            let mut back = vec![0; plain.len()];
            if decode(Encoding::Lz4, &block, hash, &mut back).is_ok() {
                prop_assert_eq!(back, plain);
            }
        }
    }

    #[test]
    fn incompressible_bytes_are_kept_raw_and_one_set_byte_is_not_zero() {
        assert_eq!(encode(&noise(REGION_BYTES, 1)), Encoded::Raw);
        let mut almost = vec![0; REGION_BYTES];
        assert_eq!(encode(&almost), Encoded::Zero);
        almost[REGION_BYTES - 1] = 1;
        assert!(matches!(encode(&almost), Encoded::Lz4(_)));
    }
}
