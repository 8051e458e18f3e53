//! The codec against a naive model: regions round-trip in every mode.

use proptest::prelude::*;

use super::*;

const SIZES: [u16; 5] = [1, 16, 64, 256, 1024];

fn acceleration() -> impl Strategy<Value = Acceleration> {
    (1..=32_u8).prop_map(|n| Acceleration::new(n).unwrap())
}

/// Regions of each size, full or not, with all kinds of pages.
fn region_bytes() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![4 => Just(0_usize), 4 => Just(1), 2 => Just(2), 1 => Just(3), 1 => Just(4)];
    (size, any::<u16>(), any::<u64>(), 0..5_u8).prop_map(|(size, pages, seed, kind)| {
        let pages = usize::from(pages % SIZES[size] + 1);
        let mut bytes = Vec::with_capacity(pages * PAGE_BYTES);
        for page in 0..pages as u64 {
            match (kind, (seed ^ page) % 3) {
                (0, _) | (1, 0) => bytes.resize(bytes.len() + PAGE_BYTES, 0),
                (1, 1) | (2, _) => bytes.extend_from_slice(&noise(PAGE_BYTES, seed ^ page)),
                (3, _) => bytes.extend(std::iter::repeat_n(seed.to_le_bytes(), PAGE_BYTES / 8).flatten()),
                _ => {
                    // Like text: few byte values.
                    let noise = noise(PAGE_BYTES, seed.wrapping_add(page));
                    bytes.extend(noise.into_iter().map(|b| b'a' + b % 5));
                }
            }
        }
        if kind == 4 {
            // One set byte at the very end.
            bytes.fill(0);
            bytes[pages * PAGE_BYTES - 1] = 1;
        }
        bytes
    })
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Decodes an LZ4 block straight from its description: literals, then a match, until the block ends.
fn naive_decode(mut block: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    fn byte(block: &mut &[u8]) -> usize {
        let (first, rest) = block.split_first().unwrap();
        *block = rest;
        usize::from(*first)
    }
    fn length(block: &mut &[u8], nibble: usize) -> usize {
        let mut len = nibble;
        let mut more = if nibble == 15 { 255 } else { 0 };
        while more == 255 {
            more = byte(block);
            len += more;
        }
        len
    }
    while !block.is_empty() {
        let token = byte(&mut block);
        let literals = length(&mut block, token >> 4);
        out.extend_from_slice(&block[..literals]);
        block = &block[literals..];
        if block.is_empty() {
            break;
        }
        let offset = byte(&mut block) | byte(&mut block) << 8;
        let matched = length(&mut block, token & 15) + 4;
        for _ in 0..matched {
            out.push(out[out.len() - offset]);
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_region_comes_back_as_it_was_in_every_mode(plain in region_bytes(), acceleration in acceleration()) {
        let mut back = vec![0xaa; plain.len()];
        let hash = Digest::of(&plain);
        match encode(&plain, acceleration) {
            Encoded::Zero => prop_assert!(plain.iter().all(|b| *b == 0)),
            Encoded::Raw => {
                decode(Encoding::Raw, &plain, hash, &mut back).unwrap();
                prop_assert!(back == plain);
            }
            Encoded::Lz4(block) => {
                prop_assert!(plain.iter().any(|b| *b != 0));
                prop_assert!(block.len() * 8 < plain.len() * 7);
                prop_assert!(naive_decode(&block) == plain);
                decode(Encoding::Lz4, &block, hash, &mut back).unwrap();
                prop_assert!(back == plain);
            }
        }
    }

    #[test]
    fn raw_is_what_lz4_without_a_limit_does_not_bring_below_seven_eighths(
        plain in region_bytes(), acceleration in acceleration(),
    ) {
        let mode = lz4::block::CompressionMode::FAST(acceleration.get().into());
        let free = lz4::block::compress(&plain, Some(mode), false).unwrap();
        let expected = if plain.iter().all(|b| *b == 0) {
            Encoded::Zero
        } else if free.len() * 8 >= plain.len() * 7 {
            Encoded::Raw
        } else {
            Encoded::Lz4(free)
        };
        prop_assert!(encode(&plain, acceleration) == expected);
    }

    #[test]
    fn bytes_that_are_no_payload_are_an_error_and_never_a_panic(
        stored in proptest::collection::vec(any::<u8>(), 0..5000), pages in 1..=1024_usize, lz4: bool,
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
        let Encoded::Lz4(mut block) = encode(&plain, Acceleration::default()) else { panic!("compressible") };
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
    for pages in SIZES {
        let size = RegionSize::from_pages(pages).unwrap();
        assert_eq!(encode(&noise(size.bytes(), 1), Acceleration::default()), Encoded::Raw);
        let mut almost = vec![0; size.bytes()];
        assert_eq!(encode(&almost, Acceleration::default()), Encoded::Zero);
        almost[size.bytes() - 1] = 1;
        assert!(matches!(encode(&almost, Acceleration::default()), Encoded::Lz4(_)));
    }
}
