//! Reads and writes the kernel's control files. Every error names the file.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A control file that could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", .path.display())]
pub struct FileError {
    /// The attempted action.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl FileError {
    pub(super) fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self { action, path, source }
    }

    /// Returns whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Writes `value` in one call, as the kernel requires.
pub(super) fn write(path: &Path, value: &str) -> Result<(), FileError> {
    // In a fixture nobody creates the files of a new directory. On cgroupfs `create` changes nothing for a file that
    // exists.
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .create(cfg!(test))
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|e| FileError::new("write", path, e))
}

/// Writes `value` if the kernel has this file.
pub(super) fn write_if_present(path: &Path, value: &str) -> Result<(), FileError> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

pub(super) fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|e| FileError::new("read", path, e))
}

pub(super) fn read_number(path: &Path) -> Result<u64, FileError> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| not_understood(path, &text))
}

/// Returns the number after `key` in a file of `key value` lines.
pub(super) fn read_key(path: &Path, key: &str) -> Result<u64, FileError> {
    let text = read(path)?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
        .ok_or_else(|| not_understood(path, &text))
}

fn not_understood(path: &Path, text: &str) -> FileError {
    let shown: String = text.chars().take(80).collect();
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("unexpected content {shown:?}"));
    FileError::new("read", path, source)
}

/// Returns the process ids in a `cgroup.procs` file; none if the directory is gone. A 0 stands for a process of a
/// foreign pid namespace and is left out: a kill of 0 would reach the worker itself.
pub(super) fn read_pids(path: &Path) -> Result<Vec<i32>, FileError> {
    match read(path) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|l| l.trim().parse().ok())
            .filter(|pid| *pid > 0)
            .collect()),
        Err(e) if e.is_missing() || e.source.raw_os_error() == Some(libc::ENODEV) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Creates a directory and its missing parents, unless it exists. Everybody may enter it.
pub(super) fn make_all(path: &Path) -> Result<(), FileError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        make_all(parent)?;
    }
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(FileError::new("make", path, e)),
        _ => allow_entry(path),
    }
}

/// Creates one directory, which must not exist yet. Everybody may enter it.
pub(super) fn make_new(path: &Path) -> Result<(), FileError> {
    fs::create_dir(path).map_err(|e| FileError::new("make", path, e))?;
    allow_entry(path)
}

/// Lets everybody enter a directory, whatever the worker's umask. CRIU looks for a freezer in it as the function's
/// user. Kernels before 6.16 look every group up with the rights of whoever mounts them, which is nobody in a sandbox.
fn allow_entry(path: &Path) -> Result<(), FileError> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|e| FileError::new("open", path, e))
}

/// Returns the names of the directories in `path`, sorted; none if it is gone.
pub(super) fn child_directories(path: &Path) -> Result<Vec<String>, FileError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(FileError::new("list", path, e)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}
