//! Turns a CRIU image directory into a snapshot.

use std::fs;
use std::path::{Path, PathBuf};

use rekindle_store::Store;
use rekindle_wire::SnapshotId;

use super::directory::Directory;
use super::error::{InterchangeError, io_at};
use super::flatten::flatten;
use super::replace::resume;
use crate::capture::{CaptureMeta, CaptureOptions, PublishError, Published, publish};
use crate::manifest::{Origin, is_file_name};
use crate::region_index::RegionIndex;

/// Why a directory could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The directory cannot be used.
    #[error("could not import {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: InterchangeError,
    },
    /// The snapshot could not be published.
    #[error("could not import {}", path.display())]
    Publish {
        /// The directory.
        path: PathBuf,
        /// The error of the publication.
        #[source]
        cause: Box<PublishError>,
    },
    /// The name is not valid.
    #[error("\"{0}\" is not a usable name: use 1 to 128 letters, digits, '.', '_' and '-'")]
    Name(String),
    /// The process is shutting down.
    #[error("the import was cut off by a shutdown")]
    Shutdown,
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(path = %self.0.display(), error, "scratch directory stays");
        }
    }
}

/// Publishes the images in `dir` under `name`. A compressed directory, or one with parents, is first converted to a
/// plain one in a separate directory in `scratch`, which needs room for all of its memory.
pub async fn import(
    store: &Store,
    index: &RegionIndex,
    dir: &Path,
    name: &str,
    scratch: &Path,
) -> Result<Published, ImportError> {
    if !is_file_name(name) {
        return Err(ImportError::Name(name.to_owned()));
    }
    let id = SnapshotId::generate();
    let refused = |cause| ImportError::Directory {
        path: dir.to_owned(),
        cause,
    };
    let (from, room) = (dir.to_owned(), scratch.join(format!("import-{id}")));
    let flattened = tokio::task::spawn_blocking(move || plain(&from, room))
        .await
        .map_err(|_| ImportError::Shutdown)?
        .map_err(refused)?;
    let meta = CaptureMeta {
        id,
        origin: Origin::Import { name: name.to_owned() },
        // The images do not record it.
        criu: String::new(),
        frozen_ms: 0.0,
        base: None,
        seal: None,
        extra: Vec::new(),
        options: CaptureOptions {
            // A private copy is consumed as it is read. The user's directory is left alone.
            consume: flattened.is_some(),
            ..CaptureOptions::default()
        },
    };
    let images = flattened.as_ref().map_or(dir, |s| s.0.as_path());
    let published = Box::pin(publish(store, index, images, meta)).await;
    published.map_err(|cause| ImportError::Publish {
        path: dir.to_owned(),
        cause: Box::new(cause),
    })
}

/// A plain copy in `room`, unless the directory is plain itself.
fn plain(dir: &Path, room: PathBuf) -> Result<Option<Scratch>, InterchangeError> {
    resume(dir)?;
    if Directory::read(dir)?.is_plain()? {
        return Ok(None);
    }
    fs::create_dir_all(&room).map_err(io_at("create", &room))?;
    let scratch = Scratch(room);
    flatten(dir, &scratch.0)?;
    Ok(Some(scratch))
}
