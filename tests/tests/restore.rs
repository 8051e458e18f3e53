//! What a lazy restore must be: the same bytes as the original, whatever the function does to its memory, for many
//! clones at once.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rekindle_e2e::eager::images_in_memory;
use rekindle_e2e::host::{self, PAGE};
use rekindle_e2e::memory;
use rekindle_e2e::restorer::{by_program, programs_restore};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME, Reply, shared, until};
use rekindle_snapshotter::{
    ChunkCache, Digest, Manifest, PageIndex, RegionReader, Snapshot, TouchedPage, WorkingSetPack, load_working_set,
    store_working_set,
};

/// Twenty instances, each answering only when all of them are held.
const CLONES: usize = 20;

#[test]
fn twenty_clones_of_one_snapshot_answer_at_once_and_are_not_alike() {
    let code = "import os, random, time, uuid\nblob = os.urandom(1 << 20)\n\ndef handler(event, context):\n    \
        time.sleep(3)\n    \
        return {'random': random.random(), 'urandom': os.urandom(8).hex(), 'uuid': str(uuid.uuid4()), \
        'blob': sum(blob)}\n";
    let settings = format!("concurrency = 1\nmax_instances = {CLONES}\ntimeout = \"60s\"");
    shared().deploy(&Folder::python("clones", &settings, code));
    let answers: Vec<Reply> = thread::scope(|s| {
        let calls: Vec<_> = (0..CLONES)
            .map(|_| s.spawn(|| shared().get("clones", "/").ok()))
            .collect();
        calls.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let restored = answers.iter().filter(|a| a.start() == "restored").count();
    // The one that was booted for the deploy is warm.
    assert!(
        restored >= CLONES - 1,
        "{:?}",
        answers.iter().map(Reply::start).collect::<Vec<_>>()
    );
    let different = |of: &dyn Fn(&Reply) -> String| answers.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!(different(&|a| a.instance().to_owned()), CLONES);
    for value in ["random", "urandom", "uuid"] {
        assert_eq!(
            different(&|a| a.json()[value].to_string()),
            CLONES,
            "{value} is equal in some of them"
        );
    }
    assert_eq!(
        different(&|a| a.json()["blob"].to_string()),
        1,
        "memory is the snapshot's in all of them"
    );
}

#[test]
fn memory_is_right_whatever_the_function_does_to_it() {
    by_program(shared().deploy(&Folder::sample("memory-python", |t| t)));
    // Each in an instance of its own, so that it meets pages that nobody has touched.
    let checks = [
        "dontneed",
        "unmap",
        "grow",
        "move",
        "shrink",
        "fork",
        "threads",
        "allocator",
        "library",
        "digest",
        "all",
    ];
    for check in checks {
        let answer = shared().fresh("restored", "memory", &format!("/{check}")).ok();
        assert_eq!(answer.start(), "restored", "{check}");
        assert_eq!(answer.json()["ok"], true, "{check}: {}", answer.text());
        if check == "library" {
            let from = answer.json()["mapped_from"].as_str().unwrap_or_default().to_owned();
            assert!(
                from.starts_with("/s-"),
                "it is not the template that was tried, but {from}"
            );
        }
    }
}

#[test]
fn the_digest_is_the_same_before_and_after_everything_in_one_instance() {
    let folder = Folder::sample("memory-python", |t| {
        t.replace("\"memory\"", "\"memory-one\"").replace("= 40", "= 1")
    });
    let version = shared().deploy(&folder);
    // Only the restored one may answer: the one from the deploy goes first.
    let first = shared().instances_of("memory-one");
    shared().end_instance(first[0].id.as_str());
    let before = shared().get("memory-one", "/digest").ok();
    assert_eq!(before.start(), "restored", "{version:?}");
    for check in [
        "threads",
        "fork",
        "move",
        "dontneed",
        "unmap",
        "grow",
        "shrink",
        "allocator",
        "fork",
        "all",
    ] {
        let answer = shared().get("memory-one", &format!("/{check}")).ok();
        assert_eq!(answer.instance(), before.instance());
        assert_eq!(answer.json()["ok"], true, "{check}: {}", answer.text());
    }
    let after = shared().get("memory-one", "/digest").ok().json();
    assert_eq!(after["sha256"], before.json()["sha256"]);
    assert_eq!(after["ok"], true);
}

#[test]
fn a_large_buffer_has_the_same_sum_booted_and_restored() {
    by_program(shared().deploy(&Folder::sample("touch-python", |t| t)));
    let booted = shared().fresh("booted", "touch", "/sum").ok();
    let restored = shared().fresh("restored", "touch", "/sum").ok();
    assert_eq!(restored.start(), "restored");
    assert_eq!(restored.json(), booted.json());
    assert_eq!(restored.json()["bytes"], 64 << 20);
}

#[test]
fn state_goes_on_from_the_snapshot_in_every_copy() {
    let warmups = "\n[[warmup]]\npath = \"/\"\n\n[[warmup]]\npath = \"/\"\n\n[[warmup]]\npath = \"/\"\n";
    let folder = Folder::sample("counter-python", |t| t + warmups);
    shared().deploy(&folder);
    let one = shared().fresh("restored", "counter", "/").ok();
    let two = shared().fresh("restored", "counter", "/").ok();
    for answer in [&one, &two] {
        assert_eq!(answer.start(), "restored");
        assert_eq!(
            (answer.json()["count"].as_u64(), answer.json()["restores"].as_u64()),
            (Some(4), Some(1)),
            "{}",
            answer.text()
        );
    }
    assert_ne!(one.instance(), two.instance());
    assert_ne!(
        one.json()["identity"],
        two.json()["identity"],
        "the after-restore hook draws a new one"
    );
    assert_eq!(one.json()["pid"], two.json()["pid"]);
    shared().until_logged("counter", "snapshot taken at count 3");
}

#[test]
fn environment_and_private_files_are_in_the_snapshot() {
    let code = r"
import os, pathlib, socket, stat
at = pathlib.Path('/tmp/made/at-start')
at.parent.mkdir(mode=0o750)
at.write_bytes(bytes(range(256)) * 4000)
os.symlink('at-start', '/tmp/made/link')
held = open('/tmp/held', 'w+b')
held.write(b'written while open')
held.flush()
unlinked = open('/dev/shm/shared', 'w+b')
unlinked.write(b'in /dev/shm')
unlinked.flush()

def handler(event, context):
    held.seek(0)
    unlinked.seek(0)
    found = pathlib.Path('/tmp/made/link').read_bytes()
    open('/tmp/own', 'a').write('x')
    return {'whole': found == bytes(range(256)) * 4000, 'held': held.read().decode(), 'shm': unlinked.read().decode(),
            'mode': stat.S_IMODE(os.stat('/tmp/made').st_mode), 'env': os.environ['GREETING'],
            'home': os.environ['HOME'],
            'host': socket.gethostname(), 'own': os.path.getsize('/tmp/own')}
";
    shared().deploy(&Folder::python(
        "private-files",
        "tmp = \"16MiB\"\n[env]\nGREETING = \"good day, \u{1F44B}\"",
        code,
    ));
    for _ in 0..2 {
        let answer = shared().fresh("restored", "private-files", "/").ok();
        assert_eq!(answer.start(), "restored");
        let body = answer.json();
        assert_eq!(body["whole"], true, "{body}");
        assert_eq!(
            (body["held"].as_str(), body["shm"].as_str()),
            (Some("written while open"), Some("in /dev/shm"))
        );
        assert_eq!(body["env"], "good day, \u{1F44B}");
        assert_eq!(body["mode"], 0o750, "{body}");
        assert_eq!(body["own"], 1, "each copy has files of its own: {body}");
    }
}

#[test]
fn a_named_pipe_that_is_open_is_in_the_snapshot() {
    let code = r"
import os, stat
for folder in ('/tmp', '/dev/shm'):
    os.mkfifo(folder + '/pipe', 0o600)
held = os.open('/tmp/pipe', os.O_RDWR)

def handler(event, context):
    os.write(held, b'through')
    read = os.read(held, 100).decode()
    other = os.open('/tmp/pipe', os.O_RDWR | os.O_NONBLOCK)
    os.write(other, b' and by name')
    return {'read': read + os.read(held, 100).decode(), 'fifo': stat.S_ISFIFO(os.stat('/dev/shm/pipe').st_mode),
            'mode': stat.S_IMODE(os.stat('/tmp/pipe').st_mode)}
";
    shared().deploy(&Folder::python("named-pipe", "", code));
    for _ in 0..2 {
        let answer = shared().fresh("restored", "named-pipe", "/").ok();
        assert_eq!(answer.start(), "restored");
        let body = answer.json();
        assert_eq!(body["read"], "through and by name", "{body}");
        assert_eq!((&body["fifo"], body["mode"].as_u64()), (&true.into(), Some(0o600)));
    }
}

#[test]
fn child_processes_and_threads_are_in_the_snapshot() {
    let code = r"
import os, threading, queue
to_child, from_parent = os.pipe(), os.pipe()
secret = os.urandom(1 << 16)
child = os.fork()
if child == 0:
    while os.read(to_child[0], 1):
        os.write(from_parent[1], str(sum(secret)).rjust(16).encode())
asked, told = queue.Queue(), queue.Queue()
threading.Thread(target=lambda: [told.put(asked.get() * 2) for _ in iter(int, 1)], daemon=True).start()

def handler(event, context):
    os.write(to_child[1], b'?')
    asked.put(21)
    return {'child': int(os.read(from_parent[0], 16)), 'own': sum(secret), 'thread': told.get(timeout=5), 'pid': child,
            'alive': os.waitpid(child, os.WNOHANG) == (0, 0)}
";
    shared().deploy(&Folder::python("family", "", code));
    let answer = shared().fresh("restored", "family", "/").ok();
    assert_eq!(answer.start(), "restored");
    let body = answer.json();
    assert_eq!(body["child"], body["own"], "{body}");
    assert_eq!(
        (body["thread"].as_u64(), body["alive"].as_bool()),
        (Some(42), Some(true)),
        "{body}"
    );
}

/// The images of a checkpoint lie in memory too, beside all that the function has.
#[test]
fn a_function_that_fills_most_of_its_memory_is_checkpointed_and_restored() {
    let code = "import os\nblob = os.urandom(96 << 20)\n\ndef handler(event, context):\n    \
        return {'sum': sum(blob[::4096])}\n";
    let version = shared().deploy(&Folder::python("full", "memory = \"128MiB\"", code));
    assert!(version.snapshot.is_some(), "no snapshot: {version:?}");
    let warm = shared().get("full", "/").ok();
    let restored = shared().fresh("restored", "full", "/").ok();
    assert_eq!(restored.start(), "restored");
    assert_eq!(restored.json(), warm.json());
}

/// A server whose child process does nothing from its start on: nobody but the restore could change its memory.
const QUIET: &str = r#"
import os, random, signal, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

noise = [random.Random(n).randbytes(3000) for n in range(3000)]
zeros = bytearray(4 << 20)
sparse = bytearray(8 << 20)
for at in range(0, len(sparse), 5 * 4096):
    sparse[at] = 1
child = os.fork()
if child == 0:
    while True:
        signal.pause()

def waits():
    with open(f"/proc/{child}/syscall") as call:
        return call.read().split()[0] == "34"  # pause

# On a busy machine the checkpoint may come first.
while not waits():
    time.sleep(0.001)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments):
        pass
    def do_GET(self):
        body = str(child).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

/// Restartable sequences: the kernel writes the processor's number there whenever the thread goes on.
const RSEQ_BYTES: usize = 32;
/// State of a Mersenne twister: 624 words and an index.
const GENERATOR_BYTES: usize = 625 * 4;

/// Pages that CRIU itself may read of a small function's memory: those that the kernel touches before a pager can
/// watch.
const EAGER_PAGES: u64 = 16;

#[test]
fn criu_itself_reads_next_to_nothing_of_memory() {
    for (sample, name) in [
        ("hello-python", "eager-python"),
        ("hello-node", "eager-node"),
        ("touch-python", "eager-touch"),
    ] {
        let named = |text: String| {
            let renamed = |line: &str| {
                if line.starts_with("name = ") {
                    format!("name = \"{name}\"")
                } else {
                    line.to_owned()
                }
            };
            text.lines().map(renamed).collect::<Vec<_>>().join("\n")
        };
        let id = shared().deploy(&Folder::sample(sample, named)).snapshot.unwrap().id;
        assert_eq!(shared().fresh("restored", name, "/").ok().start(), "restored");
        let opened = images_in_memory(shared());
        let of_it = |dir: &&PathBuf| dir.file_name().unwrap().to_string_lossy().starts_with(id.as_str());
        let dir = opened.iter().find(of_it).expect("the snapshot's images");
        let files = fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        let pages = files.filter(|e| e.file_name().to_string_lossy().starts_with("pages-"));
        let bytes: u64 = pages.map(|e| e.metadata().unwrap().len()).sum();
        println!("{sample}: CRIU reads {} pages", bytes / PAGE as u64);
        assert!(
            bytes <= EAGER_PAGES * PAGE as u64,
            "{sample}: CRIU reads {bytes} bytes of memory"
        );
    }
}

#[test]
fn a_restored_process_has_the_original_s_memory_byte_for_byte() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    let version = platform.deploy(&Folder::server("quiet", "concurrency = 4", QUIET));
    let snapshot = version.snapshot.unwrap().id;
    // The original goes on running after the checkpoint: what it holds is what an eager restore gives.
    let original = platform.get("quiet", "/").ok();
    assert_eq!(original.start(), "warm", "the deploy's own instance");
    let restored = platform.fresh("restored", "quiet", "/").ok();
    assert_eq!(restored.start(), "restored");
    assert_eq!(restored.text(), original.text());
    assert_eq!(handover(&platform, restored.instance()), "given", "of two processes");
    let child: i32 = original.text().parse().unwrap();
    let there = host::processes(&platform, original.instance())[&child];
    let here = host::processes(&platform, restored.instance())[&child];

    let mappings = host::anonymous(there);
    assert_eq!(memory::areas(there), memory::areas(here), "the mappings differ");
    let stored = stored_pages(&store, &snapshot, child);
    let (mut pages, mut written) = (0, Vec::new());
    for mapping in &mappings {
        let len = mapping.end - mapping.start;
        let (before, after) = (
            host::read(there, mapping.start, len),
            host::read(here, mapping.start, len),
        );
        for (index, (a, b)) in before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate() {
            let address = mapping.start + index * PAGE;
            pages += 1;
            if let Some(range) = host::difference(a, b) {
                written.push((address, range));
                continue;
            }
            // A page that the dump did not see is of zeros, or a file's.
            let stored = stored.get(&(address as u64));
            if let Some(range) = stored.and_then(|page| host::difference(page, b)) {
                // Both may be on one processor, and have been on the other at the checkpoint.
                written.push((address, range));
            }
        }
    }
    assert!(pages * PAGE > 24 << 20, "only {pages} pages were compared");
    assert!(
        stored.len() * PAGE > 10 << 20,
        "only {} pages are in the snapshot",
        stored.len()
    );
    // The generator of the module `random`, which the server imports, is another in each copy: it lies in one piece.
    let (rseq, generator): (Vec<_>, Vec<_>) = written.iter().partition(|(_, range)| range.len() <= RSEQ_BYTES);
    let edges = |(page, range): &&(usize, std::ops::Range<usize>)| (page + range.start, page + range.end);
    let first = generator.iter().map(|piece| edges(piece).0).min().unwrap_or_default();
    let behind = generator.iter().map(|piece| edges(piece).1).max().unwrap_or_default();
    assert!(
        rseq.len() <= 1 && behind - first <= GENERATOR_BYTES,
        "of {pages} pages these differ: {written:x?}"
    );
}

/// Every page of one process in a snapshot, read through the snapshot format, by address.
fn stored_pages(
    store: &ObjectStore,
    id: &rekindle_wire::SnapshotId,
    pid: i32,
) -> std::collections::HashMap<u64, Vec<u8>> {
    let client = store.client();
    let cache = tempfile::tempdir().unwrap();
    RUNTIME.block_on(async {
        let snapshot = Snapshot::open(&client, id).await.unwrap();
        let map = &snapshot.process(pid.cast_unsigned()).unwrap().page_map;
        let reader = RegionReader::new(client.clone(), ChunkCache::open(cache.path(), 1 << 30).unwrap());
        let mut pages = std::collections::HashMap::new();
        for region in map.regions() {
            let bytes = reader.read(region).await.unwrap();
            for (page, content) in (region.first.0..).zip(bytes.chunks(PAGE)) {
                pages.insert(PageIndex(page).address(), content.to_vec());
            }
        }
        pages
    })
}

#[test]
fn the_working_set_is_recorded_and_later_restores_still_have_all_memory() {
    let store = ObjectStore::start();
    let mut options = store.options();
    options
        .env
        .push(("RUST_LOG".to_owned(), "warn,rekindle=debug".to_owned()));
    let mut platform = Platform::start_with(options);
    let folder = Folder::sample("touch-python", |t| {
        format!("rehearse = false\n{}", t.replace("\"touch\"", "\"recorded\""))
    });
    let snapshot = platform.deploy(&folder).snapshot.unwrap().id;
    let client = store.client();
    let key = rekindle_snapshotter::keys::working_set(&snapshot);
    let stored = || RUNTIME.block_on(client.get(&key)).ok();
    assert!(stored().is_none(), "nothing was restored yet");
    let restored = platform.fresh("restored", "recorded", "/").ok();
    let by = handover(&platform, restored.instance());
    assert!(by.starts_with("kernel") || programs_restore(), "of one process by {by}");
    let [first] = mapped_pages(&platform)[..] else {
        panic!("one restore")
    };
    // But for what CRIU would have had to read at once, nothing was known to be mapped ahead.
    let pack = until("the working set's pack", Duration::from_secs(15), stored);
    assert!(!pack.is_empty());
    let opened = RUNTIME.block_on(Snapshot::open(&client, &snapshot)).unwrap();
    let set = || {
        let stored = RUNTIME.block_on(load_working_set(&client, &snapshot)).unwrap();
        stored.unwrap().check(&opened.processes).unwrap()
    };
    let of_one = set();
    assert_eq!((of_one.recording.number, of_one.recording.restores), (0, 1));
    // On a host that knows nothing of it, from the pack.
    platform.stop();
    platform.empty_cache();
    platform.restart();
    let cold = platform.fresh("restored", "recorded", "/sum").ok();
    assert_eq!(cold.start(), "restored");
    let [_, ahead] = mapped_pages(&platform)[..] else {
        panic!("two restores")
    };
    assert!(
        ahead > first + 100,
        "{ahead} pages were mapped ahead on a host that has the pack, {first} on one that did not"
    );
    // It goes on where the other was.
    let of_two = until("the pack of two", Duration::from_secs(15), || {
        Some(set()).filter(|set| set.recording.restores == 2)
    });
    let pages = |set: &WorkingSetPack| set.pages.iter().map(|p| (p.pid, p.page)).collect::<HashSet<_>>();
    assert!(pages(&of_two).is_superset(&pages(&of_one)), "nothing is forgotten");
    assert!(of_two.pages.len() > of_one.pages.len(), "/sum touches more");
    // What a third host stores meanwhile is not lost.
    let known = pages(&of_two);
    let regions = opened
        .processes
        .iter()
        .flat_map(|p| p.page_map.regions().iter().map(|r| (p.pid, r.first)));
    let elsewhere = { regions }.find(|page| !known.contains(page)).unwrap();
    let theirs: Vec<_> = [elsewhere].into_iter().chain(pages(&of_one)).collect();
    let theirs = theirs.into_iter().map(|(pid, page)| TouchedPage {
        pid,
        page,
        written: false,
    });
    let folder = tempfile::tempdir().unwrap();
    let cache = ChunkCache::open(folder.path(), 1 << 30).unwrap();
    let reader = RegionReader::new(client.clone(), cache);
    let order: Vec<_> = theirs.collect();
    let put = store_working_set(&client, &opened, &reader, of_one.recording, &order);
    RUNTIME.block_on(put).unwrap();
    platform.fresh("restored", "recorded", "/").ok();
    let merged = until("the pack of all", Duration::from_secs(15), || {
        Some(set()).filter(|set| set.recording.restores == 3)
    });
    assert!(pages(&merged).is_superset(&pages(&of_two)), "what this host knew");
    assert!(pages(&merged).contains(&elsewhere), "what another has stored");
    // Not those sandboxes that were made before it was known what CRIU finds of the kernel.
    let prestarted = (0..20).any(|_| {
        let again = platform.fresh("restored", "recorded", "/sum").ok();
        assert_eq!(again.json(), cold.json());
        programs_restore() || handover(&platform, again.instance()) == "kernel, prestarted"
    });
    assert!(prestarted, "no CRIU was prestarted");
    let booted = platform.fresh("booted", "recorded", "/sum").ok();
    assert_eq!(cold.json(), booted.json());
}

/// What anybody writes who may write working sets: its form and its digest are right, what a page holds is not.
#[test]
fn a_forged_working_set_is_dropped_and_the_restore_goes_on_by_faults() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let folder = Folder::sample("touch-python", |t| t.replace("\"touch\"", "\"forged\""));
    let snapshot = platform.deploy(&folder).snapshot.unwrap().id;
    let warm = platform.fresh("restored", "forged", "/sum").ok();
    let client = store.client();
    let key = rekindle_snapshotter::keys::working_set(&snapshot);
    let stored = || RUNTIME.block_on(client.get(&key)).ok();
    let mut forged = until("the working set", Duration::from_secs(15), stored).to_vec();
    platform.stop();
    platform.empty_cache();
    // A block of LZ4 ends with bytes of its last page, and the digest leaves blocks out.
    *forged.last_mut().unwrap() ^= 1;
    RUNTIME.block_on(client.put(&key, forged.clone().into())).unwrap();
    let load = || RUNTIME.block_on(load_working_set(&client, &snapshot)).unwrap().unwrap();
    let opened = RUNTIME.block_on(Snapshot::open(&client, &snapshot)).unwrap();
    assert!(load().check(&opened.processes).is_err(), "its form is right");
    platform.restart();
    let cold = platform.fresh("restored", "forged", "/sum").ok();
    assert_eq!((cold.start(), cold.json()), ("restored", warm.json()));
    let refused = platform.worker_metric("rekindle_working_sets_refused_total");
    assert!(refused >= 1.0, "{refused}");
    let log = platform.log();
    let told = log.lines().find(|line| line.contains("a working set is refused"));
    assert!(told.is_some_and(|line| line.contains(snapshot.as_str())), "{told:?}");
    // The restore has recorded another, which takes its place.
    until("a right working set", Duration::from_secs(15), || {
        load().check(&opened.processes).ok()
    });
}

/// Whoever may write manifests where the store knows no conditions: what they put is whole and right in itself.
#[test]
fn an_exchanged_manifest_is_refused_and_its_function_boots() {
    let store = ObjectStore::start();
    let mut platform = Platform::start_with(store.options());
    let folder = Folder::sample("touch-python", |t| t.replace("\"touch\"", "\"exchanged\""));
    let snapshot = platform.deploy(&folder).snapshot.unwrap().id;
    let restored = platform.fresh("restored", "exchanged", "/sum").ok();
    platform.stop();
    platform.empty_cache();
    let client = store.client();
    let key = rekindle_snapshotter::keys::manifest(&snapshot);
    let own = RUNTIME.block_on(client.get(&key)).unwrap();
    let mut manifest = Manifest::parse(&own).unwrap();
    manifest.created_unix_s += 1;
    let other = manifest.encode().unwrap();
    RUNTIME.block_on(client.put(&key, other.clone().into())).unwrap();
    let opened = RUNTIME.block_on(Snapshot::open(&client, &snapshot)).unwrap();
    assert_eq!(opened.digest, Digest::of(&other), "it is right in itself");
    platform.restart();
    let answer = platform.get("exchanged", "/sum").ok();
    assert_eq!((answer.start(), answer.json()), ("booted", restored.json()));
    for digest in [Digest::of(&own), Digest::of(&other)] {
        platform.until_logged("exchanged", &digest.to_string());
    }
    assert!(platform.worker_metric("rekindle_snapshots_exchanged_total") >= 1.0);
    // The version goes on without it, and whoever looks is told.
    until("the version has lost its snapshot", Duration::from_secs(15), || {
        let told = platform.admin("GET", "/v1/functions/exchanged").send().ok().text();
        told.contains("somebody has exchanged it").then_some(())
    });
}

/// Reading another process's arguments has the kernel touch its stack, at a time when nobody serves that yet.
#[test]
fn who_looks_at_processes_on_the_host_changes_none_that_is_being_restored() {
    let code = "def read(name):\n    with open(f'/proc/self/{name}', 'rb') as f:\n        return f.read().hex()\n\n\
        def handler(event, context):\n    return {name: read(name) for name in ('cmdline', 'environ', 'auxv')}\n";
    shared().deploy(&Folder::python("looked-at", "max_instances = 40", code));
    let first = shared().get("looked-at", "/").ok().json();
    assert!(first["cmdline"].as_str().unwrap().len() > 20, "{first}");
    let looking = AtomicBool::new(true);
    thread::scope(|s| {
        s.spawn(|| {
            let until = Instant::now() + Duration::from_secs(60);
            while looking.load(Ordering::Relaxed) && Instant::now() < until {
                for process in std::fs::read_dir("/proc").unwrap().flatten() {
                    for name in ["cmdline", "environ"] {
                        // It may be no process, or have ended.
                        let _ = std::fs::read(process.path().join(name));
                    }
                }
            }
        });
        let same = (0..30).all(|_| shared().fresh("restored", "looked-at", "/").ok().json() == first);
        looking.store(false, Ordering::Relaxed);
        assert!(same, "the kernel has put zeros where arguments belong");
    });
}

/// Who told the pager of a restored instance's memory, as the worker logged it.
fn handover(platform: &Platform, instance: &str) -> String {
    let log = platform.log();
    let line = log
        .lines()
        .find(|l| l.contains("handover=") && l.contains(instance))
        .expect("a line of its restore");
    let (_, rest) = line.split_once("handover=\"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

/// How many pages each restore mapped before the first instruction, as the worker logged it.
fn mapped_pages(platform: &Platform) -> Vec<u64> {
    let log = platform.log();
    let lines = log.lines().filter(|l| l.contains("working set mapped"));
    let number = |line: &str| {
        let (_, rest) = line.split_once("mapped=").unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    lines.map(number).collect()
}
