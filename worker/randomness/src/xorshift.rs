//! xorshift128+, of JavaScript engines. A step of it can be undone, so a state that leads back to what it began with is
//! one.

use std::iter::successors;

/// The halves of a state.
pub(crate) type State = [u64; 2];

/// Steps that a search may undo: it ends, whatever is in memory.
#[derive(Debug)]
pub(crate) struct Steps {
    left: usize,
}

impl Steps {
    /// So many: 2^25 take about a twentieth of a second.
    pub(crate) fn new(left: usize) -> Self {
        Self { left }
    }

    /// Whether one of so many states before `state` is one to begin with. Itself it is none: two words that are alike
    /// are common.
    pub(crate) fn lead_back(&mut self, state: State, steps: usize, begins: impl FnMut(State) -> bool) -> bool {
        let steps = steps.min(self.left);
        let undone = successors(Some(before(state)), |state| Some(before(*state)))
            .take(steps)
            .position(begins);
        self.left -= undone.unwrap_or(steps);
        undone.is_some()
    }
}

/// The state from which one step leads to this one.
fn before([first, second]: State) -> State {
    let shifted_right = second ^ first ^ (first >> 26);
    let shifted_left = shifted_right ^ (shifted_right >> 17) ^ (shifted_right >> 34) ^ (shifted_right >> 51);
    [shifted_left ^ (shifted_left << 23) ^ (shifted_left << 46), first]
}

/// Whether it may be random: neither a small number, nor a pointer, nor text.
pub(crate) fn is_random([first, second]: State) -> bool {
    let random = |half: u64| half >> 48 != 0 && half.count_ones().abs_diff(32) < 20;
    let is_text = (first | second) & 0x8080_8080_8080_8080 == 0;
    random(first) && random(second) && !is_text
}

/// The two halves that `bytes` begin with.
pub(crate) fn state(bytes: &[u8]) -> Option<State> {
    bytes
        .as_chunks()
        .0
        .first_chunk()
        .map(|halves| halves.map(u64::from_le_bytes))
}
