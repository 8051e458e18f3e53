//! What programs and their allocators do to memory keeps its meaning after a lazy restore. The programs below
//! `tests/functions` check every byte of it themselves, booted (the kernel's own memory) and restored (the pager's).

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_e2e::eager::{Eager, Exported};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Folder, Platform, shared};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("functions").join(name)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A folder with the C program of the checks, and `settings` in its fn.toml.
fn checks(name: &str, settings: &str) -> Folder {
    let folder = Folder::with_config(&format!(
        "name = \"{name}\"\nruntime = \"http\"\ncommand = [\"./checks\"]\nmemory = \"192MiB\"\ntimeout = \"60s\"\n\
         idle = \"60s\"\n\
         max_instances = 40\n{settings}"
    ));
    let mut sources: Vec<_> = fs::read_dir(source("memory"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "c"));
    let program = folder.path().join("checks");
    run(Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .arg(program)
        .args(sources));
    folder
}

/// Each check in an instance of its own, so that it meets pages that nobody has touched.
fn every_check_passes(name: &str) {
    for start in ["booted", "restored"] {
        let checks = shared().get(name, "/").ok().text();
        assert!(checks.lines().count() > 10, "{checks}");
        for check in checks.lines() {
            let answer = shared().fresh(start, name, &format!("/{check}"));
            assert_eq!(answer.text(), format!("{check}: ok\n"), "{start}");
            assert_eq!(answer.start(), start, "{check}");
        }
    }
}

#[test]
fn mappings_threads_stacks_and_the_c_library_s_heap_keep_their_meaning() {
    shared().deploy(&checks("memory-c", ""));
    every_check_passes("memory-c");
}

/// Operations of each thread in one run, and runs beside the one of the process that was never checkpointed.
const OPERATIONS: u32 = 1_500;
const RESTORED: usize = 3;

/// Four threads and their children map, move, grow, protect, give back, write and read what the snapshot has: the same
/// by each seed.
#[test]
fn random_operations_come_to_the_same_in_restored_processes_as_in_one_that_was_never_checkpointed() {
    shared().deploy(&checks("memory-random", ""));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for seed in [1, 2, 3, now, now + 1, now + 2] {
        let path = format!("/random/{seed}/{OPERATIONS}");
        let plain = shared().fresh("booted", "memory-random", &path).ok().body;
        assert!(plain.len() > 1 << 20, "{} bytes", plain.len());
        for _ in 0..RESTORED {
            let restored = shared().fresh("restored", "memory-random", &path).ok();
            assert_eq!(restored.start(), "restored");
            let differs = plain.iter().zip(&restored.body).position(|(a, b)| a != b);
            assert_eq!((differs, plain.len()), (None, restored.body.len()), "seed {seed}");
            shared().end_instance(restored.instance());
        }
    }
}

/// The same beside memory that stock CRIU has restored, eagerly, from the images of that very snapshot: all of it was
/// there before the first instruction.
#[test]
fn random_operations_come_to_the_same_in_a_lazily_restored_process_as_in_an_eager_one() {
    let store = ObjectStore::start();
    let platform = Platform::start_with(store.options());
    let version = platform.deploy(&checks("memory-eager", ""));
    let exported = Exported::of(&store, &version);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for seed in [11, 12, now, now + 1] {
        let path = format!("/random/{seed}/{OPERATIONS}");
        let eager = Eager::restore(&platform, &exported.manifest, &exported.images).get(&path);
        assert!(eager.len() > 1 << 20, "{} bytes", eager.len());
        let lazy = platform.fresh("restored", "memory-eager", &path).ok();
        assert_eq!(lazy.start(), "restored");
        let differs = eager.iter().zip(&lazy.body).position(|(a, b)| a != b);
        assert_eq!((differs, eager.len()), (None, lazy.body.len()), "seed {seed}");
        platform.end_instance(lazy.instance());
    }
}

#[test]
fn cpython_s_heap_is_whole_after_a_restore() {
    let code = fs::read_to_string(source("heap-python").join("main.py")).unwrap();
    let settings = "memory = \"512MiB\"\ntimeout = \"120s\"";
    shared().deploy(&Folder::python("heap-python", settings, &code));
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "heap-python", "/");
        assert_eq!((answer.text().as_str(), answer.start()), ("allocator: ok", start));
    }
}

#[test]
fn jemalloc_finds_its_heap_again() {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    if !library.exists() {
        assert!(
            std::env::var_os("REKINDLE_REQUIRE_ALL").is_none(),
            "install libjemalloc2"
        );
        println!("skipped: libjemalloc2 is not installed");
        return;
    }
    let folder = checks("memory-jemalloc", "[env]\nLD_PRELOAD = \"/app/libjemalloc.so.2\"\n");
    fs::copy(library, folder.path().join("libjemalloc.so.2")).unwrap();
    shared().deploy(&folder);
    every_check_passes("memory-jemalloc");
}

#[test]
fn go_s_heap_is_whole_after_a_restore() {
    if Command::new("go").arg("version").output().is_err() {
        assert!(std::env::var_os("REKINDLE_REQUIRE_ALL").is_none(), "install Go");
        println!("skipped: Go is not installed");
        return;
    }
    let folder = Folder::with_config(
        "name = \"heap-go\"\nruntime = \"http\"\ncommand = [\"./heap\"]\nmemory = \"512MiB\"\ntimeout = \"60s\"\n",
    );
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(folder.path().join("heap"))
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(source("heap-go")));
    shared().deploy(&folder);
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "heap-go", "/");
        assert_eq!((answer.text().as_str(), answer.start()), ("allocator: ok\n", start));
    }
}

#[test]
fn v8_s_heap_is_whole_after_a_restore() {
    let code = fs::read_to_string(source("heap-node").join("index.js")).unwrap();
    let folder = Folder::with_config(
        "name = \"heap-node\"\nruntime = \"node\"\nentry = \"index.handler\"\nmemory = \"512MiB\"\ntimeout = \"60s\"\n",
    );
    shared().deploy(&folder.file("index.js", &code));
    for start in ["booted", "restored"] {
        let answer = shared().fresh(start, "heap-node", "/");
        assert_eq!((answer.text().as_str(), answer.start()), ("allocator: ok", start));
    }
}
