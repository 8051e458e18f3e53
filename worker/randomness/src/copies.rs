//! A counter that differs in each copy, for state that no search finds, such as numbers that a runtime has drawn ahead.
//! A program keeps [`MAGIC`] and 8 more bytes at an address divisible by 16. Those 8 bytes are changed in each copy.

use crate::{Generator, Kind, Memory, Write};

/// The first words of a counter. They must not occur elsewhere in memory, so no source text contains them.
pub const MAGIC: [u32; 4] = [0xd6f3_a95b, 0x8ce2_4d17, 0xb1a0_7e3c, 0xe94f_c285];

/// The counter that starts at this word.
pub(crate) fn at(memory: &Memory<'_>, address: u64, word: u64) -> Option<Generator> {
    let first = u64::from(MAGIC[1]) << 32 | u64::from(MAGIC[0]);
    if word != first || memory.u32s(address)? != MAGIC || !address.is_multiple_of(16) {
        return None;
    }
    memory.u64(address + 16)?;
    Some(Generator {
        kind: Kind::Copies,
        writes: vec![Write::random(address + 16, 8)],
    })
}
