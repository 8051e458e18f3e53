//! V8 generators whose state leads back to a hashed seed. One is an isolate's generator, which seeds `Math.random` of
//! new contexts. From V8 15 on, which draws nothing ahead, the other is `Math.random` itself.
//!
//! ```text
//! isolate   size of the block:u64 seed:u64 state:2×u64
//! context   map:ptr length:u64(16) state:2×u64
//! ```

use crate::v8::is_pointer;
use crate::xorshift::{State, Steps, is_random, state};
use crate::{Generator, Kind, Memory, Write};

/// Size in bytes of an isolate's generator as rounded up by an allocator, which keeps its flags in the lowest bits.
const BLOCK: u64 = 0x20;
const MARKS: u64 = 7;
/// No object has a lower address.
const LOWEST: u64 = 1 << 16;
/// Bytes of a state.
const LENGTH: u64 = 16;
/// Maximum steps undone for one state, and for all states of a search.
const STEPS_OF_ISOLATE: usize = 1 << 16;
const STEPS_OF_CONTEXT: usize = 1 << 20;

const STEPS_OF_ALL: usize = 1 << 24;

#[derive(Debug)]
pub(crate) struct Search {
    isolates: Steps,
    contexts: Steps,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            isolates: Steps::new(STEPS_OF_ALL),
            contexts: Steps::new(STEPS_OF_ALL),
        }
    }
}

impl Search {
    /// The generator that follows this word.
    pub(crate) fn at(&mut self, memory: &Memory<'_>, address: u64, word: u64, rest: &[u8]) -> Option<Generator> {
        let at = if word == LENGTH {
            // What it points to may be a file's, and so not in memory.
            let map = memory.u64(address.checked_sub(8)?)?;
            let is_map = is_pointer(map) && map >= LOWEST;
            let state = state(rest).filter(|state| is_map && is_random(*state))?;
            let begins = |begin: State| begins_with(begin, unhashed(begin[0]));
            let found = self.contexts.lead_back(state, STEPS_OF_CONTEXT, begins);
            found.then_some(address + 8)?
        } else if word & !MARKS == BLOCK {
            let (seed, behind) = rest.split_first_chunk()?;
            let seed = u64::from_le_bytes(*seed);
            let state = state(behind).filter(|state| is_random(*state) && is_random([seed; 2]))?;
            let first = hashed(seed);
            let begins = |begin: State| begin[0] == first && begins_with(begin, seed);
            let found = self.isolates.lead_back(state, STEPS_OF_ISOLATE, begins);
            found.then_some(address + 16)?
        } else {
            return None;
        };
        let (kind, writes) = (Kind::MathRandom, vec![Write::random(at, 16)]);
        Some(Generator { kind, writes })
    }
}

/// Whether a state whose first half is the hash of `seed` is an initial one.
fn begins_with(begin: State, seed: u64) -> bool {
    [hashed(!seed), hashed(!begin[0])].contains(&begin[1])
}

/// The last step of MurmurHash3.
pub(crate) fn hashed(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// The inverse of [`hashed`].
fn unhashed(hash: u64) -> u64 {
    let mixed = (hash ^ hash >> 33).wrapping_mul(0x9cb4_b2f8_1293_37db);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0x4f74_430c_22a5_4005);
    mixed ^ mixed >> 33
}
