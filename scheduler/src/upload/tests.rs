//! Valid archives, and archives written by an attacker.

use std::io::Write as _;

use tar::{Builder, EntryType, Header};

use super::*;

const CONFIG: &str = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n";

/// An archive of raw entries: type, path as written, link target, content.
fn archive(entries: &[(EntryType, &str, &str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (kind, path, link, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // The setters refuse what an attacker writes.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, content.as_bytes()).unwrap();
    }
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&tar.into_inner().unwrap()).unwrap();
    gz.finish().unwrap()
}

async fn received(bytes: Vec<u8>) -> Result<FunctionConfig, ApiError> {
    let dir = tempfile::tempdir().unwrap();
    let upload = receive(Body::from(bytes.clone()), dir.path()).await?;
    assert_eq!(upload.digest, blake3::hash(&bytes));
    assert_eq!(std::fs::read(upload.file.path()).unwrap(), bytes);
    Ok(upload.folder.config)
}

#[tokio::test]
async fn files_are_known_by_their_content_whatever_the_archive_and_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let folder = async |entries: &[(EntryType, &str, &str, &str)]| {
        let body = Body::from(archive(entries));
        receive(body, dir.path()).await.unwrap().folder
    };
    let (code, link) = (
        (EntryType::Regular, "lib/a.py", "", "1"),
        (EntryType::Symlink, "b", "lib/a.py", ""),
    );
    let one = folder(&[(EntryType::Regular, "fn.toml", "", CONFIG), code, link]).await;
    let told: Vec<_> = one
        .files
        .iter()
        .map(|f| (f.path.as_str(), f.kind, f.digest.as_str()))
        .collect();
    let digest = |content: &str| blake3::hash(content.as_bytes()).to_hex().to_string();
    assert_eq!(
        told,
        [
            ("b", SourceKind::Link, &*digest("lib/a.py")),
            ("lib/a.py", SourceKind::File, &*digest("1"))
        ]
    );
    let slower = format!("{CONFIG}timeout = \"9s\"\n");
    let same = [
        link,
        (EntryType::Regular, "./lib/a.py", "", "1"),
        (EntryType::Regular, "fn.toml", "", &slower),
    ];
    assert_eq!(folder(&same).await.code(), one.code());
    for other in [
        (EntryType::Regular, "lib/a.py", "", "2"),
        (EntryType::Regular, "lib/c.py", "", "1"),
    ] {
        let other = folder(&[(EntryType::Regular, "fn.toml", "", CONFIG), other, link]).await;
        assert_ne!(other.code(), one.code());
    }
}

#[tokio::test]
async fn names_and_attributes_larger_than_any_name_are_refused() {
    let long = "x".repeat(100 << 10);
    let fits = "x".repeat(200);
    for kind in [
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        let refused = received(archive(&[
            (EntryType::Regular, "fn.toml", "", CONFIG),
            (kind, "long", "", &long),
            (EntryType::Regular, "a", "", ""),
        ]));
        let refused = refused.await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidConfig);
        assert!(refused.message.contains("too long"), "{refused}");
    }
    let taken = received(archive(&[
        (EntryType::GNULongName, "long", "", &fits),
        (EntryType::Regular, "a", "", ""),
        (EntryType::Regular, "fn.toml", "", CONFIG),
    ]));
    assert!(taken.await.is_ok());
}

#[tokio::test]
async fn paths_that_no_worker_unpacks_or_too_many_of_them_are_refused() {
    let config = (EntryType::Regular, "fn.toml", "", CONFIG);
    let (long, deep) = (format!("{}/", "x".repeat(200)).repeat(30), "a/".repeat(70));
    for path in [&long, &deep] {
        let entries = [
            config,
            (EntryType::GNULongName, "long", "", path),
            (EntryType::Regular, "a", "", ""),
        ];
        let refused = received(archive(&entries)).await.unwrap_err();
        assert!(refused.message.contains("not a path inside"), "{refused}");
    }
    let path = format!("{}/", "x".repeat(200)).repeat(19);
    let mut entries = vec![config];
    for _ in 0..(NAMES_MAX / path.len() + 1) {
        entries.extend([
            (EntryType::GNULongName, "long", "", path.as_str()),
            (EntryType::Symlink, "a", "b", ""),
        ]);
    }
    let refused = received(archive(&entries)).await.unwrap_err();
    assert!(refused.message.contains("32 MiB"), "{refused}");
}

#[tokio::test]
async fn a_size_in_a_record_hides_nothing() {
    // Read with the record's size, the content of `b` would be the next entry.
    let entries = [
        (EntryType::XHeader, "pax", "", "10 size=0\n"),
        (EntryType::Regular, "b", "", "x"),
        (EntryType::Regular, "fn.toml", "", CONFIG),
    ];
    let refused = received(archive(&entries)).await.unwrap_err();
    assert!(refused.message.contains("pax size record"), "{refused}");
}

#[tokio::test]
async fn a_folder_is_taken_with_or_without_a_leading_dot() {
    for name in ["fn.toml", "./fn.toml"] {
        let bytes = archive(&[
            (EntryType::Directory, "lib/", "", ""),
            (EntryType::Regular, "lib/main.py", "", "x"),
            (EntryType::Symlink, "bin", "/usr/bin", ""),
            (EntryType::Regular, name, "", CONFIG),
        ]);
        assert_eq!(received(bytes).await.unwrap().name.as_str(), "hello");
    }
}

#[tokio::test]
async fn entries_that_lead_out_of_the_folder_are_refused() {
    let config = (EntryType::Regular, "fn.toml", "", CONFIG);
    for bad in [
        vec![(EntryType::Regular, "../evil", "", "x")],
        vec![(EntryType::Regular, "a/../../evil", "", "x")],
        vec![(EntryType::Regular, "/etc/passwd", "", "x")],
        vec![(EntryType::Link, "passwd", "/etc/passwd", "")],
        vec![
            (EntryType::Symlink, "out", "/etc", ""),
            (EntryType::Regular, "out/passwd", "", "x"),
        ],
        vec![(EntryType::Char, "null", "", "")],
        vec![(EntryType::Fifo, "pipe", "", "")],
    ] {
        let entries: Vec<_> = std::iter::once(config).chain(bad.iter().copied()).collect();
        let error = received(archive(&entries)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig, "{bad:?}: {error}");
        let names_fix = ["leave it out", "pack it with relative paths"]
            .iter()
            .any(|fix| error.message.contains(fix));
        assert!(names_fix, "{error}");
    }
}

#[tokio::test]
async fn a_bad_config_is_refused_with_its_line() {
    let text = format!("{CONFIG}memroy = \"1GiB\"\n");
    let error = received(archive(&[(EntryType::Regular, "fn.toml", "", &text)]))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidConfig);
    assert!(error.message.contains("line 4"), "{error}");
}

#[tokio::test]
async fn what_is_no_folder_is_refused_with_the_fix() {
    let error = received(archive(&[(EntryType::Regular, "main.py", "", "x")]))
        .await
        .unwrap_err();
    assert!(error.message.contains("fn init"), "{error}");
    let error = received(b"not an archive".to_vec()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::BadRequest);
    // Cut off in the middle.
    let random: String = (0..20_000_u32)
        .map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26))
        .collect();
    let mut bytes = archive(&[
        (EntryType::Regular, "fn.toml", "", CONFIG),
        (EntryType::Regular, "data", "", &random),
    ]);
    bytes.truncate(bytes.len() / 2);
    assert_eq!(received(bytes).await.unwrap_err().code, ErrorCode::BadRequest);
}
