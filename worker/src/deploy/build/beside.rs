//! Adds programs of the platform to a function's files: the server of Lambda's runtime interface, and the reaper. So
//! they are the same in all copies of a version, on every host, whatever the platform's version is by then.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rekindle_wire::manifest::{Interface, Manifest};

use super::BuildError;
use super::room::Room;

/// The directory of these programs in a function's files.
pub(super) const DIRECTORY: &str = ".rekindle";

/// Writes them into a directory of their own, whose content belongs into [`DIRECTORY`]. Blocks for a moment.
pub(super) fn add(manifest: &Manifest, room: &Room) -> Result<PathBuf, BuildError> {
    let beside = room.path.join("beside");
    write_all(manifest, &beside)?;
    Ok(beside.join(DIRECTORY))
}

/// Writes them into the root of a container image. Nothing of the image runs any more. Blocks for a moment.
pub(super) fn add_to_image(manifest: &Manifest, room: &Room) -> Result<(), BuildError> {
    write_all(manifest, &room.root())
}

fn write_all(manifest: &Manifest, root: &Path) -> Result<(), BuildError> {
    if manifest.interface == Interface::Lambda {
        write(&root.join(rekindle_lambda::PATH), rekindle_lambda::PROGRAM)?;
    }
    write(&root.join(rekindle_reaper::PATH), rekindle_reaper::PROGRAM)
}

fn write(path: &Path, program: &[u8]) -> Result<(), BuildError> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, program)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    };
    write().map_err(|source| BuildError::WorkDir {
        action: "write",
        path: path.to_owned(),
        source,
    })
}
