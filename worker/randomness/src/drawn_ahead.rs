//! Pools of random bytes that JavaScript libraries such as npm's `uuid` and `nanoid` draw ahead. The runtime's agent
//! lists them by their first bytes, which serve to find them.
//!
//! ```text
//! list   magic:4×u32 count:u32 _:u32 count × (begin:2×u64 length:u64)
//! ```

use std::collections::BTreeMap;

use crate::{FOUND_MAX, Generator, Kind, Memory, Write};

/// The first words of a list.
const MAGIC: [u32; 4] = [0xa47c_e519, 0xf2d8_0b63, 0x9be6_3cd1, 0xc85f_972e];
/// Maximum number of pools in a list.
const POOLS_MAX: u32 = 64;
/// Possible lengths of a pool in bytes.
const LENGTHS: std::ops::RangeInclusive<u64> = 64..=0xffff;
const HEADER: u64 = 24;

/// The first words of a pool, and its length.
type Pool = ([u64; 2], u16);

/// The pools of the list that starts at this word.
pub(crate) fn at(memory: &Memory<'_>, list: u64, word: u64) -> Vec<Pool> {
    let first = u64::from(MAGIC[1]) << 32 | u64::from(MAGIC[0]);
    if word != first || memory.u32s(list) != Some(MAGIC) {
        return Vec::new();
    }
    let count = memory.u32(list + 16).unwrap_or(0).min(POOLS_MAX);
    let pools = (0..u64::from(count)).filter_map(|pool| {
        let entry = list + HEADER + pool * 24;
        let [begin, next, length] = [0, 8, 16].map(|at| memory.u64(entry + at));
        let length = length.filter(|length| LENGTHS.contains(length))?;
        Some(([begin?, next?], u16::try_from(length).ok()?))
    });
    pools.collect()
}

/// Locates the pools in memory.
pub(crate) fn filled(memory: &Memory<'_>, pools: &[Pool]) -> Vec<Generator> {
    let pools: BTreeMap<_, _> = pools.iter().copied().collect();
    let mut found = Vec::new();
    if pools.is_empty() {
        return found;
    }
    memory.each_word(|address, word, rest| {
        let Some(next) = rest.first_chunk().filter(|_| found.len() < FOUND_MAX) else {
            return;
        };
        let Some(length) = pools.get(&[word, u64::from_le_bytes(*next)]) else {
            return;
        };
        // The list itself contains these words too, and is shorter.
        let is_whole = memory.bytes(address, usize::from(*length)).is_some();
        let is_listed = memory.u64(address + 16) == Some(u64::from(*length));
        if is_whole && !is_listed {
            let (kind, writes) = (Kind::DrawnAhead, vec![Write::random(address, *length)]);
            found.push(Generator { kind, writes });
        }
    });
    found
}
