//! Limits how fast a group may read from the host's disk. Functions write to no disk, since their only writable places
//! are in memory. But each may read its runtime's files again and again, past the page cache. Not every kernel and
//! filesystem supports the limit, so it is tried once.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::files::{self, FileError};
use super::layout::{Layout, remove_directory};
use super::limits::DiskLimit;
use super::{Cgroups, DiskError, REMOVE_LIMIT, usable};

/// The group used for the trial.
const PROBE: &str = "disk-probe";
/// Where the kernel shows block devices by number.
const DEVICES: &str = "/sys/dev/block";

impl Cgroups {
    /// Limits every group created from now on to `read_bytes` bytes a second from the disk that holds `path`. `root`
    /// and `parent` are those of [`Cgroups::detect_below`]. Returns the disk.
    ///
    /// # Errors
    /// Returns an error when the kernel or the filesystem there does not support the limit. Groups are then created
    /// without one.
    pub fn limit_disk(&mut self, root: &Path, parent: &str, path: &Path, read_bytes: u64) -> Result<String, DiskError> {
        if let Some(bad) = parent.split('/').find(|level| !usable(level)) {
            return Err(DiskError::NoController(bad.to_owned()));
        }
        let device = disk_of(path)?;
        let limit = DiskLimit {
            device: device.clone(),
            read_bytes,
        };
        let mut layout = self.layout.clone();
        match &mut layout {
            Layout::V1(d) => d.add_blkio(root, parent)?,
            Layout::V2(d) => d.delegate_io(root, parent)?,
        }
        let probe = layout.join(PROBE);
        let made = probe.all();
        let tried = made
            .iter()
            .try_for_each(|d| files::make_all(d))
            .and_then(|()| probe.limit_disk(&limit));
        for directory in &made {
            let _ = remove_directory(directory, REMOVE_LIMIT);
        }
        tried.map_err(DiskError::Refused)?;
        self.layout = layout;
        self.disk = Some(limit);
        Ok(device)
    }
}

/// Returns the whole disk below the filesystem with `path`, as `MAJOR:MINOR`.
fn disk_of(path: &Path) -> Result<String, DiskError> {
    let found = fs::metadata(path).map_err(|e| DiskError::Refused(FileError::new("look at", path, e)))?;
    let device = found.dev();
    // The device numbers of btrfs, overlays, tmpfs and network filesystems belong to no disk.
    if major(device) == 0 {
        return Err(DiskError::NoDisk(path.to_owned()));
    }
    let number = format!("{}:{}", major(device), minor(device));
    let known = Path::new(DEVICES).join(&number);
    if !known.join("partition").exists() {
        return Ok(number);
    }
    // Only whole disks can be limited. The parent of the partition's directory is the disk's directory.
    let disk = fs::canonicalize(&known).map_err(|e| DiskError::Refused(FileError::new("look at", &known, e)))?;
    let whole = disk.parent().unwrap_or(&disk).join("dev");
    Ok(files::read(&whole).map_err(DiskError::Refused)?.trim().to_owned())
}
