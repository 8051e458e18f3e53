//! Mounts a layer's files on this host.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::content::Content;
use super::server::{Server, welcome};
use super::tree::Tree;

const DEVICE: &str = "/dev/fuse";

/// A mounted layer. Sandboxes that have it mounted, too, keep its files after the drop.
#[derive(Debug)]
pub(super) struct Mount {
    dir: PathBuf,
}

impl Mount {
    /// Mounts at `dir`, which is created. Returns once the mount can be used. Blocks.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses, or is too old. Nothing is left then.
    pub(super) fn new(dir: PathBuf, tree: Tree, content: Arc<Content>, runtime: Handle) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        fs::create_dir(&dir)?;
        let this = Self { dir };
        let options = format!(
            "fd={},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("layer"),
            &this.dir,
            Some("fuse.rekindle"),
            flags,
            Some(options.as_str()),
        )?;
        welcome(&device)?;
        let server = Arc::new(Server {
            tree,
            content,
            device,
            runtime,
            followed: Mutex::new(HashMap::new()),
        });
        thread::Builder::new()
            .name("layer".to_owned())
            .spawn(move || server.run())?;
        Ok(this)
    }

    /// Returns the directory of the files.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Removes what a killed worker left mounted below `dir`. Its files cannot be read any more. Blocks.
pub(crate) fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        remove(&entry?.path());
    }
    Ok(())
}

fn remove(dir: &Path) {
    // It may not be mounted.
    let _ = umount2(dir, MntFlags::MNT_DETACH);
    if let Err(error) = fs::remove_dir(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "a layer's mount point stays");
    }
}

/// Returns whether this host can mount layers that sandboxes can use.
pub(crate) fn is_possible() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    can_map_users(&release) && Path::new(DEVICE).exists()
}

/// Whether a kernel of this release can map the users of such a mount.
fn can_map_users(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_can_map_users_are_told_by_their_release() {
        for release in ["6.12.9-cloud-amd64", "6.18.44", "7.0", "10.1-rc1"] {
            assert!(can_map_users(release), "{release}");
        }
        for release in ["6.11.0", "6.1.0-41-amd64", "5.19", "6", ""] {
            assert!(!can_map_users(release), "{release}");
        }
    }
}
