//! A counter that is another in each copy: for what no search finds, such as numbers that a runtime drew ahead. A
//! program that keeps [`MAGIC`] and 8 bytes more at an address that 16 divides finds those 8 changed in each copy.

use crate::{Generator, Kind, Memory, Write};

/// What a counter begins with. It must not lie in memory otherwise, so no source text has it.
pub const MAGIC: [u32; 4] = [0xd6f3_a95b, 0x8ce2_4d17, 0xb1a0_7e3c, 0xe94f_c285];

/// The counter that begins at this word.
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
