//! Files of keys and certificates. They are written atomically, and only root may read them.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot be {doing}")]
pub struct FileError {
    path: PathBuf,
    doing: &'static str,
    #[source]
    source: io::Error,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { path, doing, source }
}

/// Creates a directory that only root may access, unless it exists.
pub(crate) fn make_directory(path: &Path) -> Result<(), FileError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(failed(path, "made"))
}

/// Replaces a file, readable by root only.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), FileError> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        // The umask narrows the mode at creation, but an inherited ACL must not widen it.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    written.map_err(failed(path, "written"))
}

/// Reads a file. `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path, "read")(e)),
    }
}

/// Removes a file. Returns whether it existed.
pub(crate) fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed(path, "removed")(e)),
    }
}
