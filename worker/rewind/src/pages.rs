//! The pages that are a process's own: their contents at a point, and how they are written back.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use linux_raw_sys::general::{PAGE_IS_FILE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, pm_scan_arg};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use rekindle_pager::PAGE;

use crate::error::{Unfit, kernel};
use crate::mappings::{Mappings, Wiped};
use crate::scan;

/// The end of a process's addresses.
const LAST: u64 = 0x7fff_ffff_f000;
/// Ranges found by one call.
const RANGES: usize = 1024;
/// Writes of one call (`IOV_MAX`).
const AT_ONCE: usize = 1024;
/// The most pages that a process may have of its own: 32 MiB, which the worker keeps for each copy.
const PAGES_MAX: usize = 8192;

/// The same in bytes.
pub(crate) const BYTES_MAX: usize = PAGES_MAX * SIZE;

const SIZE: usize = PAGE as usize;
static ZEROS: [u8; SIZE] = [0; SIZE];

/// What a page holds that its process has not written.
#[derive(Debug)]
pub enum Behind {
    /// This.
    Page(Box<[u8]>),
    /// Zeros.
    Zero,
    /// What its mapping says: zeros, unless it is of a file.
    Mapping,
    /// It is not known.
    Unknown(String),
}

/// The addresses of pages that are a process's own, present or evicted, from its `/proc/PID/pagemap`.
pub(crate) fn own(pagemap: &File) -> Result<Vec<Range<u64>>, Unfit> {
    let (mut found, mut room) = (Vec::new(), scan::room(RANGES));
    let mut asked = pm_scan_arg {
        end: LAST,
        category_inverted: u64::from(PAGE_IS_FILE | PAGE_IS_PFNZERO),
        category_mask: u64::from(PAGE_IS_FILE | PAGE_IS_PFNZERO),
        category_anyof_mask: u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED),
        return_mask: u64::from(PAGE_IS_PRESENT),
        ..scan::NOTHING
    };
    while asked.start < LAST {
        let ranges = scan::scan(pagemap, &mut asked, &mut room).map_err(kernel("find its own pages"))?;
        found.extend(ranges.iter().map(|range| range.start..range.end));
        asked.start = asked.walk_end.max(asked.start + PAGE);
    }
    Ok(found)
}

/// The contents of a process's own pages at a point.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// By address. `None` is a page of zeros.
    pages: Vec<(u64, Option<usize>)>,
    /// Contents, one page after the other.
    contents: Vec<u8>,
}

impl Pages {
    /// Reads these ranges of a process's memory. What lies in `wiped` is zero from then on.
    pub(crate) fn read(memory: &File, own: &[Range<u64>], wiped: &Wiped) -> Result<Self, Unfit> {
        let count: u64 = own.iter().map(|range| (range.end - range.start) / PAGE).sum();
        if count > PAGES_MAX as u64 {
            return Err(Unfit::Memory(format!("{count} pages of its own are too many")));
        }
        let mut pages = Self::default();
        for range in own {
            let at = pages.contents.len();
            pages.contents.resize(at + (range.end - range.start) as usize, 0);
            memory
                .read_exact_at(&mut pages.contents[at..], range.start)
                .map_err(kernel("read its memory"))?;
            for (index, address) in (range.start..range.end).step_by(SIZE).enumerate() {
                let is_wiped = wiped.contains(address);
                pages.pages.push((address, (!is_wiped).then_some(at + index * SIZE)));
            }
        }
        Ok(pages)
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.contents.len()
    }

    /// Adds pages that have become the process's own since.
    pub(crate) fn add(
        &mut self,
        own: &[Range<u64>],
        mappings: &Mappings,
        behind: impl Fn(u64) -> Behind,
    ) -> Result<(), Unfit> {
        let mut added = Vec::new();
        let mut known = self.pages.iter().map(|(address, _)| *address).peekable();
        for address in own.iter().flat_map(|range| (range.start..range.end).step_by(SIZE)) {
            while known.next_if(|known| *known < address).is_some() {}
            if known.peek() != Some(&address) {
                added.push(address);
            }
        }
        if added.is_empty() {
            return Ok(());
        }
        if self.pages.len() + added.len() > PAGES_MAX {
            let count = self.pages.len() + added.len();
            return Err(Unfit::Memory(format!("{count} pages of its own are too many")));
        }
        for address in added {
            let contents = match behind(address / PAGE) {
                Behind::Page(bytes) => Some(bytes),
                Behind::Zero => None,
                Behind::Mapping if mappings.at(address).is_some_and(|mapping| mapping.is_zero_at_first()) => None,
                Behind::Mapping => {
                    return Err(Unfit::Memory(format!("{address:#x} of a file was written")));
                }
                Behind::Unknown(why) => return Err(Unfit::Memory(format!("{address:#x}: {why}"))),
            };
            let at = contents.map(|bytes| {
                let at = self.contents.len();
                self.contents.extend_from_slice(&bytes);
                at
            });
            self.pages.push((address, at));
        }
        self.pages.sort_unstable_by_key(|(address, _)| *address);
        Ok(())
    }

    /// Writes all of them to the process. Returns their number.
    pub(crate) fn write(&self, pid: Pid, memory: &File, mappings: &Mappings) -> Result<usize, Unfit> {
        let mut writes = Writes::default();
        for (address, at) in &self.pages {
            let bytes: &[u8] = at.map_or(&ZEROS, |at| &self.contents[at..at + SIZE]);
            if mappings.at(*address).is_some_and(|mapping| mapping.is_writable()) {
                writes.add(*address as usize, bytes);
            } else {
                memory
                    .write_all_at(bytes, *address)
                    .map_err(kernel("write its memory"))?;
            }
            if writes.local.len() == AT_ONCE {
                std::mem::take(&mut writes).make(pid)?;
            }
        }
        writes.make(pid)?;
        Ok(self.pages.len())
    }
}

/// Writes to a process's memory. Pages side by side are one: the kernel looks up each.
#[derive(Default)]
struct Writes<'a> {
    local: Vec<IoSlice<'a>>,
    remote: Vec<RemoteIoVec>,
}

impl<'a> Writes<'a> {
    fn add(&mut self, address: usize, bytes: &'a [u8]) {
        self.local.push(IoSlice::new(bytes));
        match self.remote.last_mut() {
            Some(last) if last.base + last.len == address => last.len += bytes.len(),
            _ => self.remote.push(RemoteIoVec {
                base: address,
                len: bytes.len(),
            }),
        }
    }

    fn make(self, pid: Pid) -> Result<(), Unfit> {
        if self.local.is_empty() {
            return Ok(());
        }
        let written = process_vm_writev(pid, &self.local, &self.remote).map_err(kernel("write its memory"))?;
        match written == self.local.len() * SIZE {
            true => Ok(()),
            false => Err(kernel("write its memory")(io::Error::from(io::ErrorKind::WriteZero))),
        }
    }
}
