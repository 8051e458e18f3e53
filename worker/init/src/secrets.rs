//! The files of a function's secrets, in a memory file system of their own that only root writes to.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use crate::mounts::{NO_EXEC, RootfsError, tmpfs};

/// Where a function finds them.
pub const DIRECTORY: &str = "/run/secrets";
/// Another file after each change of the others: whoever has read them looks at this one alone.
const CHANGED: &str = ".changed";
/// A file that is being written.
const NEW: &str = ".new";
/// Limits of the file system. A function has at most 32 secrets of 64 KiB.
const LIMITS: &str = "mode=755,size=4m,nr_inodes=128";

/// A secret's name, and the size of its value in bytes.
pub type SecretFile = (String, u64);

/// Mounts the empty file system below `run`, which others than root may then pass through.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn mount(run: &Path) -> Result<(), RootfsError> {
    let at = run.join("secrets");
    let made = fs::create_dir(&at).and_then(|()| fs::set_permissions(run, fs::Permissions::from_mode(0o711)));
    made.map_err(|e| RootfsError::Make(at.clone(), e))?;
    tmpfs("secrets", &at, NO_EXEC, LIMITS)
}

/// Puts these files in the place of all others in `directory`, each at once. Their owner reads them. `values` has their
/// contents one after the other.
///
/// # Errors
/// If a file cannot be written. Those before it are in place.
pub fn write(directory: &Path, secrets: &[SecretFile], values: &File, owner: u32) -> io::Result<()> {
    let mut at = 0;
    let mut names = BTreeSet::new();
    for (name, size) in secrets {
        let mut value = vec![0; usize::try_from(*size).unwrap_or(usize::MAX)];
        values.read_exact_at(&mut value, at)?;
        at += size;
        place(directory, name, &value, 0o400, Some(owner))?;
        names.insert(name.as_str());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_wanted = |name: &str| names.contains(name) || name == CHANGED;
        if !entry.file_name().to_str().is_some_and(is_wanted) {
            fs::remove_file(entry.path())?;
        }
    }
    place(directory, CHANGED, b"", 0o444, None)
}

fn place(directory: &Path, name: &str, value: &[u8], mode: u32, owner: Option<u32>) -> io::Result<()> {
    let (new, to) = (directory.join(NEW), directory.join(name));
    // What a write that failed has left.
    drop(fs::remove_file(&new));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(value)?;
    fchown(&file, owner, owner)?;
    // The umask may have taken rights.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    fs::rename(new, to)
}

/// The variables that these files are: those whose contents are text without a NUL character.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn variables(directory: &Path) -> io::Result<Vec<String>> {
    let mut variables = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(NEW);
        if name.starts_with('.') {
            continue;
        }
        match String::from_utf8(fs::read(&path)?) {
            Ok(text) if !text.contains('\0') => variables.push(format!("{name}={text}")),
            _ => {}
        }
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn written(directory: &Path, secrets: &[(&str, &[u8])]) {
        let mut values = tempfile::tempfile().unwrap();
        let mut files = Vec::new();
        for (name, value) in secrets {
            values.write_all(value).unwrap();
            files.push(((*name).to_owned(), value.len() as u64));
        }
        write(directory, &files, &values, nix::unistd::getuid().as_raw()).unwrap();
    }

    #[test]
    fn files_are_the_secrets_and_no_others_and_a_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        let changed = || fs::metadata(dir.path().join(CHANGED)).unwrap().ino();
        written(dir.path(), &[("A", b"one"), ("KEY", &[0, 255])]);
        let first = changed();
        assert_eq!(fs::metadata(dir.path().join("A")).unwrap().mode() & 0o777, 0o400);
        assert_eq!(fs::read(dir.path().join("KEY")).unwrap(), [0, 255]);
        assert_eq!(variables(dir.path()).unwrap(), ["A=one"]);
        let held = File::open(dir.path().join("A")).unwrap();
        written(dir.path(), &[("A", b"two")]);
        assert_ne!(changed(), first);
        assert_eq!(fs::read(dir.path().join("A")).unwrap(), b"two");
        let mut before = [0; 3];
        held.read_exact_at(&mut before, 0).unwrap();
        assert_eq!(&before, b"one", "who reads the file reads one value to its end");
        assert!(!dir.path().join("KEY").exists());
    }
}
