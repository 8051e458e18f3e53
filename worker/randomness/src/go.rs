//! The generators of Go's runtime, from 1.22 on: one of the program, which seeds new threads, and one of each thread,
//! from which `math/rand` draws. A program's own `rand.ChaCha8` has the same state, but not what is around it.
//!
//! ```text
//! of the program   lock, seed:[32]u8 (cleared)  buf:[32]u64 seed:[4]u64 i:u32 n:u32 c:u32 _:u32   init:bool
//! of a thread      m.g0:*g … (g0.m is m)        the same                                          cheaprand:u64
//! ```

use crate::chacha::{permuted, state};
use crate::{Generator, Kind, Memory, Write};

const ROUNDS: u32 = 8;
/// Where the seed and the position are in a state, and where the state ends.
const SEED: u64 = 256;
const POSITION: u64 = 288;
const END: u64 = 304;
/// Numbers of a buffer, and those that are kept back as the next seed.
const NUMBERS: u32 = 32;
const KEPT: u32 = 4;
/// The last counter before the seed is another.
const LAST: u32 = 12;
/// A thread's state begins at most so far behind the thread.
const BEFORE: u64 = 2048;
/// Where a `g` says its `m`.
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
    // Cheap, for the many words that are no position.
    if seed.contains(&0) || !made(&buffer, &seed, counter) {
        return None;
    }
    let mut writes = vec![
        Write::random(start + SEED, 32),
        // All is drawn, and the next block has this seed.
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

/// Whether the first of four blocks is the seed's. Word by word they lie beside each other; only the key is added.
fn made(buffer: &[u32; 64], seed: &[u32; 8], counter: u32) -> bool {
    let mut block = permuted(&state(seed, u64::from(counter), [0; 2]), ROUNDS);
    for (word, key) in block[4..12].iter_mut().zip(seed) {
        *word = word.wrapping_add(*key);
    }
    buffer.iter().step_by(4).eq(&block)
}

/// Whether it is in an `m`: that one's first word is a `g` that leads back.
fn is_of_a_thread(memory: &Memory<'_>, start: u64) -> bool {
    (start - BEFORE..start).step_by(8).any(|m| {
        let g0 = memory.u64(m).filter(|g0| *g0 != 0 && g0 % 8 == 0);
        g0.and_then(|g0| memory.u64(g0 + M_OF_G)) == Some(m)
    })
}

fn is_of_the_program(memory: &Memory<'_>, start: u64) -> bool {
    memory.array(start - 32) == Some(&[0; 32]) && memory.array(start + END) == Some(&[1])
}
