//! Versions that begin as one snapshot of their runtime: what they have in common is stored once, and nothing of one
//! function is in another.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Options, Platform, RUNTIME, host, until};
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::snapshot::read_manifest;
use rekindle_snapshotter::{Manifest, Snapshot, Store, keys};
use rekindle_wire::SnapshotId;
use rekindle_wire::api::VersionInfo;
use serde_json::Value;

fn platform(store: &ObjectStore, sharing: &str) -> Platform {
    let mut options = store.options();
    options.args.extend(["--share-memory".to_owned(), sharing.to_owned()]);
    Platform::start_with(options)
}

/// A function that tells who it is; `note` makes it another version.
fn tells(name: &str, note: u32) -> Folder {
    let code = format!(
        "import os, random, ssl, time, uuid\nnote = {note}\nfirst = random.random()\n\
         def handler(event, context):\n    return {{\n        \
         'note': note, 'name': context.function_name, 'files': sorted(os.listdir('.')),\n\
         \x20       'users': sorted({{*os.getresuid(), *os.getresgid(), os.stat(f'/proc/{{os.getpid()}}').st_uid}}),\n\
         \x20       'environment': dict(os.environ), 'began with': open('/proc/self/environ').read().split('\\0'),\n\
         \x20       'drawn': [first, random.random(), str(uuid.uuid1()), ssl.RAND_bytes(8).hex()], \
         'hash': hash('text'), 'clock': time.monotonic()}}\n"
    );
    // Whatever network the one has that the snapshot is taken of.
    let network = if note.is_multiple_of(2) { "none" } else { "egress" };
    let folder = Folder::python(
        name,
        &format!(
            "idle = \"1s\"\nnetwork = \"{network}\"\n[env]\nSECRET_OF_{} = \"1\"",
            name.to_uppercase()
        ),
        &code,
    );
    folder.file(&format!("only-in-{name}.txt"), "")
}

fn manifest(store: &Store, id: &SnapshotId) -> Manifest {
    RUNTIME.block_on(read_manifest(store, id)).unwrap()
}

fn id(version: &VersionInfo) -> SnapshotId {
    version.snapshot.as_ref().unwrap().id.clone()
}

/// Of what is stored for the snapshot, what the store had before.
fn shared(version: &VersionInfo) -> f64 {
    let snapshot = version.snapshot.as_ref().unwrap();
    snapshot.shared_bytes as f64 / snapshot.stored_bytes as f64
}

fn keys_of(store: &Store, prefix: &str) -> BTreeSet<String> {
    let listed = RUNTIME.block_on(store.list(prefix)).unwrap();
    listed.into_iter().map(|o| o.key).collect()
}

const LIMIT: Duration = Duration::from_secs(20);

fn gc(platform: &Platform) {
    let output = platform.cli(&["snapshot", "gc"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn functions_of_a_runtime_share_most_of_their_memory_and_nothing_of_their_own() {
    let store = ObjectStore::start();
    let mut platform = platform(&store, "functions");
    let client = store.client();
    let (one, two) = (platform.deploy(&tells("one", 1)), platform.deploy(&tells("two", 2)));
    let manifests = [&one, &two].map(|version| manifest(&client, &id(version)));
    let base = manifests[0].base.clone().unwrap();
    assert_eq!(manifests[1].base, Some(base.clone()));
    let Origin::Runtime { function: None, .. } = manifest(&client, &base).origin else {
        panic!("{base} is to be of the runtime");
    };
    for version in [&one, &two] {
        assert!(shared(version) > 0.8, "{version:?}");
    }
    assert_eq!(
        platform.worker_metric("rekindle_runtime_snapshots_total{outcome=\"made\"}"),
        1.0
    );
    assert_eq!(
        platform.worker_metric("rekindle_runtime_snapshots_total{outcome=\"used\"}"),
        1.0
    );

    // As they were deployed; then restored, from nothing but the store.
    let booted = ["one", "two"].map(|name| platform.get(name, "/").ok().json());
    platform.stop();
    platform.empty_cache();
    platform.restart();
    let restored = ["one", "two", "one"].map(|name| platform.fresh("restored", name, "/").ok().json());
    for (name, other, answers) in [
        ("one", "two", [&booted[0], &restored[0], &restored[2]]),
        ("two", "one", [&booted[1], &restored[1], &restored[1]]),
    ] {
        for told in answers {
            assert_eq!(told["name"], name);
            let files = told["files"].as_array().unwrap();
            assert!(files.contains(&format!("only-in-{name}.txt").into()), "{files:?}");
            assert!(!files.contains(&format!("only-in-{other}.txt").into()), "{files:?}");
            assert_eq!(told["users"].as_array().unwrap().len(), 1, "{told}");
            let environment = told["environment"].as_object().unwrap();
            assert_eq!(environment["FN_NAME"], name);
            assert!(environment.contains_key(&format!("SECRET_OF_{}", name.to_uppercase())));
            assert!(
                !told
                    .to_string()
                    .contains(&format!("SECRET_OF_{}", other.to_uppercase())),
                "{told}"
            );
            let began: Vec<&str> = told["began with"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            assert!(began.iter().all(|v| !v.starts_with("FN_NAME")), "{began:?}");
        }
    }
    let users = ["one", "two"].map(|name| host::users(&platform, platform.get(name, "/").ok().instance()));
    assert!(users[0].is_disjoint(&users[1]), "each sandbox has its own: {users:?}");
    // Drawn while they were loaded, and since: no two functions and no two copies have drawn the same.
    let drawn = |at: usize| {
        booted
            .iter()
            .chain(&restored)
            .map(move |told| told["drawn"][at].to_string())
    };
    assert_eq!(drawn(0).collect::<BTreeSet<_>>().len(), 2, "one for each function");
    for at in 1..4 {
        assert_eq!(drawn(at).collect::<BTreeSet<_>>().len(), 5, "{at}");
    }
    // Their clocks go on from where the original was when it was checkpointed, in what had been restored before, too.
    for (was, is) in [
        (&booted[0], &restored[0]),
        (&booted[1], &restored[1]),
        (&booted[0], &restored[2]),
    ] {
        let [was, is] = [was, is].map(|told| told["clock"].as_f64().unwrap());
        assert!((was - 10.0..was + 60.0).contains(&is), "{was} {is}");
    }
    // What it costs, as the documents say.
    assert_eq!(booted[0]["hash"], restored[1]["hash"], "they have one hash secret");

    // It may go at any time: what began as it keeps what it needs.
    RUNTIME.block_on(rekindle_snapshotter::delete(&client, &base)).unwrap();
    gc(&platform);
    assert_eq!(
        keys_of(&client, keys::RUNTIME_SNAPSHOTS),
        BTreeSet::new(),
        "nothing names what is gone"
    );
    platform.stop();
    platform.empty_cache();
    platform.restart();
    let again = platform.fresh("restored", "two", "/").ok().json();
    assert_eq!(again["note"], 2);
    let third = platform.deploy(&tells("three", 3));
    assert_ne!(manifest(&client, &id(&third)).base, Some(base));
    assert!(shared(&third) > 0.8, "{third:?}");
}

#[test]
fn versions_of_a_function_share_what_no_other_function_has_and_it_goes_with_the_function() {
    let store = ObjectStore::start();
    let platform = platform(&store, "versions");
    let client = store.client();
    let versions = [1, 2].map(|note| platform.deploy(&tells("one", note)));
    let other = platform.deploy(&tells("two", 3));
    let [first, second] = versions
        .each_ref()
        .map(|version| manifest(&client, &id(version)).base.unwrap());
    assert_eq!(first, second);
    assert!(shared(&versions[1]) > 0.8, "{versions:?}");
    let theirs = manifest(&client, &id(&other)).base.unwrap();
    assert_ne!(first, theirs);
    let Origin::Runtime { function, .. } = manifest(&client, &theirs).origin else {
        panic!("{theirs} is to be of the runtime");
    };
    assert_eq!(function, Some("two".parse().unwrap()));
    let hashes = ["one", "two"].map(|name| platform.fresh("restored", name, "/").ok().json()["hash"].clone());
    assert_ne!(hashes[0], hashes[1], "another function has another hash secret");
    gc(&platform);
    assert!(
        keys_of(&client, "snapshots/").contains(&keys::manifest(&first)),
        "the next version begins as it"
    );

    assert!(platform.cli(&["delete", "one", "--yes"]).status.success());
    let wanted = BTreeSet::from([id(&other), theirs]);
    // A worker may store a working set of what was just deleted. The next collection finds it.
    until("what is deleted is gone", LIMIT, || {
        gc(&platform);
        let keys = keys_of(&client, "snapshots/");
        let left: BTreeSet<SnapshotId> = keys.iter().filter_map(|key| Some(keys::in_snapshot(key)?.0)).collect();
        (left == wanted).then_some(())
    });
    gc(&platform);
    let names = keys_of(&client, keys::RUNTIME_SNAPSHOTS);
    assert_eq!(names, BTreeSet::from(["runtime-snapshots/python/two.json".to_owned()]));
    assert_eq!(platform.fresh("restored", "two", "/").ok().json()["note"], 3);
}

#[test]
fn what_cannot_begin_so_is_booted_and_says_why_where_it_is_at_fault() {
    let store = ObjectStore::start();
    let mut platform = platform(&store, "functions");
    let client = store.client();
    let plain = |version: &VersionInfo| manifest(&client, &id(version)).base.is_none();
    let code = "import os\ndef handler(event, context):\n    return os.environ['PYTHONHASHSEED'] + str(hash('text'))\n";
    let seeded = platform.deploy(&Folder::python("seeded", "[env]\nPYTHONHASHSEED = \"7\"", code));
    assert!(plain(&seeded), "the interpreter reads it when it starts");
    let seed = platform.fresh("restored", "seeded", "/").ok().text();
    assert_eq!(seed, platform.fresh("booted", "seeded", "/").ok().text());
    let server = "import http.server, os\n\
         class Answers(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        \
         self.send_response(200)\n        self.end_headers()\n\
         http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answers).serve_forever()\n";
    assert!(
        plain(&platform.deploy(&Folder::server("server", "", server))),
        "its program is its own"
    );

    for (code, reason) in [
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("handler = 5\n", "cannot be called"),
    ] {
        let error = platform.try_deploy(&Folder::python("broken", "", code)).unwrap_err();
        assert!(
            error.contains(reason) && error.contains("before it served HTTP"),
            "{error}"
        );
    }
    // What failed has left a snapshot of its runtime all the same.
    let good = platform.deploy(&tells("good", 1));
    let base = manifest(&client, &id(&good)).base.unwrap();

    // One that is damaged is replaced.
    let snapshot = RUNTIME.block_on(Snapshot::open(&client, &base)).unwrap();
    let regions = snapshot.processes[0].page_map.regions();
    let chunk = regions.iter().find_map(|region| region.chunks().next()).unwrap();
    platform.stop();
    platform.empty_cache();
    RUNTIME.block_on(client.delete(&keys::chunk(&chunk.id))).unwrap();
    platform.restart();
    let after = platform.deploy(&tells("after", 2));
    assert!(manifest(&client, &id(&after)).base.is_some_and(|new| new != base));
    assert_eq!(platform.fresh("restored", "after", "/").ok().json()["note"], 2);
}

#[test]
fn functions_of_node_share_most_of_their_memory() {
    let store = ObjectStore::start();
    let platform = platform(&store, "functions");
    let deploy = |name: &str| {
        let own = format!("name = \"{name}\"");
        platform.deploy(&Folder::sample("hello-node", |config| {
            config.replace("name = \"hello-node\"", &own)
        }))
    };
    let versions = ["first-node", "second-node"].map(deploy);
    for version in &versions {
        assert!(shared(version) > 0.5, "{version:?}");
    }
    for name in ["first-node", "second-node"] {
        let answers = [(); 2].map(|()| platform.fresh("restored", name, "/").ok());
        assert!(answers.iter().all(|answer| answer.start() == "restored"));
    }
}

#[test]
fn it_is_looked_at_and_deleted_as_every_other() {
    let options = Options {
        args: vec!["--share-memory".to_owned(), "functions".to_owned()],
        ..Options::default()
    };
    let platform = Platform::start_with(options);
    let said = |args: &[&str]| {
        let run = platform.directory("run");
        let output = platform.cli(&[&["snapshot"], args, &["--run", run.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let version = platform.deploy(&tells("one", 1));
    let seen: Value = serde_json::from_str(&said(&["inspect", id(&version).as_str(), "--json"])).unwrap();
    let base = seen["base"].as_str().unwrap();
    assert!(seen["regions"]["difference"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(seen["shared_with"][0]["id"], base);
    let text = said(&["inspect", id(&version).as_str()]);
    assert!(text.contains(base) && text.contains("as a difference"), "{text}");
    let text = said(&["inspect", base]);
    assert!(text.contains("runtime python"), "{text}");
    assert!(said(&["list"]).contains("runtime python"));
    said(&["delete", base]);
    assert!(!said(&["list"]).contains("runtime python"));
    assert_eq!(platform.fresh("restored", "one", "/").ok().json()["note"], 1);
}
