//! The form of a sealed object. Pure.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `RKSE` |
//! | 4 | 2 | version: 1 |
//! | 6 | 2 | 0 |
//! | 8 | 16 | id of the key |
//! | 24 | 16 | salt, random |
//! | 40 | 8 | N, length of the plain bytes |
//! | 48 | N + 16 B | B blocks of 64 KiB of plain bytes, the last one shorter, each encrypted, with its tag |
//!
//! The object's own key comes from the namespace's key, the header and the object's name. So neither can be changed,
//! and a block's number is nonce enough.

use std::ops::Range;

use super::key_id::KeyId;

const MAGIC: [u8; 4] = *b"RKSE";
const VERSION: u16 = 1;
pub(crate) const HEADER: usize = 48;
pub(super) const SALT: usize = 16;
/// Plain bytes of a block. A region is seldom larger, so that reading one decrypts little else.
pub(super) const BLOCK: usize = 64 << 10;
pub(super) const TAG: usize = 16;

/// The beginning of a sealed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: KeyId,
    pub(super) salt: [u8; SALT],
    /// Length of the plain bytes.
    pub(crate) len: u64,
}

/// Size of a sealed object with this many plain bytes.
pub fn sealed_len(plain: u64) -> u64 {
    let tags = plain.div_ceil(BLOCK as u64) * TAG as u64;
    plain.saturating_add(HEADER as u64 + tags)
}

/// How many plain bytes a sealed object of this size has.
pub(super) fn plain_len(sealed: u64) -> u64 {
    let rest = sealed.saturating_sub(HEADER as u64);
    rest - rest.div_ceil((BLOCK + TAG) as u64) * TAG as u64
}

/// Numbers of the blocks with these plain bytes.
pub(super) fn blocks(plain: &Range<u64>) -> Range<u64> {
    plain.start / BLOCK as u64..plain.end.div_ceil(BLOCK as u64)
}

/// The plain bytes of these blocks of an object.
pub(super) fn plain_of(blocks: &Range<u64>, len: u64) -> Range<u64> {
    blocks.start * BLOCK as u64..(blocks.end * BLOCK as u64).min(len)
}

/// Where the blocks with these plain bytes are in a sealed object.
pub(crate) fn place_of(plain: &Range<u64>, len: u64) -> Range<u64> {
    let blocks = blocks(plain);
    let of = plain_of(&blocks, len);
    let tags = |number: u64| HEADER as u64 + number * TAG as u64;
    of.start + tags(blocks.start)..of.end + tags(blocks.end)
}

impl Header {
    /// The header of an object that begins with these bytes. `None` if it is not sealed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (salt, len) = rest.split_first_chunk()?;
        let of_ours = head == &Self::head();
        of_ours.then_some(Self {
            key: KeyId(*key),
            salt: *salt,
            len: u64::from_le_bytes(len.try_into().ok()?),
        })
    }

    pub(super) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&Self::head());
        bytes[8..24].copy_from_slice(&self.key.0);
        bytes[24..40].copy_from_slice(&self.salt);
        bytes[40..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    fn head() -> [u8; 8] {
        let ([a, b, c, d], [low, high]) = (MAGIC, VERSION.to_le_bytes());
        [a, b, c, d, low, high, 0, 0]
    }
}
