//! What a CRIU gone wrong could say on `lazy-pages.socket`, some thousand times: the handshake ends each time, and
//! keeps no descriptor.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use proptest::prelude::*;
use rekindle_pager::fuzz;
use rekindle_pager::handshake::FINISHED;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A plan for four pieces, then words of CRIU's, each with a byte after it.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![Just(FINISHED), Just(0), Just(u32::MAX), 1..70_000_u32, any::<u32>()];
    (any::<[u8; 4]>(), proptest::collection::vec((word, 0..7_usize), 0..40)).prop_map(|(plan, words)| {
        let words = words.iter().flat_map(|(word, keep)| {
            let bytes = [&word.to_ne_bytes()[..], &[7, 7]].concat();
            bytes.into_iter().take(*keep)
        });
        plan.into_iter().chain(words).collect()
    })
}

#[test]
fn every_handshake_ends_and_keeps_no_descriptor() {
    assert!(!fuzz::handshake(&[]));
    let before = descriptors();
    let config = ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(bytes in said())| {
        let _ended = fuzz::handshake(&bytes);
    });
    assert_eq!(descriptors(), before);
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/handshake");
    for seed in std::fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        let ended = fuzz::handshake(&std::fs::read(&path).unwrap());
        assert!(ended, "{} is no handshake: make the seeds anew", path.display());
    }
    assert_eq!(descriptors(), before);
}
