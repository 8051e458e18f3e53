use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use rekindle_wire::function_config;
use tar::EntryType;

use super::installer::Installer;
use super::*;
use crate::host::cgroup::{CGROUP_ROOT, Cgroup, Cgroups};
use crate::testing::{init_binary, skipped};
use testing::Tar;

mod hostile;
mod installers;
mod packages;
#[path = "../../../confined/src/upload/testing.rs"]
mod testing;

/// Returns the directory of the root filesystems' archives.
fn runtimes() -> Option<PathBuf> {
    let cache = std::env::var_os("FN_CACHE").map_or_else(|| PathBuf::from("/var/cache/rekindle"), PathBuf::from);
    let dir = cache.join("runtimes");
    ["python", "node", "build"]
        .iter()
        .all(|name| dir.join(name).with_extension("tar").is_file())
        .then_some(dir)
}

/// Returns root filesystems, unpacked beside the test's program once for each archive.
fn roots<'a>(root: Root) -> BoxFuture<'a, Result<PathBuf, String>> {
    static TURN: Mutex<()> = Mutex::new(());
    let name = match root {
        Root::Runtime(base) => base.as_str(),
        Root::Tools => "build",
    };
    let archive = runtimes().unwrap().join(name).with_extension("tar");
    let modified = fs::metadata(&archive).unwrap().modified().unwrap();
    let age = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let dir = init_binary()
        .unwrap()
        .with_file_name(format!("build-roots/{name}-{age}"));
    let _turn = TURN.lock().unwrap();
    if !dir.is_dir() {
        let new = dir.with_extension("new");
        fs::create_dir_all(&new).unwrap();
        let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&new).status();
        assert!(unpacked.unwrap().success());
        fs::rename(&new, &dir).unwrap();
    }
    Box::pin(std::future::ready(Ok(dir)))
}

fn counts() -> BuildCounts {
    BuildCounts::new(&rekindle_telemetry::metrics::Registry::new("worker"))
}

struct BuildFixture {
    directory: tempfile::TempDir,
    told: Mutex<Vec<String>>,
}

impl BuildFixture {
    /// Opens a workshop. Builds need root, to become `nobody` and to lay out its files.
    fn open() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped("needs root");
            return None;
        }
        if runtimes().is_none() {
            skipped("needs the runtimes: scripts/setup.sh host");
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

    async fn build(&self, config: &str, tar: Tar) -> Result<Vec<u8>, BuildError> {
        self.build_with(config, tar, &BuildNetwork::default()).await
    }

    async fn build_with(&self, config: &str, tar: Tar, network: &BuildNetwork) -> Result<Vec<u8>, BuildError> {
        let source = self.directory.path().join("source.tar.gz");
        tar.write(&source);
        let config = function_config::parse(&format!("name = \"f\"\n{config}")).unwrap();
        let order = BuildOrder {
            roots: &roots,
            network,
            counts: counts(),
            source_tar_gz: source,
            config: &config,
            work_dir: self.work_dir(),
            limits: BuildLimits {
                install_timeout: Duration::from_secs(120),
                ..BuildLimits::default()
            },
            confinement: Confinement::new(init_binary().unwrap()),
            cgroup_procs: Vec::new(),
        };
        let built = build_layer(&order, |text| self.told.lock().unwrap().push(text.to_owned()))
            .await
            .map(|tars| tars.layer);
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

/// Returns name, mode, owner and time of every entry.
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

/// Builds a wheel by hand, so that pip is tested without a registry.
fn wheel(name: &str, requires: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "import zipfile\n\
         z = zipfile.ZipFile('w', 'w')\n\
         d = '{name}-1.0.dist-info/'\n\
         z.writestr('{name}.py', 'VALUE = 42\\n')\n\
         z.writestr(d + 'entry_points.txt', '[console_scripts]\\n{name} = {name}:main\\n')\n\
         z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n{requires}')\n\
         z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\n\
         Root-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
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

/// Returns whether a registry cannot be reached, which is not what is tested.
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
    ];
    let unreachable = signs.iter().any(|s| text.contains(s));
    if unreachable {
        skipped(&text);
    }
    unreachable
}

/// Builds a source archive whose build runs `code`, in Python, without any package of a registry. The module that it
/// installs contains what `code` leaves in `said`.
fn source_archive(code: &str) -> Vec<u8> {
    let backend = format!(
        "import zipfile\n\
         def build_wheel(directory, config=None, metadata=None):\n    said = ''\n{}\n    \
         name = 'demo-1.0-py3-none-any.whl'\n    z = zipfile.ZipFile(directory + '/' + name, 'w')\n    \
         d = 'demo-1.0.dist-info/'\n    \
         z.writestr('demo.txt', said)\n    \
         z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')\n    \
         z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\n\
         Root-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
         z.writestr(d + 'RECORD', '')\n    z.close()\n    return name\n",
        code.lines().map(|l| format!("    {l}\n")).collect::<String>()
    );
    let project = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n\
                   [project]\nname = \"demo\"\nversion = \"1.0\"\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo-1.0.tar.gz");
    let tar = Tar::default()
        .file("demo-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        .file("demo-1.0/pyproject.toml", project)
        .file("demo-1.0/backend.py", &backend);
    tar.write(&path);
    fs::read(path).unwrap()
}

#[tokio::test]
async fn the_same_folder_gives_the_same_bytes_however_it_was_packed() {
    let Some(shop) = BuildFixture::open() else { return };
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
    assert_eq!(
        sorted,
        ["bin/", "bin/x", "l", "main.py", ".rekindle/", ".rekindle/reaper"]
    );
}

#[tokio::test]
async fn a_missing_entry_is_told_with_its_fix() {
    let Some(shop) = BuildFixture::open() else { return };
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
    for (config, tar, words) in cases {
        let error = shop.build(&config, tar).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        assert!(words.iter().all(|w| error.to_string().contains(w)), "{error}");
    }
}

#[tokio::test]
async fn entries_of_every_form_are_found() {
    let Some(shop) = BuildFixture::open() else { return };
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
        (http("sh"), Tar::default().file("x", "")),
        (http("/usr/bin/env"), Tar::default().file("x", "")),
    ];
    for (config, tar) in cases {
        shop.build(&config, tar)
            .await
            .unwrap_or_else(|e| panic!("{config}: {e}"));
    }
}

#[tokio::test]
async fn the_reaper_and_lambda_s_server_are_among_the_files_of_a_function() {
    let Some(shop) = BuildFixture::open() else { return };
    let program = || Tar::default().entry("bootstrap", EntryType::Regular, "", 0o755, b"");
    let of = |layer: &[u8], path: &str| listed(layer).into_iter().find(|entry| entry.0 == path);
    let server = |layer: &[u8]| of(layer, rekindle_lambda::PATH);
    let lambda = "runtime = \"http\"\ninterface = \"lambda\"\n";
    let layer = shop.build(lambda, program()).await.unwrap();
    assert_eq!(server(&layer).unwrap().1, 0o755);
    assert_eq!(of(&layer, rekindle_reaper::PATH).unwrap().1, 0o755);
    let plain = "runtime = \"http\"\ncommand = [\"./bootstrap\"]\n";
    let layer = shop.build(plain, program()).await.unwrap();
    assert_eq!(
        (server(&layer), of(&layer, rekindle_reaper::PATH).unwrap().1),
        (None, 0o755)
    );
    let missing = shop.build(lambda, Tar::default().file("x", "")).await.unwrap_err();
    assert!(
        missing.to_string().contains("./bootstrap, which is not in"),
        "{missing}"
    );
}

#[tokio::test]
async fn a_command_may_be_a_program_of_a_python_package() {
    let Some(shop) = BuildFixture::open() else { return };
    let wheel = wheel("demo", "");
    let command = |program: &str| {
        format!("runtime = \"http\"\nbase = \"python\"\ncommand = [\"{program}\", \"--port\", \"$PORT\"]\n")
    };
    let folder = || {
        let list = Tar::default().file("requirements.txt", "--no-index\n./demo-1.0-py3-none-any.whl\n");
        list.entry("demo-1.0-py3-none-any.whl", EntryType::Regular, "", 0o644, &wheel)
    };
    for program in [
        "demo",
        ".rekindle/python/bin/demo",
        "./.rekindle/python/bin/demo",
        "/app/.rekindle/python/bin/demo",
        "python3",
        "sh",
    ] {
        let layer = shop.build(&command(program), folder()).await;
        let layer = layer.unwrap_or_else(|e| panic!("{program}: {e}"));
        let script = content(&layer, ".rekindle/python/bin/demo").unwrap();
        assert!(script.starts_with("#!/usr/bin/python3\n"), "{script}");
    }
    for program in ["uvicorn", ".rekindle/python/bin/uvicorn", "node"] {
        let error = shop.build(&command(program), folder()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        let told = error.to_string();
        assert!(
            told.contains(&format!("command starts {program}")) && told.contains("packages bring demo;"),
            "{told}"
        );
    }
    // Somewhere else, which only the function knows.
    let elsewhere = format!("{}[env]\nPATH = \"/app/tools\"\n", command("uvicorn"));
    shop.build(&elsewhere, folder()).await.unwrap();
}

#[tokio::test]
async fn a_command_may_be_a_program_of_a_node_package() {
    let Some(shop) = BuildFixture::open() else { return };
    let command = |program: &str| format!("runtime = \"http\"\nbase = \"node\"\ncommand = [\"{program}\"]\n");
    let inner = serde_json::json!({"name": "inner", "version": "1.0.0", "bin": {"serve-inner": "cli.js"}}).to_string();
    let folder = || {
        Tar::default()
            .file("package.json", "{\"dependencies\": {\"inner\": \"file:./inner\"}}")
            .file("inner/package.json", &inner)
            .file("inner/cli.js", "#!/usr/bin/env node\n")
    };
    for program in ["serve-inner", "node_modules/.bin/serve-inner", "node"] {
        match shop.build(&command(program), folder()).await {
            Err(e) if unreachable_registry(&e) => return,
            built => drop(built.unwrap_or_else(|e| panic!("{program}: {e}"))),
        }
    }
    let error = shop
        .build(&command("node_modules/.bin/next"), folder())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("packages bring serve-inner;"), "{error}");
}

fn content(layer: &[u8], name: &str) -> Option<String> {
    let mut archive = tar::Archive::new(layer);
    let mut entry = archive
        .entries()
        .unwrap()
        .map(Result::unwrap)
        .find(|e| e.path().unwrap().as_ref() == Path::new(name))?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut entry, &mut text).unwrap();
    Some(text)
}

#[tokio::test]
async fn sweep_removes_what_a_dead_worker_left_and_keeps_the_cache() {
    let Some(shop) = BuildFixture::open() else { return };
    let work_dir = shop.work_dir();
    let build_dir = BuildDir::make(&work_dir).unwrap();
    std::mem::forget(build_dir);
    for name in ["layer-1.tar", "i-1.source.tar.gz", "layer.tar.zst.tmp-1"] {
        fs::write(work_dir.join(name), "x").unwrap();
    }
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
