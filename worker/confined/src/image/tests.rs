use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::EntryType;

use super::*;
use crate::upload::testing::Tar;

const SMALL: Limits = Limits {
    unpacked_bytes: 1 << 20,
    files: 100,
};

/// A layout in a directory of its own, with the target beside it.
struct LayoutFixture(tempfile::TempDir);

impl LayoutFixture {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.layout().join("blobs/sha256")).unwrap();
        fs::create_dir(place.root()).unwrap();
        place
    }

    fn layout(&self) -> PathBuf {
        self.0.path().join("layout")
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn blob(&self, bytes: &[u8]) -> Value {
        let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        fs::write(self.layout().join("blobs/sha256").join(&hex), bytes).unwrap();
        json!({ "digest": format!("sha256:{hex}"), "size": bytes.len() })
    }

    /// Stores an image, and returns its descriptor.
    fn image(&self, layers: Vec<Tar>, config: &Value, architecture: &str) -> Value {
        let layers: Vec<_> = layers.into_iter().map(|tar| self.blob(&packed(tar))).collect();
        let config = json!({ "architecture": architecture, "os": "linux", "config": config });
        let config = self.blob(config.to_string().as_bytes());
        self.blob(json!({ "config": config, "layers": layers }).to_string().as_bytes())
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        fs::write(self.layout().join("index.json"), index.to_string()).unwrap();
    }

    fn unpack(&self) -> Result<(), ImageError> {
        unpack(File::open(self.layout()).unwrap().into(), &self.root(), &SMALL)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }
}

/// Every other layer is compressed by zstd.
fn packed(mut tar: Tar) -> Vec<u8> {
    tar.0.extend_from_slice(&[0; 1_024]);
    if tar.0[0].is_multiple_of(2) {
        return zstd::encode_all(tar.0.as_slice(), 1).unwrap();
    }
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(&tar.0).unwrap();
    gz.finish().unwrap()
}

fn unpacked(layers: Vec<Tar>) -> (LayoutFixture, Result<(), ImageError>) {
    let place = LayoutFixture::new();
    let image = place.image(layers, &Value::Null, "amd64");
    place.index(&[image]);
    let result = place.unpack();
    (place, result)
}

fn refused(layers: Vec<Tar>) -> ImageError {
    unpacked(layers).1.expect_err("this must be refused")
}

#[test]
fn upper_layers_replace_and_remove_what_lower_ones_have() {
    let lower = Tar::default()
        .file("etc/kept", "kept")
        .file("etc/replaced", "old")
        .file("etc/removed", "x")
        .file("cache/a", "x")
        .file("cache/b/c", "x")
        .file("whole/tree/x", "x")
        .file("usr/lib/one", "1")
        .link("lib", "usr/lib")
        .file("becomes-a-directory", "x")
        .file("becomes-a-file/x", "x");
    let upper = Tar::default()
        .file("etc/replaced", "new")
        .file("etc/.wh.removed", "")
        .file("cache/.wh..wh..opq", "")
        .file("cache/d", "d")
        .file(".wh.whole", "")
        .file("lib/two", "2")
        .entry("becomes-a-directory/", EntryType::Directory, "", 0o755, b"")
        .file("becomes-a-file", "file")
        .file("nothing/.wh.there", "");
    let (place, result) = unpacked(vec![lower, upper]);
    result.unwrap();
    assert_eq!(place.text("etc/kept"), "kept");
    assert_eq!(place.text("etc/replaced"), "new");
    assert_eq!(place.text("cache/d"), "d");
    // Through the link of the lower layer.
    assert_eq!(place.text("usr/lib/one"), "1");
    assert_eq!(place.text("usr/lib/two"), "2");
    assert_eq!(place.text("becomes-a-file"), "file");
    assert!(place.root().join("becomes-a-directory").is_dir());
    for gone in [
        "etc/removed",
        "etc/.wh.removed",
        "cache/a",
        "cache/b",
        "whole",
        "nothing/there",
    ] {
        assert!(fs::symlink_metadata(place.root().join(gone)).is_err(), "{gone}");
    }
}

#[test]
fn an_opaque_directory_keeps_what_its_own_layer_has_whatever_the_order() {
    let lower = Tar::default().file("d/old", "x").file("d/both/old", "x");
    let upper = Tar::default()
        .file("d/new", "new")
        .file("d/both/new", "new")
        .file("d/.wh..wh..opq", "");
    let (place, result) = unpacked(vec![lower, upper]);
    result.unwrap();
    assert_eq!(place.text("d/new") + &place.text("d/both/new"), "newnew");
    assert!(!place.root().join("d/old").exists());
}

#[test]
fn modes_are_those_of_the_image_and_hard_links_stay_links() {
    let long = format!("{}/{}", "d".repeat(90), "f".repeat(120));
    let layer = Tar::default()
        .entry("bin/busybox", EntryType::Regular, "", 0o4711, b"program")
        .entry("bin/ls", EntryType::Link, "/bin/busybox", 0o755, b"")
        .entry("dev/null", EntryType::Char, "", 0o666, b"")
        .entry("pipe", EntryType::Fifo, "", 0o666, b"")
        .entry("private/", EntryType::Directory, "", 0o700, b"")
        .entry("private/key", EntryType::Regular, "", 0o600, b"key")
        .entry("private/cookie", EntryType::Regular, "", 0o400, b"cookie")
        .entry("private/run", EntryType::Regular, "", 0o010, b"run")
        .entry("closed/", EntryType::Directory, "", 0o555, b"")
        .entry("closed/none", EntryType::Regular, "", 0, b"none")
        .entry("shared/", EntryType::Directory, "", 0o3777, b"")
        .link("etc/mtab", "/proc/mounts")
        .entry(
            "././@LongLink",
            EntryType::GNULongName,
            "",
            0,
            format!("{long}\0").as_bytes(),
        )
        .file("cut", "long");
    let (place, result) = unpacked(vec![layer]);
    result.unwrap();
    let of = |name: &str| fs::symlink_metadata(place.root().join(name)).unwrap();
    for (name, mode) in [
        ("bin/busybox", 0o711),
        ("private", 0o700),
        ("private/key", 0o600),
        // Root reads and writes such files, and so does the function.
        ("private/cookie", 0o600),
        ("private/run", 0o710),
        ("closed", 0o755),
        ("closed/none", 0o600),
        ("shared", 0o1777),
    ] {
        assert_eq!(of(name).permissions().mode() & 0o7777, mode, "{name}");
    }
    assert_eq!(of("bin/busybox").ino(), of("bin/ls").ino());
    assert_eq!(
        fs::read_link(place.root().join("etc/mtab")).unwrap(),
        PathBuf::from("/proc/mounts")
    );
    assert_eq!(place.text(&long), "long");
    assert!(!place.root().join("dev/null").exists() && !place.root().join("pipe").exists());
}

#[test]
fn a_sandbox_finds_its_mount_points_and_its_user() {
    let passwd = "root:x:0:0:root:/root:/bin/sh\nnode:x:1001:1000::/:/bin/sh";
    let layer = Tar::default()
        .file("etc/passwd", passwd)
        .file("etc/group", "node:x:1000:\n")
        .link("etc/resolv.conf", "../run/resolv.conf")
        .link("tmp", "var/tmp")
        .file(".rekindle/image.json", "the image's own");
    let (place, result) = unpacked(vec![layer]);
    result.unwrap();
    for name in root::MOUNT_POINTS {
        assert!(
            fs::symlink_metadata(place.root().join(name)).unwrap().is_dir(),
            "{name}"
        );
    }
    assert_eq!(
        place.text("etc/passwd"),
        format!("{passwd}\nfn:x:1000:1000:function:/tmp:/bin/sh\n")
    );
    assert_eq!(place.text("etc/group"), "node:x:1000:\n");
    assert_eq!(place.text("etc/hosts") + &place.text("etc/resolv.conf"), "");
    let config: Config = serde_json::from_str(&place.text(CONFIG)).unwrap();
    assert_eq!((config.cwd.as_str(), config.command.len()), ("/", 0));
}

#[test]
fn a_working_directory_that_no_layer_has_is_made() {
    let place = LayoutFixture::new();
    root::working_directory(&place.root(), "/srv/new/wd").unwrap();
    root::working_directory(&place.root(), "/srv/new").unwrap();
    assert!(place.root().join("srv/new/wd").is_dir());
    fs::write(place.root().join("srv/file"), "").unwrap();
    let error = root::working_directory(&place.root(), "/srv/file").unwrap_err();
    assert!(error.to_string().contains("/srv/file"), "{error}");
}

#[test]
fn the_image_of_our_platform_is_found_in_nested_indexes() {
    let place = LayoutFixture::new();
    let config = json!({
        "Entrypoint": ["/bin/serve"], "Cmd": ["--port", "80"], "Env": ["A=1=2", "PATH=/opt/bin"],
        "WorkingDir": "srv", "ExposedPorts": { "80/tcp": {}, "53/udp": {}, "8443": {} }, "Labels": null,
    });
    let named = |mut descriptor: Value, architecture: &str| {
        descriptor["platform"] = json!({ "architecture": architecture, "os": "linux" });
        descriptor
    };
    let ours = named(
        place.image(vec![Tar::default().file("ours", "")], &config, "amd64"),
        "amd64",
    );
    let other = named(
        place.image(vec![Tar::default().file("other", "")], &config, "arm64"),
        "arm64",
    );
    let inner = json!({ "manifests": [other.clone(), ours.clone()] }).to_string();
    let mut inner = place.blob(inner.as_bytes());
    inner["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
    place.index(&[inner]);
    place.unpack().unwrap();
    assert!(place.root().join("ours").exists());
    let config: Config = serde_json::from_str(&place.text(CONFIG)).unwrap();
    assert_eq!(config.digest, ours["digest"].as_str().unwrap());
    assert_eq!(config.command, ["/bin/serve", "--port", "80"]);
    assert_eq!((config.env["A"].as_str(), config.cwd.as_str()), ("1=2", "/srv"));
    assert_eq!(config.ports, [80, 8443]);

    let place = LayoutFixture::new();
    let other = place.image(vec![], &Value::Null, "arm64");
    place.index(&[named(other.clone(), "arm64")]);
    let error = place.unpack().unwrap_err();
    assert!(error.to_string().contains("only for linux/arm64"), "{error}");
    place.index(&[other]);
    assert!(matches!(place.unpack(), Err(ImageError::Platform(_))));
    place.index(&[]);
    assert!(matches!(place.unpack(), Err(ImageError::Malformed(_))));
}

#[test]
fn names_and_links_that_lead_outside_are_refused() {
    for name in ["../evil", "a/../../evil", "a/.."] {
        let error = refused(vec![Tar::default().file(name, "x")]);
        assert!(matches!(error, ImageError::Outside(_)), "{name}: {error}");
    }
    let (place, result) = unpacked(vec![Tar::default().file("/absolute", "x")]);
    result.unwrap();
    assert_eq!(place.text("absolute"), "x");
    let error = refused(vec![Tar::default().entry(
        "hard",
        EntryType::Link,
        "../layout/index.json",
        0o644,
        b"",
    )]);
    assert!(matches!(error, ImageError::Outside(_)), "{error}");
    let error = refused(vec![Tar::default().entry(
        "hard",
        EntryType::Link,
        "missing",
        0o644,
        b"",
    )]);
    assert!(matches!(error, ImageError::Kind { .. }), "{error}");
}

#[test]
fn faults_of_the_image_are_told_as_such() {
    let kind = |tar: Tar| match refused(vec![tar]) {
        ImageError::Kind { kind, .. } => kind,
        other => panic!("{other}"),
    };
    for name in [".wh.", ".wh..", ".wh..."] {
        let tar = Tar::default().file("d/kept", "x").file(&format!("d/{name}"), "");
        assert!(kind(tar).contains("whiteout"), "{name}");
    }
    let long = "0123456789/".repeat(100) + &"abcdefghijklmnopqrstuvwxyz0123456789/".repeat(110);
    let named = |kind, name: &str| Tar::default().entry("././@LongLink", kind, "", 0o644, name.as_bytes());
    assert!(kind(named(EntryType::GNULongName, &long).file("x", "")).contains("bytes"));
    let linked = named(EntryType::GNULongLink, &long);
    assert!(kind(linked.entry("hard", EntryType::Link, "x", 0o644, b"")).contains("bytes"));
    let linked = named(EntryType::GNULongLink, &long);
    assert!(kind(linked.link("soft", "x")).contains("5170 bytes"), "{}", long.len());
    assert!(kind(Tar::default().link("soft", "")).contains("0 bytes"));
}

#[test]
fn lists_of_users_and_programs_have_a_bound() {
    let place = LayoutFixture::new();
    let list = "x".repeat((1 << 20) + 1);
    let image = place.image(vec![Tar::default().file("etc/passwd", &list)], &Value::Null, "amd64");
    place.index(&[image]);
    let limits = Limits {
        unpacked_bytes: 4 << 20,
        files: 100,
    };
    let error = unpack(File::open(place.layout()).unwrap().into(), &place.root(), &limits).unwrap_err();
    assert!(error.to_string().contains("etc/passwd"), "{error}");

    let place = LayoutFixture::new();
    let env: Vec<_> = (0..4_000).map(|n| format!("V{n}={}", "x".repeat(1_000))).collect();
    let image = place.image(Vec::new(), &json!({ "Env": env }), "amd64");
    place.index(&[image]);
    let error = place.unpack().unwrap_err();
    assert!(error.to_string().contains("at most 96 KiB"), "{error}");
}

#[test]
fn bombs_are_not_unpacked() {
    let large = "x".repeat(400_000);
    let layers = (0..3).map(|i| Tar::default().file(&format!("f{i}"), &large));
    assert!(matches!(refused(layers.collect()), ImageError::TooLarge { .. }));
    let tar = (0..101).fold(Tar::default(), |t, i| t.file(&format!("f{i}"), ""));
    assert!(matches!(refused(vec![tar]), ImageError::TooMany { limit: 100 }));
    let mut tar = Tar::default().file("f", "x");
    tar.0.resize(64 << 20, 0);
    assert!(matches!(refused(vec![tar]), ImageError::TooLarge { .. }));
    let mut tar = Tar::default();
    tar.header("bomb", EntryType::Regular, "", 0o644, 1 << 40);
    assert!(matches!(refused(vec![tar]), ImageError::TooLarge { .. }));
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    let place = LayoutFixture::new();
    let image = place.image(vec![Tar::default().file("a", "content")], &Value::Null, "amd64");
    place.index(&[image]);
    for blob in fs::read_dir(place.layout().join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        for bytes in [&changed[..], &whole[..last], b""] {
            fs::write(&path, bytes).unwrap();
            let result = place.unpack();
            assert!(matches!(result, Err(ImageError::Blob(_))), "{result:?}");
            fs::remove_dir_all(place.root()).unwrap();
            fs::create_dir(place.root()).unwrap();
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(place.unpack(), Err(ImageError::Blob(_))));
        fs::write(&path, whole).unwrap();
    }
    place.unpack().unwrap();
}

#[test]
fn a_layout_that_names_files_outside_reaches_none() {
    for digest in [
        "sha256:../../root",
        "md5:00",
        "sha256:",
        &format!("sha256:{}", "../".repeat(21) + "x"),
    ] {
        let place = LayoutFixture::new();
        place.index(&[json!({ "digest": digest, "size": 4 })]);
        assert!(matches!(place.unpack(), Err(ImageError::Blob(_))), "{digest}");
    }
    let place = LayoutFixture::new();
    let image = place.image(vec![], &Value::Null, "amd64");
    let hex = image["digest"].as_str().unwrap().trim_start_matches("sha256:");
    let blob = place.layout().join("blobs/sha256").join(hex);
    let elsewhere = place.0.path().join("elsewhere");
    fs::rename(&blob, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &blob).unwrap();
    place.index(&[image]);
    assert!(matches!(place.unpack(), Err(ImageError::Blob(_))));
}

/// Adds the pax header of the next entry, with these records.
fn described(tar: Tar, records: &[(&str, &[u8])]) -> Tar {
    let mut bytes = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        bytes.extend_from_slice(format!("{length} {key}=").as_bytes());
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
    }
    tar.entry("pax", EntryType::XHeader, "", 0o644, &bytes)
}

#[test]
fn attributes_of_users_are_kept_whatever_bytes_they_have_and_others_are_left_out() {
    let own: &[u8] = b"a\n12 path=evil\n\0\xff";
    let all: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.user.own", own),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02\n"),
    ];
    let lower = described(Tar::default(), &all).file("file", "x");
    let lower = described(lower, &all).entry("directory/", EntryType::Directory, "", 0o755, b"");
    let lower = described(lower, &all)
        .entry("kept/", EntryType::Directory, "", 0o555, b"")
        .file("plain", "x");
    let other: [(&str, &[u8]); 1] = [("SCHILY.xattr.user.other", b"o")];
    let upper = described(Tar::default(), &other).entry("directory/", EntryType::Directory, "", 0o755, b"");
    let (place, result) = unpacked(vec![lower, upper.file("kept/file", "x")]);
    result.unwrap();
    let of = |path: &str| crate::attributes::of_file(&place.root().join(path)).unwrap();
    let owned = [("user.own".to_owned(), own.to_vec())];
    assert_eq!((of("file"), of("kept")), (owned.to_vec(), owned.to_vec()));
    assert_eq!(of("directory"), [("user.other".to_owned(), b"o".to_vec())]);
    assert_eq!((of("plain"), of("kept/file")), (Vec::new(), Vec::new()));
    assert!(!place.root().join("evil").exists());

    let large: [(&str, &[u8]); 1] = [("SCHILY.xattr.user.large", &[1; 3 << 10])];
    let why = refused(vec![described(Tar::default(), &large).file("large", "x")]).to_string();
    assert!(why.contains("\"large\"") && why.contains("3072"), "{why}");
}
