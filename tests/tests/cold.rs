//! A host that has nothing of a function: how often it must ask the store, one answer after the other, before the first
//! response.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use rekindle_e2e::s3::{Asked, ObjectStore};
use rekindle_e2e::{Folder, Platform, RUNTIME, until};
use rekindle_snapshotter::{keys, load_working_set};

/// What each request costs. Longer than all the rest of a restore on a busy machine, so that what was asked for in the
/// background meanwhile has not been answered.
const DELAY: Duration = Duration::from_secs(3);

#[test]
fn a_cold_host_waits_for_the_store_twice_at_most_before_the_first_response() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let folder = Folder::sample("touch-python", |t| t.replace("\"touch\"", "\"cold\""));
    let snapshot = platform.deploy(&folder).snapshot.unwrap().id;
    let warm = platform.fresh("restored", "cold", "/sum").ok();
    let client = store.client();
    let stored = || RUNTIME.block_on(load_working_set(&client, &snapshot)).unwrap();
    until("the working set's pack", Duration::from_secs(15), stored);
    platform.stop();
    platform.empty_cache();
    platform.restart();
    store.set_delay(DELAY);
    store.take_asked();
    let began = Instant::now();
    let answer = platform.get("cold", "/sum").ok();
    let ended = Instant::now();
    store.set_delay(Duration::ZERO);
    assert_eq!(answer.start(), "restored");
    assert_eq!(answer.json(), warm.json());

    let asked = store.take_asked();
    let before: Vec<_> = asked
        .iter()
        .filter(|a| a.at >= began && a.answered.is_some_and(|t| t <= ended))
        .collect();
    let listing: Vec<_> = before.iter().map(|a| (a.at - began, &a.what)).collect();
    assert!(
        before.iter().any(|a| a.what.contains(&keys::manifest(&snapshot))),
        "{listing:?}"
    );
    let trips = one_after_the_other(&before);
    assert!(trips <= 2, "{trips} round trips: {listing:?}");
    println!(
        "{trips} round trips, {:?} in all, of which {DELAY:?} each: {listing:?}",
        ended - began
    );
}

/// The most requests of which each began after the answer to the one before.
fn one_after_the_other(asked: &[&Asked]) -> usize {
    let mut by_end: Vec<_> = asked.iter().filter_map(|a| Some((a.answered?, a.at))).collect();
    by_end.sort_unstable();
    let (mut trips, mut last) = (0, None);
    for (answered, at) in by_end {
        if last.is_none_or(|last| at >= last) {
            trips += 1;
            last = Some(answered);
        }
    }
    trips
}
