//! Makes databases that were open go on in copies. SQLite recognises a file of its own process by `st_dev` and inode
//! number, and a copy's `/tmp` has another `st_dev`. So the places where a process keeps it are found at a checkpoint
//! or a move, and each restore writes the new one there. On a container image's root the inode number may be another,
//! too: there both are written, as a descriptor of the file has them in the copy.
//!
//! ```text
//! stopped: open files ──(images, or memory of a stopped process)──> addresses ──(notes)──> restores
//! ```

mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use super::image_memory::{ImageMemory, SearchError};
use crate::criu::open_files::{OpenFile, OpenFiles};
use crate::host::host_pids::HostPids;
use crate::snapshots::{DeviceNumbers, FileNumbers, RootFile};

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
    /// A file has no number.
    #[error("look at descriptor {descriptor} of process {pid}, a file of the image's root")]
    File {
        /// The process's id in its pid namespace.
        pid: u32,
        descriptor: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
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
        written: usize,
        asked: usize,
    },
}

/// Finds the device numbers in the images of a directory that CRIU dumped into, in processes with open files. Blocks:
/// reads all memory of those, once or twice.
///
/// # Errors
/// Returns an error when an image cannot be read.
pub(super) fn search(dir: &Path, files: &OpenFiles) -> Result<FileNumbers, SearchError> {
    let mut found = FileNumbers::default();
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
    noted: &FileNumbers,
    read: impl FnMut(&mut dyn FnMut(u64, &[u8])) -> io::Result<()>,
    found: &mut FileNumbers,
) -> io::Result<()> {
    let known = noted.of_process(pid).collect();
    note(found, pid, scan::find(files, &known, read)?);
    Ok(())
}

/// Adds what was found in a process, as far as there is room.
fn note(found: &mut FileNumbers, pid: u32, addresses: Vec<(OpenFile, u64)>) {
    let room = FOUND_MAX.saturating_sub(found.count());
    let (mut own, mut root) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for (file, address) in addresses.into_iter().take(room) {
        match file.mount {
            Some(mount) => own.entry(mount).or_default().push(address),
            None => root.entry(file.descriptor).or_default().push(address),
        }
    }
    let own = own.into_iter();
    found
        .device_numbers
        .extend(own.map(|(mount, addresses)| DeviceNumbers { pid, mount, addresses }));
    let root = root.into_iter().map(|(descriptor, addresses)| RootFile {
        pid,
        descriptor,
        addresses,
    });
    found.root_files.extend(root);
}

/// Writes the numbers that files have in the sandbox with this init to a copy whose processes have opened all files and
/// not run their first instruction. Blocks until the pages that it writes to are present.
///
/// # Errors
/// See [`DeviceNumberError`]; the copy must not run then.
pub(crate) fn write(hosts: &HostPids, init: Pid, noted: &FileNumbers) -> Result<(), DeviceNumberError> {
    let host = |pid: &u32| Ok(Pid::from_raw(*hosts.get(pid).ok_or(DeviceNumberError::Missing(*pid))?));
    for DeviceNumbers { pid, mount, addresses } in &noted.device_numbers {
        let host = host(pid)?;
        let device = mount.device(init).map_err(DeviceNumberError::Mount)?;
        put(*pid, host, addresses, &device.to_le_bytes())?;
    }
    for RootFile {
        pid,
        descriptor,
        addresses,
    } in &noted.root_files
    {
        let host = host(pid)?;
        let file = fs::metadata(format!("/proc/{host}/fd/{descriptor}"));
        let file = file.map_err(|source| DeviceNumberError::File {
            pid: *pid,
            descriptor: *descriptor,
            source,
        })?;
        // In the order in which SQLite has them.
        let numbers = [file.dev(), file.ino()].map(u64::to_le_bytes).concat();
        put(*pid, host, addresses, &numbers)?;
    }
    Ok(())
}

/// Writes the same bytes to each of these addresses of a process.
fn put(pid: u32, host: Pid, addresses: &[u64], bytes: &[u8]) -> Result<(), DeviceNumberError> {
    for addresses in addresses.chunks(AT_ONCE) {
        let local = vec![IoSlice::new(bytes); addresses.len()];
        let remote = addresses.iter().map(|address| RemoteIoVec {
            base: usize::try_from(*address).unwrap_or(usize::MAX),
            len: bytes.len(),
        });
        let remote: Vec<_> = remote.collect();
        let written = process_vm_writev(host, &local, &remote);
        let written = written.map_err(|source| DeviceNumberError::Memory { pid, source })?;
        let asked = bytes.len() * addresses.len();
        if written != asked {
            return Err(DeviceNumberError::Short { pid, written, asked });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_copy_gets_the_numbers_that_its_file_of_the_root_has_and_known_places_are_found_again() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 512]).unwrap();
        let metadata = file.metadata().unwrap();
        let (before, after) = ([7, 8], [metadata.dev(), metadata.ino()]);
        // The kernel writes to it.
        let kept = [1, before[0], before[1], 1].map(AtomicU64::new);
        let words = || kept.each_ref().map(|word| word.load(Ordering::SeqCst));
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let start = kept.as_ptr().addr() as u64;
        let mut open = OpenFile {
            mount: None,
            device: before[0],
            inode: before[1],
            descriptor: file.as_raw_fd().cast_unsigned(),
        };
        let noted = RootFile {
            pid: 501,
            descriptor: open.descriptor,
            addresses: vec![start + 8],
        };
        let leads_there = |look: &mut dyn FnMut(u64, &[u8])| {
            look(8, &bytes(&[0, start + 8, u64::from(noted.descriptor)]));
            look(start, &bytes(&words()));
            Ok(())
        };
        let (mut found, nothing) = (FileNumbers::default(), FileNumbers::default());
        find_in_process(501, &[open], &nothing, leads_there, &mut found).unwrap();
        assert_eq!((found.count(), &found.root_files[0]), (1, &noted));

        let hosts = HostPids::from([(501, std::process::id().cast_signed())]);
        write(&hosts, Pid::this(), &found).unwrap();
        assert_eq!(words(), [1, after[0], after[1], 1]);

        // The pointer need not be among what was written since.
        [open.device, open.inode] = after;
        let alone = |look: &mut dyn FnMut(u64, &[u8])| {
            look(start, &bytes(&words()));
            Ok(())
        };
        let mut again = FileNumbers::default();
        find_in_process(501, &[open], &found, alone, &mut again).unwrap();
        assert_eq!(again, found);

        found.root_files[0].descriptor = u32::MAX;
        let refused = write(&hosts, Pid::this(), &found).unwrap_err();
        assert!(refused.to_string().contains("a file of the image's root"), "{refused}");
    }
}
