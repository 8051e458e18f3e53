//! Container images as functions: from a Dockerfile, a layout, archives, and a registry, made by real tools.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rekindle_e2e::{Folder, binaries, json_server, platform, shared, skip, until};
use tempfile::TempDir;

const SERVER: &str = r#"
import fcntl, mmap, os, pwd, shutil, socket, sqlite3, subprocess, sys

calls = 0

def written(path):
    try:
        open(path, "w").write("x")
        return "written"
    except OSError as error:
        return error.strerror

def files():
    """Changes the root at the first call. What it then has is told at each."""
    if not os.path.exists("/srv/changed"):
        os.mkdir("/srv/changed")
        os.symlink("/usr", "/srv/changed/link")
        os.rename("/srv/link", "/srv/changed/moved")
        os.symlink("/usr/bin/python3", "/srv/link")
        os.remove("/etc/services")
        shutil.rmtree("/usr/share/zoneinfo/Arctic")
        os.mkdir("/usr/share/zoneinfo/Arctic")
        open("/usr/share/zoneinfo/Arctic/new", "w").write("new")
        open("/etc/passwd", "a").write("guest:x:2000:2000::/:/bin/sh\n")
    return [
        sorted(os.listdir("/srv/changed")),
        os.path.exists("/etc/services"),
        os.listdir("/usr/share/zoneinfo/Arctic"),
        open("/etc/passwd").read().count("guest"),
        os.stat("/usr/bin/env").st_uid,
        kept.read() if kept.seek(0) == 0 else None,
        chr(mapped[0]) + chr(mapped[-1]),
        os.stat("/srv/kept").st_ino == inode,
        rows(),
        reached(),
        held(),
        sleeping.poll(),
        [file.seek(0) == 0 and len(file.read()) > 100 for file in removed],
    ]

def reached():
    with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as other:
        other.connect("/srv/moved.sock")
        moved.accept()[0].close()
        client.connect("/srv/app.sock")
        listening.accept()[0].close()
        return client.getpeername()

def held():
    with open(__file__) as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"

def rows():
    """SQLite refuses to write to a file whose inode number is another than when it was opened."""
    database.execute("insert into rows values (1)")
    database.commit()
    return database.execute("select count(*) from rows").fetchone()[0] - calls

# Open all the time, on the root.
os.makedirs("/srv", exist_ok=True)
kept = open("/srv/kept", "w+")
kept.write("kept")
kept.flush()
inode = os.stat("/srv/kept").st_ino
database = sqlite3.connect("/srv/rows.db", check_same_thread=False)
database.execute("create table rows (n)")

listening = socket.socket(socket.AF_UNIX)
listening.bind("/srv/app.sock")
listening.listen()
moved = socket.socket(socket.AF_UNIX)
moved.bind("/srv/moved.tmp")
moved.listen()
os.rename("/srv/moved.tmp", "/srv/moved.sock")

# Of the image, locked and without a name.
locked = open(__file__)
fcntl.flock(locked, fcntl.LOCK_EX)
removed = [open("/etc/protocols"), open("/etc/protocols")]
os.remove("/etc/protocols")

# A program of its own that has no name.
shutil.copy("/bin/sleep", "/srv/sleep")
sleeping = subprocess.Popen(["/srv/sleep", "1000000"])
os.remove("/srv/sleep")

# Mapped for itself, and another than the image's.
with open("/srv/data", "wb") as data:
    data.write(b"n" * 3 * 4096)
with open("/srv/data") as data:
    mapped = mmap.mmap(data.fileno(), 0, flags=mmap.MAP_PRIVATE)

def answer(_):
    global calls
    calls += 1
    return {
        "calls": calls,
        "argv": sys.argv,
        "env": {name: os.environ.get(name) for name in ("GREETING", "PORT", "FN_NAME", "HOME", "MORE")},
        "cwd": os.getcwd(),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "host": socket.gethostbyname(socket.gethostname()),
        "root": written("/srv/x"),
        "tmp": written("/tmp/x"),
        "link": os.readlink("/srv/link"),
        "files": files(),
    }
"#;

/// Where it serves.
const PORT: &str = "int(sys.argv[1])";

const DOCKERFILE: &str = r#"
FROM scratch
ADD python.tar /
COPY server.py /srv/app/server.py
COPY links/ /srv/
ENV GREETING=hello HOME=/srv
USER nobody
WORKDIR /srv/app
EXPOSE 80
ENTRYPOINT ["python3", "server.py"]
CMD ["80"]
"#;

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    output
}

/// Whether the tools are here; without them the test is skipped.
fn tools() -> bool {
    for tool in ["buildah", "skopeo"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(&format!("{tool} is missing: run scripts/setup.sh test-packages"));
            return false;
        }
    }
    true
}

/// A Dockerfile's folder, with the root filesystem of a runtime as `NAME.tar`.
fn context(folder: Folder, runtime: &str) -> Folder {
    let tar = format!("{runtime}.tar");
    fs::copy(binaries::runtimes().join(&tar), folder.path().join(&tar)).unwrap();
    folder
}

fn python_context(folder: Folder) -> Folder {
    let folder = context(
        folder
            .file("server.py", &json_server(SERVER, PORT))
            .file("Dockerfile", DOCKERFILE),
        "python",
    );
    let links = folder.path().join("links");
    fs::create_dir(&links).unwrap();
    fs::write(links.join("data"), "o".repeat(3 * 4096)).unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", links.join("link")).unwrap();
    folder
}

/// The Dockerfile's image as a layout, built once.
static LAYOUT: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = python_context(Folder::with_config(&fn_toml("layout", "./Dockerfile", "")));
    let made = tempfile::tempdir().unwrap();
    let id = made.path().join("id");
    run(Command::new("buildah")
        .args(["build", "--iidfile"])
        .arg(&id)
        .arg(folder.path()));
    let id = fs::read_to_string(id).unwrap();
    let to = format!("oci:{}:image", made.path().join("layout").display());
    run(Command::new("buildah").args(["push", id.trim(), &to]));
    made
});

fn layout() -> PathBuf {
    LAYOUT.path().join("layout")
}

fn fn_toml(name: &str, image: &str, settings: &str) -> String {
    format!("name = \"{name}\"\nimage = \"{image}\"\n{settings}\n")
}

/// Checks an answer of [`SERVER`], booted and restored.
fn serves(name: &str) {
    for start in ["booted", "restored"] {
        let reply = shared().fresh(start, name, "/").ok();
        assert_eq!(reply.start(), start);
        let found = reply.json();
        assert_eq!(found["argv"], serde_json::json!(["server.py", "80"]), "{found}");
        let env =
            serde_json::json!({ "GREETING": "hello", "PORT": "80", "FN_NAME": name, "HOME": "/srv", "MORE": "yes" });
        assert_eq!(found["env"], env);
        assert_eq!(
            (found["cwd"].as_str(), found["user"].as_str()),
            (Some("/srv/app"), Some("fn"))
        );
        assert_eq!(
            (found["host"].as_str(), found["link"].as_str()),
            (Some("127.0.0.1"), Some("/usr/bin/python3"))
        );
        assert_eq!(
            (found["root"].as_str(), found["tmp"].as_str()),
            (Some("written"), Some("written"))
        );
        let files = serde_json::json!([
            ["link", "moved"],
            false,
            ["new"],
            1,
            1000,
            "kept",
            "nn",
            true,
            0,
            "/srv/app.sock",
            "held",
            null,
            [true, true]
        ]);
        assert_eq!(found["files"], files);
        // A copy goes on from where the warm-up ended.
        assert_eq!(found["calls"], if start == "booted" { 1 } else { 2 }, "{found}");
    }
}

const SETTINGS: &str = "port = 80\n[env]\nMORE = \"yes\"\n[[warmup]]\npath = \"/\"";

#[test]
fn a_dockerfile_is_built_and_serves_as_its_image_says() {
    if !tools() {
        return;
    }
    let folder = python_context(Folder::with_config(&fn_toml("image-built", ".", SETTINGS)));
    shared().deploy(&folder);
    serves("image-built");
    let listed = String::from_utf8(shared().cli(&["list"]).stdout).unwrap();
    assert!(listed.contains("image ."), "{listed}");
}

#[test]
fn a_watch_that_no_copy_could_have_is_told_with_what_to_do() {
    if !tools() {
        return;
    }
    // A directory of the root that is gone, and one of the kernel's.
    let gone = "os.mkdir('/srv/gone')\nheld = os.open('/srv/gone', os.O_RDONLY)\n\
                assert libc.inotify_add_watch(watching, b'/srv/gone', 2) > 0\nos.rmdir('/srv/gone')\n\
                assert libc.inotify_add_watch(watching, b'/srv', 2) > 0\n";
    let of_kernel = "assert libc.inotify_add_watch(watching, b'/proc/self', 2) > 0\n";
    let of_sandbox = "assert libc.inotify_add_watch(watching, b'/dev', 2) > 0\n";
    for (name, watched, says) in [
        (
            "image-watch-gone",
            gone,
            [
                "descriptor ",
                "a file or directory of the image's root that has no path any more",
            ],
        ),
        (
            "image-watch-proc",
            of_kernel,
            ["watches by descriptor ", "(inotify) a file of /proc: "],
        ),
        (
            "image-watch-dev",
            of_sandbox,
            ["has a watch (inotify) on \"/dev\"", "end it before the snapshot"],
        ),
    ] {
        let watch = "import ctypes, os\nlibc = ctypes.CDLL(None)\nwatching = libc.inotify_init1(0)\n";
        let folder = python_context(Folder::with_config(&fn_toml(name, ".", SETTINGS)));
        let code = format!("{watch}{watched}{SERVER}");
        fs::write(folder.path().join("server.py"), json_server(&code, PORT)).unwrap();
        let version = shared().try_deploy(&folder).unwrap();
        let told = version.snapshot_error.unwrap_or_default();
        for part in says.into_iter().chain(["process ", "(\"python3\")"]) {
            assert!(told.contains(part), "{name}: {told}");
        }
        assert!(!told.contains("\\t"), "{told}");
    }
}

#[test]
fn a_layout_and_archives_of_one_image_are_the_same() {
    if !tools() {
        return;
    }
    let folder = Folder::with_config(&fn_toml("image-saved", "./image", SETTINGS));
    let image = folder.path().join("image");
    run(Command::new("cp").arg("-r").arg(layout()).arg(&image));
    let first = shared().deploy(&folder);
    serves("image-saved");
    // An archive of the layout in the place of the directory: the config is the same, and so is the function.
    let archive = folder.path().join("image.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(&image)
        .arg("-cf")
        .arg(&archive)
        .arg("."));
    fs::remove_dir_all(&image).unwrap();
    fs::rename(&archive, &image).unwrap();
    assert_eq!(shared().deploy(&folder).version, first.version);
    let from = format!("oci:{}:image", layout().display());
    let to = format!("docker-archive:{}:image:1", archive.display());
    run(Command::new("skopeo").args(["copy", &from, &to]));
    folder
        .edit(|_| fn_toml("image-saved", "./image.tar", SETTINGS))
        .unwrap();
    shared().deploy(&folder);
    serves("image-saved");
}

/// A registry that wants a password.
struct Registry {
    process: Child,
    home: TempDir,
    address: String,
}

impl Registry {
    fn start() -> Option<Self> {
        let program = binaries::runtimes().join("../tools/bin/docker-registry");
        if !program.exists() {
            skip("docker-registry is missing: run scripts/setup.sh test-packages");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", platform::free_port());
        let (data, passwords) = (home.path().join("data"), home.path().join("passwords"));
        // bcrypt of "open sesame".
        fs::write(
            &passwords,
            "ali:$2b$05$d4d8eQzyY6LB5u01QUoXiOD5mmEjV8I0sRqU9g3s1m7J7TWdXcfcu\n",
        )
        .unwrap();
        let config = format!(
            "version: 0.1\nstorage: {{ filesystem: {{ rootdirectory: \"{}\" }} }}\nhttp: {{ addr: \"{address}\" }}\n\
            auth: {{ htpasswd: {{ realm: test, path: \"{}\" }} }}\n",
            data.display(),
            passwords.display()
        );
        let file = home.path().join("config.yml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let containers = home.path().join(".config/containers");
        fs::create_dir_all(&containers).unwrap();
        let insecure = format!("[[registry]]\nlocation = \"{address}\"\ninsecure = true\n");
        fs::write(containers.join("registries.conf"), insecure).unwrap();
        let registry = Self { process, home, address };
        until("the registry", Duration::from_secs(20), || {
            TcpStream::connect(&registry.address).ok()
        });
        Some(registry)
    }

    /// A command of a user who has logged in here, or not yet.
    fn user(&self, command: &mut Command) -> Output {
        command
            .env("HOME", self.home.path())
            .env("REGISTRY_AUTH_FILE", self.home.path().join("auth.json"));
        command.stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_image_of_a_registry_is_pulled_with_its_user_s_credentials() {
    if !tools() {
        return;
    }
    let Some(registry) = Registry::start() else { return };
    let image = format!("{}/team/app:1", registry.address);
    let folder = Folder::with_config(&fn_toml("image-pulled", &image, SETTINGS));
    let deploy = |folder: &Path| {
        let mut command = binaries::Programs::find(None)
            .unwrap()
            .client(&shared().url(), &shared().key());
        registry.user(command.arg("deploy").arg(folder))
    };
    let refused = deploy(folder.path());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("unauthorized") && told.contains("skopeo"),
        "{told}"
    );
    let login = [
        "login",
        "--username",
        "ali",
        "--password",
        "open sesame",
        &registry.address,
    ];
    assert!(registry.user(Command::new("skopeo").args(login)).status.success());
    let from = format!("oci:{}:image", layout().display());
    let pushed = registry.user(Command::new("skopeo").args(["copy", &from, &format!("docker://{image}")]));
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    let deployed = deploy(folder.path());
    assert!(
        deployed.status.success(),
        "{}",
        String::from_utf8_lossy(&deployed.stderr)
    );
    serves("image-pulled");
    let described = String::from_utf8(shared().cli(&["describe", "image-pulled"]).stdout).unwrap();
    assert!(described.contains(&image), "{described}");
}

#[test]
fn a_wrong_port_is_told_with_the_right_one() {
    if !tools() {
        return;
    }
    let image = layout();
    let settings = "boot_timeout = \"3s\"";
    let folder = Folder::with_config(&fn_toml("image-port", image.to_str().unwrap(), settings));
    let told = shared().try_deploy(&folder).unwrap_err();
    assert!(told.contains("(8080)") && told.contains("set port = 80"), "{told}");
}

#[test]
fn an_image_s_own_app_directory_and_a_command_of_fn_toml_are_used() {
    if !tools() {
        return;
    }
    let folder = context(
        Folder::with_config(&fn_toml("image-app", ".", ""))
            .file("main.py", &json_server(SERVER, PORT))
            .file(
                "Dockerfile",
                "FROM scratch\nADD python.tar /\nCOPY main.py /app/main.py\nWORKDIR /app\n",
            ),
        "python",
    );
    let told = shared().try_deploy(&folder).unwrap_err();
    assert!(told.contains("set command in fn.toml"), "{told}");
    let code = SERVER
        .replace("os.readlink(\"/srv/link\")", "\"\"")
        .replace("\"/srv/x\"", "\"/app/x\"")
        .replace(": files()", ": []");
    fs::write(folder.path().join("main.py"), json_server(&code, PORT)).unwrap();
    folder
        .edit(|_| fn_toml("image-app", ".", "command = [\"python3\", \"main.py\", \"$PORT\"]"))
        .unwrap();
    shared().deploy(&folder);
    for start in ["booted", "restored"] {
        let found = shared().fresh(start, "image-app", "/").ok().json();
        assert_eq!(
            (found["cwd"].as_str(), found["root"].as_str()),
            (Some("/app"), Some("written"))
        );
        assert_eq!(found["argv"], serde_json::json!(["main.py", "8080"]));
    }
}

#[test]
fn copies_of_a_node_image_share_no_random_numbers() {
    if !tools() {
        return;
    }
    let code = "const { randomUUID, randomBytes } = require('crypto');\n\
        require('http').createServer((_, answer) => answer.end(JSON.stringify(\n\
        { uuids: [randomUUID(), randomUUID()], bytes: randomBytes(16).toString('hex'), number: Math.random() }\n\
        ))).listen(process.env.PORT);\n";
    let folder = context(
        Folder::with_config(&fn_toml("image-node", ".", "[[warmup]]\npath = \"/\""))
            .file("server.js", code)
            .file(
                "Dockerfile",
                "FROM scratch\nADD node.tar /\nCOPY server.js /srv/server.js\nCMD [\"node\", \"/srv/server.js\"]\n",
            ),
        "node",
    );
    shared().deploy(&folder);
    let copies: Vec<_> = (0..2)
        .map(|_| shared().fresh("restored", "image-node", "/").ok().json())
        .collect();
    for source in ["uuids", "bytes", "number"] {
        assert_ne!(copies[0][source], copies[1][source], "{source}");
    }
}
