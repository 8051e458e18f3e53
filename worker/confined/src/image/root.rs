//! Completes an image's root filesystem with what a sandbox needs in it.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use crate::tree::remove_tree;

use super::{ImageError, refused_kind, unwritten};

/// Where a sandbox mounts something.
pub(super) const MOUNT_POINTS: [&str; 6] = ["dev", "etc", "proc", "run", "sys", "tmp"];
/// Files that a sandbox covers with its own.
const COVERED: [&str; 2] = ["etc/hosts", "etc/resolv.conf"];
/// The function's user and group, by the file that names them: an entry, and where that has the id.
const USER: [(&str, &str, usize); 2] = [
    ("etc/passwd", "fn:x:1000:1000:function:/tmp:/bin/sh\n", 2),
    ("etc/group", "fn:x:1000:\n", 2),
];
const ID: &str = "1000";
/// Maximum size in bytes of these files.
const USERS_MAX: u64 = 1 << 20;

/// Adds mount points, and the function's user if no user has its id.
pub(super) fn complete(into: &Path) -> Result<(), ImageError> {
    for name in MOUNT_POINTS {
        let path = into.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir()) {
            continue;
        }
        remove(&path)?;
        fs::create_dir(&path).map_err(|e| unwritten(&path, e))?;
    }
    for name in COVERED {
        let path = into.join(name);
        if !fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
            remove(&path)?;
            fs::write(&path, "").map_err(|e| unwritten(&path, e))?;
        }
    }
    for (name, entry, field) in USER {
        let path = into.join(name);
        let mut bytes = Vec::new();
        // What cannot be read is replaced.
        let _unread = fs::File::open(&path).and_then(|file| file.take(USERS_MAX + 1).read_to_end(&mut bytes));
        if bytes.len() as u64 > USERS_MAX {
            return Err(refused_kind(
                Path::new(name),
                "a list of users or groups of more than 1 MiB",
            ));
        }
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if text.lines().any(|line| line.split(':').nth(field) == Some(ID)) {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(entry);
        remove(&path)?;
        fs::write(&path, text).map_err(|e| unwritten(&path, e))?;
    }
    Ok(())
}

/// Makes the directory that the image names as its working directory where its layers have none, as engines do.
pub(super) fn working_directory(into: &Path, cwd: &str) -> Result<(), ImageError> {
    let path = into.join(cwd.trim_start_matches('/'));
    match fs::create_dir_all(&path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) => {
            Err(refused_kind(Path::new(cwd), "its working directory, and no directory"))
        }
        made => made.map_err(|e| unwritten(&path, e)),
    }
}

/// Removes a file, a link, or a directory with all that it has, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), ImageError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(unwritten(path, e))
        }
        _ => Ok(()),
    }
}
