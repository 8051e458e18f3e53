use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use rekindle_wire::manifest;
use tar::EntryType;

use super::installer::Installer;
use super::*;
use crate::host::cgroup::{CGROUP_ROOT, Cgroup, Cgroups};
use crate::testing::{init_binary, skipped};
use testing::Tar;

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

struct Workshop {
    directory: tempfile::TempDir,
    told: Mutex<Vec<String>>,
}

impl Workshop {
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

    async fn build(&self, manifest: &str, tar: Tar) -> Result<Vec<u8>, BuildError> {
        self.build_with(manifest, tar, &BuildNetwork::default()).await
    }

    async fn build_with(&self, manifest: &str, tar: Tar, network: &BuildNetwork) -> Result<Vec<u8>, BuildError> {
        let source = self.directory.path().join("source.tar.gz");
        tar.write(&source);
        let manifest = manifest::parse(&format!("name = \"f\"\n{manifest}")).unwrap();
        let order = BuildOrder {
            roots: &roots,
            network,
            counts: counts(),
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
        (http("sh"), Tar::default().file("x", "")),
        (http("/usr/bin/env"), Tar::default().file("x", "")),
    ];
    for (manifest, tar) in cases {
        shop.build(&manifest, tar)
            .await
            .unwrap_or_else(|e| panic!("{manifest}: {e}"));
    }
}

#[tokio::test]
async fn lambda_s_server_is_among_the_files_of_a_function_with_its_interface() {
    let Some(shop) = Workshop::open() else { return };
    let program = || Tar::default().entry("bootstrap", EntryType::Regular, "", 0o755, b"");
    let server = |layer: &[u8]| listed(layer).into_iter().find(|entry| entry.0 == rekindle_lambda::PATH);
    let lambda = "runtime = \"http\"\ninterface = \"lambda\"\n";
    let layer = shop.build(lambda, program()).await.unwrap();
    assert_eq!(server(&layer).unwrap().1, 0o755);
    let plain = "runtime = \"http\"\ncommand = [\"./bootstrap\"]\n";
    assert_eq!(server(&shop.build(plain, program()).await.unwrap()), None);
    let missing = shop.build(lambda, Tar::default().file("x", "")).await.unwrap_err();
    assert!(
        missing.to_string().contains("./bootstrap, which is not in"),
        "{missing}"
    );
}

#[tokio::test]
async fn a_command_may_be_a_program_of_a_python_package() {
    let Some(shop) = Workshop::open() else { return };
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
        assert_eq!(error.code(), ErrorCode::InvalidManifest, "{error}");
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
    let Some(shop) = Workshop::open() else { return };
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
    assert!(names.contains(&".rekindle/site-packages".to_owned()), "{names:?}");
    for compiled in [
        ".rekindle/python/__pycache__/demo.cpython-311.pyc",
        "__pycache__/main.cpython-311.pyc",
    ] {
        assert!(names.contains(&compiled.to_owned()), "{names:?}");
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
async fn a_package_with_source_only_is_built() {
    let Some(shop) = Workshop::open() else { return };
    // This package never had a wheel.
    let folder = python_app().file("requirements.txt", "docopt==0.6.2\n");
    let layer = match shop.build(PYTHON, folder).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&".rekindle/python/docopt.py".to_owned()));
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
async fn a_hostile_package_runs_and_reaches_nothing() {
    let Some(shop) = Workshop::open() else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    fs::set_permissions(secret.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let elsewhere = Workshop::open().unwrap();
    let other = Room::make(&shop.work_dir()).unwrap();
    fs::write(other.app().join("other"), "secret").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = format!(
        r#"
import ctypes, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    nonlocal said
    try: said += f'{{name}}: done {{attempt()}}\n'
    except OSError as e: said += f'{{name}}: refused {{e.errno}}\n'
def call(name, *arguments):
    def attempt():
        if getattr(libc, name)(*arguments) != 0: raise OSError(ctypes.get_errno(), name)
    tried(name, attempt)
def proxied(target):
    s = socket.create_connection(('127.0.0.1', 3128), 5)
    s.sendall(f'CONNECT {{target}} HTTP/1.1\r\n\r\n'.encode())
    status = s.recv(100).split()[1]
    if status != b'200': raise OSError(int(status), target)
tried('process', lambda: subprocess.run(['/bin/true'], check=True).returncode)
tried('host file', lambda: open('{secret}').read())
tried('shadow', lambda: open('/etc/shadow').read())
tried('other build', lambda: open('{other}/app/other').read())
tried('root', lambda: open('/usr/lib/x', 'w'))
tried('etc', lambda: open('/etc/x', 'w'))
tried('above', lambda: os.symlink('/etc', '/run/x'))
tried('host service', lambda: socket.create_connection(('127.0.0.1', {port}), 5))
tried('metadata', lambda: socket.create_connection(('169.254.169.254', 80), 5))
tried('world', lambda: socket.create_connection(('1.1.1.1', 53), 5))
tried('proxy to the host', lambda: proxied('127.0.0.1:{port}'))
tried('proxy to metadata', lambda: proxied('169.254.169.254:80'))
tried('proxy to others', lambda: proxied('example.org:443'))
tried('proxy to another port', lambda: proxied('pypi.org:22'))
tried('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
call('unshare', 0x10000000)
call('mount', b'x', b'/tmp', b'tmpfs', 0, None)
call('setuid', 0)
call('ptrace', 16, 1, 0, 0)
status = {{l.split()[0]: l.split()[1] for l in open('/proc/self/status') if len(l.split()) > 1}}
said += 'caps ' + ' '.join(status[k].strip('0') for k in ('CapInh:', 'CapPrm:', 'CapEff:', 'CapBnd:', 'CapAmb:')) + '\n'
said += f"rights {{status['NoNewPrivs:']}} {{status['Seccomp:']}} {{os.getuid()}} {{os.getgroups()}}\n"
said += f"processes {{max(int(p) for p in os.listdir('/proc') if p.isdigit()) < 100}}\n"
said += f"proc {{[p for p in os.listdir('/proc') if not p.isdigit()]}}\n"
said += f"interfaces {{socket.if_nameindex()}}\n"
said += 'tmp ' + ' '.join(os.listdir('/tmp')) + '\n'
said += 'environment ' + ' '.join(os.environ)
# Not with pip's pipes, whose end pip waits for.
subprocess.Popen(['/bin/sleep', '300'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"#,
        secret = secret.path().display(),
        other = other.path.display(),
    );
    let tar = python_app()
        .file(
            "requirements.txt",
            "--no-index
./demo-1.0.tar.gz
",
        )
        .entry("demo-1.0.tar.gz", EntryType::Regular, "", 0o644, &source_archive(&code));
    let began = Instant::now();
    let layer = elsewhere.build(PYTHON, tar).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(200),
        "what it left running was waited for"
    );
    let said = content(&layer, ".rekindle/python/demo.txt").unwrap();
    assert!(said.contains("process: done 0"), "{said}");
    let done: Vec<_> = said
        .lines()
        .filter(|l| l.contains(": done") && !l.starts_with("process"))
        .collect();
    assert!(
        done.is_empty(),
        "{done:?}
{said}"
    );
    for line in [
        "host file: refused 2",
        "root: refused 30",
        "proxy to the host: refused 403",
        "proxy to others: refused 403",
    ] {
        assert!(
            said.contains(line),
            "{line} in
{said}"
        );
    }
    assert!(
        said.contains(
            "caps     
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "rights 1 2 100000 []
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "processes True
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "interfaces [(1, 'lo')]
"
        ),
        "{said}"
    );
    assert!(!said.contains("REKINDLE_ORDER"), "{said}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "something connected to the host");
}

#[tokio::test]
async fn a_registry_that_is_not_allowed_is_refused_by_name() {
    let Some(shop) = Workshop::open() else { return };
    let list = "--index-url https://index.example.org/simple
six==1.16.0
";
    let error = shop
        .build(PYTHON, python_app().file("requirements.txt", list))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::BuildFailed, "{error}");
    let text = error.to_string();
    for words in [
        "refused: index.example.org:443",
        "the operator allows pypi.org",
        "--build-allow",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", "{\"dependencies\": {\"x\": \"1\"}}")
        .file(
            ".npmrc",
            "registry=http://10.1.2.3:4873/
fetch-retries=0
",
        );
    let error = shop.build(NODE, tar).await.unwrap_err();
    assert!(error.to_string().contains("refused: 10.1.2.3:4873"), "{error}");
}

#[tokio::test]
async fn a_registry_that_the_operator_names_is_reached_wherever_it_is() {
    let Some(shop) = Workshop::open() else { return };
    // An index of one wheel, on the host's loopback.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let wheel = wheel("demo", "");
    let page = "<a href=\"/demo-1.0-py3-none-any.whl\">demo-1.0-py3-none-any.whl</a>";
    let index = axum::Router::new()
        .route(
            "/simple/demo/",
            axum::routing::get(move || async move { axum::response::Html(page) }),
        )
        .route(
            "/demo-1.0-py3-none-any.whl",
            axum::routing::get(move || async move { wheel }),
        );
    tokio::spawn(async move { axum::serve(listener, index).await });
    let network = BuildNetwork {
        public: false,
        allow: vec![address.to_string().parse().unwrap()],
    };
    let list = format!(
        "--index-url http://{address}/simple
demo
"
    );
    let tar = || python_app().file("requirements.txt", &list);
    let layer = shop.build_with(PYTHON, tar(), &network).await.unwrap();
    assert!(names(&layer).contains(&".rekindle/python/demo.py".to_owned()));
    let other = Workshop::open().unwrap();
    let error = other.build(PYTHON, tar()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("refused: {address}")), "{error}");
}

#[tokio::test]
async fn install_scripts_of_node_packages_run_in_the_sandbox() {
    let Some(shop) = Workshop::open() else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    let package = "{\"dependencies\": {\"inner\": \"file:./inner\"}}";
    let script = format!(
        "id -u > /app/said; cat {0} >> /app/said || echo no host file >> /app/said; echo x > /etc/x || echo no etc >> \
         /app/said",
        secret.path().display()
    );
    let inner = serde_json::json!({"name": "inner", "version": "1.0.0", "scripts": {"install": script}}).to_string();
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", package)
        .file("inner/package.json", &inner)
        .file("inner/index.js", "");
    let layer = match shop.build(NODE, tar).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    let all = names(&layer);
    assert!(all.iter().any(|name| name.starts_with("node_modules/inner")), "{all:?}");
    assert_eq!(
        content(&layer, "said").unwrap(),
        "100000
no host file
no etc
"
    );
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
async fn settings_of_npm_with_control_characters_are_refused() {
    let Some(shop) = Workshop::open() else { return };
    for (package, npmrc, named) in [
        (r#"{"dependencies": {"x\u0007": "1"}}"#, "", r#"package.json: "x\u{7}""#),
        (r#"{"dependencies": {"x": "1\n2"}}"#, "", "package.json: \"x\""),
        (
            r#"{"dependencies": {"x": "1"}}"#,
            "registry=a\u{1b}[2J",
            ".npmrc: \"registry=a",
        ),
    ] {
        let tar = Tar::default()
            .file("index.js", "")
            .file("package.json", package)
            .file(".npmrc", npmrc);
        let error = shop.build(NODE, tar).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidManifest, "{error}");
        assert!(
            error.to_string().contains(named) && !error.to_string().contains('\u{1b}'),
            "{error}"
        );
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

/// Returns an order for something that runs in a room by itself.
fn order<'a>(
    manifest: &'a Manifest,
    network: &'a BuildNetwork,
    time_limit: Duration,
    bytes: u64,
    groups: &[PathBuf],
) -> BuildOrder<'a> {
    BuildOrder {
        source_tar_gz: PathBuf::new(),
        manifest,
        work_dir: PathBuf::new(),
        limits: BuildLimits {
            unpacked_bytes: bytes,
            install_timeout: time_limit,
            ..BuildLimits::default()
        },
        roots: &roots,
        network,
        counts: counts(),
        confinement: Confinement::new(init_binary().unwrap()),
        cgroup_procs: groups.to_owned(),
    }
}

/// Runs Python code the way an installer is run.
async fn run_python(
    room: &Room,
    code: &str,
    time_limit: Duration,
    groups: &[PathBuf],
) -> Result<installer::Finished, InstallerError> {
    let manifest = manifest::parse(&format!("name = \"f\"\n{PYTHON}")).unwrap();
    let network = BuildNetwork::default();
    let order = order(&manifest, &network, time_limit, 1 << 20, groups);
    let installer = Installer {
        order: &order,
        room,
        root: vec![roots(Root::Runtime(Base::Python)).await.unwrap()],
        network: None,
        program: "/usr/bin/python3",
        arguments: ["-I", "-c", code].map(str::to_owned).into(),
        environment: Vec::new(),
        shown: Vec::new(),
    };
    installer.run().await
}

#[tokio::test]
async fn an_installer_cannot_write_a_file_larger_than_its_room_and_sees_its_room_alone() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "\
import os
print(sorted(os.listdir('/tmp')), sorted(os.listdir('/run')), os.listdir('/app'))
try: open('x', 'w').write('x' * 4000000); print('large file written')
except OSError as e: print('large', e.errno)
";
    let finished = run_python(&room, code, Duration::from_secs(30), &[]).await.unwrap();
    assert_eq!(finished.output, "['home'] ['deps'] []\nlarge 27");
}

#[tokio::test]
async fn an_installer_is_in_the_group_it_was_given() {
    let Some(shop) = Workshop::open() else { return };
    let Some(group) = group("group") else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let procs = group.procs_files();
    let code = "open('/app/ready', 'w').close()\nimport time\ntime.sleep(3)";
    let running = run_python(&room, code, Duration::from_secs(30), &procs);
    tokio::pin!(running);
    let ready = until("it did not start", || room.app().join("ready").exists());
    tokio::select! {
        ended = &mut running => panic!("it ended: {ended:?}"),
        () = ready => {}
    }
    let inside = procs
        .iter()
        .all(|p| fs::read_to_string(p).unwrap().lines().count() >= 2);
    assert!(inside, "it is not in its group");
    running.await.unwrap();
    remove(group);
}

/// Makes a control group for a build, below one of the test's own.
fn group(test: &str) -> Option<Cgroup> {
    let parent = format!("rekindle-build-test-{test}-{}", std::process::id());
    let limits = crate::host::cgroup::Limits {
        memory_bytes: 512 << 20,
        cpu_cores: 1.0,
        pids: 64,
    };
    let groups = Cgroups::detect_below(Path::new(CGROUP_ROOT), &parent);
    let groups = groups.inspect_err(|e| skipped(&e.to_string())).ok()?;
    Some(groups.create("build", limits).unwrap())
}

fn remove(group: Cgroup) {
    let procs = group.procs_files();
    group.remove().unwrap();
    for procs in &procs {
        let _ = fs::remove_dir(procs.ancestors().nth(2).unwrap());
    }
}

/// Returns whether a process of the host runs with this argument.
fn runs(marker: &str) -> bool {
    let lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines
        .into_iter()
        .any(|line| String::from_utf8_lossy(&line).contains(marker))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns code that hangs, and has a child that does; both can be found by the marker.
fn hang(marker: &str) -> String {
    format!(
        "import subprocess, time\nsubprocess.Popen(['/bin/sh', '-c', 'sleep 600; true', '{marker}'])\n\
         open('/app/ready', 'w').close()\nprint('hanging', flush=True)\ntime.sleep(600)\n"
    )
}

fn marker() -> String {
    format!("hang-{}", Uuid::new_v4().simple())
}

#[tokio::test]
async fn an_installer_that_hangs_is_killed_at_its_limit_with_all_it_started() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let marker = marker();
    let error = run_python(&room, &hang(&marker), Duration::from_secs(3), &[])
        .await
        .unwrap_err();
    assert!(
        matches!(error, InstallerError::TimedOut { ref output, .. } if output == "hanging"),
        "{error}"
    );
    until("something lives on", || !runs(&marker)).await;
}

#[tokio::test]
async fn a_build_that_is_given_up_leaves_no_process() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let (marker, ready) = (marker(), room.app().join("ready"));
    {
        let code = hang(&marker);
        let running = run_python(&room, &code, Duration::from_secs(600), &[]);
        tokio::pin!(running);
        let started = until("the installer did not start", || ready.exists());
        tokio::select! {
            ended = &mut running => panic!("it ended: {ended:?}"),
            () = started => {}
        }
        assert!(runs(&marker));
    }
    until("the installer lives on", || !runs(&marker)).await;
}

#[tokio::test]
async fn an_installer_that_fills_the_disk_is_stopped() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "import time\nfor i in range(8): open(str(i), 'w').write('x' * 900000)\ntime.sleep(600)\n";
    let error = run_python(&room, code, Duration::from_secs(60), &[]).await.unwrap_err();
    assert!(matches!(error, InstallerError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn files_that_an_installer_has_deleted_and_holds_open_are_counted() {
    let Some(shop) = Workshop::open() else { return };
    let Some(group) = group("deleted") else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "\
import mmap, os, time
held = []
for n in range(4):
    file = open('/app/f', 'w+b')
    os.unlink('/app/f')
    os.posix_fallocate(file.fileno(), 0, 900000)
    # Some are only mapped.
    held.append(mmap.mmap(file.fileno(), 900000) if n % 2 else file)
    if n % 2: file.close()
time.sleep(600)
";
    let stopped = run_python(&room, code, Duration::from_secs(60), &group.procs_files()).await;
    assert!(matches!(stopped, Err(InstallerError::TooLarge { .. })), "{stopped:?}");
    remove(group);
}

#[tokio::test]
async fn directories_deeper_than_a_path_can_be_stop_the_installer_by_name() {
    let Some(shop) = Workshop::open() else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "import os, time\nfor i in range(50): os.mkdir('d' * 200); os.chdir('d' * 200)\ntime.sleep(600)\n";
    let stopped = run_python(&room, code, Duration::from_secs(60), &[]).await;
    assert!(matches!(stopped, Err(InstallerError::TooDeep { .. })), "{stopped:?}");
    // It is removed all the same.
    drop(room);
    assert_eq!(fs::read_dir(shop.work_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_installer_that_leaves_netlink_messages_unread_is_stopped() {
    let Some(shop) = Workshop::open() else { return };
    let Some(group) = group("netlink") else { return };
    let room = Room::make(&shop.work_dir()).unwrap();
    let code = "\
import socket, struct, time
link = struct.pack('IHHII', 32, 18, 1, 1, 0) + struct.pack('BxHiII', 0, 0, 1, 0, 0)
held = []
for _ in range(200):
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    held.append(one)
    for _ in range(4):
        try: one.send(link * 64)
        except OSError: break
time.sleep(600)
";
    let stopped = run_python(&room, code, Duration::from_secs(60), &group.procs_files()).await;
    assert!(matches!(stopped, Err(InstallerError::Hoards { .. })), "{stopped:?}");
    remove(group);
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
