//! Where things lie in the store. Every key of the format is made here and nowhere else.

use rekindle_wire::manifest::Runtime;
use rekindle_wire::{FunctionName, SnapshotId};

use crate::digest::Digest;

/// Everything about snapshots, one folder each.
pub const SNAPSHOTS: &str = "snapshots/";

/// All chunks.
pub const CHUNKS: &str = "chunks/";

/// All layers.
pub const LAYERS: &str = "layers/";

/// What the runtimes' root filesystems are, one object each.
pub const RUNTIMES: &str = "runtimes/";

/// Which snapshots functions begin as, one object for each runtime or each function.
pub const RUNTIME_SNAPSHOTS: &str = "runtime-snapshots/";

/// What publishers rely on, one folder each.
pub const PUBLISHING: &str = "publishing/";

/// What collections may be deleting, one object each.
pub const CONDEMNED: &str = "collecting/";

/// The manifest's name in its snapshot's folder.
pub const MANIFEST: &str = "manifest.json";

/// The bundle's name there.
pub const BUNDLE: &str = "bundle";

/// Everything of one snapshot but its chunks.
pub fn snapshot_prefix(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/")
}

/// The manifest, whose presence makes the snapshot exist.
pub fn manifest(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/{MANIFEST}")
}

/// Page maps, images and eager pages in one object.
pub fn bundle(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/{BUNDLE}")
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

/// The snapshot that versions of a runtime begin as: those of all functions, or of one.
pub fn runtime_snapshot(runtime: Runtime, function: Option<&FunctionName>) -> String {
    let runtime = runtime.as_str();
    match function {
        None => format!("{RUNTIME_SNAPSHOTS}{runtime}.json"),
        Some(function) => format!("{RUNTIME_SNAPSHOTS}{runtime}/{function}.json"),
    }
}

/// The snapshot that an object below [`SNAPSHOTS`] belongs to, and the rest of its key.
pub fn in_snapshot(key: &str) -> Option<(SnapshotId, &str)> {
    let (id, rest) = key.strip_prefix(SNAPSHOTS)?.split_once('/')?;
    Some((id.parse().ok()?, rest))
}

/// Everything a publisher relies on.
pub fn publishing(owner: &str) -> String {
    format!("{PUBLISHING}{owner}/")
}

/// One of the lists of what a publisher relies on.
pub fn note(owner: &str, publication: &str, number: u32) -> String {
    format!("{PUBLISHING}{owner}/{publication}.{number}")
}

/// The publisher that an object below [`PUBLISHING`] belongs to.
pub fn in_publishing(key: &str) -> Option<&str> {
    let (owner, _) = key.strip_prefix(PUBLISHING)?.split_once('/')?;
    Some(owner)
}

/// What one collection may be deleting.
pub fn condemned(run: &str) -> String {
    format!("{CONDEMNED}{run}")
}
