//! Adds programs of the platform to a function's files: the server of Lambda's runtime interface, and the reaper. So
//! they are the same in all copies of a version, on every host, whatever the platform's version is by then.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rekindle_wire::function_config::{FunctionConfig, Interface};

use super::BuildError;
use super::build_dir::BuildDir;

/// The directory of these programs in a function's files.
pub(super) const DIRECTORY: &str = ".rekindle";

/// Writes them into a directory of their own, whose content belongs into [`DIRECTORY`]. Blocks for a moment.
pub(super) fn add(config: &FunctionConfig, build_dir: &BuildDir) -> Result<PathBuf, BuildError> {
    let beside = build_dir.path.join("beside");
    make(&beside)?;
    write_all(config, &beside)?;
    Ok(beside.join(DIRECTORY))
}

/// Writes them into the root of a container image. Nothing of the image runs any more. Blocks for a moment.
pub(super) fn add_to_image(config: &FunctionConfig, build_dir: &BuildDir) -> Result<(), BuildError> {
    write_all(config, &build_dir.root())
}

/// The tree is of a process without rights, which may have left links. Nothing is written through one: the directory
/// is no link, and a file that is there is replaced.
fn write_all(config: &FunctionConfig, root: &Path) -> Result<(), BuildError> {
    make(&root.join(DIRECTORY))?;
    if config.interface == Interface::Lambda {
        write(&root.join(rekindle_lambda::PATH), rekindle_lambda::PROGRAM)?;
    }
    write(&root.join(rekindle_reaper::PATH), rekindle_reaper::PROGRAM)
}

fn make(directory: &Path) -> Result<(), BuildError> {
    let made = fs::create_dir(directory).or_else(|e| match fs::symlink_metadata(directory) {
        Ok(there) if there.is_dir() => fs::set_permissions(directory, fs::Permissions::from_mode(0o755)),
        _ => Err(e),
    });
    made.map_err(|e| failed("create", directory, e))
}

fn write(path: &Path, program: &[u8]) -> Result<(), BuildError> {
    let write = || -> io::Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(program)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))
    };
    write().map_err(|e| failed("write", path, e))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> BuildError {
    BuildError::WorkDir {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_through_a_link_of_an_images_tree() {
        let tmp = tempfile::tempdir().unwrap();
        let (root, host) = (tmp.path().join("root"), tmp.path().join("host"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&host).unwrap();
        let program = rekindle_reaper::PATH;
        make(&root.join(DIRECTORY)).unwrap();
        std::os::unix::fs::symlink(host.join("file"), root.join(program)).unwrap();
        make(&root.join(DIRECTORY)).unwrap();
        write(&root.join(program), b"x").unwrap();
        assert!(fs::symlink_metadata(root.join(program)).unwrap().is_file());
        fs::remove_dir_all(root.join(DIRECTORY)).unwrap();
        std::os::unix::fs::symlink(&host, root.join(DIRECTORY)).unwrap();
        make(&root.join(DIRECTORY)).unwrap_err();
        assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
    }
}
