//! A function with a large image, of which a host that does not have it fetches some parts first.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rekindle_testkit::{Folder, binaries};
use serde_json::json;

use crate::{json_server, skip};

/// Number of files beside the server: 200 MB.
pub const FILES: usize = 100;
/// Size of each in bytes.
const FILE: usize = 2_000_000;
/// Number of those that a warm-up reads: 20 MB.
pub const READ: usize = 10;
/// Modes of the files' directory, of the first file, and of the last.
pub const MODES: [u32; 3] = [0o700, 0o640, 0o600];
/// Extended attributes of a directory and of a file: names, and the one's value.
pub const ATTRIBUTES: [(&[&str], &str); 2] = [(&["user.colour"], "blue"); 2];
/// All that these have in the image's layer: none but the first is a function's.
const IN_LAYER: &str =
    "SCHILY.xattr.user.colour:=blue,SCHILY.xattr.user.overlay.opaque:=y,SCHILY.xattr.security.capability:=x";

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
        marked = ["/srv/marked", "/srv/marked/file"]
        found["attributes"] = [(os.listxattr(path), os.getxattr(path, "user.colour").decode()) for path in marked]
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
#[must_use]
pub fn image(name: &str, settings: &str) -> (Folder, Vec<String>) {
    let config = format!(
        "name = \"{name}\"\nimage = \"./layout\"\n{settings}\n[[warmup]]\npath = \"/?from=0&to={READ}&mapped=1\""
    );
    let folder = Folder::with_config(&config);
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
    fs::create_dir_all(at("more/srv/marked")).unwrap();
    fs::write(at("more/srv/marked/file"), "marked").unwrap();
    run(Command::new("tar")
        .arg("-C")
        .arg(at("more"))
        .args(["--format=posix", &format!("--pax-option={IN_LAYER}"), "-czf"])
        .arg(at("more.tar.gz"))
        .arg("srv/marked"));
    let layers = [
        blob(&blobs, "layer.v1.tar", &at("python.tar")),
        blob(&blobs, "layer.v1.tar+gzip", &at("data.tar.gz")),
        blob(&blobs, "layer.v1.tar+gzip", &at("more.tar.gz")),
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

/// Whether this host can mount an image before it is there. Reports if it cannot.
#[must_use]
pub fn can_mount() -> bool {
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
