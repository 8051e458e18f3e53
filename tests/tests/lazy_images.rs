//! Container images on hosts that do not have them: what a restore fetches, and what becomes of the rest.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rekindle_e2e::s3::{Line, ObjectStore};
use rekindle_e2e::{Folder, Platform, binaries, json_server, skip, until};
use serde_json::json;

/// Files beside the server, and the size of each in bytes: 200 MB. Those that a warm-up reads: 20 MB.
const FILES: usize = 100;
const FILE: usize = 2_000_000;
const READ: usize = 10;
/// Modes of the files' directory, of the first file, and of the last.
const MODES: [u32; 3] = [0o700, 0o640, 0o600];
/// How much a restore may fetch, in bytes: packed, what is read is a fourth of that.
const FETCHED_MOST: f64 = 30e6;
/// How long a request may take while the store is away: its read fails after ten seconds, and so does what the program
/// maps and needs then.
const AWAY_MOST: Duration = Duration::from_secs(45);

/// Calls at once of a function that reads what does not come.
const CALLS: usize = 12;

/// Answers with a digest of files. One of them is mapped from the beginning.
const SERVER: &str = r#"
import hashlib, mmap, os
from urllib.parse import parse_qs, urlparse

last = open("/srv/data/99")
mapped = mmap.mmap(last.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)

def digest(number):
    with open(f"/srv/data/{number}", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()

def answer(path):
    asked = parse_qs(urlparse(path).query)
    try:
        modes = [os.stat(path).st_mode & 0o7777 for path in ("/srv/data", "/srv/data/0", "/srv/data/99")]
        numbers = range(int(asked["from"][0]), int(asked["to"][0]))
        found = {"digests": [digest(number) for number in numbers], "modes": modes}
        if "mapped" in asked:
            found["mapped"] = hashlib.sha256(mapped).hexdigest()
        if "changed" in asked:
            os.rename("/srv/data/50", "/srv/data/moved")
            found["changed"] = digest("moved"), os.stat("/srv/data/moved").st_uid, len(os.listdir("/srv/data"))
    except OSError as error:
        found = {"error": error.errno}
    return found
"#;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The content of a file: a fourth of it when packed.
fn content(number: usize) -> Vec<u8> {
    let mut state = 1 + number as u64;
    let mut block = [0; 4096];
    let mut content = Vec::with_capacity(FILE + 4 * block.len());
    while content.len() < FILE {
        for byte in &mut block {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        (0..4).for_each(|_| content.extend_from_slice(&block));
    }
    content.truncate(FILE);
    content
}

fn sha256(file: &Path) -> String {
    run(Command::new("sha256sum").arg(file))[..64].to_owned()
}

/// Adds a blob to the layout at `blobs`, and returns its descriptor.
fn blob(blobs: &Path, kind: &str, file: &Path) -> serde_json::Value {
    let (digest, size) = (sha256(file), fs::metadata(file).unwrap().len());
    fs::rename(file, blobs.join(&digest)).unwrap();
    let kind = format!("application/vnd.oci.image.{kind}");
    json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": size })
}

/// A function with a large image, made without tools for images. Returns the digests of its files.
fn image(name: &str, settings: &str) -> (Folder, Vec<String>) {
    let manifest = format!(
        "name = \"{name}\"\nimage = \"./layout\"\n{settings}\n[[warmup]]\npath = \"/?from=0&to={READ}&mapped=1\""
    );
    let folder = Folder::with_manifest(&manifest);
    let layout = folder.path().join("layout");
    let (blobs, made) = (layout.join("blobs/sha256"), tempfile::tempdir().unwrap());
    fs::create_dir_all(&blobs).unwrap();
    let data = made.path().join("root/srv/data");
    fs::create_dir_all(&data).unwrap();
    let digests = (0..FILES).map(|number| {
        let path = data.join(number.to_string());
        fs::write(&path, content(number)).unwrap();
        sha256(&path)
    });
    let digests = digests.collect();
    // As programs want them that check whether their files are private. The last one is mapped.
    for (path, mode) in [data.clone(), data.join("0"), data.join("99")].into_iter().zip(MODES) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The layer removes a tree of the lower one's, of several levels.
    let share = made.path().join("root/usr/share");
    fs::create_dir_all(&share).unwrap();
    fs::write(share.join(".wh.zoneinfo"), "").unwrap();
    let server = json_server(SERVER, "int(os.environ['PORT'])");
    fs::write(made.path().join("root/srv/server.py"), server).unwrap();
    let at = |name: &str| made.path().join(name);
    fs::copy(binaries::runtimes().join("python.tar"), at("python.tar")).unwrap();
    run(Command::new("tar")
        .arg("-C")
        .arg(at("root"))
        .arg("-czf")
        .arg(at("data.tar.gz"))
        .arg("."));
    let layers = [
        blob(&blobs, "layer.v1.tar", &at("python.tar")),
        blob(&blobs, "layer.v1.tar+gzip", &at("data.tar.gz")),
    ];
    let write = |name: &str, value: &serde_json::Value| {
        File::create(at(name))
            .unwrap()
            .write_all(value.to_string().as_bytes())
            .unwrap();
        at(name)
    };
    let ids: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": ids },
        "config": { "Cmd": ["python3", "/srv/server.py"] },
    });
    let config = blob(&blobs, "config.v1+json", &write("config", &config));
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
        "layers": layers,
    });
    let manifest = blob(&blobs, "manifest.v1+json", &write("manifest", &manifest));
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(
        layout.join("index.json"),
        json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string(),
    )
    .unwrap();
    (folder, digests)
}

fn can_mount() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release
        .split('.')
        .take(2)
        .filter_map(|number| number.parse().ok())
        .collect();
    let can = numbers >= vec![6, 12] && Path::new("/dev/fuse").exists();
    if !can {
        skip("mounting images before they are here needs Linux 6.12 and /dev/fuse");
    }
    can
}

/// A platform that has nothing of the functions that were deployed there but what is in the store.
fn cold_host(store: &ObjectStore, folders: &[Folder]) -> Platform {
    let mut platform = Platform::start_with(store.options());
    for folder in folders {
        let version = platform.deploy(folder);
        assert!(version.snapshot.is_some(), "{version:?}");
    }
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
    platform.empty_cache();
    platform.restart();
    platform
}

#[test]
fn a_host_without_an_image_restores_it_before_it_is_there_and_survives_the_store_s_absence() {
    if !can_mount() {
        return;
    }
    let store = ObjectStore::start();
    let (folder, digests) = image("lazy-image", "timeout = \"60s\"");
    let mut platform = cold_host(&store, &[folder]);

    let reply = platform.get("lazy-image", &format!("/?from=0&to={READ}&mapped=1")).ok();
    let fetched =
        |when: &str| platform.worker_metric(&format!("rekindle_layers_fetched_bytes_total{{when=\"{when}\"}}"));
    let (start, touched, rest) = (fetched("start"), fetched("touched"), fetched("background"));
    // What is not here yet cannot be read while the store is away.
    store.set(Line::Dead);
    let began = Instant::now();
    let away = platform.get("lazy-image", "/?from=80&to=81");
    let took = began.elapsed();
    store.set(Line::Good);
    println!("fetched {start} at the start, {touched} when touched, {rest} in the background; away: {took:?}");
    assert_eq!(reply.start(), "restored");
    let found = reply.json();
    assert_eq!(found["digests"], json!(digests[..READ]));
    assert_eq!(found["mapped"], json!(digests[99]));
    assert_eq!(found["modes"], json!(MODES));
    assert_eq!(rest, 0.0, "the host is too busy for this test");
    assert!(
        start + touched < FETCHED_MOST && start > 1e6,
        "{start} and {touched} bytes"
    );
    // Python may lack a page of its own then, for which there is no error.
    let survived = away.status == 200;
    match survived {
        true => assert_eq!(away.json(), json!({ "error": 5 })),
        false => assert!(away.error(502, "function_crashed").message().contains("SIGBUS")),
    }
    assert!(took < AWAY_MOST, "{took:?}");
    assert!(platform.worker_metric("rekindle_layers_failed_reads_total") >= 1.0);

    // The same instance, once the store is back. A change copies what is not here yet.
    let all = platform
        .get("lazy-image", &format!("/?from=0&to={FILES}&changed=1"))
        .ok();
    assert_eq!(all.instance() == reply.instance(), survived);
    assert_eq!(all.json()["digests"], json!(digests));
    assert_eq!(all.json()["changed"], json!([digests[50], 1000, FILES]));

    // Later instances use the unpacked layer; this one keeps its own.
    let layers = platform.directory("cache").join("worker/layers");
    let unpacked = |name: &Path| name.join("srv/data/0").exists().then_some(());
    until("the rest of the image", Duration::from_secs(150), || {
        fs::read_dir(&layers)
            .unwrap()
            .flatten()
            .find_map(|entry| unpacked(&entry.path()))
    });
    assert!(fetched("background") >= 0.0);
    let later = platform
        .fresh("restored", "lazy-image", &format!("/?from=0&to={FILES}&mapped=1"))
        .ok();
    assert_ne!(later.instance(), all.instance());
    assert_eq!((later.start(), &later.json()["digests"]), ("restored", &json!(digests)));
    assert_eq!(later.json()["mapped"], json!(digests[99]));
    assert_eq!(later.json()["modes"], json!(MODES));
    let earlier = platform.get("lazy-image", "/?from=60&to=61").ok();
    assert_eq!(earlier.json()["digests"], json!([digests[60]]));
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}

#[test]
fn calls_that_time_out_while_they_read_an_image_that_does_not_come_stop_nothing_else() {
    if !can_mount() {
        return;
    }
    let store = ObjectStore::start();
    let (folder, _) = image("stuck", "timeout = \"1s\"\nconcurrency = 20\nmax_instances = 1");
    let code = "def handler(event, context):\n    return 1\n";
    let mut platform = cold_host(&store, &[folder, Folder::python("beside", "", code)]);
    platform.get("stuck", &format!("/?from=0&to={READ}")).ok();
    platform.get("beside", "/").ok();

    // More calls than the worker has threads, each of which waits for a file of its own.
    store.set(Line::Dead);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (30..30 + CALLS)
            .map(|file| {
                std::thread::sleep(Duration::from_millis(8));
                let platform = &platform;
                scope.spawn(move || platform.get("stuck", &format!("/?from={file}&to={}", file + 1)))
            })
            .collect();
        let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap().status).collect();
        assert!(answers.iter().all(|status| *status >= 500), "{answers:?}");
    });
    let began = Instant::now();
    platform.get("beside", "/").ok();
    assert!(began.elapsed() < AWAY_MOST / 3, "{:?}", began.elapsed());
    store.set(Line::Good);
    platform.stop();
    assert_eq!(platform.leftovers(), Vec::<String>::new());
}
