//! Encrypted snapshots: what a function had in memory is searched for in every object of the store and every file of
//! the workers' caches, with encryption and without.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memchr::memmem;
use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Client, Cluster, Folder, Platform, RUNTIME, hub, until};
use rekindle_snapshotter::{Store, StoreError};
use rekindle_wire::api::{Collected, NamespaceSummary, VersionInfo};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// What functions have in memory: LZ4 keeps it as it is.
const OPEN: &str = "vK8rTz3qLw6Yp1Xd-of-the-open-one";
const SEALED: &str = "mB5nHc9sJf2Gu7Ra-of-the-sealed-one";

/// Has `mark` in its memory and in a file, and its code has it backwards.
fn function(name: &str, mark: &str) -> Folder {
    let backwards: String = mark.chars().rev().collect();
    let code = format!(
        "import os, zlib\nmark = '{backwards}'[::-1]\nkept = [mark + str(n) for n in range(20000)]\n\
         noise = os.urandom(1 << 20)\nopen('/tmp/kept', 'w').write(mark)\ncount = 0\n\
         def handler(event, context):\n    global count\n    count += 1\n\
         \x20   return {{'sum': zlib.crc32(''.join(kept).encode() + noise), 'count': count,\n\
         \x20       'file': zlib.crc32(open('/tmp/kept', 'rb').read())}}\n"
    );
    Folder::python(name, "idle = \"60s\"", &code)
}

fn run(client: &Client, args: &[&str]) -> String {
    let output = client.cli(args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {told}\n{}", client.log_tail(30));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn encrypted_namespace(client: &Client) {
    run(client, &["namespace", "create", "team"]);
    run(client, &["namespace", "encrypt", "team"]);
    run(client, &["namespace", "encrypt", "team"]);
    let all: Vec<NamespaceSummary> = client.cli_json(&["namespace", "list", "--json"]).unwrap();
    let encrypted = all.iter().filter(|n| n.encrypted).map(|n| n.name.as_str());
    assert_eq!(encrypted.collect::<Vec<_>>(), ["team"]);
}

fn deploy(client: &Client, folder: &Folder) -> VersionInfo {
    let path = folder.path().to_str().unwrap();
    let version: VersionInfo = client.cli_json(&["-n", "team", "deploy", path, "--json"]).unwrap();
    assert_eq!(version.snapshot_error, None, "{}", client.log_tail(60));
    version
}

fn has(bytes: &[u8], part: &str) -> bool {
    memmem::find(bytes, part.as_bytes()).is_some()
}

fn objects_with(store: &Store, part: &str) -> Vec<String> {
    let keys = RUNTIME
        .block_on(store.list(""))
        .unwrap()
        .into_iter()
        .map(|object| object.key);
    // A marker of a publication may go meanwhile.
    keys.filter(|key| match RUNTIME.block_on(store.get(key)) {
        Ok(bytes) => has(&bytes, part),
        Err(StoreError::NotFound { .. }) => false,
        Err(e) => panic!("{e}"),
    })
    .collect()
}

fn files_with(directory: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, part));
        } else if kind.is_file() && fs::read(&path).is_ok_and(|bytes| has(&bytes, part)) {
            found.push(path);
        }
    }
    found
}

#[test]
fn memory_of_an_encrypted_namespace_is_in_no_object_and_other_hosts_restore_it() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let objects = store.client();
    encrypted_namespace(&cluster);
    cluster.deploy(&function("open", OPEN));
    let in_clear = objects_with(&objects, OPEN);
    for kind in ["chunks/", "snapshots/"] {
        assert!(
            in_clear.iter().any(|key| key.starts_with(kind)),
            "the search finds nothing: {in_clear:?} of {:?}\n{}",
            RUNTIME.block_on(objects.list("")),
            cluster.log_tail(60)
        );
    }
    let version = deploy(&cluster, &function("sealed", SEALED));
    let snapshot = version.snapshot.unwrap().id;
    let found = || {
        let mut found = objects_with(&objects, SEALED);
        for worker in [Role::Worker.nth(0), Role::Worker.nth(1)] {
            for directory in ["cache", "data"] {
                let files = files_with(&cluster.directory(worker, directory), SEALED);
                found.extend(files.into_iter().map(|path| path.display().to_string()));
            }
        }
        found
    };
    assert_eq!(found(), Vec::<String>::new());

    let restored = cluster.fresh("restored", "sealed.team", "/").ok();
    assert_eq!(restored.start(), "restored");
    let expected = restored.json();
    let same = |answer: &Value| (answer["sum"].clone(), answer["file"].clone());
    // Over to the other worker, with what it has written since.
    let path = format!("/v1/instances/{}/migrate", restored.instance());
    until("it moves", SOON, || {
        let request = cluster.admin("POST", &path).header("content-type", "application/json");
        (request.body("{}").send().status == 200).then_some(())
    });
    // From nothing but the store, on each.
    for number in [0, 1] {
        let other = Role::Worker.nth(1 - number);
        cluster.stop(other);
        let answer = cluster.fresh("restored", "sealed.team", "/").ok();
        assert_eq!(
            (answer.start(), same(&answer.json())),
            ("restored", same(&expected)),
            "worker {number}"
        );
        cluster.launch(other);
        cluster.until_ready();
    }
    run(&cluster, &["-n", "team", "snapshot", "renew", "sealed"]);
    until("it is renewed", SOON, || {
        let path = "/v1/namespaces/team/functions/sealed/versions/1";
        let version: VersionInfo = serde_json::from_value(cluster.admin("GET", path).send().ok().json()).ok()?;
        (version.snapshot?.id != snapshot).then_some(())
    });
    assert_eq!(cluster.fresh("restored", "sealed.team", "/").ok().start(), "restored");
    let collected: Collected = cluster.cli_json(&["snapshot", "gc", "--json"]).unwrap();
    assert!(collected.held_by.is_empty(), "{collected:?}");
    assert_eq!(cluster.fresh("restored", "sealed.team", "/").ok().start(), "restored");
    let mut found = objects_with(&objects, SEALED);
    for worker in [Role::Worker.nth(0), Role::Worker.nth(1)] {
        let files = files_with(&cluster.directory(worker, "cache"), SEALED);
        found.extend(files.into_iter().map(|path| path.display().to_string()));
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Runs a statement in the scheduler's database.
fn in_database(platform: &Platform, statement: &str) -> String {
    let code = "import sqlite3, sys\nwith sqlite3.connect(sys.argv[1]) as database:\n\
        \x20   print(database.execute(sys.argv[2]).fetchall())\n";
    let database = platform.directory("data").join("scheduler.db");
    let output = Command::new("python3")
        .args(["-c", code])
        .arg(database)
        .arg(statement)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn with_another_key_a_version_boots_and_what_a_removed_namespace_leaves_is_unreadable() {
    hub::enter();
    let mut platform = Platform::start();
    encrypted_namespace(&platform);
    let version = deploy(&platform, &function("sealed", SEALED));
    let id = version.snapshot.unwrap().id.to_string();
    let place = platform.directory("run").to_str().unwrap().to_owned();
    let told = platform.cli(&["snapshot", "export", &id, "/tmp/never", "--run", &place]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("is encrypted with snapshot key"), "{told}");
    let listed = run(&platform, &["snapshot", "list", "--run", &place]);
    assert!(listed.contains(&id) && listed.contains("(encrypted)"), "{listed}");

    // As if its key had been destroyed and another made.
    platform.stop();
    platform.empty_cache();
    in_database(&platform, "DELETE FROM snapshot_keys");
    platform.restart();
    run(&platform, &["namespace", "encrypt", "team"]);
    let answer = platform.get("sealed.team", "/").ok();
    assert_eq!(answer.start(), "booted");
    until("the log names the key", SOON, || {
        platform.log().contains("is encrypted with snapshot key").then_some(())
    });
    run(&platform, &["-n", "team", "snapshot", "renew", "sealed"]);
    until("it is restored again", SOON, || {
        let answer = platform.fresh("restored", "sealed.team", "/");
        (answer.status == 200 && answer.start() == "restored").then_some(())
    });

    // A copy of all objects, as in a backup or in a bucket's versions.
    let store = platform.directory("data").join("s3");
    let copy = tempfile::tempdir().unwrap();
    let copied = |from: &Path, to: &Path| {
        let done = Command::new("cp").args(["-a", "-T"]).arg(from).arg(to).status();
        assert!(done.unwrap().success());
    };
    copied(&store, copy.path());
    run(&platform, &["-n", "team", "delete", "sealed", "--yes"]);
    run(&platform, &["namespace", "rm", "team"]);
    assert_eq!(in_database(&platform, "SELECT COUNT(*) FROM snapshot_keys"), "[(0,)]");
    let gone: Collected = platform.cli_json(&["snapshot", "gc", "--json"]).unwrap();
    assert!(gone.held_by.is_empty(), "{gone:?}");
    platform.stop();
    copied(copy.path(), &store);
    assert_eq!(files_with(&store, SEALED), Vec::<PathBuf>::new());
    platform.restart();
    // Nobody can tell what they need, and nobody wants them.
    let gone: Collected = platform.cli_json(&["snapshot", "gc", "--json"]).unwrap();
    assert!(
        gone.held_by.is_empty() && gone.snapshots.objects > 0 && gone.chunks.objects > 0,
        "{gone:?}"
    );
}

#[test]
fn a_deploy_that_a_namespace_s_encryption_overtakes_leaves_nothing_in_the_clear() {
    hub::enter();
    let platform = Platform::start();
    run(&platform, &["namespace", "create", "team"]);
    let slow = function("sealed", SEALED);
    let code = fs::read_to_string(slow.path().join("main.py")).unwrap();
    fs::write(
        slow.path().join("main.py"),
        format!("import time\ntime.sleep(8)\n{code}"),
    )
    .unwrap();
    let path = slow.path().to_str().unwrap();
    let state = |wanted: &[&str]| {
        let path = "/v1/namespaces/team/functions/sealed/versions/1";
        let version: Value = platform.admin("GET", path).try_send().ok()?.json();
        wanted.contains(&version["state"].as_str()?).then_some(())
    };
    let version: VersionInfo = std::thread::scope(|scope| {
        let deploy = scope.spawn(|| platform.cli_json(&["-n", "team", "deploy", path, "--json"]));
        until("it boots", SOON, || state(&["booting"]));
        run(&platform, &["namespace", "encrypt", "team"]);
        deploy.join().unwrap().unwrap()
    });
    let why = version.snapshot_error.unwrap_or_default();
    assert!(version.snapshot.is_none() && why.contains("encrypted"), "{why}");
    let renewed = until("its snapshot is made anew", SOON, || {
        let path = "/v1/namespaces/team/functions/sealed/versions/1";
        let version: VersionInfo = serde_json::from_value(platform.admin("GET", path).send().ok().json()).ok()?;
        version.snapshot
    });
    let store = platform.directory("data").join("s3");
    until("what was made before is gone", SOON, || {
        let _collected: Collected = platform.cli_json(&["snapshot", "gc", "--json"]).ok()?;
        files_with(&store, SEALED).is_empty().then_some(())
    });
    assert_eq!(platform.fresh("restored", "sealed.team", "/").ok().start(), "restored");
    assert!(renewed.stored_bytes > 0);
}
