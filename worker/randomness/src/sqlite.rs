//! SQLite's generator, from 3.40 on, wherever it is linked: a ChaCha20 state with its last block. Without the first
//! constant it asks the kernel.

use crate::chacha::{self, block};
use crate::{Generator, Kind, Memory, Write};

const ROUNDS: u32 = 20;

/// The generator whose state starts at this word.
pub(crate) fn at(memory: &Memory<'_>, state: u64, word: u64) -> Option<Generator> {
    if word != chacha::FIRST {
        return None;
    }
    let words: [u32; 16] = memory.u32s(state)?;
    let drawn = memory.u32s(state + 64)? == block(&words, ROUNDS);
    drawn.then(|| Generator {
        kind: Kind::Sqlite,
        writes: vec![Write::constant(state, &[0; 4])],
    })
}
