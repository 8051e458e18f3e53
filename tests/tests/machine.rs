//! A sandbox looks like a machine of its function's size. Programs that nobody tells of a limit find it where they
//! look, booted, restored, and restored with other limits than what they began as had.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_e2e::{Folder, Options, Platform, binaries, shared, skip};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// An `http` function of the program in `tests/functions/{from}`.
fn program(name: &str, settings: &str, from: &str) -> Folder {
    with_files(
        Folder::with_config(&format!(
            "name = \"{name}\"\nruntime = \"http\"\nidle = \"60s\"\n{settings}\n"
        )),
        from,
    )
}

fn python(name: &str, settings: &str) -> Folder {
    with_files(Folder::python(name, settings, ""), "machine-python")
}

fn with_files(folder: Folder, from: &str) -> Folder {
    for file in fs::read_dir(source(from)).unwrap().flatten() {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

fn source(name: &str) -> PathBuf {
    binaries::checkout().join("tests/functions").join(name)
}

fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        skip(&format!("{program} is not installed"));
    }
    there
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}

/// Processors that a machine of so many has here.
fn at_most(processors: u64) -> u64 {
    processors.min(std::thread::available_parallelism().unwrap().get() as u64)
}

/// What the Python program is to find of a machine with this memory and share of processors.
#[track_caller]
fn is_like(found: &Value, memory: u64, cpu: f64, what: &str) {
    let processors = at_most(cpu.ceil() as u64);
    for (key, expected) in [("memory", memory), ("available", memory), ("limit", memory)] {
        assert_eq!(found[key], expected, "{what}: {key} of {found}");
    }
    for key in ["processors", "configured", "cpuinfo", "stat", "nproc", "threads"] {
        assert_eq!(found[key], processors, "{what}: {key} of {found}");
    }
    assert_eq!(found["cpus"], cpu, "{what}: {found}");
    let used = found["used"].as_u64().unwrap();
    assert!((MIB..memory).contains(&used), "{what}: the kernel counts it: {found}");
}

#[test]
fn python_finds_the_memory_and_the_processors_of_each_version() {
    for (memory, cpu) in [(96, 1.0), (160, 2.0), (112, 0.5)] {
        let settings = format!("memory = \"{memory}MiB\"\ncpu = {cpu:?}");
        let version = shared().deploy(&python("machine-python", &settings));
        assert!(version.snapshot.is_some(), "{version:?}");
        for start in ["booted", "restored"] {
            let found = shared().fresh(start, "machine-python", "/").ok().json();
            is_like(&found["began"], memory * MIB, cpu, start);
            is_like(&found["now"], memory * MIB, cpu, start);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
            let booted = found["booted"].as_f64().unwrap();
            // Whole seconds are rounded twice.
            assert!((now - 600.0..now + 3.0).contains(&booted), "{start}: {now} {found}");
        }
    }
    assert_eq!(
        shared().get("machine-python", "/write").ok().json(),
        serde_json::json!([])
    );
}

#[test]
fn what_begins_as_the_snapshot_of_another_size_finds_its_own() {
    let platform = Platform::start_with(Options {
        args: vec!["--share-memory".to_owned(), "functions".to_owned()],
        ..Options::default()
    });
    for (name, memory, cpu) in [("small", 96, 1.0), ("large", 192, 2.0)] {
        let settings = format!("memory = \"{memory}MiB\"\ncpu = {cpu:?}");
        platform.deploy(&python(name, &settings));
        for start in ["booted", "restored"] {
            let found = platform.fresh(start, name, "/").ok().json();
            is_like(&found["began"], memory * MIB, cpu, start);
            is_like(&found["now"], memory * MIB, cpu, start);
        }
    }
    assert_eq!(
        platform.worker_metric("rekindle_runtime_snapshots_total{outcome=\"used\"}"),
        1.0
    );
}

#[test]
fn a_heap_of_node_fits_its_memory() {
    // V8 takes no less than 256 MiB.
    for (memory, cpu) in [(384, 1.0), (512, 2.0)] {
        let settings =
            format!("base = \"node\"\ncommand = [\"node\", \"server.js\"]\nmemory = \"{memory}MiB\"\ncpu = {cpu:?}");
        shared().deploy(&program("machine-node", &settings, "machine-node"));
        for start in ["booted", "restored"] {
            let found = shared().fresh(start, "machine-node", "/").ok().json();
            for found in [&found["began"], &found["now"]] {
                assert_eq!(found["memory"], memory * MIB, "{start}: {found}");
                assert_eq!(found["constrained"], memory * MIB, "{start}: {found}");
                assert!(found["heap_mib"].as_u64().unwrap() <= memory, "{start}: {found}");
                for key in ["processors", "parallelism"] {
                    assert_eq!(found[key], at_most(cpu as u64), "{start}: {found}");
                }
            }
        }
    }
}

#[test]
fn go_goes_by_its_limit_holds_it_open_and_has_a_snapshot() {
    if !is_there("go") {
        return;
    }
    let built = tempfile::tempdir().unwrap();
    let server = built.path().join("server");
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(&server)
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(source("machine-go")));
    for cpu in [1, 2] {
        // Empty is as if it were not there: Go looks for itself.
        let settings =
            format!("command = [\"./server\"]\nmemory = \"96MiB\"\ncpu = {cpu}.0\nenv = {{ GOMAXPROCS = \"\" }}");
        let folder = program("machine-go", &settings, "machine-go");
        fs::copy(&server, folder.path().join("server")).unwrap();
        let version = shared().deploy(&folder);
        assert!(version.snapshot.is_some(), "{version:?}");
        for start in ["booted", "restored"] {
            let found = shared().fresh(start, "machine-go", "/").ok();
            assert_eq!(found.start(), start);
            let found = found.json();
            for found in [&found["began"], &found["now"]] {
                // Go takes two where its limit is less.
                assert_eq!(found["threads"], at_most(2), "{start} {cpu}: {found}");
                assert!(!found["held"].as_array().unwrap().is_empty(), "{start}: {found}");
            }
        }
    }
    let settings = "command = [\"./server\"]\nmemory = \"96MiB\"";
    let folder = program("machine-go-one", settings, "machine-go");
    fs::copy(&server, folder.path().join("server")).unwrap();
    shared().deploy(&folder);
    let found = shared().fresh("restored", "machine-go-one", "/").ok().json();
    assert_eq!(found["now"]["threads"], 1, "as the environment says: {found}");
}

#[test]
fn a_heap_of_the_jvm_is_a_quarter_of_its_memory() {
    if !is_there("jlink") {
        return;
    }
    let built = tempfile::tempdir().unwrap();
    run(Command::new("javac")
        .arg("-d")
        .arg(built.path())
        .arg(source("machine-java").join("Machine.java")));
    run(Command::new("jlink")
        .args(["--add-modules", "java.base,jdk.httpserver", "--strip-debug", "--output"])
        .arg(built.path().join("jre")));
    for (memory, cpu) in [(512, 1), (768, 2)] {
        let settings = format!(
            "command = [\"jre/bin/java\", \"-XX:+UseSerialGC\", \"Machine\"]\nmemory = \"{memory}MiB\"\ncpu = {cpu}.0"
        );
        let folder = program("machine-java", &settings, "machine-java");
        run(Command::new("cp")
            .arg("-a")
            .arg(built.path().join("."))
            .arg(folder.path()));
        shared().deploy(&folder);
        for start in ["booted", "restored"] {
            let found = shared().fresh(start, "machine-java", "/").ok().json();
            assert_eq!(found["processors"], at_most(cpu), "{start}: {found}");
            assert_eq!((&found["host"], &found["user"]), (&"machine-java".into(), &"fn".into()));
            let heap = found["heap_mib"].as_u64().unwrap();
            assert!((memory / 5..=memory / 4 + 1).contains(&heap), "{start}: {found}");
        }
    }
}

#[test]
fn what_holds_a_file_of_proc_open_has_no_snapshot_and_is_told_which() {
    let settings = "[[warmup]]\npath = \"/hold/proc/meminfo\"";
    let version = shared().try_deploy(&python("machine-holds", settings)).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(version.snapshot.is_none() && told.contains("/proc/meminfo"), "{told}");
}

/// Who it is, what its host is called, whether it has terminals, and which libraries it loads.
const PERSON: &str = r#"
import ctypes, getpass, grp, os, pty, pwd, select, socket, sqlite3, ssl, subprocess, zoneinfo

LIBRARIES = ["libz.so.1", "libgomp.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libatomic.so.1",
             "libbz2.so.1.0", "liblzma.so.5", "libzstd.so.1", "libexpat.so.1", "libffi.so.8", "libuuid.so.1",
             "libcrypt.so.1", "libssl.so.3"]

def through_a_terminal():
    """What a child says to its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "tty; echo $((6 * 7)) > /dev/tty"])
    said = b""
    try:
        while select.select([terminal], [], [], 10)[0]:
            said += os.read(terminal, 4096)
    except OSError:
        pass  # The child has closed it.
    os.close(terminal)
    os.waitpid(pid, 0)
    return said.decode().split()

held = []

def handler(event, context):
    if event["rawPath"] == "/hold":
        held.extend(pty.openpty())
    name = socket.gethostname()
    ends = pty.openpty()
    terminal = os.ttyname(ends[1])
    for end in ends:
        os.close(end)
    return {
        "user": getpass.getuser(), "home": pwd.getpwuid(os.getuid()).pw_dir, "group": grp.getgrgid(os.getgid()).gr_name,
        "host": name, "address": socket.gethostbyname(name), "hostname": open("/etc/hostname").read().strip(),
        "terminal": terminal, "said": through_a_terminal(), "terminals": sorted(os.listdir("/dev/pts")),
        "zone": str(zoneinfo.ZoneInfo("Europe/Berlin")),
        "roots": len(ssl.create_default_context().get_ca_certs()) > 100,
        "libraries": [name for name in LIBRARIES if ctypes.CDLL(name) is None],
    }
"#;

#[test]
fn a_program_has_a_user_a_host_name_that_resolves_terminals_and_the_usual_libraries() {
    let folder = Folder::python("person", "", PERSON);
    assert!(shared().deploy(&folder).snapshot.is_some());
    for start in ["booted", "restored"] {
        let found = shared().fresh(start, "person", "/").ok().json();
        let expected = serde_json::json!({
            "user": "fn", "home": "/tmp", "group": "fn",
            "host": "person", "address": "127.0.0.1", "hostname": "person",
            "terminal": "/dev/pts/0", "said": ["/dev/pts/0", "42"], "terminals": ["ptmx"],
            "zone": "Europe/Berlin", "roots": true, "libraries": [],
        });
        assert_eq!(found, expected, "{start}");
    }
}

#[test]
fn a_terminal_that_is_open_costs_the_snapshot_by_name() {
    let folder = Folder::python("terminal", "[[warmup]]\npath = \"/hold\"", PERSON);
    let version = shared().try_deploy(&folder).unwrap();
    let told = version.snapshot_error.unwrap_or_default();
    assert!(version.snapshot.is_none() && told.contains("terminal"), "{told}");
}

/// A library and a program that needs it: what the deploy says where it is not there.
#[test]
fn a_library_that_is_missing_is_named_with_the_way_to_get_it() {
    let code = "import ctypes\nctypes.CDLL('libuv.so.1')\n";
    let settings = "runtime = \"http\"\nbase = \"python\"\ncommand = [\"python3\", \"server.py\"]";
    let told = shared()
        .try_deploy(&Folder::with_config(&format!("name = \"lacking\"\n{settings}\n")).file("server.py", code))
        .unwrap_err();
    for part in [
        "lacks the shared library libuv.so.1",
        "base = \"node\"",
        "lib/libuv.so.1",
        "LD_LIBRARY_PATH",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // After more lines than are shown.
    let code = "import os\nprint('no loader: libmine.so.7: cannot open shared object file: No such file')\n\
                for n in range(40): print(n)\nos._exit(1)\n";
    let told = shared().try_deploy(&Folder::server("lacking", "", code)).unwrap_err();
    assert!(
        told.contains("lacks the shared library libmine.so.7: put it into the folder"),
        "{told}"
    );
}

#[test]
fn a_program_that_watches_its_control_group_finds_its_own_in_each_copy() {
    let code = "import glob\n\
        groups = '/sys/fs/cgroup/'\n\
        names = ['memory/memory.usage_in_bytes', 'memory.current', 'memory/memory.stat', 'memory.stat']\n\
        watched = [open(name) for at in names for name in glob.glob(groups + at)]\n\
        def handler(event, context):\n    \
            for file in watched:\n        file.seek(0)\n    \
            texts = [file.read() for file in watched]\n    \
            return {'used': int(texts[0]), 'stat': texts[1].count('\\n')}\n";
    let platform = shared();
    platform.deploy(&Folder::python("watch-group", "memory = \"96MiB\"", code));
    for _ in 0..2 {
        let found = platform.fresh("restored", "watch-group", "/").ok().json();
        let used = found["used"].as_u64().unwrap();
        assert!(
            (MIB..96 * MIB).contains(&used) && found["stat"].as_u64().unwrap() > 10,
            "{found}"
        );
    }
}
