//! Layers over a real S3 protocol, and archives that try to escape.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::collect::Owner;
use crate::testing::TestStore;

/// A tar entry: path, kind, link target, content.
type Raw<'a> = (&'a str, tar::EntryType, &'a str, &'a [u8]);

/// Writes names unchanged, even those that `tar::Builder` would reject.
fn tar_of(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, link, content) in entries {
        let mut header = tar::Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(if kind.is_dir() { 0o750 } else { 0o4751 });
        header.set_uid(1234);
        header.set_gid(1234);
        header.set_mtime(1_000_000_007);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

async fn publish(server: &TestStore, tar: &[u8]) -> LayerRef {
    let path = server.scratch("tars").join("layer.tar");
    fs::write(&path, tar).unwrap();
    let publication = Publication::new(server.store.clone(), Owner::other());
    let layer = publish_layer(&server.store, &publication, &path, path.parent().unwrap())
        .await
        .unwrap();
    publication.finish().await;
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left beside the tar: {left:?}");
    layer
}

/// Unpacks in this process.
fn here() -> Arc<Unpack> {
    Arc::new(|packed, dir, name| rekindle_confined::layer::unpack(packed, dir, name))
}

const FILE: tar::EntryType = tar::EntryType::Regular;
const DIR: tar::EntryType = tar::EntryType::Directory;
const SYMLINK: tar::EntryType = tar::EntryType::Symlink;
const LINK: tar::EntryType = tar::EntryType::Link;

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_arrives_with_modes_times_and_links_however_many_fetch_it_at_once() {
    let server = TestStore::start().await;
    let tar = tar_of(&[
        ("./", DIR, "", b""),
        ("bin/", DIR, "", b""),
        ("bin/tool", FILE, "", b"#!/bin/sh\n"),
        ("bin/same", LINK, "bin/tool", b""),
        ("bin/link", SYMLINK, "/bin/tool", b""),
    ]);
    let layer = publish(&server, &tar).await;
    assert_eq!(layer.digest, Digest::of(&tar).to_string());
    assert_eq!(publish(&server, &tar).await, layer);

    let layers = server.scratch("layers");
    let dest = layers.join(&layer.digest);
    let here = here();
    let all = (0..20).map(|_| fetch_layer(&server.store, &layer, &dest, &here));
    for fetched in futures::future::join_all(all).await {
        fetched.unwrap();
    }
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 1, "nothing unfinished is left");
    let tool = fs::symlink_metadata(dest.join("bin/tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.mtime()), (0o4751, 1_000_000_007));
    let same = fs::symlink_metadata(dest.join("bin/same")).unwrap();
    assert_eq!((same.ino(), same.nlink()), (tool.ino(), 2));
    assert_eq!(fs::read_link(dest.join("bin/link")).unwrap(), Path::new("/bin/tool"));
    for dir in [".", "bin"] {
        let dir = fs::symlink_metadata(dest.join(dir)).unwrap();
        assert_eq!((dir.mode() & 0o7777, dir.mtime()), (0o750, 1_000_000_007));
    }
    if nix::unistd::geteuid().is_root() {
        assert_eq!((tool.uid(), tool.gid()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_that_lead_out_of_the_layer_or_hold_devices_are_refused_and_leave_nothing() {
    let server = TestStore::start().await;
    let outside = server.scratch("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    let out = outside.to_str().unwrap();
    let absolute = format!("{out}/new");
    let secret = format!("{out}/secret");
    let archives: &[&[Raw<'_>]] = &[
        &[("../new", FILE, "", b"x")],
        &[("a/../../new", FILE, "", b"x")],
        &[(&absolute, FILE, "", b"x")],
        &[("out", SYMLINK, out, b""), ("out/new", FILE, "", b"x")],
        &[("out", SYMLINK, "../../outside", b""), ("out/new/", DIR, "", b"")],
        &[("file", SYMLINK, &secret, b""), ("file", FILE, "", b"overwritten")],
        &[("hard", LINK, &secret, b"")],
        &[("hard", LINK, "../../outside/secret", b"")],
        &[("out", SYMLINK, out, b""), ("hard", LINK, "out/secret", b"")],
        &[("null", tar::EntryType::Char, "", b"")],
        &[("pipe", tar::EntryType::Fifo, "", b"")],
    ];
    let layers = server.scratch("layers");
    for entries in archives {
        let layer = publish(&server, &tar_of(entries)).await;
        let dest = layers.join(&layer.digest);
        let refused = fetch_layer(&server.store, &layer, &dest, &here()).await;
        assert!(
            matches!(refused, Err(FetchLayerError::Unpack { .. })),
            "{entries:?}: {refused:?}"
        );
        assert_eq!(fs::read_dir(&layers).unwrap().count(), 0, "{entries:?}");
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
        assert_eq!(fs::metadata(outside.join("secret")).unwrap().nlink(), 1);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{entries:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_shorter_or_longer_archive_is_refused_and_names_the_layer() {
    let server = TestStore::start().await;
    let tar = tar_of(&[("data", FILE, "", &vec![7; 300_000])]);
    let layer = publish(&server, &tar).await;
    let digest: Digest = layer.digest.parse().unwrap();
    let dest = server.scratch("layers").join("x");
    let key = keys::layer(&digest);
    let good = server.store.get(&key).await.unwrap();
    let mut longer = tar.clone();
    longer.extend_from_slice(&[0; 1024]);
    let mut flipped = tar.clone();
    flipped[1000] ^= 1;
    let packed = |tar: &[u8]| zstd::encode_all(tar, 3).unwrap();
    let mut bad = vec![
        packed(&longer),
        packed(&flipped),
        packed(&tar[..tar.len() - 512]),
        b"no zstd".to_vec(),
    ];
    bad.push(good[..good.len() / 2].to_vec());
    for bytes in bad {
        server.store.put(&key, bytes.into()).await.unwrap();
        let error = fetch_layer(&server.store, &layer, &dest, &here()).await.unwrap_err();
        assert!(error.to_string().contains(&layer.digest), "{error}");
        assert!(!dest.exists());
    }
    server.store.put(&key, good).await.unwrap();
    fetch_layer(&server.store, &layer, &dest, &here()).await.unwrap();
    assert_eq!(fs::read(dest.join("data")).unwrap(), vec![7; 300_000]);
}
