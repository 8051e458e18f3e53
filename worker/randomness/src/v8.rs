//! `Math.random` of V8: each context has its own state, and 64 numbers that it drew ahead. The last of them corresponds
//! to the state.
//!
//! ```text
//! context   … index:Smi state:ptr cache:ptr …       words have 8 bytes, or 4 if pointers are compressed
//! state     map length s0:u64 s1:u64                a length is a small integer, or a plain number in newer versions
//! cache     map length 64×f64
//! ```

use crate::memory::{END, words};
use crate::{Generator, Kind, Memory, Write};

/// Numbers in a cache.
const CACHED: u64 = 64;
/// The bit that distinguishes a pointer from a small integer.
const POINTER: u64 = 1;
/// Mask of the base of compressed pointers.
const BASE: u64 = !0xffff_ffff;

/// Memory layout of a build of V8.
#[derive(Clone, Copy)]
struct Layout {
    /// Bytes of a word, and bits before a small integer.
    word: u64,
    shift: u32,
}

const WIDE: Layout = Layout { word: 8, shift: 32 };
const NARROW: Layout = Layout { word: 4, shift: 1 };

/// The generator whose index is at this word, or in its second half.
#[allow(clippy::cast_possible_truncation, reason = "two words in one")]
pub(crate) fn at(memory: &Memory<'_>, address: u64, word: u64, rest: &[u8]) -> Option<Generator> {
    let (low, high) = (word as u32, (word >> 32) as u32);
    let is_index = |word: u32| word <= NARROW.small(CACHED) as u32 && word.is_multiple_of(2);
    if low == 0 && u64::from(high) <= CACHED {
        let [state, cache] = words(rest)?;
        if is_pointer(state) && is_pointer(cache) {
            return WIDE.at(memory, address, u64::from(high), [state, cache]);
        }
    }
    if is_index(low) && is_pointer(u64::from(high)) {
        let [cache] = halves(rest)?;
        if is_pointer(cache) {
            return NARROW.at(
                memory,
                address,
                u64::from(low / 2),
                [u64::from(high), cache].map(|p| p | address & BASE),
            );
        }
    }
    if is_index(high) {
        let [state, cache] = halves(rest)?;
        if is_pointer(state) && is_pointer(cache) {
            return NARROW.at(
                memory,
                address + 4,
                u64::from(high / 2),
                [state, cache].map(|p| p | address & BASE),
            );
        }
    }
    None
}

/// Whether a word may be a pointer to an object.
pub(crate) fn is_pointer(word: u64) -> bool {
    word & 3 == POINTER && word < END
}

/// The first 32-bit numbers of `bytes`.
#[inline]
fn halves<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut halves = [0; N];
    for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0.first_chunk::<N>()?) {
        *half = u64::from(u32::from_le_bytes(*bytes));
    }
    Some(halves)
}

impl Layout {
    fn small(self, number: u64) -> u64 {
        number << self.shift
    }

    /// Address of the contents of an array of this length.
    fn array(self, memory: &Memory<'_>, pointer: u64, length: u64) -> Option<u64> {
        let array = pointer - POINTER;
        let told = match self.word {
            4 => u64::from(memory.u32(array + 4)?),
            _ => memory.u64(array + 8)?,
        };
        (told == self.small(length) || told == length).then_some(array + 2 * self.word)
    }

    fn at(self, memory: &Memory<'_>, index: u64, at: u64, [state, cache]: [u64; 2]) -> Option<Generator> {
        let state = self.array(memory, state, 16)?;
        let cache = self.array(memory, cache, CACHED)?;
        let [s0, s1] = [memory.u64(state)?, memory.u64(state + 8)?];
        let last = f64::from_bits(memory.u64(cache + 8 * (CACHED - 1))?);
        // Before the first draw, everything is zero. The first draw would use a seed that all copies share.
        let is_fresh = at == 0 && s0 == 0 && s1 == 0 && last == 0.0;
        (is_fresh || is_made_of(last, s0, s1)).then(|| Generator {
            kind: Kind::MathRandom,
            writes: vec![
                Write::random(state, 16),
                // Discards everything drawn ahead.
                Write::constant(index, &vec![0; self.word as usize]),
            ],
        })
    }
}

/// Whether a number in [0, 1) was made from this state: from the upper 52 or 53 bits of its first half, or of its sum
/// in newer versions.
#[allow(clippy::cast_precision_loss, reason = "of 53 bits")]
fn is_made_of(number: f64, s0: u64, s1: u64) -> bool {
    let of_52 = f64::from_bits(s0 >> 12 | 1.0_f64.to_bits()) - 1.0;
    let of_53 = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
    number != 0.0 && [of_52, of_53(s0), of_53(s0.wrapping_add(s1))].contains(&number)
}
