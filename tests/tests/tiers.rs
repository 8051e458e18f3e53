//! Memory for snapshots is limited: templates are taken back hole by hole, under running instances too, and nobody sees
//! another byte for it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rekindle_e2e::eager::{dumps_of, images_in_memory};
use rekindle_e2e::platform::Options;
use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Folder, Platform, SetOnDrop, host, until};
use rekindle_init::protocol::FUNCTION_PID;

/// Less than any two of the functions have.
const LIMIT: u64 = 40 << 20;
const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
const ROUNDS: usize = 4;

/// 24 MiB that do not compress and are nobody else's, all of which each request reads.
fn heavy(name: &str) -> Folder {
    let code = format!(
        "import hashlib, random\nDATA = random.Random('{name}').randbytes(24 << 20)\n\
         def handler(event, context):\n    return hashlib.sha256(DATA).hexdigest()\n"
    );
    Folder::python(name, "max_instances = 8\nidle = \"120s\"\ntimeout = \"300s\"", &code)
}

/// Memory of the platform's templates: deleted files on its tmpfs that are named by their snapshots.
fn template_bytes(platform: &Platform) -> u64 {
    let fds = fs::read_dir(format!("/proc/{}/fd", platform.pid())).unwrap().flatten();
    let mut files = HashMap::new();
    for fd in fds.map(|entry| entry.path()) {
        let (Ok(name), Ok(file)) = (fs::read_link(&fd), fs::metadata(&fd)) else {
            continue;
        };
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("/s-") && name.ends_with(" (deleted)") && file.is_file() {
            files.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    assert!(!files.is_empty(), "no template is found");
    files.values().sum()
}

#[test]
fn templates_stay_within_their_limit_and_every_byte_is_right_all_the_same() {
    let options = Options {
        args: [
            "--memory",
            "4GiB",
            "--template-memory",
            "40MiB",
            "--chunk-cache",
            "40MiB",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Options::default()
    };
    let platform = Platform::start_with(options);
    let sums: HashMap<&str, String> = FUNCTIONS
        .into_iter()
        .map(|name| {
            assert!(platform.deploy(&heavy(name)).snapshot.is_some());
            (name, platform.fresh("booted", name, "/").ok().text())
        })
        .collect();
    // Instances that were restored and run on while others' memory, and their own, is taken back.
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetOnDrop(&ended);
        for name in FUNCTIONS {
            let (platform, sums, ended) = (&platform, &sums, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(platform.get(name, "/").ok().text(), sums[name], "{name}");
                }
            });
        }
        for round in 0..ROUNDS {
            for name in FUNCTIONS {
                let answer = platform.fresh("restored", name, "/").ok();
                assert_eq!(
                    (answer.start(), answer.text()),
                    ("restored", sums[name].clone()),
                    "{name} in round {round}"
                );
            }
        }
    });
    // What cannot be taken back is little: libraries' data, and what the kernel touches first.
    until("templates within their limit", Duration::from_secs(20), || {
        let bytes = template_bytes(&platform);
        (bytes <= LIMIT).then(|| println!("{} MiB of templates", bytes >> 20))
    });
    let metric = |name: &str| platform.worker_metric(name) as u64;
    assert_eq!(metric("rekindle_templates_limit_bytes"), LIMIT);
    let parts = ["rest", "working_set"]
        .map(|part| metric(&format!("rekindle_templates_evicted_bytes_total{{part=\"{part}\"}}")));
    assert!(parts.iter().sum::<u64>() > LIMIT, "{parts:?}");
    // The next tier has its own limit, and what went from there came from the store again.
    assert_eq!(metric("rekindle_chunk_cache_limit_bytes"), LIMIT);
    assert!(metric("rekindle_chunk_cache_bytes") <= LIMIT);
    assert!(metric("rekindle_chunk_cache_evicted_bytes_total") > 0);
    assert!(metric("rekindle_chunk_cache_lookups_total{outcome=\"miss\"}") > 0);
    println!("templates evicted {parts:?}");
}

/// A dump that is more than may lie in memory goes by the cache's disk.
#[test]
fn a_dump_that_memory_may_not_hold_goes_by_the_disk_and_leaves_nothing_there() {
    let store = ObjectStore::start();
    let mut options = store.options();
    options.args.extend(["--dump-in-memory", "16MiB"].map(str::to_owned));
    let platform = Platform::start_with(options);
    let on_disk = platform.directory("cache").join("worker/dumps");
    let list = || -> Vec<PathBuf> { fs::read_dir(&on_disk).unwrap().map(|e| e.unwrap().path()).collect() };
    assert_eq!(list(), Vec::<PathBuf>::new());
    // It is looked at while the store keeps the snapshot's first chunk waiting.
    store.set(Line::ChunksWait);
    thread::scope(|scope| {
        let deploy = scope.spawn(|| platform.deploy(&heavy("first")));
        until("a chunk on its way", Duration::from_secs(30), || {
            (store.kept() > 0 || deploy.is_finished()).then_some(())
        });
        let (dumps, in_memory) = (dumps_of(list()), dumps_of(images_in_memory(&platform)));
        let images = dumps.first().map(|dump| fs::read_dir(dump).unwrap().count());
        store.set(Line::Good);
        assert!(deploy.join().unwrap().snapshot.is_some());
        assert_eq!((dumps.len(), in_memory), (1, Vec::new()));
        assert!(images.is_some_and(|count| count > 10), "{images:?} files in the dump");
    });
    assert_eq!(list(), Vec::<PathBuf>::new());
    let sums = ["booted", "restored"].map(|start| {
        let answer = platform.fresh(start, "first", "/").ok();
        assert_eq!(answer.start(), start);
        answer.text()
    });
    assert_eq!(sums[0], sums[1]);
}

/// Clones that wait side by side.
const CLONES: usize = 10;

#[test]
fn clones_share_what_none_of_them_has_written() {
    let platform = Platform::start();
    let settings = "max_instances = 20\nidle = \"120s\"\nmemory = \"192MiB\"";
    let code = "DATA = bytearray(b'shared by all clones' * (64 << 20 // 20))\n\
                def handler(event, context):\n    return sum(DATA[::4096])\n";
    let code = code.replace("(64 << 20 // 20)", &((64 << 20) / 20).to_string());
    platform.deploy(&Folder::python("wide", settings, &code));
    let instances: Vec<String> = (0..CLONES)
        .map(|_| {
            let answer = platform.fresh("restored", "wide", "/").ok();
            assert_eq!(answer.start(), "restored");
            answer.instance().to_owned()
        })
        .collect();
    for instance in &instances {
        let processes = host::processes(&platform, instance);
        let pid = processes[&FUNCTION_PID];
        let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let of = |names: &[&str]| -> u64 {
            let lines = sums.lines().filter(|l| names.iter().any(|n| l.starts_with(n)));
            lines
                .map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10)
                .sum()
        };
        let (shared, private) = (
            of(&["Shared_Clean:", "Shared_Dirty:"]),
            of(&["Private_Clean:", "Private_Dirty:"]),
        );
        // It has read all of it.
        assert!(shared > 60 << 20, "{shared} bytes shared, {private} its own");
        assert!(private < 12 << 20, "{private} bytes its own, {shared} shared");
    }
}
