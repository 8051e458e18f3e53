//! The ChaCha block function, by which a state proves that adjacent output is its own.

/// The first four words of a state.
pub(crate) const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// [`CONSTANTS`] as the first 64-bit word in memory.
pub(crate) const FIRST: u64 = 0x3320_646e_6170_7865;

/// A state: constants, `key`, block `counter` and `nonce`.
pub(crate) fn state(key: &[u32; 8], counter: u64, nonce: [u32; 2]) -> [u32; 16] {
    let mut state = [0; 16];
    state[..4].copy_from_slice(&CONSTANTS);
    state[4..12].copy_from_slice(key);
    set_counter(&mut state, counter);
    state[14..].copy_from_slice(&nonce);
    state
}

/// The number of the state's next block.
pub(crate) fn counter(state: &[u32; 16]) -> u64 {
    u64::from(state[13]) << 32 | u64::from(state[12])
}

#[allow(clippy::cast_possible_truncation, reason = "the two halves of a number")]
pub(crate) fn set_counter(state: &mut [u32; 16], counter: u64) {
    state[12] = counter as u32;
    state[13] = (counter >> 32) as u32;
}

/// The block of a state without the final addition of the state.
pub(crate) fn permuted(state: &[u32; 16], rounds: u32) -> [u32; 16] {
    let mut x = *state;
    for _ in 0..rounds / 2 {
        for column in 0..4 {
            quarter(&mut x, [column, column + 4, column + 8, column + 12]);
        }
        for diagonal in 0..4 {
            let next = |by: usize| (diagonal + by) % 4;
            quarter(&mut x, [diagonal, 4 + next(1), 8 + next(2), 12 + next(3)]);
        }
    }
    x
}

/// The block of a state, with 8, 12 or 20 rounds.
pub(crate) fn block(state: &[u32; 16], rounds: u32) -> [u32; 16] {
    let mut block = permuted(state, rounds);
    for (word, initial) in block.iter_mut().zip(state) {
        *word = word.wrapping_add(*initial);
    }
    block
}

fn quarter(x: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (to, from, mixed, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        x[to] = x[to].wrapping_add(x[from]);
        x[mixed] = (x[mixed] ^ x[to]).rotate_left(by);
    }
}
