//! Places of workers and functions on a ring of 2^64 places. A function's own places name the workers that are tried
//! first. Those stay the same as long as they exist, and hardly change when other workers come or go.

use rekindle_wire::WorkerId;

/// A text's place, the same in every process: a scheduler that takes over sends functions where they were sent before.
/// It is FNV-1a followed by the last step of splitmix64, since FNV alone puts similar texts close together.
pub(crate) fn place(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    scatter(fnv)
}

/// A different place for each number (splitmix64).
pub(crate) fn scatter(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A worker's place. Two workers at the same place would count as one in the ring, which only expresses a preference.
pub(crate) fn place_of(worker: &WorkerId) -> u64 {
    place(worker.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_alike_are_spread_evenly() {
        let mut slices = [0_u32; 16];
        for n in 0..16_000 {
            let at = place(&format!("w-{n}")) >> 60;
            slices[usize::try_from(at).unwrap()] += 1;
        }
        assert!(slices.iter().all(|n| (800..1_200).contains(n)), "{slices:?}");
    }
}
