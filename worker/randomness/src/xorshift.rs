//! xorshift128+ of JavaScript engines. Its steps can be undone, so a state that leads back to an initial one is
//! genuine.

use std::iter::successors;

use crate::memory::words;

/// The halves of a state.
pub(crate) type State = [u64; 2];

/// Number of steps that a search may still undo. It bounds the search, whatever is in memory.
#[derive(Debug)]
pub(crate) struct Steps {
    left: usize,
}

impl Steps {
    /// A budget of `left` steps. 2^25 steps take about a twentieth of a second.
    pub(crate) fn new(left: usize) -> Self {
        Self { left }
    }

    /// Whether one of the `steps` states before `state` is an initial one. `state` itself does not count, because two
    /// equal words are common.
    pub(crate) fn lead_back(&mut self, state: State, steps: usize, begins: impl FnMut(State) -> bool) -> bool {
        let steps = steps.min(self.left);
        let undone = successors(Some(before(state)), |state| Some(before(*state)))
            .take(steps)
            .position(begins);
        self.left -= undone.unwrap_or(steps);
        undone.is_some()
    }
}

/// The state that leads to this one in a single step.
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

/// The two halves at the start of `bytes`.
pub(crate) fn state(bytes: &[u8]) -> Option<State> {
    words(bytes)
}
