//! The mounts that a sandbox gets of its layers. The worker clones them, since a layer that it mounted itself is in its
//! own mount namespace alone.

use std::io;
use std::os::fd::OwnedFd;

use rekindle_init::protocol::Layers;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

/// Returns mounts of the root filesystem and of the function's files, which are nowhere yet.
pub(super) fn of(layers: &Layers) -> io::Result<[OwnedFd; 2]> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = |path| open_tree(CWD, path, flags).map_err(io::Error::from);
    Ok([tree(&layers.rootfs)?, tree(&layers.app)?])
}
