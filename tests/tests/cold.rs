//! A host that has nothing of a function: how often it must ask the store, one answer after the other, before the first
//! response.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, until};
use rekindle_snapshotter::{keys, load_working_set};

/// What each request costs: more than all the rest of a restore, layers unpacked and all, on a busy machine.
const DELAY: Duration = Duration::from_secs(2);
/// Requests that may wait for each other.
const TRIPS: u32 = 2;

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
    let took = began.elapsed();
    store.set_delay(Duration::ZERO);
    assert_eq!(answer.start(), "restored");
    assert_eq!(answer.json(), warm.json());

    let asked = store.take_asked();
    let listing: Vec<_> = asked.iter().map(|a| (a.at - began, &a.what)).collect();
    assert!(
        asked.iter().any(|a| a.what.contains(&keys::manifest(&snapshot))),
        "it was not cold: {listing:?}"
    );
    // Had one more waited, it would have taken longer.
    assert!(took < DELAY * (TRIPS + 1), "{took:?}, of {DELAY:?} each: {listing:?}");
    println!("{took:?}, of {DELAY:?} each: {listing:?}");
}
