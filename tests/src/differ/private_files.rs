//! A function's files below `/tmp` and `/dev/shm`.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{Ids, Picture};

const DIRECTORIES: [&str; 2] = ["tmp", "dev/shm"];

/// Adds everything below the private directories of the sandbox with this root. What disappears meanwhile is left out.
pub(super) fn picture(root: &Path, ids: &Ids, picture: &mut Picture) {
    for directory in DIRECTORIES {
        let _gone = look(root, &root.join(directory), ids, picture);
    }
}

fn look(root: &Path, path: &Path, ids: &Ids, picture: &mut Picture) -> io::Result<()> {
    let own = fs::symlink_metadata(path)?;
    let name = format!("file//{}", path.strip_prefix(root).unwrap_or(path).display());
    let kind = own.file_type();
    let (what, more) = match kind {
        _ if kind.is_dir() => ("directory", String::new()),
        _ if kind.is_symlink() => ("link", format!("to {}", path.read_link()?.display())),
        _ if kind.is_fifo() => ("fifo", String::new()),
        _ if kind.is_socket() => ("socket", String::new()),
        _ if kind.is_file() => ("file", format!("digest {:016x}", digest(path)?)),
        _ => ("device", format!("{:x}", own.rdev())),
    };
    let mode = own.mode() & 0o7777;
    let [owner, group] = [own.uid(), own.gid()].map(|id| ids.inside(&id.to_string()));
    let (size, links) = (own.size(), own.nlink());
    picture.say(
        name.clone(),
        format!("{what} mode {mode:o} owner {owner}:{group} size {size} links {links} {more}"),
    );
    picture.say(format!("{name} inode"), own.ino().to_string());
    picture.say(
        format!("{name} times"),
        format!("modified {}.{:09}", own.mtime(), own.mtime_nsec()),
    );
    if kind.is_dir() {
        for entry in fs::read_dir(path)?.flatten() {
            let _gone = look(root, &entry.path(), ids, picture);
        }
    }
    Ok(())
}

/// Follows no link: the name may lead elsewhere by now. Does not wait for a fifo's other end.
fn digest(path: &Path) -> io::Result<u64> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = fs::File::options().read(true).custom_flags(flags).open(path)?;
    let (mut hasher, mut room) = (DefaultHasher::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut room)? {
            0 => return Ok(hasher.finish()),
            read => hasher.write(&room[..read]),
        }
    }
}
