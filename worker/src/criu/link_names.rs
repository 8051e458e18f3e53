//! Names that CRIU gives to open files that have lost the one they were opened by and have another. It leaves some, and
//! all where the processes stay stopped. They are in the way of the next checkpoint, so they are taken away when the
//! processes go on.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use rekindle_criu::images::file_names;
use rekindle_verify::{Purpose, Verified};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};

/// Returns the names in verified images.
pub(super) fn of(verified: &Verified) -> Vec<PathBuf> {
    let names = verified.opened_paths().filter(|path| path.purpose == Purpose::Link);
    names.map(|path| OsStr::from_bytes(&path.path).into()).collect()
}

/// Returns the names in images that were not verified. [`remove`] leads nowhere else.
pub(super) fn unverified(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read(dir.join("files.img")).unwrap_or_default();
    let names = file_names(&files).unwrap_or_default().into_values().map(PathBuf::from);
    let is_given = |path: &PathBuf| {
        let name = path.file_name().map(OsStr::as_bytes);
        name.is_some_and(|name| name.starts_with(b"link_remap."))
    };
    names.filter(is_given).collect()
}

/// Takes these names away in the sandbox with this init.
pub(crate) fn remove(init: Pid, names: &[PathBuf]) {
    for name in names {
        match remove_one(init, name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let name = name.display();
                tracing::warn!(%name, %error, "a name that criu gave to a file of a function is left");
            }
            _ => {}
        }
    }
}

/// Follows no link: the directories are the function's.
fn remove_one(init: Pid, name: &Path) -> io::Result<()> {
    let plain = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (Some(directory), Some(file)) = (name.parent(), name.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let root = openat(CWD, format!("/proc/{init}/root"), look, Mode::empty())?;
    let directory = openat2(&root, directory, look, Mode::empty(), plain)?;
    Ok(unlinkat(&directory, file, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_and_no_link_on_the_way_to_it_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::os::unix::fs::symlink(&inside, directory.path().join("link")).unwrap();
        let file = inside.join("link_remap.1");
        std::fs::write(&file, "").unwrap();
        let own = Pid::this();
        assert!(remove_one(own, &directory.path().join("link/link_remap.1")).is_err());
        assert!(file.exists());
        remove_one(own, &file).unwrap();
        assert!(!file.exists());
    }
}
