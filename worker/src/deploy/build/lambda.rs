//! Adds the server of Lambda's runtime interface to a function's files. So it is the same in all copies of a version,
//! on every host, whatever the platform's version is by then.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rekindle_lambda::{PATH, PROGRAM};
use rekindle_wire::manifest::{Interface, Manifest};

use super::BuildError;
use super::room::Room;

/// The directory of the server in a function's files.
pub(super) fn directory() -> &'static Path {
    Path::new(PATH).parent().unwrap_or(Path::new(""))
}

/// Writes the server into a directory of its own, if the function has that interface. Its content belongs into
/// [`directory`]. Blocks for a moment.
pub(super) fn add_beside(manifest: &Manifest, room: &Room) -> Result<Option<PathBuf>, BuildError> {
    let beside = room.path.join("lambda");
    let added = add(manifest, &beside.join(Path::new(PATH).file_name().unwrap_or_default()))?;
    Ok(added.then_some(beside))
}

/// Writes the server into the root of a container image, if the function has that interface. Nothing of the image runs
/// any more. Blocks for a moment.
pub(super) fn add_to_image(manifest: &Manifest, room: &Room) -> Result<bool, BuildError> {
    add(manifest, &room.root().join(PATH))
}

fn add(manifest: &Manifest, path: &Path) -> Result<bool, BuildError> {
    if manifest.interface != Interface::Lambda {
        return Ok(false);
    }
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, PROGRAM)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    };
    let written = write().map(|()| true);
    written.map_err(|source| BuildError::WorkDir {
        action: "write",
        path: path.to_owned(),
        source,
    })
}
