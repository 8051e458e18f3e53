//! Prints the restore program of a snapshot.

use std::io;
use std::path::Path;

use rekindle_init::protocol::FUNCTION_UID;
use rekindle_restore_compiler::print::Printed;
use rekindle_snapshotter::{OpenError, Snapshot, Store};
use rekindle_wire::SnapshotId;

use super::edited_snapshot::EditedSnapshot;
use super::error::SnapshotError;
use super::image_set::ImagesInMemory;
use super::images_dir::{ImagesDir, write_extras};
use super::originals;
use super::program::{ProgramUnavailable, compile_images};

/// Why a snapshot's program cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// The snapshot cannot be read.
    #[error("open snapshot {0}")]
    Open(SnapshotId, #[source] OpenError),
    /// The archive of its private files cannot be read.
    #[error("read the files of snapshot {0}")]
    Archive(SnapshotId, #[source] io::Error),
    /// Its images or notes are not a function's, or cannot be read or edited.
    #[error(transparent)]
    Images(#[from] SnapshotError),
    /// It has no program.
    #[error("snapshot {0} is restored by CRIU")]
    NoProgram(SnapshotId, #[source] ProgramUnavailable),
}

/// Compiles a snapshot as this host would, and returns the program as text. Its notes and the archive of its private
/// files are in the directory `scratch` meanwhile.
///
/// # Errors
/// Returns an error when the snapshot cannot be read, or has no program.
pub async fn show(store: &Store, id: &SnapshotId, scratch: &Path) -> Result<String, ShowError> {
    let opening = |e| ShowError::Open(id.clone(), e);
    let snapshot = Snapshot::open(store, id).await.map_err(opening)?;
    let dir = ImagesDir::claim(scratch.join(id.as_str()));
    write_extras(&snapshot, &dir).await.map_err(opening)?;
    let images = ImagesInMemory::new(snapshot.images().await.map_err(opening)?);
    let written = originals::written(&dir);
    let writes_root = !written.map_err(|e| ShowError::Archive(id.clone(), e))?.is_empty();
    let edited = EditedSnapshot::of(&snapshot, images, &dir, (FUNCTION_UID, writes_root))?;
    let compiled = compile_images(edited.to_compile(&dir));
    let (compiled, _) = compiled.map_err(|e| ShowError::NoProgram(id.clone(), e))?;
    let printed = Printed::parse(&compiled.program);
    Ok(printed.map_or_else(|_| String::new(), |printed| printed.to_string()))
}
