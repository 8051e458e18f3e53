//! Databases that a function may have open on file systems of its sandbox's own, while its processes are stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::unistd::Pid;

use crate::host::cgroup::Cgroup;
use crate::host::host_pids::processes_in;
use crate::host::own_mounts::{OwnMount, root_device};

/// Maximum number of files that are listed, of all processes.
const FILES_MAX: usize = 1 << 14;
/// The smallest size of a database page, in bytes. The size of a database is a multiple of it.
const SECTOR: u64 = 512;

/// An open file that may be a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenFile {
    /// The file system; `None` for a container image's root.
    pub(crate) mount: Option<OwnMount>,
    /// Its device number, in this sandbox.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) descriptor: u32,
}

/// Open files by process id, as the processes have it themselves.
pub(crate) type OpenFiles = BTreeMap<u32, Vec<OpenFile>>;

/// Lists the files that the processes in `cgroup` have open and that may be databases. `init` is that of their sandbox.
/// Blocks.
///
/// # Errors
/// Returns an error when the processes cannot be looked at.
pub(super) fn of(init: Pid, cgroup: &Cgroup) -> io::Result<OpenFiles> {
    let mut mounts = Vec::new();
    for mount in OwnMount::ALL {
        mounts.push((Some(mount), mount.device(init)?));
    }
    mounts.extend(root_device(init)?.map(|device| (None, device)));
    let (mut found, mut left) = (OpenFiles::new(), FILES_MAX);
    for (pid, host) in processes_in(cgroup).map_err(io::Error::other)? {
        let files = of_process(host, &mounts, left)?;
        left -= files.len();
        if !files.is_empty() {
            found.insert(pid, files);
        }
    }
    Ok(found)
}

/// Lists at most `most` files of a process.
fn of_process(host: i32, mounts: &[(Option<OwnMount>, u64)], most: usize) -> io::Result<Vec<OpenFile>> {
    let descriptors = match fs::read_dir(format!("/proc/{host}/fd")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        descriptors => descriptors?,
    };
    let mut found = Vec::new();
    for entry in descriptors {
        let entry = entry?;
        // A descriptor of something that has no `stat` is no file.
        let Ok(stat) = fs::metadata(entry.path()) else { continue };
        let mount = mounts.iter().find(|(_, device)| *device == stat.dev());
        let may_be = stat.is_file() && stat.nlink() > 0 && stat.size().is_multiple_of(SECTOR);
        let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some((mount, device)), Some(descriptor), true) = (mount, descriptor, may_be) {
            if found.len() == most {
                break;
            }
            found.push(OpenFile {
                mount: *mount,
                device: *device,
                inode: stat.ino(),
                descriptor,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn files_are_listed_that_have_a_name_and_the_size_of_a_database_on_the_mount() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = tempfile::NamedTempFile::new_in(&directory).unwrap();
        let mut log = tempfile::NamedTempFile::new_in(&directory).unwrap();
        log.write_all(b"a line\n").unwrap();
        let unnamed = tempfile::tempfile_in(&directory).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        let stat = file.as_file().metadata().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let listed = |device, most| of_process(own, &[(Some(OwnMount::Tmp), device)], most).unwrap();
        let all = listed(stat.dev(), FILES_MAX);
        let has = |file: &fs::File| {
            all.iter()
                .any(|found| i64::from(found.descriptor) == i64::from(file.as_raw_fd()))
        };
        assert!(has(file.as_file()) && !has(log.as_file()) && !has(&unnamed), "{all:?}");
        assert!(
            all.iter()
                .any(|found| found.inode == stat.ino() && found.device == stat.dev())
        );
        assert_eq!(listed(stat.dev(), 0), []);
        assert_eq!(listed(u64::MAX, FILES_MAX), []);
        assert_eq!(of_process(-1, &[], FILES_MAX).unwrap(), []);
    }
}
