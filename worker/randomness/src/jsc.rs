//! `Math.random` of JavaScriptCore, which Bun uses: xorshift128+ next to its initial seed.
//!
//! ```text
//! seed:u32 _:u32 state:2×u64      initially, both halves are the seed
//! ```

use crate::xorshift::{Steps, is_random, state};
use crate::{Generator, Kind, Write};

/// Maximum steps undone in a whole search, for one state, and for a state that is hardly random yet.
const STEPS_OF_ALL: usize = 1 << 24;
const STEPS: usize = 1 << 13;
const FIRST_STEPS: usize = 8;
/// Smaller numbers are rarely seeds.
const SEED_MIN: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Search(Steps);

impl Default for Search {
    fn default() -> Self {
        Self(Steps::new(STEPS_OF_ALL))
    }
}

impl Search {
    /// The generator whose seed is at this word.
    pub(crate) fn at(&mut self, address: u64, word: u64, rest: &[u8]) -> Option<Generator> {
        if word >> 32 != 0 || word < SEED_MIN {
            return None;
        }
        let state = state(rest)?;
        let most = if is_random(state) { STEPS } else { FIRST_STEPS };
        self.0
            .lead_back(state, most, |begin| begin == [word; 2])
            .then(|| Generator {
                kind: Kind::MathRandom,
                writes: vec![Write::random(address + 8, 16)],
            })
    }
}
