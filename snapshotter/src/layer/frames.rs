//! A packed layer that can be read by ranges: frames of zstd, one per piece of the tar, and a table behind them.
//!
//! ```text
//! frame of piece 0 ┆ frame of piece 1 ┆ … ┆ skippable frame: [table] [pieces u32] [piece's bytes u32] [MAGIC]
//! table:  for each piece: its frame's bytes u32, its chaining value, 32 bytes
//! ```
//!
//! Numbers are little-endian. For whoever reads the object from its beginning, it is zstd as any other.
//!
//! The chaining values are the leaves of BLAKE3's tree over the tar, whose root is the layer's digest. So the table is
//! checked against the digest, and each piece against the table. Pure.

use std::io::{self, Read, Write};
use std::ops::Range;

use blake3::hazmat::{ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::digest::Digest;

/// Bytes of the tar in one frame. Must be a power of two of at least a kibibyte.
pub const PIECE: u64 = 128 << 10;

/// Maximum size of a frame in bytes: zstd's bound for a piece that does not compress. Lengths of frames are in no
/// digest, so a table may say anything.
const FRAME_MAX: u64 = PIECE + (PIECE >> 8);

const MAGIC: &[u8; 8] = b"RKFRAME1";
const TRAILER: usize = 16;
const ROW: usize = 36;
/// The first of the magic numbers of frames that a decoder skips.
const SKIPPABLE: u32 = 0x184D_2A50;

/// Why a table or a frame is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// The table does not belong to the layer.
    #[error("its table of frames is not the layer's")]
    Table,
    /// A frame has not the bytes that the table says.
    #[error("piece {0} of its tar is corrupt")]
    Piece(usize),
}

/// Returns how many pieces a tar has.
pub(super) fn pieces(tar_bytes: u64) -> u64 {
    tar_bytes.div_ceil(PIECE)
}

/// Returns the size of the table with its trailer.
pub(super) fn table_bytes(tar_bytes: u64) -> u64 {
    pieces(tar_bytes) * ROW as u64 + TRAILER as u64
}

/// Compresses a tar frame by frame, and adds the table. Blocks.
pub(super) fn compress(mut tar: impl Read, mut out: impl Write, level: i32) -> io::Result<()> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    let (mut plain, mut table, mut number) = (Vec::new(), Vec::new(), 0u64);
    loop {
        plain.clear();
        tar.by_ref().take(PIECE).read_to_end(&mut plain)?;
        if plain.is_empty() {
            break;
        }
        let frame = compressor.compress(&plain)?;
        out.write_all(&frame)?;
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        table.extend_from_slice(&length.to_le_bytes());
        table.extend_from_slice(&chaining_value(number, &plain));
        number += 1;
    }
    let count = u32::try_from(number).map_err(io::Error::other)?;
    let length = u32::try_from(table.len() + TRAILER).map_err(io::Error::other)?;
    out.write_all(&SKIPPABLE.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&table)?;
    out.write_all(&count.to_le_bytes())?;
    out.write_all(&(PIECE as u32).to_le_bytes())?;
    out.write_all(MAGIC)
}

fn chaining_value(number: u64, plain: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(number * PIECE);
    hasher.update(plain);
    hasher.finalize_non_root()
}

/// Merges the leaves of a tree, or of part of one, into its root's two children or the like.
fn merged(leaves: &[ChainingValue]) -> Option<ChainingValue> {
    match leaves {
        [] => None,
        [one] => Some(*one),
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            Some(merge_subtrees_non_root(&merged(left)?, &merged(right)?, Mode::Hash))
        }
    }
}

/// Where each piece of a layer is in its object.
#[derive(Debug)]
pub(super) struct Table {
    tar_bytes: u64,
    /// Where each frame begins in the object, and where the last ends.
    starts: Vec<u64>,
    leaves: Vec<ChainingValue>,
}

impl Table {
    /// Parses the table in `end`, the last bytes of an object, at least [`table_bytes`] of them. `None` if the object
    /// has no table.
    ///
    /// # Errors
    /// Returns an error when the table is not that of the layer.
    pub(super) fn parse(
        end: &[u8],
        object_bytes: u64,
        digest: &Digest,
        tar_bytes: u64,
    ) -> Result<Option<Self>, FrameError> {
        if !end.ends_with(MAGIC) {
            return Ok(None);
        }
        let count = usize::try_from(pieces(tar_bytes)).map_err(|_| FrameError::Table)?;
        let begins = end.len().checked_sub(count * ROW + TRAILER).ok_or(FrameError::Table)?;
        let (table, trailer) = end[begins..].split_at(count * ROW);
        if trailer[..4] != (count as u32).to_le_bytes() || trailer[4..8] != (PIECE as u32).to_le_bytes() {
            return Err(FrameError::Table);
        }
        let (mut starts, mut leaves, mut at) = (Vec::with_capacity(count + 1), Vec::with_capacity(count), 0u64);
        for row in table.as_chunks::<ROW>().0 {
            starts.push(at);
            let length = u64::from(u32::from_le_bytes([row[0], row[1], row[2], row[3]]));
            if length > FRAME_MAX {
                return Err(FrameError::Table);
            }
            at += length;
            let mut leaf = ChainingValue::default();
            leaf.copy_from_slice(&row[4..]);
            leaves.push(leaf);
        }
        starts.push(at);
        if at > object_bytes || leaves.len() < 2 {
            return Err(FrameError::Table);
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        let root = match (merged(left), merged(right)) {
            (Some(left), Some(right)) => merge_subtrees_root(&left, &right, Mode::Hash),
            _ => return Err(FrameError::Table),
        };
        if root.as_bytes() != &digest.0 {
            return Err(FrameError::Table);
        }
        Ok(Some(Self {
            tar_bytes,
            starts,
            leaves,
        }))
    }

    pub(super) fn pieces(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the size of the tar.
    pub(super) fn tar_bytes(&self) -> u64 {
        self.tar_bytes
    }

    /// Returns where the frames of consecutive pieces are in the object. `pieces` must exist.
    pub(super) fn packed(&self, pieces: &Range<usize>) -> Range<u64> {
        self.starts[pieces.start]..self.starts[pieces.end]
    }

    /// Returns the bytes of a piece from its frame.
    ///
    /// # Errors
    /// Returns an error when they are not the layer's.
    pub(super) fn unpack(&self, piece: usize, frame: &[u8]) -> Result<Vec<u8>, FrameError> {
        let begins = piece as u64 * PIECE;
        let length = (self.tar_bytes.saturating_sub(begins)).min(PIECE);
        let plain = zstd::bulk::decompress(frame, length as usize).map_err(|_| FrameError::Piece(piece))?;
        let leaf = self.leaves.get(piece).ok_or(FrameError::Piece(piece))?;
        if plain.len() as u64 != length || chaining_value(piece as u64, &plain) != *leaf {
            return Err(FrameError::Piece(piece));
        }
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(bytes: u64) -> Vec<u8> {
        let mut state = 1u32;
        let next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 29) as u8
        };
        std::iter::repeat_with(next)
            .take(usize::try_from(bytes).unwrap())
            .collect()
    }

    #[test]
    fn pieces_of_any_number_are_those_of_the_tar_and_all_of_it_is_plain_zstd() {
        for bytes in [
            PIECE + 1,
            2 * PIECE,
            3 * PIECE - 7,
            5 * PIECE,
            16 * PIECE + 1,
            23 * PIECE,
        ] {
            let tar = tar(bytes);
            let mut packed = Vec::new();
            compress(&tar[..], &mut packed, 1).unwrap();
            let digest = Digest(*blake3::hash(&tar).as_bytes());
            assert_eq!(zstd::decode_all(&packed[..]).unwrap(), tar);
            let table = Table::parse(&packed, packed.len() as u64, &digest, bytes)
                .unwrap()
                .unwrap();
            assert_eq!(table.pieces() as u64, pieces(bytes));
            for (number, plain) in tar.chunks(PIECE as usize).enumerate() {
                let frame = table.packed(&(number..number + 1));
                let frame = &packed[frame.start as usize..frame.end as usize];
                assert_eq!(table.unpack(number, frame).unwrap(), plain);
                let other = (number + 1) % table.pieces();
                assert_eq!(table.unpack(other, frame), Err(FrameError::Piece(other)));
            }
        }
    }

    #[test]
    fn a_frame_longer_than_any_of_a_piece_is_refused_before_it_is_fetched() {
        assert_eq!(FRAME_MAX, zstd::compress_bound(PIECE as usize) as u64);
        let tar = tar(3 * PIECE);
        let mut packed = Vec::new();
        compress(&tar[..], &mut packed, 1).unwrap();
        let digest = Digest(*blake3::hash(&tar).as_bytes());
        let row = packed.len() - table_bytes(3 * PIECE) as usize;
        // The object is said to be large enough for it.
        let parsed = |length: u64| {
            let mut changed = packed.clone();
            changed[row..row + 4].copy_from_slice(&(length as u32).to_le_bytes());
            Table::parse(&changed, u64::MAX, &digest, 3 * PIECE).err()
        };
        assert_eq!(parsed(FRAME_MAX), None);
        assert_eq!(parsed(FRAME_MAX + 1), Some(FrameError::Table));
    }

    #[test]
    fn a_table_of_other_bytes_is_refused_and_an_object_without_one_has_none() {
        let tar = tar(3 * PIECE);
        let mut packed = Vec::new();
        compress(&tar[..], &mut packed, 1).unwrap();
        let (length, digest) = (packed.len() as u64, Digest(*blake3::hash(&tar).as_bytes()));
        let table = table_bytes(3 * PIECE) as usize;
        for at in packed.len() - table..packed.len() - 8 {
            let mut changed = packed.clone();
            changed[at] ^= 1;
            let parsed = Table::parse(&changed, length, &digest, 3 * PIECE);
            // A frame's length is not hashed: the frame itself is refused then.
            match parsed {
                Err(error) => assert_eq!(error, FrameError::Table),
                Ok(table) => {
                    let frame = table.unwrap().packed(&(0..3));
                    assert_ne!(
                        frame,
                        Table::parse(&packed, length, &digest, 3 * PIECE)
                            .unwrap()
                            .unwrap()
                            .packed(&(0..3))
                    );
                }
            }
        }
        assert!(
            Table::parse(&packed[..packed.len() - 1], length, &digest, 3 * PIECE)
                .unwrap()
                .is_none()
        );
        assert_eq!(
            Table::parse(&packed[packed.len() - 20..], length, &digest, 3 * PIECE).err(),
            Some(FrameError::Table)
        );
        assert_eq!(
            Table::parse(&packed, length, &digest, 9 * PIECE).err(),
            Some(FrameError::Table)
        );
    }
}
