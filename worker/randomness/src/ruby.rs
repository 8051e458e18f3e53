//! Generators of Ruby's `Kernel#rand`, `Random.rand`, `Array#shuffle` and their like, one of each ractor: an MT19937
//! that points into its own state. One that a program made itself is held by an object.
//!
//! ```text
//! seed:VALUE state:[u32; 624] next:ptr left:i32        next is state + 4 × (625 - left)
//! object   … typed:u64(1) generator:ptr
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::{Generator, Kind, Memory, Write};

const WORDS: u16 = 624;
const BYTES: u64 = WORDS as u64 * 4;
/// Bytes before the state.
const SEED: u64 = 8;
/// By how much the bits of a state that are set differ from half of all, at most: ten times what they usually do.
const DEVIATION: u64 = 700;
/// What an object has before what it holds.
const TYPED: u64 = 1;

/// The generator whose pointer is this word.
pub(crate) fn at(memory: &Memory<'_>, pointer: u64, word: u64) -> Option<u64> {
    let state = pointer.checked_sub(BYTES)?;
    let next = word.checked_sub(state).filter(|next| (4..=BYTES).contains(next))?;
    let left = memory.u64(pointer + 8)?;
    if !(1..=u64::from(WORDS)).contains(&left) || next != BYTES + 4 - 4 * left {
        return None;
    }
    let bytes = memory.bytes(state - SEED, (SEED + BYTES) as usize)?;
    let ones: u64 = bytes[SEED as usize..]
        .iter()
        .map(|byte| u64::from(byte.count_ones()))
        .sum();
    (ones.abs_diff(BYTES * 4) < DEVIATION).then(|| state - SEED)
}

/// Those of these that are held, but by no object.
pub(crate) fn of_runtime(memory: &Memory<'_>, generators: &BTreeSet<u64>) -> Vec<Generator> {
    let mut held = BTreeMap::new();
    if generators.is_empty() {
        return Vec::new();
    }
    memory.each_word(|address, word, _| {
        if generators.contains(&word) {
            *held.entry(word).or_default() |= address.checked_sub(8).and_then(|at| memory.u64(at)) == Some(TYPED);
        }
    });
    let held = held.into_iter().filter(|(_, by_an_object): &(u64, bool)| !by_an_object);
    let writes = held.map(|(generator, _)| vec![Write::random(generator + SEED, WORDS * 4)]);
    let kind = Kind::Ruby;
    writes.map(|writes| Generator { kind, writes }).collect()
}
