//! The generators of Go's runtime, from 1.22 on: one for the program, which seeds new threads, and one per thread,
//! which `math/rand` uses. A program's own `rand.ChaCha8` has the same state, but different surroundings.
//!
//! ```text
//! of the program   lock, seed:[32]u8 (cleared)  buf:[32]u64 seed:[4]u64 i:u32 n:u32 c:u32 _:u32   init:bool
//! of a thread      m.g0:*g … (g0.m is m)        the same                                          cheaprand:u64
//! ```

use crate::chacha::{permuted, state};
use crate::{Generator, Kind, Memory, Write};

const ROUNDS: u32 = 8;
/// Offsets of the seed and the position in a state, and the offset of its end.
const SEED: u64 = 256;
const POSITION: u64 = 288;
const END: u64 = 304;
/// Numbers in a buffer, and how many are kept back as the next seed.
const NUMBERS: u32 = 32;
const KEPT: u32 = 4;
/// The last counter before the seed changes.
const LAST: u32 = 12;
/// Maximum distance from a thread's structure to its state.
const BEFORE: u64 = 2048;
/// Offset of the `m` in a `g`.
const M_OF_G: u64 = 48;

/// The generator whose position is at this word.
#[allow(clippy::cast_possible_truncation, reason = "two numbers in one word")]
pub(crate) fn at(memory: &Memory<'_>, position: u64, word: u64) -> Option<Generator> {
    let (index, count) = (word as u32, (word >> 32) as u32);
    if (count != NUMBERS && count != NUMBERS - KEPT) || index > count {
        return None;
    }
    let counter = memory.u32(position + 8)?;
    if counter % 4 != 0 || counter > LAST || (counter == LAST) != (count == NUMBERS - KEPT) {
        return None;
    }
    let start = position.checked_sub(POSITION)?;
    let seed: [u32; 8] = memory.u32s(start + SEED)?;
    let buffer: [u32; 64] = memory.u32s(start)?;
    // A cheap check, because many words look like a position.
    if seed.contains(&0) || !made(&buffer, &seed, counter) {
        return None;
    }
    let mut writes = vec![
        Write::random(start + SEED, 32),
        // Everything counts as drawn, so the next block uses this seed.
        Write::constant(position, &[NUMBERS, NUMBERS, 0].map(u32::to_le_bytes).concat()),
    ];
    if is_of_a_thread(memory, start) {
        writes.push(Write::random(start + END, 8));
    } else if !is_of_the_program(memory, start) {
        return None;
    }
    let kind = Kind::Go;
    Some(Generator { kind, writes })
}

/// Whether the first of four blocks was made from the seed. The blocks are interleaved word by word, and only the key
/// is added to them.
fn made(buffer: &[u32; 64], seed: &[u32; 8], counter: u32) -> bool {
    let mut block = permuted(&state(seed, u64::from(counter), [0; 2]), ROUNDS);
    for (word, key) in block[4..12].iter_mut().zip(seed) {
        *word = word.wrapping_add(*key);
    }
    buffer.iter().step_by(4).eq(&block)
}

/// Whether it is inside an `m`: the first word of an `m` is a `g` that points back to it.
fn is_of_a_thread(memory: &Memory<'_>, start: u64) -> bool {
    (start - BEFORE..start).step_by(8).any(|m| {
        let g0 = memory.pointer(m).filter(|g0| *g0 != 0 && g0 % 8 == 0);
        g0.and_then(|g0| memory.u64(g0 + M_OF_G)) == Some(m)
    })
}

fn is_of_the_program(memory: &Memory<'_>, start: u64) -> bool {
    memory.array(start - 32) == Some(&[0; 32]) && memory.array(start + END) == Some(&[1])
}
