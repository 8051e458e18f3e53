//! Images of a real snapshot with one field changed, every field of every image in several ways. The verifier refuses
//! them, or the real CRIU restores what gets no right that the original did not have.
//!
//! `REKINDLE_HOSTILE_RESTORES` is how many of the accepted ones are restored; `REKINDLE_HOSTILE_SEED` draws which.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../../snapshotter/verify/src/tests/mutate.rs"]
mod mutate;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use rekindle_e2e::adversary::{bounds, number};
use rekindle_e2e::differ::{Bounds, Picture, beyond};
use rekindle_e2e::eager::Eager;
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, RUNTIME};
use rekindle_snapshotter::interchange::write_whole;
use rekindle_snapshotter::{ChunkCache, Manifest, RegionReader, Snapshot};
use rekindle_verify::{Expected, Images, Verified, VerifyError, verify_images};
use rekindle_worker::snapshots::CaptureNotes;
use rekindle_worker::snapshots::expected::expected;

const RESTORES: u64 = 40;
/// A changed image may have CRIU wait for what does not come.
const RESTORE_LIMIT: Duration = Duration::from_secs(10);
/// How often a copy is looked at, and the pause between: it goes on.
const LOOKS: u32 = 2;
const BETWEEN: Duration = Duration::from_millis(30);
/// Between whose entries lies what is no message.
const WITH_DATA: [&str; 4] = ["pipes-data.img", "fifo-data.img", "sk-queues.img", "stats-dump"];
/// Something of every kind that a function may have open, mapped or running.
const CODE: &str = r#"
import mmap, os, select, signal, socket, threading
held = [open("/tmp/written", "w+b"), open("/app/main.py"), open("/dev/null", "wb"), open("/dev/shm/shared", "w+b")]
held[0].write(b"x" * 9000)
held[0].flush()
held[3].write(b"y" * 4096)
held[3].flush()
unlinked = open("/tmp/unlinked", "w+b")
unlinked.write(b"gone")
unlinked.flush()
os.unlink("/tmp/unlinked")
os.mkfifo("/tmp/fifo")
fifo = os.open("/tmp/fifo", os.O_RDWR)
folder = os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY)
pipe = os.pipe()
os.write(pipe[1], b"in the pipe")
pair = socket.socketpair()
pair[0].send(b"in the socket")
listener = socket.create_server(("127.0.0.1", 4000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 4001))
named = socket.socket(socket.AF_UNIX)
named.bind("/tmp/socket")
named.listen()
event = os.eventfd(3)
memory = os.memfd_create("memory")
os.write(memory, b"in memory")
epoll = select.epoll()
epoll.register(pipe[0])
private = mmap.mmap(held[0].fileno(), 4096, flags=mmap.MAP_PRIVATE)
shared = mmap.mmap(held[3].fileno(), 4096)
anonymous = mmap.mmap(-1, 1 << 16)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 3600)
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = os.fork()
if child == 0:
    while True:
        signal.pause()
def handler(event, context):
    return os.getpid()
"#;

/// An image that is accepted with a field changed.
struct Accepted {
    image: String,
    entry: usize,
    field: Vec<u64>,
    bytes: Vec<u8>,
}

#[test]
fn no_changed_image_of_a_real_snapshot_gives_a_right() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    let version = platform.deploy(&Folder::python("various", "network = \"none\"", CODE));
    let id = version.snapshot.expect("a snapshot").id;
    let bounds = bounds("various").unwrap();
    // Its layers are unpacked on this worker from here on.
    assert_eq!(platform.fresh("restored", "various", "/").ok().start(), "restored");

    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let client = store.client();
    let manifest = RUNTIME.block_on(async {
        let snapshot = Snapshot::open(&client, &id).await.unwrap();
        let reader = RegionReader::new(client, ChunkCache::open(cache.path(), 1 << 30).unwrap());
        write_whole(&snapshot, &reader, dir.path()).await.unwrap();
        snapshot.manifest.clone()
    });
    let notes = CaptureNotes::read(dir.path()).unwrap();
    let expected = expected(bounds.user.parse().unwrap(), &notes.pipes, false);
    let images = read(dir.path(), &expected);
    check(&images, &expected).unwrap();
    restore(&platform, &manifest, dir.path(), &bounds, "as it is").unwrap();

    let accepted = accepted(&images, &expected);
    let seed = number("REKINDLE_HOSTILE_SEED").unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        u64::from(since.subsec_nanos())
    });
    let wanted = number("REKINDLE_HOSTILE_RESTORES").unwrap_or(RESTORES);
    let (mut restored, mut failed) = (0, 0);
    for change in drawn(accepted, seed).into_iter().take(usize::try_from(wanted).unwrap()) {
        let what = format!(
            "seed {seed}: {} entry {} field {:?}",
            change.image, change.entry, change.field
        );
        let changed = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        // A log is its CRIU's, which is another sandbox's root.
        let logs = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".log");
        for entry in fs::read_dir(dir.path())
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| !logs(entry))
        {
            fs::hard_link(entry.path(), changed.path().join(entry.file_name())).unwrap();
        }
        let image = changed.path().join(&change.image);
        fs::remove_file(&image).unwrap();
        fs::write(&image, &change.bytes).unwrap();
        match restore(&platform, &manifest, changed.path(), &bounds, &what) {
            Ok(()) => restored += 1,
            Err(told) => {
                println!("{what}: not restored: {}", told.lines().next().unwrap_or_default());
                failed += 1;
            }
        }
    }
    println!("seed {seed}: {restored} restored, {failed} not");
    assert!(restored > 0, "none could be restored");
}

/// Images by name, as they are verified: of pages nothing but the name.
fn read(dir: &Path, expected: &Expected) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let images = named.filter(|(name, _)| !expected.other_files.contains(name));
    images
        .map(|(name, path)| match name.starts_with("pages-") {
            true => (name, Vec::new()),
            false => (name, fs::read(path).unwrap()),
        })
        .collect()
}

fn check(images: &BTreeMap<String, Vec<u8>>, expected: &Expected) -> Result<Verified, VerifyError> {
    let borrowed: Images<'_> = images.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    verify_images(&borrowed, expected)
}

/// Changes every field of every image; those that the verifier takes.
fn accepted(images: &BTreeMap<String, Vec<u8>>, expected: &Expected) -> Vec<Accepted> {
    let (mut accepted, mut refused) = (Vec::new(), 0);
    let mut changed = images.clone();
    for (name, bytes) in images {
        if bytes.is_empty() || WITH_DATA.contains(&name.as_str()) || name.starts_with("ghost") {
            continue;
        }
        for mutate::Mutation { image, entry, field } in mutate::all(name, bytes) {
            changed.insert(name.clone(), image);
            match check(&changed, expected) {
                Err(_) => refused += 1,
                Ok(_) => accepted.push(Accepted {
                    image: name.clone(),
                    entry,
                    field,
                    bytes: changed[name].clone(),
                }),
            }
        }
        changed.insert(name.clone(), bytes.clone());
    }
    println!("{refused} changed images refused, {} taken", accepted.len());
    assert!(refused > accepted.len(), "{refused} refused, {} taken", accepted.len());
    accepted
}

/// In an order that `seed` draws, one of each field first.
fn drawn(mut accepted: Vec<Accepted>, seed: u64) -> Vec<Accepted> {
    let key = |number: usize| {
        // SplitMix64.
        let mut z = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut keyed: Vec<_> = accepted.drain(..).enumerate().map(|(n, a)| (key(n), a)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let mut seen = BTreeSet::new();
    let kind = |image: &str| image.rsplit_once('-').map_or(image, |(kind, _)| kind).to_owned();
    let is_first = |a: &Accepted, seen: &mut BTreeSet<_>| seen.insert((kind(&a.image), a.field.clone()));
    let marked = keyed.into_iter().map(|(_, a)| (!is_first(&a, &mut seen), a));
    let mut marked: Vec<_> = marked.collect();
    marked.sort_by_key(|(is_later, _)| *is_later);
    marked.into_iter().map(|(_, a)| a).collect()
}

/// Restores these images and looks at what comes of it.
fn restore(platform: &Platform, manifest: &Manifest, dir: &Path, bounds: &Bounds, what: &str) -> Result<(), String> {
    let eager = Eager::try_restore(platform, manifest, dir, RESTORE_LIMIT)?;
    let (mut looked, mut why) = (0, String::new());
    for _ in 0..LOOKS {
        let processes = eager.processes();
        let Some(main) = processes.values().next().copied() else {
            return Err(format!("it ended at once: {:?}", eager.ended()));
        };
        let picture = match Picture::of_namespace(main) {
            Ok(picture) => picture,
            // A process in the sandbox, one of CRIU's among them, ended while it was looked at.
            Err(e) => {
                why = e.to_string();
                thread::sleep(BETWEEN);
                continue;
            }
        };
        if picture.mappings.is_empty() {
            return Err(format!("it ended at once: {:?}", eager.ended()));
        }
        let told = beyond(&picture, bounds);
        assert!(told.is_empty(), "{what}: {told:#?}\n{:#?}", picture.facts);
        looked += 1;
        thread::sleep(BETWEEN);
    }
    match looked {
        0 => Err(format!("it could not be looked at: {why}")),
        _ => Ok(()),
    }
}
