//! SQLite databases of an instance go on where connections of different ages meet: some from before the snapshot, some
//! from before a move, and some from now. Those of one process exclude each other by a list in its memory, which knows
//! files by device and inode number.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, Reply, binaries, hub, json_server, shared, skip, until};
use rekindle_wire::WorkerId;
use rekindle_wire::api::InstanceState;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// Each request opens another connection to each database, and has it meet all earlier ones.
const CODE: &str = r#"
import os, sqlite3, threading

DATABASES = {"delete": "/tmp/delete.db", "wal": "/tmp/wal.db", "shared": "/dev/shm/wal.db", "single": "/tmp/single.db"}
ROOT = {"delete": "/srv/delete.db", "wal": "/srv/wal.db",
        "shared": "/srv/of-image/wal.db", "single": "/srv/of-image/x.db"}
if os.path.exists("/srv/of-image"):
    DATABASES = ROOT

def connect(name):
    path = DATABASES[name]
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.1)
    connection.execute("PRAGMA journal_mode=" + ("delete" if name in ("delete", "single") else "wal"))
    connection.execute("PRAGMA cache_size=10")
    connection.execute("PRAGMA synchronous=OFF")
    return connection

kept = {name: [connect(name)] for name in DATABASES}
for (first,) in kept.values():
    first.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, filling BLOB)")
    first.execute("CREATE INDEX fillings ON rows (filling)")
    first.execute("INSERT INTO rows (filling) VALUES (randomblob(300))")

def count(connection):
    return connection.execute("SELECT count(*) FROM rows").fetchone()[0]

def exclude(one, other):
    """What the second of two writers is told; then the first ends, and the second sees what it has written."""
    one.execute("BEGIN IMMEDIATE")
    one.execute("INSERT INTO rows (filling) VALUES (randomblob(300))")
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        told = "both write"
    except sqlite3.OperationalError as error:
        told = str(error)
    one.execute("COMMIT")
    return told if count(one) == count(other) else told + ", and sees another number of rows"

def write(connection, errors):
    for _ in range(50):
        try:
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(10):
                connection.execute("INSERT INTO rows (filling) VALUES (randomblob(300))")
            connection.execute("DELETE FROM rows WHERE number IN (SELECT number FROM rows ORDER BY random() LIMIT 9)")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            errors.append(str(error))

def together(one, other):
    """Errors of two threads that write hundreds of rows at once."""
    errors = []
    for connection in (one, other):
        connection.execute("PRAGMA busy_timeout=20000")
    threads = [threading.Thread(target=write, args=(connection, errors)) for connection in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in (one, other):
        connection.execute("PRAGMA busy_timeout=100")
    return errors

def meet(name):
    new = connect(name)
    met = []
    for old in kept[name]:
        try:
            met.append([exclude(old, new), exclude(new, old), together(old, new)])
        except sqlite3.Error as error:
            met.append(str(error))
    kept[name].append(new)
    return met, new.execute("PRAGMA integrity_check").fetchone()[0]

def handler(event, context):
    told = {}
    for name in DATABASES:
        try:
            told[name] = meet(name)
        except sqlite3.Error as error:
            told[name] = str(error)
    return told
"#;

/// Serves [`CODE`] as the program of an image. Two of its databases are files of the image, and two are not.
const ANSWER: &str = "\ndef answer(path):\n    return handler(None, None)\n";

const DOCKERFILE: &str = "FROM scratch\nADD python.tar /\nCOPY server.py /srv/\nCOPY of-image/ /srv/of-image/\n\
                          WORKDIR /srv\nCMD [\"python3\", \"server.py\"]\n";

/// An image with the databases. `None` where it cannot be built.
fn image(name: &str, settings: &str) -> Option<Folder> {
    if Command::new("buildah").arg("--version").output().is_err() {
        skip("buildah is missing: run scripts/setup.sh test-packages");
        return None;
    }
    let config = format!("name = \"{name}\"\nimage = \".\"\nport = 80\n{settings}\n");
    let folder = Folder::with_config(&config)
        .file("server.py", &json_server(&format!("{CODE}{ANSWER}"), "80"))
        .file("Dockerfile", DOCKERFILE);
    let (tar, databases) = ("python.tar", folder.path().join("of-image"));
    fs::copy(binaries::runtimes().join(tar), folder.path().join(tar)).unwrap();
    fs::create_dir(&databases).unwrap();
    for database in ["wal.db", "x.db"] {
        fs::write(databases.join(database), "").unwrap();
    }
    Some(folder)
}

/// What all databases answer once the new connection has met this number of earlier ones.
fn met(number: usize) -> Value {
    let locked = "database is locked";
    let one = json!([vec![json!([locked, locked, []]); number], "ok"]);
    json!({ "delete": one, "wal": one, "shared": one, "single": one })
}

/// Has connections meet in an instance that was booted and in a copy, before and after each is parked.
#[track_caller]
fn meet_in_copies(name: &str, folder: &Folder) {
    let platform = shared();
    platform.deploy(folder);
    for start in ["booted", "restored"] {
        let first = platform.fresh(start, name, "/").ok();
        assert_eq!((first.start(), first.json()), (start, met(1)));
        until("it is parked", SOON, || {
            let instances = platform.instances_of(name);
            let mut parked = instances.iter().filter(|one| one.state == InstanceState::Parked);
            parked.any(|one| one.id.as_str() == first.instance()).then_some(())
        });
        let again = platform.get(name, "/").ok();
        assert_eq!((again.start(), again.instance()), ("parked", first.instance()));
        assert_eq!(again.json(), met(2));
        let path = format!("/v1/instances/{}", first.instance());
        assert_eq!(platform.admin("DELETE", &path).send().status, 204);
    }
}

/// For [`meet_in_copies`].
const KEPT: &str = "timeout = \"60s\"\nidle = \"1s\"\npark = \"120s\"\nmax_instances = 1\nmemory = \"256MiB\"";

#[test]
fn connections_of_before_the_snapshot_and_of_after_it_exclude_each_other_and_no_row_is_lost() {
    // Before anything runs: the other test's hosts are in a network of their own, and so is this process then.
    hub::enter();
    meet_in_copies("databases-kept", &Folder::python("databases-kept", KEPT, CODE));
}

#[test]
fn so_they_do_on_the_root_of_an_image() {
    hub::enter();
    if let Some(folder) = image("databases-root", KEPT) {
        meet_in_copies("databases-root", &folder);
    }
}

fn migrate(cluster: &Cluster, instance: &str, to: &WorkerId) -> Reply {
    until("its memory is settled", SOON, || {
        let answer = cluster
            .admin("POST", &format!("/v1/instances/{instance}/migrate"))
            .header("content-type", "application/json")
            .body(json!({ "to": to }).to_string())
            .send();
        (answer.status != 409).then_some(answer)
    })
}

#[test]
fn connections_of_before_and_after_a_move_exclude_each_other_and_no_row_is_lost() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let settings = "memory = \"256MiB\"\ntimeout = \"60s\"\nidle = \"120s\"\nmax_instances = 1";
    let own = Folder::python("databases-move", settings, CODE);
    meet_after_moves(&cluster, "databases-move", &own);
    if let Some(root) = image("databases-move-root", settings) {
        meet_after_moves(&cluster, "databases-move-root", &root);
    }
}

/// Has connections meet in a copy and in an instance that was booted, before and after each of three moves.
#[track_caller]
fn meet_after_moves(cluster: &Cluster, name: &str, folder: &Folder) {
    let ids = [cluster.worker(0).id, cluster.worker(1).id];
    cluster.deploy(folder);
    for start in ["restored", "booted"] {
        let first = cluster.fresh(start, name, "/").ok();
        assert_eq!((first.start(), first.json()), (start, met(1)));
        for moves in 1..=3 {
            let here = cluster.instances_of(name);
            let to = ids.iter().find(|id| **id != here[0].worker).unwrap();
            let moved = migrate(cluster, first.instance(), to).ok().json();
            println!("{start} {moves}: {moved}");
            let after = cluster.get(name, "/").ok();
            assert_eq!(after.instance(), first.instance());
            assert_eq!(after.json(), met(1 + moves), "{name} {start}, after move {moves}");
        }
        let path = format!("/v1/instances/{}", first.instance());
        assert_eq!(cluster.admin("DELETE", &path).send().status, 204);
    }
}
