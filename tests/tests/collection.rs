//! What nobody needs leaves the object store, and what somebody needs stays: `fn snapshot gc` on a whole platform.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, SetOnDrop};
use rekindle_snapshotter::{Snapshot, Store, keys};
use rekindle_wire::SnapshotId;
use rekindle_wire::api::Collected;

/// A function with six megabytes of its own.
fn function(name: &str, seed: u32) -> Folder {
    let code = format!(
        "import hashlib, zlib\nparts = [hashlib.shake_256(b'{seed} %d' % n).digest(1 << 20) for n in range(6)]\n\
         def handler(event, context):\n    return [zlib.crc32(p) for p in parts]\n"
    );
    Folder::python(name, "idle = \"1s\"", &code)
}

fn gc(platform: &Platform, more: &[&str]) -> Collected {
    let output = platform.cli(&[&["snapshot", "gc", "--json"], more].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}\n{}", platform.log_tail(30));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn chunks_of(store: &Store, id: &SnapshotId) -> BTreeSet<String> {
    let snapshot = RUNTIME.block_on(Snapshot::open(store, id)).unwrap();
    let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions());
    regions
        .filter_map(|r| Some(keys::chunk(&r.payload?.chunk.id)))
        .collect()
}

fn objects(store: &Store, prefix: &str) -> BTreeSet<String> {
    let listed = RUNTIME.block_on(store.list(prefix)).unwrap();
    listed.into_iter().map(|o| o.key).collect()
}

#[test]
fn a_deleted_functions_chunks_go_and_another_function_still_restores_from_nothing_but_the_store() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let client = store.client();
    let kept = platform.deploy(&function("kept", 1)).snapshot.unwrap().id;
    let gone = platform.deploy(&function("gone", 2)).snapshot.unwrap().id;
    let sums = platform.get("kept", "/").ok().text();
    let (kept_chunks, gone_chunks) = (chunks_of(&client, &kept), chunks_of(&client, &gone));
    let only_gone: BTreeSet<_> = gone_chunks.difference(&kept_chunks).cloned().collect();
    assert!(!only_gone.is_empty());
    assert_eq!(gc(&platform, &[]).total().objects, 0, "everything is in use");

    assert!(platform.cli(&["delete", "gone", "--yes"]).status.success());
    let dry = gc(&platform, &["--dry-run"]);
    assert_eq!(dry.chunks.objects, only_gone.len() as u64);
    assert!(
        only_gone.is_subset(&objects(&client, "chunks/")),
        "a dry run removes nothing"
    );
    let freed = gc(&platform, &[]);
    assert_eq!((freed.chunks, freed.layers.objects), (dry.chunks, 1));
    assert!(freed.chunks.bytes > 6 << 20, "{freed:?}");
    assert_eq!(objects(&client, "chunks/"), kept_chunks);
    assert_eq!(objects(&client, &keys::snapshot_prefix(&gone)), BTreeSet::new());
    assert_eq!(gc(&platform, &[]).total().objects, 0, "nothing is left to remove");
    let told = platform.cli(&["snapshot", "gc"]);
    assert!(String::from_utf8_lossy(&told.stdout).starts_with("nothing to remove"));
    assert_eq!(objects(&client, "publishing/"), BTreeSet::new());
    assert_eq!(objects(&client, "collecting/"), BTreeSet::new());

    platform.stop();
    platform.empty_cache();
    platform.restart();
    let answer = platform.fresh("restored", "kept", "/").ok();
    assert_eq!((answer.start(), answer.text()), ("restored", sums));
    // What was collected comes back with a new deploy of the same.
    platform.deploy(&function("gone", 2));
    assert_eq!(platform.fresh("restored", "gone", "/").ok().start(), "restored");
}

#[test]
fn deploys_and_deletes_beside_collections_lose_nothing() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    platform.deploy(&function("steady", 1));
    let done = AtomicBool::new(false);
    let collections = std::thread::scope(|scope| {
        let collecting = scope.spawn(|| {
            let mut collections = 0;
            while !done.load(Ordering::Relaxed) {
                // One by the platform itself may be under way.
                collections += u32::from(platform.cli(&["snapshot", "gc"]).status.success());
            }
            collections
        });
        let end = SetOnDrop(&done);
        for round in 0..5 {
            // Two that share much, of which the one before goes while the other comes.
            platform.deploy(&function(if round % 2 == 0 { "even" } else { "odd" }, 7));
            if round > 0 {
                let name = if round % 2 == 0 { "odd" } else { "even" };
                assert!(platform.cli(&["delete", name, "--yes"]).status.success());
            }
        }
        drop(end);
        collecting.join().unwrap()
    });
    assert!(collections > 5, "{collections}");
    gc(&platform, &[]);
    let client = store.client();
    let all = objects(&client, "snapshots/");
    let ids: BTreeSet<SnapshotId> = all.iter().filter_map(|k| Some(keys::in_snapshot(k)?.0)).collect();
    assert_eq!(ids.len(), 2, "steady and even: {all:?}");
    let needed: BTreeSet<String> = ids.iter().flat_map(|id| chunks_of(&client, id)).collect();
    assert_eq!(objects(&client, "chunks/"), needed);
    platform.stop();
    platform.empty_cache();
    platform.restart();
    for name in ["steady", "even"] {
        assert_eq!(platform.fresh("restored", name, "/").ok().start(), "restored", "{name}");
    }
}

#[test]
fn only_the_newest_versions_and_the_one_that_serves_are_kept() {
    let store = ObjectStore::start();
    let mut options = store.options();
    options.args.extend(["--keep-versions".to_owned(), "2".to_owned()]);
    let platform = Platform::start_with(options);
    let ids: Vec<_> = (0..3)
        .map(|seed| platform.deploy(&function("many", seed)).snapshot.unwrap().id)
        .collect();
    // What cannot be deployed is a version too, and takes no other's place.
    for _ in 0..2 {
        platform
            .try_deploy(&Folder::python("many", "", "raise RuntimeError('no')"))
            .unwrap_err();
    }
    assert_eq!(gc(&platform, &["--dry-run"]).versions, 1);
    assert_eq!(gc(&platform, &[]).versions, 1);
    let detail = platform.admin("GET", "/v1/functions/many").send().ok().json();
    let versions = detail["versions"].as_array().unwrap().iter();
    let numbers: Vec<_> = versions.map(|v| v["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [5, 4, 3, 2], "the third serves");
    let client = store.client();
    let left = objects(&client, "snapshots/");
    let kept = &ids[1..];
    assert!(kept.iter().all(|id| left.contains(&keys::manifest(id))));
    let of_others = left
        .iter()
        .find(|key| !kept.iter().any(|id| key.starts_with(&keys::snapshot_prefix(id))));
    assert_eq!(of_others, None);
    assert_eq!(platform.fresh("restored", "many", "/").ok().start(), "restored");
}
