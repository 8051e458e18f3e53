//! Checks that a symbolic link stays inside its tree.

use std::fs::File;
use std::io;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// How often a path is resolved.
const TRIES: u32 = 1_000;

/// Why a link is rejected.
#[derive(Debug)]
pub enum LinkError {
    /// It leads outside, or in a circle.
    Outside,
    /// The kernel could not resolve it.
    Kernel(io::Error),
}

/// Whether `target`, read at `path`, stays inside if every name is a directory. Not sufficient alone, since a name on
/// the way may be a link. But it works for targets that do not exist yet.
pub fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    if target.as_os_str().is_empty() {
        return false;
    }
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

/// Opens again while the kernel answers `again` (EAGAIN). It does not say whether `..` stays inside if anything was
/// renamed or mounted on the host meanwhile.
///
/// # Errors
/// The kernel's, in the end also `again`.
pub fn resolved<T, E: PartialEq>(again: E, mut open: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..TRIES {
        match open() {
            Err(e) if e == again => std::thread::yield_now(),
            other => return other,
        }
    }
    open()
}

/// Lets the kernel follow the link `path` below `root`. A missing target is not an error.
pub fn check(root: &Path, path: &Path) -> Result<(), LinkError> {
    let root = File::open(root).map_err(LinkError::Kernel)?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match resolved(Errno::EAGAIN, || openat2(&root, path, how)) {
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
        Err(Errno::EXDEV | Errno::ELOOP) => Err(LinkError::Outside),
        Err(e) => Err(LinkError::Kernel(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_targets_inside_are_taken() {
        let inside = |path: &str, target: &str| stays_inside(Path::new(path), Path::new(target));
        assert!(inside("a", "b"));
        assert!(inside("d/a", "../b"));
        assert!(inside("d/a", "./x/../../b"));
        assert!(!inside("a", "../b"));
        assert!(!inside("d/a", "../../b"));
        assert!(!inside("d/a", "/etc/passwd"));
        assert!(!inside("d/a", "x/../../../y/z"));
        assert!(!inside("a", ""));
    }
}
