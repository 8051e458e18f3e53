//! Removes trees that builds and archives have made: as deep as they like.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::NixPath;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Removes a directory with all that is in it. Follows no links. Takes the same memory and the same number of
/// descriptors at any depth: directories that are not empty are moved up first.
///
/// # Errors
/// If something cannot be removed. What was deep in the tree may lie at its top then.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = directory(AT_FDCWD, path)?;
    let mut moved = 0;
    loop {
        let directories = remove_files(&top)?;
        if directories.is_empty() {
            break;
        }
        for name in directories {
            let inner = directory(&top, name.as_c_str())?;
            for child in remove_files(&inner)? {
                move_up(&inner, &child, &top, &mut moved)?;
            }
            unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        }
    }
    Ok(unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir)?)
}

fn directory<P: NixPath + ?Sized>(at: impl AsFd, path: &P) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

/// Removes what is no directory, and returns the names of those that are.
fn remove_files(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut left = Vec::new();
    for entry in Dir::from_fd(directory.try_clone()?)?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR) => left.push(name.to_owned()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(left)
}

/// Moves a directory to the top, under a name that is free there, or is that of an empty directory.
fn move_up(from: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match renameat(from, name.as_c_str(), top, format!("{moved}.removed").as_str()) {
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            renamed => return Ok(renamed?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a chain of directories that is longer than any path.
    fn chain(top: &Path, depth: usize) {
        let mut at = directory(AT_FDCWD, top).unwrap();
        for _ in 0..depth {
            nix::sys::stat::mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = directory(&at, "d").unwrap();
        }
        openat(&at, "file", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
    }

    #[test]
    fn a_tree_of_any_depth_is_removed_on_a_small_stack_and_links_are_not_followed() {
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("kept"), "").unwrap();
        // In memory: a disk takes its time for so many directories.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("1.removed/wide/wider")).unwrap();
        for n in 0..50 {
            fs::create_dir(top.join(format!("1.removed/wide/{n}"))).unwrap();
            fs::write(top.join(format!("1.removed/wide/{n}/file")), "").unwrap();
        }
        symlink(kept.path(), top.join("link")).unwrap();
        symlink(kept.path(), top.join("1.removed/link")).unwrap();
        chain(&top, 20_000);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let removed = small.spawn({
            let top = top.clone();
            move || remove_tree(&top)
        });
        removed.unwrap().join().unwrap().unwrap();
        assert!(!top.exists() && kept.path().join("kept").exists());
        assert_eq!(remove_tree(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
