//! The code and constants of files that copies of a snapshot touch until their first response. The kernel maps such
//! pages when they are touched, each fault with up to 15 neighbours that are in memory. A later copy has them mapped
//! before it runs, by one system call instead of some hundred faults.
//!
//! They take page tables, and memory only for what the page cache has lost: that is read from the disk. They cannot
//! keep a copy from starting for long: what is not there is left out, and so is the rest when the time is over.

use std::fs::File;
use std::io::{self, BufReader, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use procfs::FromBufRead as _;
use procfs::process::{MMPermissions, MMapPath, MemoryMaps};
use rekindle_pager::{PAGE, PageRef};
use rustix::fs::OFlags;

use super::host_pids::HostPids;
use super::sandbox::InnerProc;

const PRESENT: u64 = 1 << 63;
/// A page of a file, or of shared memory.
const FILE: u64 = 1 << 61;
/// Number of pages that the kernel maps at one fault, from a multiple of it on.
const BLOCK: u64 = 16;
/// Maximum number of blocks of one process: 64 MiB.
const BLOCKS_MOST: usize = 1_024;
/// How long mapping may take. A host that is short of memory reads from its disk.
const MAP_LIMIT: Duration = Duration::from_millis(5);
/// Number of blocks that are mapped between two looks at the clock.
const MAPPED_AT_ONCE: usize = 64;
/// Pages that are looked at, in all mappings of all processes: 1 GiB.
const PAGES_MOST: u64 = 1 << 18;
/// Maximum number of mappings of files that are looked at.
const MAPPINGS_MOST: usize = 4_096;

/// One page of each block that was touched, by process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilePages(Vec<(u32, Vec<u64>)>);

/// What may still be looked at: a function has as many mappings as it likes.
struct Budget {
    pages: u64,
    mappings: usize,
}

impl Budget {
    const WHOLE: Self = Self {
        pages: PAGES_MOST,
        mappings: MAPPINGS_MOST,
    };

    /// Takes a mapping of this many pages out of it, if there is enough left.
    fn take(&mut self, pages: u64) -> bool {
        let (Some(pages), Some(mappings)) = (self.pages.checked_sub(pages), self.mappings.checked_sub(1)) else {
            return false;
        };
        *self = Self { pages, mappings };
        true
    }
}

impl FilePages {
    /// Looks what these processes of a sandbox, with this init, have touched. Pages that a pager serves are left out,
    /// and processes that have ended. Blocks for about a millisecond.
    ///
    /// # Errors
    /// Returns an error when the sandbox is gone.
    pub fn of(init: Pid, pids: &[i32], is_paged: impl Fn(PageRef) -> bool) -> io::Result<Self> {
        let (proc, mut found, mut budget) = (InnerProc::of(init)?, Self::default(), Budget::WHOLE);
        for pid in pids.iter().copied() {
            // Inside, the process has the id that it had at the checkpoint.
            let open = |name| proc.open(&format!("{pid}/{name}"), OFlags::RDONLY);
            let is_paged = |page| is_paged(PageRef { pid, page });
            if let (Ok(maps), Ok(pagemap)) = (open("maps"), open("pagemap")) {
                // One that ends meanwhile has nothing more to tell.
                let _ended = found.add(pid.cast_unsigned(), maps, &pagemap, &mut budget, is_paged);
            }
        }
        Ok(found)
    }

    /// Adds what a process has touched, from its `maps` and its `pagemap`.
    fn add(
        &mut self,
        pid: u32,
        maps: File,
        pagemap: &File,
        budget: &mut Budget,
        is_paged: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let maps = MemoryMaps::from_buf_read(BufReader::new(maps)).map_err(io::Error::other)?;
        let mut blocks = Vec::new();
        for map in maps {
            let may_be = map.perms.contains(MMPermissions::READ | MMPermissions::PRIVATE);
            let (first, end) = (map.address.0 / PAGE, map.address.1 / PAGE);
            if blocks.len() >= BLOCKS_MOST {
                break;
            }
            if may_be && matches!(map.pathname, MMapPath::Path(_)) && budget.take(end - first) {
                let mut entries = vec![0; (end - first) as usize * 8];
                let read = pagemap.read_at(&mut entries, first * 8)?;
                blocks.extend(touched(first, &entries[..read]).filter(|page| !is_paged(*page)));
            }
        }
        blocks.truncate(BLOCKS_MOST);
        self.0.push((pid, blocks));
        Ok(())
    }

    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, pages)| pages.len()).sum()
    }

    /// Has the kernel map them, of processes that have not run their first instruction. Returns how many it has mapped.
    /// Blocks for some milliseconds at most, but for a slow disk.
    pub fn map(&self, hosts: &HostPids) -> usize {
        self.map_within(hosts, MAP_LIMIT)
    }

    fn map_within(&self, hosts: &HostPids, limit: Duration) -> usize {
        let began = Instant::now();
        let mut mapped = 0;
        for (pid, pages) in &self.0 {
            let Some(host) = hosts.get(pid) else { continue };
            for some in pages.chunks(MAPPED_AT_ONCE) {
                if began.elapsed() >= limit {
                    return mapped;
                }
                let done = map_some(Pid::from_raw(*host), some);
                mapped += done;
                // A page that cannot be read ends it: what follows is mapped when it is touched.
                if done < some.len() {
                    break;
                }
            }
        }
        mapped
    }
}

/// Has the kernel map the blocks of these pages. Returns how many it has mapped.
fn map_some(host: Pid, pages: &[u64]) -> usize {
    let mut bytes = [0; MAPPED_AT_ONCE];
    let remote: Vec<_> = pages
        .iter()
        .map(|page| RemoteIoVec {
            base: (page * PAGE) as usize,
            len: 1,
        })
        .collect();
    process_vm_readv(host, &mut [IoSliceMut::new(&mut bytes[..pages.len()])], &remote).unwrap_or(0)
}

/// Returns the first present page of a file in each block.
fn touched(first: u64, entries: &[u8]) -> impl Iterator<Item = u64> {
    let entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
    let present = (first..)
        .zip(entries)
        .filter(|(_, entry)| entry & PRESENT != 0 && entry & FILE != 0);
    let mut block = None;
    present
        .map(|(page, _)| page)
        .filter(move |page| block.replace(page / BLOCK) != Some(page / BLOCK))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use memmap2::{Mmap, MmapOptions};

    use super::*;

    #[test]
    fn one_page_of_each_block_stands_for_it() {
        let mut entries = vec![0_u64; 64];
        for page in [0, 1, 5, 6, 30, 31, 32, 63] {
            entries[page] = PRESENT | FILE;
        }
        entries[40] = PRESENT;
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        assert_eq!(touched(10, &bytes).collect::<Vec<_>>(), [10, 16, 40, 73]);
    }

    #[test]
    fn no_more_than_so_many_pages_and_mappings_are_looked_at() {
        let mut budget = Budget::WHOLE;
        assert!(budget.take(PAGES_MOST) && !budget.take(1));
        let mut budget = Budget::WHOLE;
        assert!((0..MAPPINGS_MOST).all(|_| budget.take(1)) && !budget.take(1));
    }

    #[test]
    fn what_one_mapping_had_touched_is_mapped_in_another() {
        let pages = 4 * BLOCK;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![7; (pages * PAGE) as usize]).unwrap();
        let mapped = || {
            // SAFETY: nothing changes the file.
            #[allow(unsafe_code, reason = "a mapping of a file is what the test needs")]
            unsafe { MmapOptions::new().map_copy_read_only(file.as_file()) }.unwrap()
        };
        let (touched, other) = (mapped(), mapped());
        std::hint::black_box(touched[(2 * BLOCK * PAGE) as usize]);
        let open = |name| File::open(format!("/proc/self/{name}")).unwrap();
        let (pid, own) = (std::process::id(), |map: &Mmap| map.as_ptr() as u64 / PAGE);
        let of = |map: &Mmap| {
            let (first, mut found, mut budget) = (own(map), FilePages::default(), Budget::WHOLE);
            let outside = |page| !(first..first + pages).contains(&page);
            found
                .add(pid, open("maps"), &open("pagemap"), &mut budget, outside)
                .unwrap();
            found
        };
        let before = of(&other).count();
        let moved = |page: &u64| page - own(&touched) + own(&other);
        let found = FilePages(vec![(pid, of(&touched).0[0].1.iter().map(moved).collect())]);
        assert!((1..=2).contains(&found.count()) && before == 0, "{found:?}");
        let hosts = HostPids::from([(pid, pid.cast_signed())]);
        assert_eq!(found.map(&hosts), found.count());
        assert!(of(&other).count() >= found.count());
        assert_eq!(found.map(&HostPids::new()), 0);
        assert_eq!(found.map_within(&hosts, Duration::ZERO), 0, "its time is over");
        let many = FilePages(vec![(pid, vec![own(&other); MAPPED_AT_ONCE + 1])]);
        assert_eq!(many.map_within(&hosts, Duration::MAX), MAPPED_AT_ONCE + 1);
    }
}
