//! Decodes LZ4 blocks in safe Rust, because they come from a store. Pure.
//!
//! Follows the description of the block format (lz4_Block_format.md). Process memory is full of short patterns that
//! repeat for pages (zeros, tables of one value). A self-overlapping match is copied in pieces of doubling size,
//! whereas lz4_flex's safe decoder copies it byte by byte (decision 22).

/// Bytes copied at once where there is room, whatever the length. A copy of constant size compiles to register moves.
const WIDE: usize = 16;
const MATCH_MIN: usize = 4;

/// Why bytes are not a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// It ends within a sequence.
    #[error("it ends too early")]
    Short,
    /// It holds more than fits.
    #[error("it holds more than its region")]
    Long,
    /// A match starts before the first byte.
    #[error("it repeats what it does not have")]
    Offset,
}

/// Decodes `block` into `plain` and returns the number of bytes it held. The bytes after them may be overwritten.
pub(super) fn decode(block: &[u8], plain: &mut [u8]) -> Result<usize, BlockError> {
    let (mut at, mut end) = (0, 0);
    loop {
        let token = usize::from(*block.get(at).ok_or(BlockError::Short)?);
        at += 1;
        let mut literals = token >> 4;
        match (block.get(at..at + WIDE), plain.get_mut(end..end + WIDE)) {
            (Some(from), Some(to)) if literals < 15 => to.copy_from_slice(from),
            _ => {
                if literals == 15 {
                    literals += more(block, &mut at)?;
                }
                let from = block.get(at..at + literals).ok_or(BlockError::Short)?;
                let to = plain.get_mut(end..end + literals).ok_or(BlockError::Long)?;
                to.copy_from_slice(from);
            }
        }
        at += literals;
        end += literals;
        if at == block.len() {
            return Ok(end);
        }
        let offset = block.get(at..at + 2).ok_or(BlockError::Short)?;
        let offset = usize::from(u16::from_le_bytes([offset[0], offset[1]]));
        at += 2;
        let mut length = (token & 15) + MATCH_MIN;
        if length == 15 + MATCH_MIN {
            length += more(block, &mut at)?;
        }
        let start = end.checked_sub(offset).ok_or(BlockError::Offset)?;
        let room = plain.len() - end;
        if offset >= WIDE && length <= 2 * WIDE && room >= 2 * WIDE {
            plain.copy_within(start..start + WIDE, end);
            plain.copy_within(start + WIDE..start + 2 * WIDE, end + WIDE);
        } else if length > room {
            return Err(BlockError::Long);
        } else if offset == 0 {
            return Err(BlockError::Offset);
        } else if offset >= length {
            copy(plain, start, end, length);
        } else {
            repeat(plain, start, end, length);
        }
        end += length;
    }
}

/// The remainder of a length. A byte other than 255 ends it.
fn more(block: &[u8], at: &mut usize) -> Result<usize, BlockError> {
    let mut sum = 0;
    loop {
        let byte = *block.get(*at).ok_or(BlockError::Short)?;
        *at += 1;
        sum += usize::from(byte);
        if byte != u8::MAX {
            return Ok(sum);
        }
    }
}

/// Copies `length` bytes from `start` to `end`, which is behind them. (`copy_within` is not inlined at level 2.)
fn copy(plain: &mut [u8], start: usize, end: usize, length: usize) {
    let (before, behind) = plain.split_at_mut(end);
    behind[..length].copy_from_slice(&before[start..start + length]);
}

/// Repeats the bytes from `start` to `end` for another `length` bytes. Each copy consists of whole repetitions, and is
/// twice as long as the one before.
fn repeat(plain: &mut [u8], start: usize, end: usize, length: usize) {
    if end - start == 1 {
        let byte = plain[start];
        plain[end..end + length].fill(byte);
        return;
    }
    let mut next = end;
    while next < end + length {
        let size = (next - start).min(end + length - next);
        copy(plain, start, next, size);
        next += size;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes with many repetitions at all distances.
    fn repetitive() -> impl Strategy<Value = Vec<u8>> {
        let run = (proptest::collection::vec(any::<u8>(), 1..40), 1..60_usize);
        proptest::collection::vec(run, 0..60).prop_map(|runs| {
            let runs = runs.iter().map(|(pattern, times)| pattern.repeat(*times));
            runs.collect::<Vec<_>>().concat()
        })
    }

    proptest! {
        #[test]
        fn blocks_of_both_encoders_are_read(plain in repetitive(), room in 0..40_usize) {
            let theirs = lz4_flex::block::compress(&plain);
            let ours = lz4::block::compress(&plain, None, false).unwrap();
            for block in [theirs, ours] {
                let mut back = vec![0xaa; plain.len() + room];
                prop_assert_eq!(decode(&block, &mut back), Ok(plain.len()));
                prop_assert!(back[..plain.len()] == plain);
                if let Some(short) = plain.len().checked_sub(1) {
                    prop_assert_eq!(decode(&block, &mut back[..short]), Err(BlockError::Long));
                }
            }
        }

        #[test]
        fn damaged_blocks_are_read_as_another_decoder_reads_them(
            plain in repetitive(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut block = lz4_flex::block::compress(&plain);
            for (at, to) in damage {
                let at = at.index(block.len());
                block[at] = to;
            }
            let (mut ours, mut theirs) = (vec![0; plain.len()], vec![0; plain.len()]);
            let expected = lz4_flex::block::decompress_into(&block, &mut theirs).ok();
            let found = decode(&block, &mut ours).ok();
            // An offset of 0, which no encoder writes, is undefined for decoders.
            if let (Some(found), Some(expected)) = (found, expected) {
                prop_assert_eq!(found, expected);
                prop_assert!(ours[..found] == theirs[..found]);
            } else {
                prop_assert!(found.is_none(), "nothing is read that another refuses");
            }
        }
    }

    #[test]
    fn what_is_no_block_is_refused_with_the_reason() {
        let mut plain = [0; 64];
        for (block, error) in [
            (&[][..], BlockError::Short),
            (&[0xf0], BlockError::Short),
            (&[0x20, 1], BlockError::Short),
            (&[0x10, 1, 1], BlockError::Short),
            (&[0x10, 1, 2, 0], BlockError::Offset),
            (&[0x10, 1, 0, 0], BlockError::Offset),
            (&[0x1f, 1, 1, 0, 200, 0], BlockError::Long),
        ] {
            assert_eq!(decode(block, &mut plain), Err(error), "{block:?}");
        }
        assert_eq!(decode(&[0], &mut plain), Ok(0), "nothing is a block too");
    }
}
