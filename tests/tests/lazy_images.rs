//! Container images on hosts that do not have them: what a restore fetches, and what becomes of the rest.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rekindle_e2e::lazy_image::{self, ATTRIBUTES, FILES, MODES, READ};
use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Folder, Platform, until};
use serde_json::json;

/// How much a restore may fetch, in bytes: packed, what is read is a fourth of that.
const FETCHED_MOST: f64 = 30e6;
/// How long a request may take while the store is away: its read fails after ten seconds, and so does what the program
/// maps and needs then.
const AWAY_MOST: Duration = Duration::from_secs(45);

/// Calls at once of a function that reads what does not come.
const CALLS: usize = 12;

/// A platform that has nothing of the functions that were deployed there but what is in the store.
fn cold_host(store: &ObjectStore, folders: &[Folder]) -> Platform {
    let mut platform = Platform::start_with(store.options());
    for folder in folders {
        let version = platform.deploy(folder);
        assert!(version.snapshot.is_some(), "{version:?}");
    }
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
    platform.empty_cache();
    platform.restart();
    platform
}

#[test]
fn a_host_without_an_image_restores_it_before_it_is_there_and_survives_the_store_s_absence() {
    if !lazy_image::can_mount() {
        return;
    }
    let store = ObjectStore::start();
    let (folder, digests) = lazy_image::image("lazy-image", "timeout = \"60s\"");
    let mut platform = cold_host(&store, &[folder]);

    let reply = platform.get("lazy-image", &format!("/?from=0&to={READ}&mapped=1")).ok();
    let fetched =
        |when: &str| platform.worker_metric(&format!("rekindle_layers_fetched_bytes_total{{when=\"{when}\"}}"));
    let (start, touched, rest) = (fetched("start"), fetched("touched"), fetched("background"));
    // What is not here yet cannot be read while the store is away.
    store.set(Line::Dead);
    let began = Instant::now();
    let away = platform.get("lazy-image", "/?from=80&to=81");
    let took = began.elapsed();
    store.set(Line::Good);
    println!("fetched {start} at the start, {touched} when touched, {rest} in the background; away: {took:?}");
    assert_eq!(reply.start(), "restored");
    let found = reply.json();
    assert_eq!(found["digests"], json!(digests[..READ]));
    assert_eq!(found["mapped"], json!(digests[99]));
    assert_eq!(found["modes"], json!(MODES));
    assert_eq!(found["attributes"], json!(ATTRIBUTES));
    assert_eq!(rest, 0.0, "the host is too busy for this test");
    assert!(
        start + touched < FETCHED_MOST && start > 1e6,
        "{start} and {touched} bytes"
    );
    // Python may lack a page of its own then, for which there is no error.
    let survived = away.status == 200;
    match survived {
        true => assert_eq!(away.json(), json!({ "error": 5 })),
        false => assert!(away.error(502, "function_crashed").message().contains("SIGBUS")),
    }
    assert!(took < AWAY_MOST, "{took:?}");
    assert!(platform.worker_metric("rekindle_layers_failed_reads_total") >= 1.0);

    // The same instance, once the store is back. A change copies what is not here yet.
    let all = platform
        .get("lazy-image", &format!("/?from=0&to={FILES}&changed=1"))
        .ok();
    assert_eq!(all.instance() == reply.instance(), survived);
    assert_eq!(all.json()["digests"], json!(digests));
    assert_eq!(all.json()["changed"], json!([digests[50], 1000, FILES]));

    // Later instances use the unpacked layer; this one keeps its own.
    let layers = platform.directory("cache").join("worker/layers");
    let unpacked = |name: &Path| name.join("srv/data/0").exists().then_some(());
    until("the rest of the image", Duration::from_secs(150), || {
        fs::read_dir(&layers)
            .unwrap()
            .flatten()
            .find_map(|entry| unpacked(&entry.path()))
    });
    assert!(fetched("background") >= 0.0);
    let later = platform
        .fresh("restored", "lazy-image", &format!("/?from=0&to={FILES}&mapped=1"))
        .ok();
    assert_ne!(later.instance(), all.instance());
    assert_eq!((later.start(), &later.json()["digests"]), ("restored", &json!(digests)));
    assert_eq!(later.json()["mapped"], json!(digests[99]));
    assert_eq!(later.json()["modes"], json!(MODES));
    assert_eq!(later.json()["attributes"], json!(ATTRIBUTES));
    let earlier = platform.get("lazy-image", "/?from=60&to=61").ok();
    assert_eq!(earlier.json()["digests"], json!([digests[60]]));
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn calls_that_time_out_while_they_read_an_image_that_does_not_come_stop_nothing_else() {
    if !lazy_image::can_mount() {
        return;
    }
    let store = ObjectStore::start();
    let (folder, _) = lazy_image::image("stuck", "timeout = \"1s\"\nconcurrency = 20\nmax_instances = 1");
    let code = "def handler(event, context):\n    return 1\n";
    let mut platform = cold_host(&store, &[folder, Folder::python("beside", "", code)]);
    // On a busy machine the first reading takes longer than the calls may.
    until("the first files are read", Duration::from_secs(30), || {
        let read = platform.get("stuck", &format!("/?from=0&to={READ}"));
        (read.status == 200).then_some(())
    });
    platform.get("beside", "/").ok();

    // More calls than the worker has threads, each of which waits for a file of its own.
    store.set(Line::Dead);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (30..30 + CALLS)
            .map(|file| {
                std::thread::sleep(Duration::from_millis(8));
                let platform = &platform;
                scope.spawn(move || platform.get("stuck", &format!("/?from={file}&to={}", file + 1)))
            })
            .collect();
        let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap().status).collect();
        assert!(answers.iter().all(|status| *status >= 500), "{answers:?}");
    });
    let began = Instant::now();
    platform.get("beside", "/").ok();
    assert!(began.elapsed() < AWAY_MOST / 3, "{:?}", began.elapsed());
    store.set(Line::Good);
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}
