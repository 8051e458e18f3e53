//! Mounts and files of a root filesystem.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// Why the files could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A mount failed.
    #[error("mount {what} at {}", .at.display())]
    Mount {
        /// What is mounted.
        what: &'static str,
        /// The mount point.
        at: PathBuf,
        /// The cause.
        #[source]
        source: nix::Error,
    },
    /// Another call failed.
    #[error("{0}")]
    Call(&'static str, #[source] nix::Error),
    /// A file or directory could not be created.
    #[error("make {}", .0.display())]
    Make(PathBuf, #[source] std::io::Error),
    /// A file cannot be read.
    #[error("read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
}

/// No programs with rights of their owner, and no devices.
pub(crate) const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
/// And no programs.
pub(crate) const NO_EXEC: MsFlags = QUIET.union(MsFlags::MS_NOEXEC);

pub(crate) fn mounted(
    what: &'static str,
    source: Option<&Path>,
    at: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<(), RootfsError> {
    mount(source, at, kind, flags, options).map_err(|e| RootfsError::Mount {
        what,
        at: at.to_owned(),
        source: e,
    })
}

pub(crate) fn bind(what: &'static str, source: &Path, at: &Path) -> Result<(), RootfsError> {
    mounted(what, Some(source), at, None, MsFlags::MS_BIND, None)
}

pub(crate) fn bind_read_only(what: &'static str, source: &Path, at: &Path, extra: MsFlags) -> Result<(), RootfsError> {
    bind(what, source, at)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | extra;
    mounted(what, None, at, None, flags, None)
}

pub(crate) fn tmpfs(what: &'static str, at: &Path, extra: MsFlags, options: &str) -> Result<(), RootfsError> {
    let source = Some(Path::new("tmpfs"));
    mounted(what, source, at, Some("tmpfs"), extra, Some(options))
}

/// Writes a file that is readable by everyone, whatever the umask.
pub(crate) fn write(file: &Path, content: &str) -> Result<(), RootfsError> {
    fs::write(file, content)
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o444)))
        .map_err(|e| RootfsError::Make(file.to_owned(), e))
}
