use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use rekindle_wire::manifest;
use tar::EntryType;

use super::installer::Installer;
use super::*;
use crate::testing::{init_binary, skipped};
use testing::Tar;

#[path = "../../confined/src/upload/testing.rs"]
mod testing;

struct Workshop {
    directory: tempfile::TempDir,
    told: Mutex<Vec<String>>,
}

impl Workshop {
    /// Builds need root, to become `nobody` and to lay out what that sees.
    fn open() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped("needs root");
            return None;
        }
        if init_binary().is_none() {
            skipped("needs rekindle-init: cargo build --release -p rekindle-init");
            return None;
        }
        Some(Self {
            directory: tempfile::tempdir().unwrap(),
            told: Mutex::default(),
        })
    }

    fn work_dir(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    async fn build(&self, manifest: &str, tar: Tar) -> Result<Vec<u8>, BuildError> {
        let source = self.directory.path().join("source.tar.gz");
        tar.write(&source);
        let manifest = manifest::parse(&format!("name = \"f\"\n{manifest}")).unwrap();
        let order = BuildOrder {
            source_tar_gz: source,
            manifest: &manifest,
            work_dir: self.work_dir(),
            limits: BuildLimits {
                install_timeout: Duration::from_secs(120),
                ..BuildLimits::default()
            },
            confinement: Confinement::new(init_binary().unwrap()),
            cgroup_procs: Vec::new(),
        };
        let built = build_layer(&order, |text| self.told.lock().unwrap().push(text.to_owned())).await;
        let layer = built.map(|path| {
            let bytes = fs::read(&path).unwrap();
            fs::remove_file(path).unwrap();
            bytes
        });
        let left: Vec<_> = fs::read_dir(self.work_dir())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert!(left.iter().all(|n| n == DEPS_CACHE), "{left:?}");
        layer
    }

    fn told(&self) -> String {
        self.told.lock().unwrap().join("\n")
    }
}

const PYTHON: &str = "runtime = \"python\"\nentry = \"main.handler\"\n";
const NODE: &str = "runtime = \"node\"\nentry = \"index.handler\"\n";

fn python_app() -> Tar {
    Tar::default().file("main.py", "def handler(event, context):\n    return {'a', 'b', 'c'}\n")
}

/// Name, mode, owner and time of every entry.
fn listed(layer: &[u8]) -> Vec<(String, u32, u64, u64)> {
    let mut archive = tar::Archive::new(layer);
    let entries = archive.entries().unwrap().map(|e| {
        let e = e.unwrap();
        let h = e.header();
        (
            e.path().unwrap().display().to_string(),
            h.mode().unwrap(),
            h.uid().unwrap() + h.gid().unwrap(),
            h.mtime().unwrap(),
        )
    });
    entries.collect()
}

fn names(layer: &[u8]) -> Vec<String> {
    listed(layer).into_iter().map(|(name, ..)| name).collect()
}

/// A registry that cannot be reached is not what is tested.
fn unreachable_registry(error: &BuildError) -> bool {
    let text = error.to_string();
    let signs = [
        "NewConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ProxyError",
        "ENOTFOUND",
        "ECONNREFUSED",
        "ETIMEDOUT",
        "EAI_AGAIN",
        "is not installed",
    ];
    let unreachable = signs.iter().any(|s| text.contains(s));
    if unreachable {
        skipped(&text);
    }
    unreachable
}

/// A wheel made by hand, so that pip is tested without a registry.
fn wheel(name: &str, requires: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "import zipfile\n\
         z = zipfile.ZipFile('w', 'w')\n\
         d = '{name}-1.0.dist-info/'\n\
         z.writestr('{name}.py', 'VALUE = 42\\n')\n\
         z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n{requires}')\n\
         z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
         z.writestr(d + 'RECORD', '{name}.py,,\\n')\n\
         z.close()\n"
    );
    let made = Command::new("/usr/bin/python3")
        .args(["-c", &script])
        .current_dir(directory.path())
        .status()
        .unwrap();
    assert!(made.success());
    fs::read(directory.path().join("w")).unwrap()
}

#[tokio::test]
async fn the_same_folder_gives_the_same_bytes_however_it_was_packed() {
    let Some(shop) = Workshop::open() else { return };
    let one = python_app()
        .entry("bin/", EntryType::Directory, "", 0o700, b"")
        .entry("bin/x", EntryType::Regular, "", 0o700, b"x")
        .link("l", "bin/x");
    let other = Tar::default()
        .link("./l", "bin/x")
        .entry("./bin/x", EntryType::Regular, "", 0o4755, b"x");
    let other = other.file("main.py", "def handler(event, context):\n    return {'a', 'b', 'c'}\n");
    let (one, other) = (
        shop.build(PYTHON, one).await.unwrap(),
        shop.build(PYTHON, other).await.unwrap(),
    );
    assert_eq!(blake3::hash(&one), blake3::hash(&other));
    let listed = listed(&one);
    let find = |name: &str| {
        listed
            .iter()
            .find(|e| e.0 == name)
            .unwrap_or_else(|| panic!("{name} in {listed:?}"))
    };
    assert_eq!(find("bin/").1, 0o755);
    assert_eq!(find("bin/x").1, 0o755);
    assert_eq!(find("main.py").1, 0o644);
    assert!(
        listed
            .iter()
            .all(|(_, _, owner, mtime)| *owner == 0 && *mtime == 315_532_800)
    );
    let sorted: Vec<_> = listed
        .iter()
        .map(|e| e.0.as_str())
        .filter(|n| !n.contains("__pycache__"))
        .collect();
    assert_eq!(sorted, ["bin/", "bin/x", "l", "main.py"]);
}

#[tokio::test]
async fn a_missing_entry_is_told_with_its_fix() {
    let Some(shop) = Workshop::open() else { return };
    let http = |command: &str| format!("runtime = \"http\"\ncommand = [\"{command}\"]\n");
    let cases: [(String, Tar, &[&str]); 6] = [
        (
            PYTHON.into(),
            Tar::default().file("app.py", ""),
            &["main.py", "fn.toml"],
        ),
        (
            "runtime = \"python\"\nentry = \"pkg.mod.handler\"\n".into(),
            Tar::default().file("pkg/other.py", ""),
            &["pkg/mod.py"],
        ),
        (
            NODE.into(),
            Tar::default().file("main.js", ""),
            &["index.js", "fn.toml"],
        ),
        (
            http("./server"),
            Tar::default().file("x", ""),
            &["./server", "not in the function's folder"],
        ),
        (
            http("./server"),
            Tar::default().file("server", ""),
            &["chmod +x server"],
        ),
        (http("/app/bin"), Tar::default().file("bin/server", ""), &["not a file"]),
    ];
    for (manifest, tar, words) in cases {
        let error = shop.build(&manifest, tar).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidManifest, "{error}");
        assert!(words.iter().all(|w| error.to_string().contains(w)), "{error}");
    }
}

#[tokio::test]
async fn entries_of_every_form_are_found() {
    let Some(shop) = Workshop::open() else { return };
    let python = |entry: &str| format!("runtime = \"python\"\nentry = \"{entry}\"\n");
    let node = |entry: &str| format!("runtime = \"node\"\nentry = \"{entry}\"\n");
    let http = |command: &str| format!("runtime = \"http\"\ncommand = [\"{command}\"]\n");
    let program = |name: &str| Tar::default().entry(name, EntryType::Regular, "", 0o755, b"");
    let cases = [
        (python("pkg.mod.handler"), Tar::default().file("pkg/mod.py", "")),
        (python("pkg/mod.handler"), Tar::default().file("pkg/mod.py", "")),
        (python("pkg.handler"), Tar::default().file("pkg/__init__.py", "")),
        (
            python("fast.handler"),
            Tar::default().file("fast.cpython-311-x86_64-linux-gnu.so", ""),
        ),
        (node("index.handler"), Tar::default().file("index.mjs", "")),
        (node("lib/api.v1.handler"), Tar::default().file("lib/api.cjs", "")),
        (node("lib.handler"), Tar::default().file("lib/index.js", "")),
        (http("./server"), program("server")),
        (http("bin/server"), program("bin/server")),
        (http("python3"), Tar::default().file("x", "")),
        (http("/usr/bin/env"), Tar::default().file("x", "")),
    ];
    for (manifest, tar) in cases {
        shop.build(&manifest, tar)
            .await
            .unwrap_or_else(|e| panic!("{manifest}: {e}"));
    }
}

#[tokio::test]
async fn a_hostile_folder_and_a_bomb_have_codes_of_their_own() {
    let Some(shop) = Workshop::open() else { return };
    let error = shop
        .build(PYTHON, Tar::default().file("../evil", ""))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidManifest);
    let tar = (0..100_001).fold(Tar::default(), |t, i| t.file(&format!("{i}"), ""));
    assert_eq!(shop.build(PYTHON, tar).await.unwrap_err().code(), ErrorCode::TooLarge);
}

#[tokio::test]
async fn a_wheel_in_the_folder_is_installed_and_compiled_and_the_second_time_cached() {
    let Some(shop) = Workshop::open() else { return };
    let wheel = wheel("demo", "");
    let folder = || {
        let tar = python_app().file("requirements.txt", "--no-index\n./wheels/demo-1.0-py3-none-any.whl\n");
        tar.entry(
            "wheels/demo-1.0-py3-none-any.whl",
            EntryType::Regular,
            "",
            0o644,
            &wheel,
        )
    };
    let first = match shop.build(PYTHON, folder()).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    let names = names(&first);
    assert!(names.contains(&".rekindle/python/demo.py".to_owned()), "{names:?}");
    if fs::canonicalize("/usr/bin/python3").unwrap().ends_with("python3.11") {
        assert!(
            names.contains(&".rekindle/python/__pycache__/demo.cpython-311.pyc".to_owned()),
            "{names:?}"
        );
        assert!(
            names.contains(&"__pycache__/main.cpython-311.pyc".to_owned()),
            "{names:?}"
        );
    } else {
        skipped("the host's python3 is not 3.11, so nothing is compiled");
    }
    assert!(!shop.told().contains("cache"));
    let second = shop.build(PYTHON, folder()).await.unwrap();
    assert!(shop.told().contains("taken from the cache"));
    assert_eq!(blake3::hash(&first), blake3::hash(&second));
    // In another place, without that cache.
    let other = Workshop::open().unwrap();
    assert_eq!(
        blake3::hash(&other.build(PYTHON, folder()).await.unwrap()),
        blake3::hash(&first)
    );
}

#[tokio::test]
async fn a_package_from_the_registry_is_installed() {
    let Some(shop) = Workshop::open() else { return };
    let folder = python_app().file("requirements.txt", "six==1.16.0\n");
    let layer = match shop.build(PYTHON, folder).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&".rekindle/python/six.py".to_owned()));
    // A handler that comes with a package.
    let tar = Tar::default().file("requirements.txt", "six==1.16.0\n");
    shop.build("runtime = \"python\"\nentry = \"six.moves\"\n", tar)
        .await
        .unwrap();
    let tar = Tar::default().file("requirements.txt", "six==1.16.0\n");
    let error = shop.build(PYTHON, tar).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidManifest);
}

#[tokio::test]
async fn a_package_that_does_not_exist_fails_with_pips_words() {
    let Some(shop) = Workshop::open() else { return };
    let folder = python_app().file("requirements.txt", "rekindle-no-such-package==9.9.9\n");
    let error = shop.build(PYTHON, folder).await.unwrap_err();
    if unreachable_registry(&error) {
        return;
    }
    assert_eq!(error.code(), ErrorCode::BuildFailed);
    assert!(
        error
            .to_string()
            .contains("No matching distribution found for rekindle-no-such-package==9.9.9"),
        "{error}"
    );
}

#[tokio::test]
async fn a_package_with_source_only_is_told_apart() {
    let Some(shop) = Workshop::open() else { return };
    // Never had a wheel.
    let folder = python_app().file("requirements.txt", "docopt==0.6.2\n");
    let error = shop.build(PYTHON, folder).await.unwrap_err();
    if unreachable_registry(&error) {
        return;
    }
    assert!(
        matches!(error, BuildError::Python(PythonError::SourceOnly { ref package, .. }) if package == "docopt"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("copy the package's files into the function's folder"),
        "{error}"
    );
}

#[tokio::test]
async fn no_code_of_a_package_runs_even_when_a_wheel_asks_for_a_source_tree() {
    let Some(shop) = Workshop::open() else { return };
    // Everybody may write there, and the installer sees it: its /tmp is the build's own.
    let ran = PathBuf::from(format!("/var/tmp/rekindle-test-{}", std::process::id()));
    let setup = format!(
        "open('{}', 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1')\n",
        ran.display()
    );
    let tar = python_app()
        .file("requirements.txt", "--no-index\n./demo-1.0-py3-none-any.whl\n")
        .entry(
            "demo-1.0-py3-none-any.whl",
            EntryType::Regular,
            "",
            0o644,
            &wheel("demo", "Requires-Dist: evil @ file:///tmp/app/evil\\n"),
        )
        .file("evil/setup.py", &setup);
    let error = shop.build(PYTHON, tar).await.unwrap_err();
    if unreachable_registry(&error) {
        return;
    }
    assert_eq!(error.code(), ErrorCode::BuildFailed);
    assert!(error.to_string().contains("Operation not permitted"), "{error}");
    assert!(!ran.exists());
}

#[tokio::test]
async fn node_packages_are_installed_without_their_scripts() {
    let Some(shop) = Workshop::open() else { return };
    let package = "{\"dependencies\": {\"inner\": \"file:./inner\"}}";
    let inner = "{\"name\": \"inner\", \"version\": \"1.0.0\", \"scripts\": {\"install\": \"touch /tmp/app/ran\"}}";
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", package)
        .file("inner/package.json", inner)
        .file("inner/index.js", "");
    let layer = match shop.build(NODE, tar).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    let names = names(&layer);
    assert!(names.contains(&"node_modules/inner".to_owned()), "{names:?}");
    assert!(!names.contains(&"ran".to_owned()));
    assert!(shop.told().contains("npm install"));
}

#[tokio::test]
async fn a_node_package_from_the_registry_is_installed_from_its_lock() {
    let Some(shop) = Workshop::open() else { return };
    let package = "{\"name\":\"f\",\"version\":\"1.0.0\",\"dependencies\": {\"ms\": \"2.1.3\"}}";
    let lock = "{\"name\":\"f\",\"version\":\"1.0.0\",\"lockfileVersion\":3,\"requires\":true,\"packages\":{\
        \"\":{\"name\":\"f\",\"version\":\"1.0.0\",\"dependencies\":{\"ms\":\"2.1.3\"}},\
        \"node_modules/ms\":{\"version\":\"2.1.3\",\
        \"integrity\":\"sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==\"}}}";
    let folder = || {
        Tar::default()
            .file("index.js", "")
            .file("package.json", package)
            .file("package-lock.json", lock)
    };
    let layer = match shop.build(NODE, folder()).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&"node_modules/ms/index.js".to_owned()));
    assert!(shop.told().contains("npm ci"));
    assert_eq!(
        blake3::hash(&shop.build(NODE, folder()).await.unwrap()),
        blake3::hash(&layer)
    );
}

#[tokio::test]
async fn node_packages_that_would_start_programs_are_refused() {
    let Some(shop) = Workshop::open() else { return };
    let package = "{\"dependencies\": {\"x\": \"git+file:///tmp/app/x\"}}";
    let tar = Tar::default().file("index.js", "").file("package.json", package);
    let error = shop.build(NODE, tar).await.unwrap_err();
    if unreachable_registry(&error) {
        return;
    }
    assert_eq!(error.code(), ErrorCode::BuildFailed);
    assert!(error.to_string().contains("EPERM"), "{error}");
    for npmrc in [
        "git=./evil",
        "registry=https://example.org/${NPM_CONFIG_TOKEN}",
        "ignore-scripts=false",
    ] {
        let tar = Tar::default()
            .file("index.js", "")
            .file("package.json", package)
            .file(".npmrc", npmrc);
        let error = shop.build(NODE, tar).await.unwrap_err();
        assert!(matches!(error, BuildError::Node(NodeError::Npmrc(_))), "{error}");
    }
}

#[tokio::test]
async fn uploaded_node_modules_are_used_as_they_are() {
    let Some(shop) = Workshop::open() else { return };
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", "{\"dependencies\": {\"x\": \"1\"}}")
        .file("node_modules/x/index.js", "");
    let layer = shop.build(NODE, tar).await.unwrap();
    assert!(names(&layer).contains(&"node_modules/x/index.js".to_owned()));
    assert!(shop.told().contains("used as it is"));
}

/// Python code run the way an installer is.
fn python<'a>(room: &'a Room, code: &str, time_limit: Duration, cgroup_procs: &'a [PathBuf]) -> Installer<'a> {
    Installer {
        program: "python3",
        package: "python3",
        arguments: ["-I", "-c", code].map(Into::into).into(),
        environment: Vec::new(),
        room: &room.path,
        cwd: "/tmp/home",
        room_bytes: 1 << 20,
        time_limit,
        cgroup_procs,
    }
}

#[tokio::test]
async fn an_installer_has_threads_but_no_processes_no_rights_and_no_view_of_other_builds() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "\
import ctypes, os, subprocess, threading
t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
print(os.getuid(), os.getgid(), os.getgroups(), sorted(os.listdir('/tmp')))
for name, start in {'fork': os.fork, 'vfork': lambda: subprocess.run(['/bin/true']), 'spawn': lambda: os.posix_spawn('/bin/true', ['true'], {})}.items():
    try: start(); print(name, 'worked')
    except OSError as e: print(name, e.errno)
for line in open('/proc/self/status'):
    if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs')): print(line.split()[0], int(line.split()[1], 16) if line.startswith('CapEff') else line.split()[1])
try: open('x', 'w').write('x' * 2000000); print('large file written')
except OSError as e: print('large', e.errno)
";
    let finished = python(&room, code, Duration::from_secs(30), &[]).run().await.unwrap();
    let said = &finished.output;
    for line in [
        "thread\n",
        "65534 65534 [] ['app', 'deps', 'home', 'tmp']",
        "fork 1\n",
        "vfork 1\n",
        "spawn 1\n",
        "CapEff: 0",
        "NoNewPrivs: 1",
        "large 27",
    ] {
        assert!(said.contains(line), "{line} in:\n{said}");
    }
}

#[tokio::test]
async fn an_installer_is_in_the_group_it_was_given() {
    let Some(shop) = Workshop::open() else { return };
    let parent = format!("rekindle-build-test-{}", std::process::id());
    let limits = crate::cgroup::Limits {
        memory_bytes: 512 << 20,
        cpu_cores: 1.0,
        pids: 64,
    };
    let groups = match crate::cgroup::Cgroups::detect_below(Path::new(crate::cgroup::CGROUP_ROOT), &parent) {
        Ok(groups) => groups,
        Err(e) => return skipped(&e.to_string()),
    };
    let group = groups.create("build", limits).unwrap();
    let room = Room::make(&shop.work_dir()).unwrap();
    let procs = group.procs_files();
    let finished = python(
        &room,
        "print(open('/proc/self/cgroup').read())",
        Duration::from_secs(30),
        &procs,
    )
    .run()
    .await
    .unwrap();
    assert!(
        finished.output.contains(&format!("/{parent}/build")),
        "{}",
        finished.output
    );
    group.remove().unwrap();
    for procs in procs {
        let _ = fs::remove_dir(procs.ancestors().nth(2).unwrap());
    }
}

fn alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const HANG: &str =
    "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nprint('hanging', flush=True)\ntime.sleep(600)\n";

#[tokio::test]
async fn an_installer_that_hangs_is_killed_at_its_limit() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let error = python(&room, HANG, Duration::from_secs(2), &[])
        .run()
        .await
        .unwrap_err();
    assert!(
        matches!(error, InstallerError::TimedOut { ref output, .. } if output == "hanging"),
        "{error}"
    );
    let pid = fs::read_to_string(room.path.join("home/pid")).unwrap();
    assert!(!alive(&pid));
}

#[tokio::test]
async fn a_build_that_is_given_up_leaves_no_process() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let file = room.path.join("home/pid");
    {
        let running = python(&room, HANG, Duration::from_secs(600), &[]).run();
        tokio::pin!(running);
        let started = until("the installer did not start", || {
            fs::read_to_string(&file).is_ok_and(|p| !p.is_empty())
        });
        tokio::select! {
            ended = &mut running => panic!("it ended: {ended:?}"),
            () = started => {}
        }
    }
    let pid = fs::read_to_string(&file).unwrap();
    until("the installer lives on", || !alive(&pid)).await;
}

#[tokio::test]
async fn an_installer_that_fills_the_disk_is_stopped() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "import time\nfor i in range(4): open(str(i), 'w').write('x' * 900000)\ntime.sleep(600)\n";
    let error = python(&room, code, Duration::from_secs(60), &[])
        .run()
        .await
        .unwrap_err();
    assert!(matches!(error, InstallerError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn sweep_removes_what_a_dead_worker_left_and_keeps_the_cache() {
    let Some(shop) = Workshop::open() else { return };
    let work_dir = shop.work_dir();
    let room = Room::make(&work_dir).unwrap();
    std::mem::forget(room);
    fs::write(work_dir.join("layer-1.tar"), "x").unwrap();
    fs::create_dir_all(work_dir.join("deps-cache/key/tree")).unwrap();
    fs::create_dir_all(work_dir.join("deps-cache/.new-1/tree")).unwrap();
    sweep(&work_dir).unwrap();
    let mut left: Vec<_> = fs::read_dir(&work_dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.extend(
        fs::read_dir(work_dir.join("deps-cache"))
            .unwrap()
            .map(|e| e.unwrap().file_name()),
    );
    assert_eq!(left, [DEPS_CACHE, "key"]);
    sweep(&work_dir.join("none")).unwrap();
}
