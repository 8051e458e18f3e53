//! Why snapshots cannot be used.

use rekindle_pager::SourceError;
use rekindle_snapshotter::{Digest, OpenError};
use rekindle_verify::VerifyError;
use rekindle_wire::SnapshotId;

use super::edit::EditError;
use super::notes::NotesError;
use super::template::TemplateError;

/// Why a snapshot cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read from the store.
    #[error("open snapshot {0}")]
    Open(SnapshotId, #[source] OpenError),
    /// It belongs to no function.
    #[error("snapshot {0} was imported: no function can be restored from it")]
    Imported(SnapshotId),
    /// Its images cannot be read, or the worker's own files beside them cannot be written.
    #[error("read the images of snapshot {0}")]
    Images(SnapshotId, #[source] OpenError),
    /// Its images cannot be read.
    #[error("measure the images of snapshot {0}")]
    Measure(SnapshotId, #[source] std::io::Error),
    /// It lacks the notes that this worker wrote at the checkpoint, or they are malformed.
    #[error("read the notes of snapshot {0}")]
    Notes(SnapshotId, #[source] NotesError),
    /// Its images contain something that those of a function do not.
    #[error("the images of snapshot {0} are not a function's")]
    Refused(SnapshotId, #[source] VerifyError),
    /// It belongs to another function.
    #[error("snapshot {snapshot} is of user {of}, and not of user {wanted}")]
    User {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The user that it belongs to.
        of: u32,
        /// The user that it should belong to.
        wanted: u32,
    },
    /// Its manifest is not the one that the scheduler knows.
    #[error(
        "the manifest of snapshot {snapshot} has the digest {found}, and the order says {ordered}: somebody has \
         exchanged it in the store; deploy its function again"
    )]
    Exchanged {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The digest in the store.
        found: Digest,
        /// The digest in the scheduler's order.
        ordered: String,
    },
    /// Its images cannot be edited.
    #[error("edit the images of snapshot {0}")]
    Edit(SnapshotId, #[source] EditError),
    /// The pages that the kernel touches first are not available.
    #[error("bring the first pages of snapshot {0}")]
    FirstPages(SnapshotId, #[source] SourceError),
    /// There is no memory for its template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}
