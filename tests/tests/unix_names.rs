//! UNIX sockets whose files were renamed, removed or linked: copies and moved instances have them where they were, or
//! the deploy names them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::restorer::programs_restore;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, hub, shared, until};
use rekindle_wire::api::{Fate, InstanceObjects};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const SETTINGS: &str = "memory = \"192MiB\"\nidle = \"120s\"\nmax_instances = 1";

/// Sockets of which some have other names than they were bound to, as HAProxy has all of them. Answers with what each
/// name leads to, and with connections from before.
const CODE: &str = r#"
import os, socket, threading
KEPT = None
os.makedirs("/tmp/s/deep")
os.chdir("/tmp/s")

def serve(name, now=None):
    """A socket that is bound to a name, and answers with it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(name)
    listening.listen()
    if now:
        os.rename(name, now)
    def answer():
        while True:
            connection = listening.accept()[0]
            connection.send(name.encode())
            connection.close()
    threading.Thread(target=answer, daemon=True).start()
    return listening

def connected(listening, name):
    near = socket.socket(socket.AF_UNIX)
    near.connect(name)
    return near, listening.accept()[0]

MADE

def asked(name):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(name)
        return connection.recv(99).decode()

def handler(event, context):
    near.send(b"one")
    far.send(b"two")
    both = [far.recv(9).decode(), near.recv(9).decode()]
    names = [f"{at}/{name}" for at, _, found in os.walk("/tmp/s") for name in found]
    return {"names": {name: asked(name) for name in sorted(names)}, "both": both}
"#;

/// Some bound before the one that was renamed, some after it, and one at the name that it had.
const MANY: &str = r#"
serve("/tmp/s/before")
serve("/tmp/s/web.501.tmp", "/tmp/s/web")
serve("/tmp/s/web.501.tmp")
serve("/tmp/s/far", "/tmp/s/deep/far")
serve("/tmp/s/replaced", "/tmp/s/now")
serve("/tmp/s/replacing", "/tmp/s/now")
removed = socket.socket(socket.AF_UNIX)
removed.bind("/tmp/s/removed")
removed.listen()
near, far = connected(removed, "/tmp/s/removed")
os.unlink("/tmp/s/removed")
serve("/tmp/s/after")
"#;

/// One that was renamed, with a connection from before, and no other that is bound.
const RENAMED_ALONE: &str = r#"
alone = socket.socket(socket.AF_UNIX)
alone.bind("/tmp/s/a")
alone.listen()
near, far = connected(alone, "/tmp/s/a")
os.rename("/tmp/s/a", "/tmp/s/b")
def answer():
    while True:
        connection = alone.accept()[0]
        connection.send(b"alone")
        connection.close()
threading.Thread(target=answer, daemon=True).start()
"#;

/// One whose name was removed, and no other that is bound.
const REMOVED_ALONE: &str = r#"
alone = socket.socket(socket.AF_UNIX)
alone.bind("/tmp/s/a")
alone.listen()
near, far = connected(alone, "/tmp/s/a")
os.unlink("/tmp/s/a")
"#;

/// Name, code and answer of each function. Those with `criu` are restored by it.
fn functions() -> Vec<(String, String, Value)> {
    let both = json!(["one", "two"]);
    let many = json!({
        "/tmp/s/after": "/tmp/s/after", "/tmp/s/before": "/tmp/s/before", "/tmp/s/deep/far": "/tmp/s/far",
        "/tmp/s/now": "/tmp/s/replacing", "/tmp/s/web": "/tmp/s/web.501.tmp",
        "/tmp/s/web.501.tmp": "/tmp/s/web.501.tmp",
    });
    let all = [
        ("many", MANY, many),
        ("renamed", RENAMED_ALONE, json!({"/tmp/s/b": "alone"})),
        ("removed", REMOVED_ALONE, json!({})),
    ];
    let each = all.into_iter().flat_map(|(name, made, names)| {
        let code = CODE.replace("MADE", made);
        let by_criu = code.replace("KEPT = None", "KEPT = os.pidfd_open(os.getpid())");
        let says = json!({"names": names, "both": both});
        [
            (format!("sockets-{name}"), code, says.clone()),
            (format!("sockets-{name}-criu"), by_criu, says),
        ]
    });
    each.collect()
}

#[test]
fn copies_have_their_unix_sockets_where_these_were() {
    hub::enter();
    let platform = shared();
    for (name, code, says) in functions() {
        let version = platform.deploy(&Folder::python(&name, SETTINGS, &code));
        assert_eq!(version.snapshot_error, None, "{name}");
        let described = String::from_utf8(platform.cli(&["describe", &name]).stdout).unwrap();
        assert_eq!(
            described.contains("a restore program"),
            programs_restore() && !name.ends_with("criu"),
            "{described}"
        );
        for start in ["booted", "restored", "restored"] {
            let answer = platform.fresh(start, &name, "/").ok();
            assert_eq!(answer.start(), start);
            assert_eq!(answer.json(), says, "{name}, {start}");
        }
    }
}

#[test]
fn moved_instances_have_their_unix_sockets_where_these_were() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    for (name, code, says) in functions() {
        let settings = format!("snapshot = false\n{SETTINGS}");
        cluster.deploy(&Folder::python(&name, &settings, &code));
        let first = cluster.get(&name, "/").ok();
        assert_eq!(first.json(), says, "{name}");
        // What a copy was given, it takes along again.
        for round in 0..2 {
            let path = format!("/v1/instances/{}/migrate", first.instance());
            let moved = until("its memory is settled", SOON, || {
                let ask = cluster.admin("POST", &path).header("content-type", "application/json");
                let answer = ask.body("{}").send();
                (answer.status != 409).then_some(answer)
            });
            println!("{name} {round}: {}", moved.ok().json());
            let after = cluster.get(&name, "/").ok();
            assert_eq!(after.instance(), first.instance(), "{name} {round}");
            assert_eq!(after.json(), says, "{name} {round}");
        }
        assert!(cluster.delete(&name).is_ok());
    }
}

#[test]
fn what_no_copy_has_of_a_unix_socket_is_named_and_doctor_tells_all() {
    hub::enter();
    let platform = shared();
    let bound = "bound = socket.socket(socket.AF_UNIX)\nbound.bind('/tmp/d/a')\nbound.listen()\n";
    for (name, code, told, kind) in [
        (
            "linked",
            "os.link('/tmp/d/a', '/tmp/d/b')",
            "is a UNIX socket, bound to \"/tmp/d/a\", that has 2 names (hard links)",
            "a UNIX socket with 2 names",
        ),
        (
            "relinked",
            "os.link('/tmp/d/a', '/tmp/d/b')\nos.unlink('/tmp/d/a')",
            "that was given another name by a hard link and has lost its own",
            "another name by a hard link, once /tmp/d/a",
        ),
        (
            "directory",
            "os.unlink('/tmp/d/a')\nos.rmdir('/tmp/d')",
            "that was removed with its directory",
            "a UNIX socket without a name or directory, once /tmp/d/a",
        ),
    ] {
        // One that is bound before, and one after.
        let other = |name: &str| format!("{name} = socket.socket(socket.AF_UNIX)\n{name}.bind('/tmp/{name}')\n");
        let code = format!(
            "import os, socket\nos.mkdir('/tmp/d')\n{}{bound}{code}\n{}\n\
             def handler(event, context):\n    return sorted(os.listdir('/tmp'))\n",
            other("before"),
            other("after")
        );
        let name = format!("sockets-{name}");
        let version = platform.try_deploy(&Folder::python(&name, SETTINGS, &code)).unwrap();
        let error = version.snapshot_error.unwrap_or_default();
        assert!(
            error.contains(told) && error.contains("of process 501"),
            "{name}: {error}"
        );
        platform.fresh("booted", &name, "/").ok();
        let objects = objects(&name);
        let refused = objects.objects.iter().filter(|o| o.fate == Fate::Refused);
        let refused: Vec<_> = refused.map(|o| o.what.as_str()).collect();
        assert!(refused.len() == 1 && refused[0].contains(kind), "{name}: {refused:?}");
    }

    let (name, code, _) = &functions()[0];
    platform.deploy(&Folder::python(name, SETTINGS, code));
    platform.fresh("booted", name, "/").ok();
    let objects = objects(name);
    let has = |what: &str| objects.objects.iter().any(|o| o.fate == Fate::Kept && o.what == what);
    for what in [
        "a UNIX socket at /tmp/s/before",
        "a UNIX socket at /tmp/s/web, once /tmp/s/web.501.tmp",
        "a UNIX socket without a name, once /tmp/s/removed",
    ] {
        assert!(has(what), "{what}: {objects:?}");
    }
}

fn objects(name: &str) -> InstanceObjects {
    let told = shared().cli(&["doctor", "--function", name, "--json"]);
    serde_json::from_slice(&told.stdout).unwrap()
}
