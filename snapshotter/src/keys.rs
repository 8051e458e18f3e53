//! Keys of the objects in the store. Every key of the format is built here and nowhere else.

use rekindle_wire::function_config::Base;
use rekindle_wire::internal::Sharers;
use rekindle_wire::{DEFAULT_NAMESPACE, SnapshotId};

use crate::digest::Digest;

/// All snapshots, one folder each.
pub const SNAPSHOTS: &str = "snapshots/";

/// All chunks.
pub const CHUNKS: &str = "chunks/";

/// All layers.
pub const LAYERS: &str = "layers/";

/// The runtimes' root filesystems, one object each.
pub const RUNTIMES: &str = "runtimes/";

/// The snapshots that functions start from, one object per runtime or function.
pub const RUNTIME_SNAPSHOTS: &str = "runtime-snapshots/";

/// What publishers rely on, one folder per publisher.
pub const PUBLISHING: &str = "publishing/";

/// What collections may be deleting, one object per collection.
pub const CONDEMNED: &str = "collecting/";

/// The manifest's name in its snapshot's folder.
pub const MANIFEST: &str = "manifest.json";

/// The bundle's name in that folder.
pub const BUNDLE: &str = "bundle";

/// Everything of one snapshot except its chunks.
pub fn snapshot_prefix(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/")
}

/// The manifest. A snapshot exists if and only if its manifest does.
pub fn manifest(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/{MANIFEST}")
}

/// Page maps, images and eager pages in one object.
pub fn bundle(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/{BUNDLE}")
}

/// A file added by the worker, such as the contents of `/tmp`.
pub fn extra(id: &SnapshotId, name: &str) -> String {
    format!("{SNAPSHOTS}{id}/extra/{name}")
}

/// The pages of the first response, in access order.
pub fn working_set(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/working-set")
}

/// Which pieces of its image's layer the first response read.
pub fn files(id: &SnapshotId) -> String {
    format!("{SNAPSHOTS}{id}/files")
}

/// An object of region payloads, named by the digest of its bytes.
pub fn chunk(id: &Digest) -> String {
    format!("chunks/{id}")
}

/// A layer, named by the digest of its uncompressed tar.
pub fn layer(digest: &Digest) -> String {
    format!("layers/{digest}.tar.zst")
}

/// The snapshot that versions of a runtime start from: those of one function, or of all functions of a namespace.
pub fn runtime_snapshot(runtime: Base, sharers: Sharers<'_>) -> String {
    let runtime = runtime.as_str();
    match sharers {
        Sharers::Function(id) => format!("{RUNTIME_SNAPSHOTS}{runtime}/{id}.json"),
        Sharers::Namespace(DEFAULT_NAMESPACE) => format!("{RUNTIME_SNAPSHOTS}{runtime}.json"),
        // No function's id begins with a dot.
        Sharers::Namespace(namespace) => format!("{RUNTIME_SNAPSHOTS}{runtime}/.{namespace}.json"),
    }
}

/// The snapshot that an object under [`SNAPSHOTS`] belongs to, and the rest of its key.
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

/// The publisher that an object under [`PUBLISHING`] belongs to.
pub fn in_publishing(key: &str) -> Option<&str> {
    let (owner, _) = key.strip_prefix(PUBLISHING)?.split_once('/')?;
    Some(owner)
}

/// What one collection may be deleting.
pub fn condemned(run: &str) -> String {
    format!("{CONDEMNED}{run}")
}
