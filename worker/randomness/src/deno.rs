//! UUIDs that Deno draws ahead, from 2.6 on: one text of 128, and how many are drawn, which is written to be all.
//!
//! ```text
//! context   … 128:Smi text:ptr drawn:Smi …
//! text      map hash:u32 length:u32(128 × 36) bytes
//! ```

use crate::{Generator, Kind, Memory, Write};

const UUIDS: u64 = 128;
/// Characters of a UUID, and its hyphens.
const UUID: usize = 36;
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
/// A small number is in the upper half.
const SMALL: u32 = 32;
const POINTER: u64 = 1;

/// The UUIDs whose number is this word.
pub(crate) fn at(memory: &Memory<'_>, number: u64, word: u64) -> Option<Generator> {
    if word != UUIDS << SMALL {
        return None;
    }
    let text = memory.pointer(number + 8).filter(|text| text & 3 == POINTER)? - POINTER;
    let drawn = memory
        .u64(number + 16)
        .filter(|drawn| drawn.trailing_zeros() >= SMALL && drawn >> SMALL <= UUIDS);
    let length = UUID * UUIDS as usize;
    let is_text = drawn.is_some() && memory.u32(text + 12)? as usize == length;
    let uuids = memory.bytes(text + 16, length).filter(|_| is_text)?;
    let is_uuid = |uuid: &[u8]| {
        let is_hyphen = |(at, byte): (usize, &u8)| (*byte == b'-') == HYPHENS.contains(&at);
        uuid[14] == b'4' && uuid.iter().enumerate().all(is_hyphen)
    };
    uuids.chunks(UUID).all(is_uuid).then(|| Generator {
        kind: Kind::DrawnAhead,
        writes: vec![Write::constant(number + 16, &(UUIDS << SMALL).to_le_bytes())],
    })
}
