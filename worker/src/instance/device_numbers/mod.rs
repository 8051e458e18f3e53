//! Makes databases that were open go on in copies. SQLite recognises a file of its own process by `st_dev` and inode
//! number, and a copy's `/tmp` has another `st_dev`. So the places where a process keeps it are found at a checkpoint
//! or a move, and each restore writes the new one there.
//!
//! ```text
//! stopped: open files ──(images, or memory of a stopped process)──> addresses ──(notes)──> restores
//! ```

mod scan;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::path::Path;

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use super::image_memory::{ImageMemory, SearchError};
use crate::criu::open_files::{OpenFile, OpenFiles};
use crate::host::host_pids::HostPids;
use crate::host::own_mounts::OwnMount;
use crate::snapshots::DeviceNumbers;

/// Maximum number of device numbers of an instance. A function may fill its memory with lookalikes.
pub(crate) const FOUND_MAX: usize = 1 << 12;
/// Number of device numbers written in one system call.
const AT_ONCE: usize = 512;

/// Why a copy still has the device numbers of its original.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceNumberError {
    /// The copy lacks a process of the original.
    #[error("process {0} of the original is not among those of the copy")]
    Missing(u32),
    /// The new device number cannot be read.
    #[error("look at the file systems of the copy")]
    Mount(#[source] io::Error),
    /// The memory cannot be written.
    #[error("write device numbers to the memory of process {pid}")]
    Memory {
        /// The process's id in its pid namespace.
        pid: u32,
        /// The kernel's error.
        #[source]
        source: nix::Error,
    },
    /// Only a part was written.
    #[error("only {written} of {asked} bytes of device numbers could be written to the memory of process {pid}")]
    Short {
        /// The process's id in its pid namespace.
        pid: u32,
        /// Bytes written.
        written: usize,
        /// Bytes requested.
        asked: usize,
    },
}

/// Finds the device numbers in the images of a directory that CRIU dumped into, in processes with open files. Blocks:
/// reads all memory of those, once or twice.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub(super) fn search(dir: &Path, files: &OpenFiles) -> Result<Vec<DeviceNumbers>, SearchError> {
    let mut found = Vec::new();
    for (pid, files) in files {
        let memory = ImageMemory::open(dir, *pid)?;
        let scanned: Result<_, Infallible> = scan::find(files, &BTreeSet::new(), |look| {
            memory.runs().for_each(|(start, bytes)| look(start, bytes));
            Ok(())
        });
        let Ok(addresses) = scanned;
        note(&mut found, *pid, addresses);
    }
    Ok(found)
}

/// Finds the device numbers in the memory of a stopped process that is about to move. `noted` are those that were
/// written when it came to be; `read` calls what it is given for each run of memory that the process has written to.
/// Blocks.
///
/// # Errors
/// Returns an error when the memory cannot be read.
pub(crate) fn find_in_process(
    pid: u32,
    files: &[OpenFile],
    noted: &[DeviceNumbers],
    read: impl FnMut(&mut dyn FnMut(u64, &[u8])) -> io::Result<()>,
    found: &mut Vec<DeviceNumbers>,
) -> io::Result<()> {
    let of_process = noted.iter().filter(|numbers| numbers.pid == pid);
    let known = of_process.flat_map(|numbers| numbers.addresses.iter().copied());
    note(found, pid, scan::find(files, &known.collect(), read)?);
    Ok(())
}

/// Adds what was found in a process, as far as there is room.
fn note(found: &mut Vec<DeviceNumbers>, pid: u32, addresses: Vec<(OwnMount, u64)>) {
    for mount in OwnMount::ALL {
        let room = FOUND_MAX.saturating_sub(found.iter().map(|numbers| numbers.addresses.len()).sum());
        let of_mount = addresses.iter().filter(|(of, _)| *of == mount);
        let addresses: Vec<_> = of_mount.map(|(_, address)| *address).take(room).collect();
        if !addresses.is_empty() {
            found.push(DeviceNumbers { pid, mount, addresses });
        }
    }
}

/// Writes the device numbers of the sandbox with this init to a copy whose processes have not run their first
/// instruction. Blocks until the pages that it writes to are present.
///
/// # Errors
/// See [`DeviceNumberError`]; the copy must not run then.
pub(crate) fn write(hosts: &HostPids, init: Pid, noted: &[DeviceNumbers]) -> Result<(), DeviceNumberError> {
    for DeviceNumbers { pid, mount, addresses } in noted {
        let host = Pid::from_raw(*hosts.get(pid).ok_or(DeviceNumberError::Missing(*pid))?);
        let device = mount.device(init).map_err(DeviceNumberError::Mount)?.to_le_bytes();
        for addresses in addresses.chunks(AT_ONCE) {
            let local = vec![IoSlice::new(&device); addresses.len()];
            let remote = addresses.iter().map(|address| RemoteIoVec {
                base: usize::try_from(*address).unwrap_or(usize::MAX),
                len: device.len(),
            });
            let remote: Vec<_> = remote.collect();
            let written = process_vm_writev(host, &local, &remote);
            let written = written.map_err(|source| DeviceNumberError::Memory { pid: *pid, source })?;
            let asked = device.len() * addresses.len();
            if written != asked {
                return Err(DeviceNumberError::Short {
                    pid: *pid,
                    written,
                    asked,
                });
            }
        }
    }
    Ok(())
}
