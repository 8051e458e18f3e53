//! A snapshot that is damaged for good costs one failed restore, not one at each cold start.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, until};
use rekindle_snapshotter::{Snapshot, keys};

/// Reading a snapshot once more; a chunk that does not come is given up after ten seconds.
const SOON: Duration = Duration::from_secs(30);
const CODE: &str = "import hashlib, zlib\nparts = [hashlib.shake_256(b'%d' % n).digest(1 << 20) for n in range(12)]\n\
    def handler(event, context):\n    return [zlib.crc32(p) for p in parts]\n";

/// How a snapshot is damaged.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Flipped,
    Gone,
}

#[test]
fn a_version_with_a_damaged_snapshot_is_booted_from_then_on_and_says_so() {
    for damage in [Damage::Flipped, Damage::Gone] {
        one_failed_restore_and_no_more(damage);
    }
}

fn one_failed_restore_and_no_more(damage: Damage) {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let folder = Folder::python("damaged", "idle = \"1s\"\ntimeout = \"40s\"", CODE);
    let id = platform.deploy(&folder).snapshot.unwrap().id;
    let sums = platform.get("damaged", "/").ok().text();
    platform.stop();
    platform.empty_cache();
    let client = store.client();
    RUNTIME.block_on(async {
        // It has whole copies of the pages: with it the function would need nothing that is damaged.
        client.delete(&keys::working_set(&id)).await.unwrap();
        let snapshot = Snapshot::open(&client, &id).await.unwrap();
        let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions());
        let chunks: BTreeSet<_> = regions.filter_map(|r| Some(r.payload?.chunk.id)).collect();
        for key in chunks.iter().map(keys::chunk) {
            if damage == Damage::Gone {
                client.delete(&key).await.unwrap();
                continue;
            }
            let Ok(bytes) = client.get(&key).await else { continue };
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            client.put(&key, bytes.into()).await.unwrap();
        }
    });
    platform.restart();

    // The one that pays: killed, or booted instead.
    let paid = platform.get("damaged", "/");
    match paid.status {
        200 => assert_eq!((paid.start(), paid.text()), ("booted", sums.clone())),
        _ => drop(paid.error(502, "snapshot_lost")),
    }
    platform.until_logged("damaged", &format!("snapshot {id} is damaged"));
    until("the version without its snapshot", SOON, || {
        is_marked(&platform).then_some(())
    });

    if damage == Damage::Gone {
        nobody_tries(&mut platform, &sums);
        return;
    }
    // A new deploy has a snapshot that is whole: it builds on nothing that is broken.
    platform.deploy(&folder);
    let answer = platform.fresh("restored", "damaged", "/").ok();
    assert_eq!((answer.start(), answer.text()), ("restored", sums));
}

/// Neither now nor after a restart.
fn nobody_tries(platform: &mut Platform, sums: &str) {
    for round in 0..2 {
        platform.until_gone("damaged", SOON);
        let failures = failed_restores(platform);
        let answer = platform.get("damaged", "/").ok();
        assert_eq!(
            (answer.start(), answer.text()),
            ("booted", sums.to_owned()),
            "round {round}"
        );
        assert_eq!(
            failed_restores(platform),
            failures,
            "round {round}: it was tried once more"
        );
        platform.stop();
        platform.restart();
        assert!(is_marked(platform), "round {round}");
    }
    let told = platform.cli(&["describe", "damaged"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("is damaged") && told.contains("deploy again"), "{told}");
}

fn is_marked(platform: &Platform) -> bool {
    let detail = platform.admin("GET", "/v1/functions/damaged").send().ok().json();
    let version = &detail["versions"][0];
    version["snapshot"].is_null()
        && version["snapshot_error"]
            .as_str()
            .is_some_and(|e| e.contains("is damaged"))
}

/// As the function's log tells of them.
fn failed_restores(platform: &Platform) -> usize {
    let logs = platform.logs("damaged");
    let told = |text: &str| text.contains("booting instead") || text.contains("cannot be read, so");
    logs.iter().filter(|l| told(&l.text)).count()
}
