//! Where things lie in the store. Every key of the format is made here and nowhere else.

use rekindle_wire::SnapshotId;

use crate::digest::Digest;

/// Everything about snapshots, one folder each.
pub const SNAPSHOTS: &str = "snapshots/";

/// Everything of one snapshot but its chunks.
pub fn snapshot_prefix(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/")
}

/// The manifest, whose presence makes the snapshot exist.
pub fn manifest(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/manifest.json")
}

/// Page maps, images and eager pages in one object.
pub fn bundle(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/bundle")
}

/// A file the worker added, such as the content of `/tmp`.
pub fn extra(id: &SnapshotId, name: &str) -> String {
    format!("{SNAPSHOTS}{id}/extra/{name}")
}

/// The pages of the first response, in access order.
pub fn working_set(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/working-set")
}

/// An object of region payloads, named by the digest of its bytes.
pub fn chunk(id: &Digest) -> String {
    format!("chunks/{id}")
}

/// A layer, named by the digest of its uncompressed tar.
pub fn layer(digest: &Digest) -> String {
    format!("layers/{digest}.tar.zst")
}
