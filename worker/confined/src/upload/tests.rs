use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use super::testing::Tar;
use super::*;

const SMALL: Limits = Limits {
    unpacked_bytes: 1 << 20,
    files: 100,
};

struct UploadFixture {
    directory: tempfile::TempDir,
}

impl UploadFixture {
    fn unpack(tar: Tar) -> (Self, Result<(), UnpackError>) {
        let place = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(place.app()).unwrap();
        let source = place.directory.path().join("source.tar.gz");
        tar.write(&source);
        let result = unpack(File::open(&source).unwrap(), &place.app(), &SMALL);
        (place, result)
    }

    fn app(&self) -> PathBuf {
        self.directory.path().join("app")
    }
}

/// Why `tar` was rejected. Nothing may have been created beside the folder.
fn refused(tar: Tar) -> UnpackError {
    let (place, result) = UploadFixture::unpack(tar);
    let mut names: Vec<_> = fs::read_dir(place.directory.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["app", "source.tar.gz"]);
    result.expect_err("this must be refused")
}

#[test]
fn an_honest_folder_comes_out_with_plain_modes() {
    let long = format!("{}/{}.py", "d".repeat(90), "f".repeat(120));
    let tar = Tar::default()
        .entry("./", EntryType::Directory, "", 0o700, b"")
        .file("./main.py", "x = 1\n")
        .entry("bin/run", EntryType::Regular, "", 0o4711, b"#!/bin/sh\n")
        .entry("empty/", EntryType::Directory, "", 0o777, b"")
        .link("lib/current", "../bin/run")
        .entry("bin/same", EntryType::Link, "./main.py", 0o644, b"")
        .entry(
            "././@LongLink",
            EntryType::GNULongName,
            "",
            0,
            format!("{long}\0").as_bytes(),
        )
        .file("cut", "long")
        .entry("pax", EntryType::XHeader, "", 0, b"20 path=renamed.txt\n12 uid=9999\n")
        .file("ignored", "pax");
    let (place, result) = UploadFixture::unpack(tar);
    result.unwrap();
    let app = place.app();
    assert_eq!(fs::read_to_string(app.join("main.py")).unwrap(), "x = 1\n");
    assert_eq!(fs::read_to_string(app.join("bin/same")).unwrap(), "x = 1\n");
    assert_eq!(fs::read_to_string(app.join("lib/current")).unwrap(), "#!/bin/sh\n");
    assert_eq!(fs::read_to_string(app.join(long)).unwrap(), "long");
    assert_eq!(fs::read_to_string(app.join("renamed.txt")).unwrap(), "pax");
    assert!(app.join("empty").is_dir());
    let mode = |name: &str| fs::metadata(app.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("main.py"), mode("bin/run")), (0o644, 0o755));
}

#[test]
fn names_that_lead_outside_are_refused() {
    for name in ["../evil", "a/../../evil", "/evil", "a/..", "", "a/../b"] {
        let error = refused(Tar::default().file(name, "x"));
        assert!(matches!(error, UnpackError::Outside(_)), "{name}: {error}");
    }
    let long = format!("{}evil\0", "../".repeat(50));
    let tar = Tar::default()
        .entry("././@LongLink", EntryType::GNULongName, "", 0, long.as_bytes())
        .file("x", "x");
    assert!(matches!(refused(tar), UnpackError::Outside(_)));
    let tar = Tar::default()
        .entry("pax", EntryType::XHeader, "", 0, b"16 path=../evil\n")
        .file("x", "x");
    assert!(matches!(refused(tar), UnpackError::Outside(_)));
}

#[test]
fn links_that_lead_outside_are_refused() {
    for target in ["/etc/passwd", "../evil", "a/../../evil", ""] {
        let error = refused(Tar::default().link("link", target));
        assert!(matches!(error, UnpackError::Link { .. }), "{target}: {error}");
    }
    // Inside by its text, but outside by way of another link.
    let tar = Tar::default()
        .entry("a/b/c/", EntryType::Directory, "", 0o755, b"")
        .link("a/b/c/up", "../..")
        .link("out", "a/b/c/up/../..");
    assert!(matches!(refused(tar), UnpackError::Link { .. }));
    let tar = Tar::default().link("a", "b").link("b", "a");
    assert!(matches!(refused(tar), UnpackError::Link { .. }));
    let tar = Tar::default().entry("hard", EntryType::Link, "../source.tar.gz", 0o644, b"");
    assert!(matches!(refused(tar), UnpackError::Outside(_)));
    let tar = Tar::default()
        .link("soft", "main.py")
        .entry("hard", EntryType::Link, "soft", 0o644, b"");
    assert!(matches!(refused(tar), UnpackError::Link { .. }));
}

#[test]
fn nothing_is_written_through_a_link() {
    let tar = Tar::default().link("d", "..").file("d/evil", "x");
    assert!(matches!(refused(tar), UnpackError::Link { .. }));
    let tar = Tar::default().link("d", "e").file("e/inside", "x").file("d/evil", "x");
    assert!(matches!(refused(tar), UnpackError::Twice(_)));
    let tar = Tar::default().link("f", "g").file("f", "x");
    assert!(matches!(refused(tar), UnpackError::Twice(_)));
}

#[test]
fn only_files_directories_and_links_are_taken() {
    for kind in [
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::GNUSparse,
        EntryType::new(b'V'),
    ] {
        let error = refused(Tar::default().entry("odd", kind, "", 0o666, b""));
        assert!(matches!(error, UnpackError::Kind { .. }), "{error}");
    }
}

#[test]
fn names_used_twice_or_by_the_platform_are_refused() {
    assert!(matches!(
        refused(Tar::default().file("a", "1").file("./a", "2")),
        UnpackError::Twice(_)
    ));
    assert!(matches!(
        refused(Tar::default().file("a", "1").file("a/b", "2")),
        UnpackError::Twice(_)
    ));
    assert!(matches!(
        refused(Tar::default().file(".rekindle/python/six.py", "")),
        UnpackError::Reserved(_)
    ));
}

#[test]
fn bombs_are_not_unpacked() {
    // By its header, before anything is written.
    let mut tar = Tar::default();
    tar.header("bomb", EntryType::Regular, "", 0o644, 1 << 40);
    let error = refused(tar);
    assert!(matches!(error, UnpackError::TooLarge { limit: 1_048_576 }), "{error}");
    // Many files that fit individually.
    let large = "x".repeat(400_000);
    let tar = (0..3).fold(Tar::default(), |t, i| t.file(&format!("f{i}"), &large));
    assert!(matches!(refused(tar), UnpackError::TooLarge { .. }));
    // Copies by hard link.
    let tar = Tar::default().file("f", &large);
    let tar = (0..5).fold(tar, |t, i| t.entry(&format!("h{i}"), EntryType::Link, "f", 0o644, b""));
    assert!(matches!(refused(tar), UnpackError::TooLarge { .. }));
    let tar = (0..101).fold(Tar::default(), |t, i| t.file(&format!("f{i}"), ""));
    assert!(matches!(refused(tar), UnpackError::TooMany { limit: 100 }));
    let tar = Tar::default().file(&"d/".repeat(45), "x");
    assert!(UploadFixture::unpack(tar).1.is_ok());
    let deep = format!("{}\0", "d/".repeat(1_000));
    let tar = Tar::default()
        .entry("././@LongLink", EntryType::GNULongName, "", 0, deep.as_bytes())
        .file("x", "x");
    assert!(matches!(refused(tar), UnpackError::Outside(_)));
    // In the records that tar itself reads.
    let name = vec![b'a'; 100_000];
    let tar = Tar::default()
        .entry("././@LongLink", EntryType::GNULongName, "", 0, &name)
        .file("x", "x");
    assert!(matches!(refused(tar), UnpackError::Malformed(_)));
    let tar = Tar::default()
        .entry("pax", EntryType::XHeader, "", 0, b"15 size=9999999\n")
        .file("x", "x");
    assert!(matches!(refused(tar), UnpackError::Malformed(_)));
    // After the end of the archive.
    let mut tar = Tar::default().file("f", "x");
    tar.0.resize(64 << 20, 0);
    assert!(matches!(refused(tar), UnpackError::TooLarge { .. }));
}

#[test]
fn what_is_cut_short_or_no_archive_is_refused() {
    let mut tar = Tar::default();
    tar.header("cut", EntryType::Regular, "", 0o644, 5_000);
    assert!(matches!(refused(tar), UnpackError::Malformed(_)));

    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source.tar.gz");
    Tar::default().file("a", "content").write(&source);
    let whole = fs::read(&source).unwrap();
    let mut flipped = whole.clone();
    let checksum = flipped.len() - 6;
    flipped[checksum] ^= 1;
    for (case, bytes) in [
        ("plain", &b"hello"[..]),
        ("cut", &whole[..whole.len() - 9]),
        ("flipped", &flipped),
        ("empty", b""),
    ] {
        fs::write(&source, bytes).unwrap();
        let app = directory.path().join(case);
        fs::create_dir(&app).unwrap();
        let error = unpack(File::open(&source).unwrap(), &app, &SMALL).expect_err(case);
        assert!(matches!(error, UnpackError::Malformed(_)), "{case}: {error}");
    }
}

#[test]
fn names_with_control_characters_are_refused_and_told_readably() {
    for name in ["a\nb.py", "a\u{1b}[2Jb", "d\t/x", "a\u{85}", "a\u{2028}b", "\u{7f}"] {
        let error = refused(Tar::default().file(name, "x"));
        assert!(matches!(error, UnpackError::Control(_)), "{name:?}: {error}");
        let told = error.to_string();
        assert!(!told.chars().any(is_control), "{told:?}");
    }
    let error = refused(Tar::default().link("link", "a\nb"));
    assert!(matches!(error, UnpackError::Control(_)), "{error}");
    let (_place, result) = UploadFixture::unpack(Tar::default().file("r\u{e9}sum\u{e9} 1.py", "x"));
    result.unwrap();
}
