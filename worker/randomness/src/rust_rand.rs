//! The generators of threads in Rust's `rand`: `rand::rng()`, `thread_rng()`, `random()`.
//!
//! Each is a buffer of four ChaCha12 blocks next to the state that made it, by which it is recognised. It reseeds
//! itself from the kernel after 64 KiB, and is written such that it has reached this point.
//!
//! ```text
//! 0.10       counts of Rc: 2×u64, then: results:[u32; 64], the first of which is the index, and
//!            constants:4×u32 key:8×u32 counter:u64 nonce:2×u32
//! 0.8, 0.9   results:[u32; 64] index:usize key:8×u32 counter:u64 nonce:2×u32 threshold:i64
//!            bytes_until_reseed:i64, in the compiler's order
//! ```

use crate::chacha::{self, block, counter};
use crate::{Generator, Kind, Memory, Write};

const ROUNDS: u32 = 12;
/// Blocks in a buffer.
const BLOCKS: u64 = 4;
/// Bytes and words in a buffer.
const BUFFER: u64 = 256;
const WORDS: u32 = 64;
/// Bytes, and blocks, between two reseeds.
const THRESHOLD: u64 = 1 << 16;
const BLOCKS_UNTIL_RESEED: u64 = THRESHOLD / 64;
/// Bytes on either side of the threshold that contain the rest of its generator.
const NEAR: u64 = 384;

/// The generator whose state starts, or whose threshold is, at this word.
pub(crate) fn at(memory: &Memory<'_>, address: u64, word: u64) -> Option<Generator> {
    let writes = match word {
        chacha::FIRST => with_index_in_results(memory, address)?,
        THRESHOLD => with_threshold(memory, address)?,
        _ => return None,
    };
    let kind = Kind::Rand;
    Some(Generator { kind, writes })
}

/// For 0.10. A generator that a program created itself has no reference counts before it.
fn with_index_in_results(memory: &Memory<'_>, state: u64) -> Option<Vec<Write>> {
    let words: [u32; 16] = memory.u32s(state)?;
    let drawn = counter(&words);
    // The buffer is before or after the state.
    let results = [state - BUFFER, state + 64].into_iter().find(|results| {
        let first = if *results < state { *results } else { state };
        let counted = memory
            .u64(first - 16)
            .is_some_and(|strong| (1..1 << 20).contains(&strong))
            && memory.u64(first - 8) == Some(1);
        let Some(buffer) = memory.u32s::<64>(*results) else {
            return false;
        };
        let made = match drawn.checked_sub(BLOCKS) {
            Some(before) => {
                let mut last = words;
                chacha::set_counter(&mut last, before);
                // The index has replaced the first word.
                block(&last, ROUNDS)[1..] == buffer[1..16]
            }
            None => buffer[1..].iter().all(|word| *word == 0),
        };
        counted && made && (1..=WORDS).contains(&buffer[0])
    })?;
    Some(vec![
        Write::constant(results, &WORDS.to_le_bytes()),
        Write::constant(state + 48, &BLOCKS_UNTIL_RESEED.to_le_bytes()),
    ])
}

/// For 0.8 and 0.9. The rest of the buffer is drawn first, so it is replaced too.
fn with_threshold(memory: &Memory<'_>, threshold: u64) -> Option<Vec<Write>> {
    let near = || (threshold - NEAR..threshold + NEAR).step_by(8);
    near().find_map(|key| {
        let words: [u32; 12] = memory.u32s(key)?;
        let [low, high, nonce @ ..] = *words.last_chunk::<4>()?;
        let drawn = u64::from(high) << 32 | u64::from(low);
        let is_drawn = drawn % BLOCKS == 0 && (BLOCKS..=BLOCKS_UNTIL_RESEED).contains(&drawn);
        if nonce != [0; 2] || !is_drawn {
            return None;
        }
        let left = THRESHOLD - drawn * 64;
        let until_reseed = near().find(|at| *at != threshold && memory.u64(*at) == Some(left))?;
        let made = block(&chacha::state(words.first_chunk()?, drawn - BLOCKS, nonce), ROUNDS);
        let results = near().find(|at| memory.u32s(*at) == Some(made))?;
        Some(vec![
            Write::random(results, 256),
            Write::constant(until_reseed, &0_u64.to_le_bytes()),
        ])
    })
}
