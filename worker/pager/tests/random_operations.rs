//! Memory served by the pager, under operations at random, beside a naive model: every byte is compared. The test plays CRIU
//! (it makes the mappings and sends their userfaultfd) and the restored process (it operates on them); the pager is the real one.
//! Meanwhile a thread takes pages of the template back, as a host that is short of memory does.
#![allow(unsafe_code, reason = "works on memory by its addresses")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod criu;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use criu::{LIMIT, map, map_from};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use rekindle_pager::{
    AheadPage, Handover, Held, Layout, PAGE, PageRange, PageRef, PageSource, Pager, PagerConfig, Pin, SourceError,
    unpinned,
};
use userfaultfd::Uffd;

const PID: i32 = 501;
/// Pages of each of the three mappings, and of the room where pages are moved to.
const PAGES: u64 = 96;
const OPERATIONS: usize = 400;
/// Where the memory under test lies.
const ROOM: u64 = 0x2000_0000_0000;
const SEEDS: u64 = 24;

/// What page `n` of the snapshot holds: a third of them nothing.
fn content(page: u64) -> [u8; PAGE as usize] {
    let mut bytes = [0; PAGE as usize];
    if !page.is_multiple_of(3) {
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64).to_le_bytes());
        }
    }
    bytes
}

/// What the file has behind page `n` of the mapping that was one of a file.
fn behind(page: u64) -> [u8; PAGE as usize] {
    content(!page)
}

/// A snapshot of three mappings: one that is mapped from a file, filled page by page as they are asked for, one that is
/// copied, and one that is mapped from the file too, whole, and that the process had mapped from another file.
struct Snapshot {
    file: File,
    template: MmapRaw,
    /// First pages of the mapping of the file and of the other.
    mapped: u64,
    copied: u64,
    folded: u64,
    copies: Vec<u8>,
    ready: Vec<AtomicBool>,
    /// Held by whoever changes the first mapping's part of the file.
    changing: Mutex<()>,
    taken_back: AtomicU64,
    ended: AtomicBool,
}

impl Snapshot {
    /// Takes pages of the first mapping back until it has ended, runs of up to eight.
    fn take_back(&self, mut random: u64) {
        while !self.ended.load(Ordering::Relaxed) {
            let start = number(&mut random, PAGES);
            let run = start..(start + 1 + number(&mut random, 8)).min(PAGES);
            let _alone = self.changing.lock();
            let there: Vec<u64> = run
                .filter(|n| self.ready[*n as usize].swap(false, Ordering::AcqRel))
                .collect();
            assert!(unpinned(LIMIT));
            for page in &there {
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let (offset, length) = ((page * PAGE).cast_signed(), PAGE.cast_signed());
                fallocate(&self.file, flags, offset, length).unwrap();
            }
            self.taken_back.fetch_add(there.len() as u64, Ordering::Relaxed);
        }
    }
}

impl PageSource for Snapshot {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> Held<'a> {
        let size = PAGE as usize;
        let (index, is_mapped) = match page.page {
            p if (self.mapped..self.mapped + PAGES).contains(&p) => (p - self.mapped, true),
            p if (self.copied..self.copied + PAGES).contains(&p) => (p - self.copied, false),
            p if (self.folded..self.folded + PAGES).contains(&p) => {
                let at = (PAGES + p - self.folded) as usize * size;
                // SAFETY: inside the mapping, and written before the pager was started.
                return Held::Mapped(unsafe { std::slice::from_raw_parts(self.template.as_ptr().add(at), size) });
            }
            _ => return Held::Zero,
        };
        if index.is_multiple_of(3) {
            return Held::Zero;
        }
        let index = index as usize;
        if !is_mapped {
            return Held::Bytes(&self.copies[index * size..(index + 1) * size]);
        }
        if !self.ready[index].load(Ordering::Acquire) {
            return Held::Absent;
        }
        // SAFETY: inside the mapping, written before its mark was set, and not taken back while the caller is pinned.
        Held::Mapped(unsafe { std::slice::from_raw_parts(self.template.as_ptr().add(index * size), size) })
    }

    fn fetch(&self, page: PageRef) -> Result<(), SourceError> {
        let index = page.page - self.mapped;
        let _alone = self.changing.lock();
        self.file.write_all_at(&content(index), index * PAGE).unwrap();
        self.ready[index as usize].store(true, Ordering::Release);
        Ok(())
    }

    fn file_page(&self, page: PageRef) -> Result<Box<[u8]>, SourceError> {
        assert!((self.folded..self.folded + PAGES).contains(&page.page));
        Ok(behind(page.page - self.folded).into())
    }
}

/// A page of the model.
struct Page {
    bytes: Vec<u8>,
    /// What it holds when it is given up.
    behind: [u8; PAGE as usize],
}

impl Page {
    fn new(bytes: &[u8]) -> Self {
        let behind = [0; PAGE as usize];
        Self {
            bytes: bytes.to_vec(),
            behind,
        }
    }
}

/// The process and the model of it: what each mapped page must hold.
struct Process {
    pages: BTreeMap<u64, Page>,
    /// Every page that is, or was, or may come to be mapped.
    room: std::ops::Range<u64>,
    pager: Option<Pager>,
    snapshot: Arc<Snapshot>,
    taker: Option<JoinHandle<()>>,
    random: u64,
}

impl Process {
    fn start(seed: u64) -> Self {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Far from where the kernel puts what it may put anywhere, so that nothing else gets mapped there.
        let first = ROOM / PAGE + seed * PAGES * 16;
        let (mapped, copied, folded) = (first + PAGES, first + 3 * PAGES, first + 5 * PAGES);
        let file = criu::template();
        for page in 0..PAGES {
            file.write_all_at(&content(7 * page), (PAGES + page) * PAGE).unwrap();
        }
        let template = MmapOptions::new()
            .len((2 * PAGES * PAGE) as usize)
            .map_raw(&file)
            .unwrap();
        map(mapped, PAGES, libc::MAP_PRIVATE | libc::MAP_FIXED, file.as_raw_fd());
        map(copied, PAGES, anonymous | libc::MAP_FIXED, -1);
        let (flags, offset) = (libc::MAP_PRIVATE | libc::MAP_FIXED, (PAGES * PAGE).cast_signed());
        map_from(folded, PAGES, flags, file.as_raw_fd(), offset);
        let snapshot = Arc::new(Snapshot {
            file,
            template,
            mapped,
            copied,
            folded,
            copies: (0..PAGES).flat_map(content).collect(),
            ready: (0..PAGES).map(|_| AtomicBool::new(false)).collect(),
            changing: Mutex::default(),
            taken_back: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let uffd = criu::userfaultfd();
        uffd.register((copied * PAGE) as *mut _, (PAGES * PAGE) as usize)
            .unwrap();
        let pager = serve(seed, Arc::clone(&snapshot), &uffd, mapped, folded);
        let taking = Arc::clone(&snapshot);
        let taker = std::thread::spawn(move || taking.take_back(seed));
        let pages = [mapped, copied]
            .into_iter()
            .flat_map(|start| (0..PAGES).map(move |n| (start + n, Page::new(&content(n)))));
        let of_file = (0..PAGES).map(|n| {
            let (bytes, behind) = (content(7 * n).to_vec(), behind(n));
            (folded + n, Page { bytes, behind })
        });
        Self {
            pages: pages.chain(of_file).collect(),
            room: first..first + PAGES * 8,
            pager: Some(pager),
            snapshot,
            taker: Some(taker),
            random: seed.wrapping_mul(2).wrapping_add(1),
        }
    }

    /// A number below `end`.
    fn number(&mut self, end: u64) -> u64 {
        number(&mut self.random, end)
    }

    /// A run of mapped pages.
    fn run(&mut self) -> (u64, u64) {
        let at = self.number(self.pages.len() as u64) as usize;
        let start = *self.pages.keys().nth(at).unwrap();
        let most = 1 + self.number(12);
        let mut length = 1;
        while length < most && self.pages.contains_key(&(start + length)) {
            length += 1;
        }
        (start, length)
    }

    fn step(&mut self) {
        match self.number(10) {
            0..=2 => {
                let (page, _) = self.run();
                self.check(page);
            }
            3..=4 => {
                let (page, _) = self.run();
                let (at, value) = (self.number(PAGE), self.number(256) as u8);
                // SAFETY: a mapped, writable page.
                unsafe { ((page * PAGE + at) as *mut u8).write_volatile(value) };
                self.pages.get_mut(&page).unwrap().bytes[at as usize] = value;
            }
            5 => {
                let (start, length) = self.run();
                // SAFETY: mapped pages of which nothing else holds a reference.
                let rc =
                    unsafe { libc::madvise((start * PAGE) as *mut _, (length * PAGE) as usize, libc::MADV_DONTNEED) };
                assert_eq!(rc, 0);
                for page in start..start + length {
                    let page = self.pages.get_mut(&page).unwrap();
                    page.bytes = page.behind.to_vec();
                }
            }
            6 if self.pages.len() as u64 > PAGES => {
                let (start, length) = self.run();
                // SAFETY: as above.
                let rc = unsafe { libc::munmap((start * PAGE) as *mut _, (length * PAGE) as usize) };
                assert_eq!(rc, 0);
                for page in start..start + length {
                    self.pages.remove(&page);
                }
            }
            7 => self.move_pages(),
            8 => {
                // Fresh memory where there is none.
                let start = self.room.start + self.number(PAGES * 8 - 4);
                if (start..start + 4).all(|page| !self.pages.contains_key(&page)) {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                    assert_eq!(map(start, 4, flags, -1), start);
                    self.pages
                        .extend((start..start + 4).map(|page| (page, Page::new(&[0; PAGE as usize]))));
                }
            }
            _ if self.number(4) == 0 => self.fork(),
            _ => {}
        }
    }

    /// Moves pages, sometimes growing: what is added is zero.
    fn move_pages(&mut self) {
        let (start, length) = self.run();
        let grown = length + self.number(4);
        let to = self.room.start + self.number(PAGES * 8 - grown);
        if (to..to + grown).any(|page| self.pages.contains_key(&page)) {
            return;
        }
        let (from, flags) = ((start * PAGE) as *mut _, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let new = (to * PAGE) as *mut libc::c_void;
        // SAFETY: from mapped pages to a range where nothing is.
        let moved = unsafe { libc::mremap(from, (length * PAGE) as usize, (grown * PAGE) as usize, flags, new) };
        if moved == libc::MAP_FAILED {
            // Pages of several mappings cannot be moved at once.
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
            return;
        }
        for n in 0..grown {
            let page = if n < length {
                self.pages.remove(&(start + n)).unwrap()
            } else {
                Page::new(&[0; PAGE as usize])
            };
            self.pages.insert(to + n, page);
        }
    }

    /// A child has the same memory, and what it writes is its own.
    fn fork(&mut self) {
        let (page, _) = self.run();
        // Not the C library's fork: that holds the allocator's locks while the kernel waits for the pager, which is in this
        // process here.
        // SAFETY: the child only looks at memory and ends.
        match unsafe { libc::syscall(libc::SYS_fork) as libc::pid_t } {
            0 => {
                // SAFETY: mapped pages.
                let same = self
                    .pages
                    .iter()
                    .all(|(page, expected)| unsafe { is(*page, &expected.bytes) });
                // SAFETY: a mapped, writable page; then the end.
                unsafe {
                    ((page * PAGE) as *mut u8).write_volatile(77);
                    libc::_exit(i32::from(!same))
                }
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                // SAFETY: our own child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0, "the child has other memory");
            }
        }
    }

    fn check(&self, page: u64) {
        // SAFETY: a mapped page.
        assert!(unsafe { is(page, &self.pages[&page].bytes) }, "page {page:#x} differs");
    }

    /// Answers how many pages were taken back meanwhile.
    fn end(mut self) -> u64 {
        for page in self.pages.keys() {
            self.check(*page);
        }
        for page in self.pages.keys() {
            // SAFETY: mapped pages of which nothing holds a reference; the kernel refuses nothing here.
            unsafe { libc::munmap((page * PAGE) as *mut _, PAGE as usize) };
        }
        self.snapshot.ended.store(true, Ordering::Relaxed);
        self.taker.take().unwrap().join().unwrap();
        drop(self.pager.take());
        self.snapshot.taken_back.load(Ordering::Relaxed)
    }
}

/// A number below `end`: Knuth's generator.
fn number(random: &mut u64, end: u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % end
}

/// Whether the page holds `expected`. Looks at memory without the compiler's knowledge of it.
unsafe fn is(page: u64, expected: &[u8]) -> bool {
    // SAFETY: the caller says that it is mapped.
    (0..expected.len()).all(|at| unsafe { ((page * PAGE + at as u64) as *const u8).read_volatile() } == expected[at])
}

fn serve(seed: u64, snapshot: Arc<Snapshot>, uffd: &Uffd, mapped: u64, folded: u64) -> Pager {
    let range = |page| PageRange {
        first: PageRef { pid: PID, page },
        pages: PAGES,
    };
    let config = |listener| PagerConfig {
        name: "test".to_owned(),
        handover: Handover::Socket(listener),
        source: snapshot,
        layout: Layout {
            mapped: vec![range(mapped), range(folded)],
            backed: vec![range(folded)],
            ..Layout::default()
        },
        // What is recorded is let in page by page, the rest with its neighbours.
        record: seed.is_multiple_of(2),
        maps: std::collections::HashMap::new(),
        handshake_limit: LIMIT,
        on_lost: Box::new(criu::abort),
    };
    // Some ahead: one of each kind, let in or copied.
    let ahead: Vec<AheadPage> = (mapped..mapped + 7)
        .chain(folded..folded + 4)
        .map(|page| AheadPage {
            page: PageRef { pid: PID, page },
            written: page % 3 == seed % 3,
        })
        .collect();
    criu::serve(config, PID, uffd, &ahead)
}

#[test]
fn memory_is_as_a_plain_process_would_have_it() {
    if !criu::is_possible() {
        return;
    }
    let mut taken_back = 0;
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut process = Process::start(seed);
        for _ in 0..OPERATIONS {
            process.step();
        }
        taken_back += process.end();
    }
    println!("{taken_back} pages were taken back");
    assert!(taken_back > SEEDS);
}
