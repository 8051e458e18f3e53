//! A host that has nothing of a function: how often it must ask the store, one answer after the other, before the first
//! response.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, until};
use rekindle_snapshotter::{keys, load_working_set};

/// How long each request takes. The requests of one trip are all asked in less, on a busy machine too.
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
    let mut listing: Vec<_> = asked.iter().map(|a| (a.at - began, &a.what)).collect();
    listing.sort();
    // What is asked later is not waited for.
    listing.retain(|(at, _)| *at < took);
    assert!(
        asked.iter().any(|a| a.what.contains(&keys::manifest(&snapshot))),
        "it was not cold: {listing:?}"
    );
    // What is asked once the first of a trip has its answer may have waited for that.
    let (mut trips, mut answered) = (0, Duration::ZERO);
    for (at, _) in &listing {
        if trips == 0 || *at >= answered {
            trips += 1;
            answered = *at + DELAY;
        }
    }
    assert!(trips <= TRIPS, "{trips}, of {DELAY:?} each: {listing:?}");
    println!("{took:?}, of {DELAY:?} each: {listing:?}");
}

#[test]
fn boots_that_wait_for_their_files_hold_no_other_up() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    // As many as boots get of two cores' permits, and one more.
    let (late, ready) = (["late-1", "late-2", "late-3"], "ready");
    for name in late.iter().chain([&ready]) {
        let code = format!("def handler(event, context):\n    return '{name}'\n");
        platform.deploy(&Folder::python(name, "snapshot = false\n", &code));
    }
    platform.stop();
    platform.empty_cache();
    platform.restart();
    let boot = |name: &str| platform.fresh("booted", name, "/");
    boot(ready).ok();
    // Longer than the store is waited for.
    store.set_delay(Duration::from_secs(60));
    store.take_asked();
    thread::scope(|scope| {
        let waiting = late.map(|name| scope.spawn(move || boot(name)));
        let asked = Cell::new(0);
        until("the files of all three", Duration::from_secs(15), || {
            let layers = store.take_asked().into_iter().filter(|a| a.what.contains("/layers/"));
            asked.set(asked.get() + layers.count());
            (asked.get() >= late.len()).then_some(())
        });
        assert_eq!(boot(ready).ok().start(), "booted");
        assert!(waiting.iter().all(|boot| !boot.is_finished()), "it has waited for them");
        store.set_delay(Duration::ZERO);
    });
}
