use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use flate2::read::GzDecoder;

use super::*;

fn bytes_of(folder: &Path) -> Vec<u8> {
    let mut packed = pack(folder).unwrap();
    packed.file.rewind().unwrap();
    let mut bytes = Vec::new();
    packed.file.read_to_end(&mut bytes).unwrap();
    assert_eq!(u64::try_from(bytes.len()).unwrap(), packed.bytes);
    bytes
}

/// Path and mode of everything in the archive.
fn listing(bytes: &[u8]) -> BTreeMap<String, u32> {
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    archive
        .entries()
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            let path = e.path().unwrap().display().to_string();
            (path.trim_end_matches('/').to_owned(), e.header().mode().unwrap())
        })
        .collect()
}

fn put(folder: &Path, inside: &str, text: &str) {
    let path = folder.join(inside);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn the_same_files_give_the_same_bytes_whatever_their_times_and_modes() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (i, folder) in [a.path(), b.path()].into_iter().enumerate() {
        let mut names = ["main.py", "lib/x.py", "lib/y.py", "fn.toml"];
        if i == 1 {
            names.reverse();
        }
        for name in names {
            put(folder, name, name);
        }
    }
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    File::options()
        .write(true)
        .open(b.path().join("main.py"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    fs::set_permissions(b.path().join("fn.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(bytes_of(a.path()), bytes_of(b.path()));
    put(b.path(), "main.py", "other");
    assert_ne!(bytes_of(a.path()), bytes_of(b.path()));
}

#[test]
fn what_fnignore_names_stays_behind_and_negation_takes_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".fnignore", "*.log\n/data/\n!keep.log\n!/node_modules/\n");
    for name in [
        "fn.toml",
        "a.log",
        "keep.log",
        "data/big",
        "lib/data/small",
        ".git/config",
        "lib/__pycache__/x.pyc",
        ".venv/bin/python",
        "node_modules/m/index.js",
    ] {
        put(root, name, "x");
    }
    let names: Vec<String> = listing(&bytes_of(root)).into_keys().collect();
    assert_eq!(
        names,
        [
            "fn.toml",
            "keep.log",
            "lib",
            "lib/data",
            "lib/data/small",
            "node_modules",
            "node_modules/m",
            "node_modules/m/index.js"
        ]
    );
}

#[test]
fn executables_and_links_stay_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "bin/server", "x");
    fs::set_permissions(dir.path().join("bin/server"), fs::Permissions::from_mode(0o700)).unwrap();
    put(dir.path(), "plain", "x");
    symlink("bin/server", dir.path().join("server")).unwrap();
    let listing = listing(&bytes_of(dir.path()));
    assert_eq!(listing["bin/server"], 0o755);
    assert_eq!(listing["plain"], 0o644);
    assert!(listing.contains_key("server"));
}

#[test]
fn a_link_out_of_the_folder_is_refused() {
    for target in ["/etc/passwd", "../secret", "lib/../../x"] {
        let dir = tempfile::tempdir().unwrap();
        symlink(target, dir.path().join("link")).unwrap();
        let error = pack(dir.path()).unwrap_err().to_string();
        assert!(error.contains("leads out of the folder"), "{error}");
    }
}

#[test]
fn a_path_longer_than_a_tar_header_survives() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("{}/{}/file", "d".repeat(120), "e".repeat(120));
    put(dir.path(), &long, "x");
    assert!(listing(&bytes_of(dir.path())).contains_key(&long));
}
