//! Regions cut out of the bytes of a chunk.

use std::sync::Arc;

use bytes::Bytes;

use super::read_error::ReadError;
use crate::codec::{self, DecodeError, RegionSize};
use crate::pagemap::{ChunkRef, PageIndex, Payload, Region};

/// Uses no memory until it is read.
static ZEROS: [u8; RegionSize::MAX.bytes()] = [0; RegionSize::MAX.bytes()];

pub(super) fn zeros(region: &Region) -> Bytes {
    // No region of a page map is longer.
    Bytes::from_static(&ZEROS[..region.plain_len().min(ZEROS.len())])
}

pub(super) fn cut_out(
    region: &Region,
    payload: &Payload,
    bytes: &[u8],
    base: Option<&[u8]>,
) -> Result<Bytes, ReadError> {
    let chunk = payload.chunk;
    let held = ChunkPart { chunk, from: 0, bytes };
    decode(region, payload, held.of(payload), base).map_err(|cause| not_held(region.first, chunk, cause))
}

/// The bytes of a chunk from an offset on.
#[derive(Clone, Copy)]
pub(super) struct ChunkPart<'a> {
    pub(super) chunk: ChunkRef,
    pub(super) from: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> ChunkPart<'a> {
    /// A payload's bytes in this part. Empty if they lie outside: the chunk may be shorter than the page map says.
    pub(super) fn of(self, payload: &Payload) -> &'a [u8] {
        let start = payload
            .offset
            .checked_sub(self.from)
            .filter(|_| payload.chunk == self.chunk);
        start
            .and_then(|start| self.bytes.get(start as usize..)?.get(..payload.len as usize))
            .unwrap_or(&[])
    }
}

pub(super) fn not_held(first: PageIndex, chunk: ChunkRef, cause: DecodeError) -> ReadError {
    ReadError::Region {
        chunk: chunk.id,
        first,
        cause: Arc::new(cause),
    }
}

pub(super) fn decode(
    region: &Region,
    payload: &Payload,
    stored: &[u8],
    base: Option<&[u8]>,
) -> Result<Bytes, DecodeError> {
    let mut plain = vec![0; region.plain_len()];
    decode_into(region, payload, stored, base, &mut plain)?;
    Ok(plain.into())
}

/// Decodes a payload and applies it to its base if it is a difference. The digest covers the resulting region.
pub(super) fn decode_into(
    region: &Region,
    payload: &Payload,
    stored: &[u8],
    base: Option<&[u8]>,
    plain: &mut [u8],
) -> Result<(), DecodeError> {
    codec::decode_unchecked(payload.encoding, stored, plain)?;
    if let (Some(base), Some(own)) = (&region.base, base) {
        base.exclusive_or(region, plain, own);
    }
    codec::check(plain, payload.hash)
}
