//! The file system of templates: a tmpfs that is mounted nowhere. No path leads to it, and nothing of it remains when
//! the worker and the instances are gone.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

/// Why a template's file cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum MemoryFsError {
    /// The kernel refuses to create the file system.
    #[error("make a tmpfs for templates")]
    Make(#[source] io::Error),
    /// A file cannot be created in it.
    #[error("make template {0}")]
    File(String, #[source] io::Error),
}

/// An unmounted tmpfs.
#[derive(Debug)]
pub struct MemoryFs(OwnedFd);

/// A file on it: one descriptor to fill it, and one that can only be read and mapped privately.
#[derive(Debug)]
pub struct MemoryFile {
    /// The worker's descriptor.
    pub writable: File,
    /// The descriptor for others.
    pub read_only: OwnedFd,
}

impl MemoryFs {
    /// Creates a file system without a limit of its own: whoever fills it observes one.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub fn new() -> Result<Self, MemoryFsError> {
        let making = |e: rustix::io::Errno| MemoryFsError::Make(e.into());
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(making)?;
        for (key, value) in [(c"size", c"0"), (c"nr_inodes", c"0"), (c"mode", c"0700")] as [(&CStr, &CStr); 3] {
            fsconfig_set_string(context.as_fd(), key, value).map_err(making)?;
        }
        fsconfig_create(context.as_fd()).map_err(making)?;
        // The mount is not noexec: code that a function has generated lies in its memory, and so in the template.
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(making)?;
        Ok(Self(mount))
    }

    /// Creates a sparse file of `bytes`.
    ///
    /// # Errors
    /// Returns an error when it exists or cannot be created.
    pub fn create(&self, name: &str, bytes: u64) -> Result<MemoryFile, MemoryFsError> {
        let making = |e: io::Error| MemoryFsError::File(name.to_owned(), e);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.0, name, flags, Mode::RUSR).map_err(|e| making(e.into()))?;
        // A CRIU inside a sandbox opens the file through a descriptor that init holds; no other path leads to it.
        let readable = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        rustix::fs::fchmod(&file, readable).map_err(|e| making(e.into()))?;
        let writable = File::from(file);
        writable.set_len(bytes).map_err(making)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let read_only = openat(&self.0, name, flags, Mode::empty()).map_err(|e| making(e.into()))?;
        // The name was needed only to open the file twice. The file exists as long as it is open.
        rustix::fs::unlinkat(&self.0, name, rustix::fs::AtFlags::empty()).map_err(|e| making(e.into()))?;
        Ok(MemoryFile { writable, read_only })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_is_filled_through_one_descriptor_and_only_read_through_the_other() {
        let fs = match MemoryFs::new() {
            Err(MemoryFsError::Make(e)) if e.kind() == io::ErrorKind::PermissionDenied => {
                println!("skipped: making a tmpfs needs root");
                assert!(std::env::var_os("REKINDLE_REQUIRE_ALL").is_none());
                return;
            }
            made => made.unwrap(),
        };
        let file = fs.create("t", 1 << 47).unwrap();
        file.writable.write_all_at(b"page", 1 << 40).unwrap();
        let reader = File::from(file.read_only);
        let mut read = [0; 4];
        reader.read_exact_at(&mut read, 1 << 40).unwrap();
        assert_eq!(&read, b"page");
        assert!(reader.write_all_at(b"x", 0).is_err());
        assert!(fs.create("t", 1).is_ok(), "no name is left behind");
    }
}
