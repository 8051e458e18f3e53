//! What a container image's programs look at all the time, as browsers and servers that reload do. These are files and
//! directories of their root, by inotify, and files of `/proc` about themselves. Both are in snapshots, copies and
//! moves, restored by a program or by CRIU.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use rekindle_e2e::cluster::Size;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Cluster, Folder, binaries, hub, json_server, skip, until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// Makes a file in each directory, and tells of the events by the numbers of the watches. Number 1 is free.
const CODE: &str = r#"
import ctypes, os, struct

libc = ctypes.CDLL(None, use_errno=True)
watching = libc.inotify_init1(os.O_NONBLOCK)
DIRECTORIES = ["/", "/etc", "/usr/share/zoneinfo/Etc", "/srv"]
libc.inotify_rm_watch(watching, libc.inotify_add_watch(watching, b"/usr", 0x100))
for directory in DIRECTORIES:
    assert libc.inotify_add_watch(watching, directory.encode(), 0x100) > 1
assert libc.inotify_add_watch(watching, b"/srv/data", 2) == 6
os.read(watching, 4096)

def events():
    told, left = [], os.read(watching, 4096)
    while left:
        number, mask, _, length = struct.unpack("iIII", left[:16])
        told.append([number, mask, left[16:16 + length].rstrip(b"\0").decode()])
        left = left[16 + length:]
    return told

def itself():
    """A file about this process, of which some was read."""
    status = os.open("/proc/self/status", os.O_RDONLY)
    return status if os.read(status, 6) == b"Name:\t" else None

def about(status):
    lines = os.pread(status, 4096, 0).decode().splitlines()
    return next(int(line[4:]) for line in lines if line.startswith("Pid:")) == os.getpid()

asked, answers = os.pipe(), os.pipe()
if os.fork() == 0:
    own = itself()
    os.write(answers[1], b"r")
    while os.read(asked[0], 1):
        os.write(answers[1], b"y" if about(own) else b"n")
os.read(answers[0], 1)
status = itself()
again, statm = os.dup(status), os.open("/proc/self/statm", os.O_RDONLY)
calls = 0
KEPT = None

def answer(_):
    global calls
    calls += 1
    for directory in DIRECTORIES:
        open(f"{directory}/fresh-{calls}", "w").close()
    with open("/srv/data", "a") as data:
        data.write("more")
    os.write(asked[1], b"?")
    return {
        "calls": calls, "events": events(), "child": os.read(answers[0], 1).decode(),
        "own": [about(status), about(again), os.lseek(again, 0, os.SEEK_CUR)],
        "statm": len(os.pread(statm, 99, 0).split()),
    }
"#;

const DOCKERFILE: &str = "FROM scratch\nADD python.tar /\nCOPY server.py data /srv/\nWORKDIR /srv\n\
                          CMD [\"python3\", \"server.py\"]\n";

fn says(calls: u64) -> Value {
    let name = format!("fresh-{calls}");
    let mut events: Vec<_> = (2..6).map(|number| json!([number, 0x100, name])).collect();
    events.push(json!([6, 2, ""]));
    json!({ "calls": calls, "events": events, "child": "y", "own": [true, true, 6], "statm": 7 })
}

fn image(name: &str, code: &str) -> Folder {
    let settings = "port = 80\nmemory = \"256MiB\"\nidle = \"120s\"\nmax_instances = 1\n[[warmup]]\npath = \"/\"";
    let folder = Folder::with_config(&format!("name = \"{name}\"\nimage = \".\"\n{settings}\n"))
        .file("server.py", &json_server(code, "80"))
        .file("data", "of the image")
        .file("Dockerfile", DOCKERFILE);
    let tar = "python.tar";
    fs::copy(binaries::runtimes().join(tar), folder.path().join(tar)).unwrap();
    folder
}

fn migrate(cluster: &Cluster, instance: &str) -> Value {
    let path = format!("/v1/instances/{instance}/migrate");
    let moved = until("its memory is settled", SOON, || {
        let ask = cluster.admin("POST", &path).header("content-type", "application/json");
        let answer = ask.body("{}").send();
        (answer.status != 409).then_some(answer)
    });
    moved.ok().json()
}

#[test]
fn watches_on_the_root_and_files_about_oneself_are_in_copies_and_moves() {
    hub::enter();
    if Command::new("buildah").arg("--version").output().is_err() {
        return skip("buildah is missing: run scripts/setup.sh test-packages");
    }
    let store = ObjectStore::start_at(hub::ADDRESS);
    let cluster = Cluster::start_sized(store.endpoint(), store.environment(), Size::two_workers());
    let by_criu = CODE.replace("KEPT = None", "KEPT = os.pidfd_open(os.getpid())");
    for (name, code, by) in [
        ("watching", CODE, "a restore program"),
        ("watching-criu", by_criu.as_str(), "is a pidfd"),
    ] {
        let version = cluster.deploy(&image(name, code));
        assert_eq!(version.snapshot_error, None, "{name}");
        let described = String::from_utf8(cluster.cli(&["describe", name]).stdout).unwrap();
        assert!(described.contains(by), "{name}: {described}");
        let first = cluster.fresh("restored", name, "/").ok();
        assert_eq!(first.start(), "restored", "{name}");
        // The warm-up's was the first call.
        assert_eq!(first.json(), says(2), "{name}");
        for calls in 3..6 {
            println!("{name} {calls}: {}", migrate(&cluster, first.instance()));
            let after = cluster.get(name, "/").ok();
            assert_eq!(
                (after.instance(), after.json()),
                (first.instance(), says(calls)),
                "{name}"
            );
        }
        assert!(cluster.delete(name).is_ok());
    }
}
