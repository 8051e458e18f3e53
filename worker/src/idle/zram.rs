//! A compressed swap of the worker's own: a zram device (Linux's Documentation/admin-guide/blockdev/zram.rst). Its swap
//! header names its owner. So the next start finds and removes what a killed worker left, and touches nothing else.

#![expect(unsafe_code, reason = "swapon and swapoff have no safe wrapper; they take a path")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rekindle_pager::PAGE;

/// After 1024 bytes for boot loaders: version, last page, bad pages, a UUID, a label; and the magic at the page's end
/// (mkswap's format).
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const LABEL_LENGTH: usize = 16;
const MAGIC_AT: usize = PAGE as usize - 10;
const MAGIC: &[u8] = b"SWAPSPACE2";
/// Labels of devices that were created for it, and of idle devices that are returned.
const MADE: &[u8] = b"rekindle made";
const LENT: &[u8] = b"rekindle lent";

const SWAP_FLAG_PREFER: i32 = 0x8000;
/// Ahead of disks, whose priorities are negative unless somebody chose them.
const PRIORITY: i32 = 100;
/// The compressor, if the kernel has it: it decompresses fastest.
const ALGORITHM: &str = "lz4";
/// Attempts and pause while udev, which examines new devices, has the device open.
const BUSY: (u32, Duration) = (50, Duration::from_millis(20));

/// Why the worker has no swap of its own.
#[derive(Debug, thiserror::Error)]
pub enum ZramError {
    /// The kernel has no zram.
    #[error("this kernel has no zram: load it (modprobe zram), or start the worker with --idle-swap none")]
    Absent,
    /// A control file was refused.
    #[error("{action} {}", .path.display())]
    File {
        /// The attempted action.
        action: &'static str,
        /// The file or device.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> ZramError {
    let path = path.to_owned();
    ZramError::File { action, path, source }
}

/// Where the kernel shows its devices. Parameters, so that tests can use directories of their own.
#[derive(Debug, Clone)]
pub struct ZramPaths {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/dev`.
    pub dev: PathBuf,
}

impl Default for ZramPaths {
    fn default() -> Self {
        Self {
            sys: PathBuf::from("/sys"),
            dev: PathBuf::from("/dev"),
        }
    }
}

/// The owner of a device: the worker with this control group, which no other on this host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZramOwner([u8; 16]);

impl ZramOwner {
    /// Returns the owner for the worker with this group.
    #[must_use]
    pub fn of(cgroup_parent: &str) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::hash(cgroup_parent.as_bytes()).as_bytes()[..16]);
        Self(id)
    }
}

/// How full a device is, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZramUsage {
    /// Data stored.
    pub plain: u64,
    /// The same data, compressed.
    pub compressed: u64,
    /// Memory that it takes.
    pub memory: u64,
}

/// A zram device in use as swap.
#[derive(Debug)]
pub struct ZramDevice {
    number: u32,
    places: ZramPaths,
    made: bool,
}

impl ZramDevice {
    /// Creates a device of this many bytes, enables it as swap, and marks it as `owner`'s. Blocks for some
    /// milliseconds.
    ///
    /// # Errors
    /// Returns an error when the kernel has no zram or refuses. Nothing is left behind then.
    pub fn make(places: &ZramPaths, owner: ZramOwner, bytes: u64) -> Result<Self, ZramError> {
        let (number, made) = free(places)?;
        let device = Self {
            number,
            places: places.clone(),
            made,
        };
        let in_use = device.set_up(owner, bytes);
        if let Err(e) = in_use {
            // The first failure is the one to report.
            let _ = device.put_back();
            return Err(e);
        }
        Ok(device)
    }

    fn set_up(&self, owner: ZramOwner, bytes: u64) -> Result<(), ZramError> {
        // An older kernel has another compressor, which works as well.
        let _ = fs::write(self.file("comp_algorithm"), ALGORITHM);
        self.write("disksize", &bytes.to_string())?;
        let node = self.node();
        let header = header(bytes / PAGE, owner, if self.made { MADE } else { LENT });
        patiently(|| OpenOptions::new().write(true).open(&node)?.write_all(&header))
            .map_err(|e| failed("write a swap header to", &node, e))?;
        let path = c_path(&node).map_err(|e| failed("name", &node, e))?;
        // SAFETY: the path is a string that ends with a zero and outlives the call.
        let on = || unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) };
        patiently(|| outcome(on())).map_err(|e| failed("swap on", &node, e))
    }

    /// Empties the device and releases it. Blocks until its contents are in memory again; there are none if their
    /// processes have ended.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses, for example for lack of memory.
    pub fn take_down(&self) -> Result<(), ZramError> {
        let node = self.node();
        let path = c_path(&node).map_err(|e| failed("name", &node, e))?;
        // SAFETY: as for `swapon`.
        let off = outcome(unsafe { libc::swapoff(path.as_ptr()) });
        match off {
            // It was not in use.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            other => other.map_err(|e| failed("swap off", &node, e))?,
        }
        self.put_back()
    }

    fn put_back(&self) -> Result<(), ZramError> {
        let reset = self.file("reset");
        patiently(|| fs::write(&reset, "1")).map_err(|e| failed("write", &reset, e))?;
        if self.made {
            let remove = control(&self.places).join("hot_remove");
            patiently(|| fs::write(&remove, self.number.to_string())).map_err(|e| failed("write", &remove, e))?;
        }
        Ok(())
    }

    /// Returns how full it is.
    pub fn fill(&self) -> Option<ZramUsage> {
        fill(&self.file("mm_stat"))
    }

    /// Returns its path.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        self.places.dev.join(format!("zram{}", self.number))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.places.sys.join(format!("block/zram{}", self.number)).join(name)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), ZramError> {
        let path = self.file(name);
        fs::write(&path, value).map_err(|e| failed("write", &path, e))
    }
}

/// Returns the values of a device's `mm_stat`.
pub(super) fn fill(mm_stat: &Path) -> Option<ZramUsage> {
    let text = fs::read_to_string(mm_stat).ok()?;
    let mut fields = text.split_whitespace().map_while(|field| field.parse().ok());
    Some(ZramUsage {
        plain: fields.next()?,
        compressed: fields.next()?,
        memory: fields.next()?,
    })
}

/// Removes what a killed worker with this owner left. Returns the number of devices.
///
/// # Errors
/// Returns the error of the first device that cannot be removed.
pub fn sweep(places: &ZramPaths, owner: ZramOwner) -> Result<usize, ZramError> {
    let left = devices(places, owner);
    left.iter().try_for_each(ZramDevice::take_down)?;
    Ok(left.len())
}

/// Returns all devices marked as this owner's.
#[must_use]
pub fn devices(places: &ZramPaths, owner: ZramOwner) -> Vec<ZramDevice> {
    let device = |number| {
        let mut device = ZramDevice {
            number,
            places: places.clone(),
            made: false,
        };
        let state = fs::read_to_string(device.file("initstate")).ok()?;
        // A device that was never set up cannot be read.
        device.made = (state.trim() == "1").then(|| owned(&device.node(), owner))??;
        Some(device)
    };
    numbers(places).into_iter().filter_map(device).collect()
}

/// Returns whether this kernel has zram.
#[must_use]
pub fn is_there(places: &ZramPaths) -> bool {
    control(places).exists() || !numbers(places).is_empty()
}

/// Returns `None` if a device is not `owner`'s, otherwise whether it was created for the owner.
fn owned(node: &Path, owner: ZramOwner) -> Option<bool> {
    let page = first_page(node).filter(|page| page[UUID_AT..LABEL_AT] == owner.0)?;
    let label = [(MADE, true), (LENT, false)];
    label
        .into_iter()
        .find_map(|(label, made)| is_label(&page, label).then_some(made))
}

fn first_page(node: &Path) -> Option<[u8; PAGE as usize]> {
    let mut page = [0; PAGE as usize];
    File::open(node).ok()?.read_exact(&mut page).ok()?;
    Some(page)
}

fn is_label(page: &[u8; PAGE as usize], label: &[u8]) -> bool {
    page[MAGIC_AT..] == *MAGIC && page[LABEL_AT..LABEL_AT + LABEL_LENGTH].starts_with(label)
}

/// Returns whether a device was set up by any worker.
pub(super) fn is_a_worker_s(node: &Path) -> bool {
    first_page(node).is_some_and(|page| is_label(&page, MADE) || is_label(&page, LENT))
}

/// Returns a device that nobody uses, and whether it was created for this: an old kernel creates none.
fn free(places: &ZramPaths) -> Result<(u32, bool), ZramError> {
    let add = control(places).join("hot_add");
    if let Ok(text) = fs::read_to_string(&add)
        && let Ok(number) = text.trim().parse()
    {
        return Ok((number, true));
    }
    let is_free = |number: &u32| {
        let state = places.sys.join(format!("block/zram{number}/initstate"));
        fs::read_to_string(state).is_ok_and(|state| state.trim() == "0")
    };
    let free = numbers(places).into_iter().find(is_free);
    free.map(|number| (number, false)).ok_or(ZramError::Absent)
}

fn control(places: &ZramPaths) -> PathBuf {
    places.sys.join("class/zram-control")
}

/// Returns the numbers of all zram devices.
pub(super) fn numbers(places: &ZramPaths) -> Vec<u32> {
    let all = fs::read_dir(places.sys.join("block"));
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("zram")?.parse().ok();
    let mut numbers: Vec<u32> = all.into_iter().flatten().flatten().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn header(pages: u64, owner: ZramOwner, label: &[u8]) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    let last = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    page[VERSION_AT..LAST_PAGE_AT].copy_from_slice(&1_u32.to_ne_bytes());
    page[LAST_PAGE_AT..LAST_PAGE_AT + 4].copy_from_slice(&last.to_ne_bytes());
    page[UUID_AT..LABEL_AT].copy_from_slice(&owner.0);
    page[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label);
    page[MAGIC_AT..].copy_from_slice(MAGIC);
    page
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn outcome(answer: i32) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Tries again while somebody else has the device open, or it does not exist yet.
fn patiently(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let (times, pause) = BUSY;
    for _ in 1..times {
        match attempt() {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::ENOENT | libc::ENXIO)) => {
                thread::sleep(pause)
            }
            other => return other,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_as_ours_is_known_as_ours() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("zram7");
        let (own, other) = (ZramOwner::of("rekindle-1"), ZramOwner::of("rekindle-2"));
        for (page, known) in [
            (header(10, own, MADE), Some(true)),
            (header(10, own, LENT), Some(false)),
            (header(10, other, MADE), None),
            (header(10, own, b"somebody's"), None),
            (vec![0; PAGE as usize], None),
            (vec![0; 10], None),
        ] {
            fs::write(&node, page).unwrap();
            assert_eq!(owned(&node, own), known);
        }
        assert_eq!(owned(&dir.path().join("none"), own), None);
    }

    #[test]
    fn a_device_is_made_swapped_on_and_removed_again_also_after_its_maker_died() {
        let (places, owner) = (ZramPaths::default(), ZramOwner::of("rekindle-test-zram"));
        if !is_there(&places) {
            return crate::testing::skipped("this kernel has no zram");
        }
        let in_use = |device: &ZramDevice| {
            let node = device.node().display().to_string();
            fs::read_to_string("/proc/swaps")
                .unwrap()
                .lines()
                .any(|l| l.starts_with(&node))
        };
        let first = ZramDevice::make(&places, owner, 16 << 20).unwrap();
        assert!(in_use(&first));
        assert!(first.fill().is_some());
        // As if it had been killed.
        drop(ZramDevice { ..first });
        assert_eq!(sweep(&places, ZramOwner::of("rekindle-test-another")).unwrap(), 0);
        assert_eq!(sweep(&places, owner).unwrap(), 1);
        let second = ZramDevice::make(&places, owner, 16 << 20).unwrap();
        second.take_down().unwrap();
        assert!(!in_use(&second));
        assert_eq!(sweep(&places, owner).unwrap(), 0);
    }
}
