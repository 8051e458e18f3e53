//! Memory served by the pager, under operations at random, beside a naive model: every byte is compared. The test plays
//! CRIU (it makes the mappings and sends their userfaultfd) and the restored process (it operates on them); the pager
//! is the real one. Meanwhile a thread takes pages of the template back, as a host that is short of memory does.
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
use std::time::Instant;

use criu::{LIMIT, map, map_from};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use rekindle_pager::userfault::{Register, Userfault};
use rekindle_pager::{
    AheadPage, Handover, Layout, PAGE, PageLookup, PageRange, PageRef, PageSource, Pager, PagerConfig, Pin,
    SourceError, unpinned,
};

const PID: i32 = 501;
/// Pages of each of the three mappings, and of the room where pages are moved to.
const PAGES: u64 = 96;
const OPERATIONS: usize = 400;
/// Of a forked child, and of its parent while it lives.
const CHILD_OPERATIONS: usize = 8;
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

/// A snapshot of three mappings. One is mapped from a file, filled page by page as they are asked for, and one is
/// copied. The third is mapped from the file too, whole, and the process had mapped it from another file.
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
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        let size = PAGE as usize;
        let (index, is_mapped) = match page.page {
            p if (self.mapped..self.mapped + PAGES).contains(&p) => (p - self.mapped, true),
            p if (self.copied..self.copied + PAGES).contains(&p) => (p - self.copied, false),
            p if (self.folded..self.folded + PAGES).contains(&p) => {
                let at = (PAGES + p - self.folded) as usize * size;
                // SAFETY: inside the mapping, and written before the pager was started.
                return PageLookup::Mapped(unsafe { std::slice::from_raw_parts(self.template.as_ptr().add(at), size) });
            }
            _ => return PageLookup::Zero,
        };
        if index.is_multiple_of(3) {
            return PageLookup::Zero;
        }
        let index = index as usize;
        if !is_mapped {
            return PageLookup::Bytes(&self.copies[index * size..(index + 1) * size]);
        }
        if !self.ready[index].load(Ordering::Acquire) {
            return PageLookup::Absent;
        }
        // SAFETY: inside the mapping, written before its mark was set, and not taken back while the caller is pinned.
        PageLookup::Mapped(unsafe { std::slice::from_raw_parts(self.template.as_ptr().add(index * size), size) })
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

#[derive(Clone)]
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

/// What a process does to its memory, in pages.
enum Operation {
    Write {
        page: u64,
        at: u64,
        value: u8,
    },
    Free {
        start: u64,
        length: u64,
    },
    Unmap {
        start: u64,
        length: u64,
    },
    /// Fresh memory where there is none.
    Map {
        start: u64,
        length: u64,
    },
    /// Sometimes growing: what is added is zero.
    Move {
        start: u64,
        length: u64,
        grown: u64,
        to: u64,
    },
    Grow {
        page: u64,
        grown: u64,
    },
}

impl Operation {
    /// Answers the error's number, or 0. Allocates nothing, so that a forked child may call it.
    fn perform(&self) -> i32 {
        let address = |page: u64| (page * PAGE) as *mut libc::c_void;
        let bytes = |pages: u64| (pages * PAGE) as usize;
        // SAFETY: pages that are mapped and of which nothing else holds a reference, as the model says, and places
        // where nothing is.
        let failed = unsafe {
            match *self {
                Self::Write { page, at, value } => {
                    address(page).cast::<u8>().add(at as usize).write_volatile(value);
                    false
                }
                Self::Free { start, length } => libc::madvise(address(start), bytes(length), libc::MADV_DONTNEED) != 0,
                Self::Unmap { start, length } => libc::munmap(address(start), bytes(length)) != 0,
                Self::Map { start, length } => {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                    let access = libc::PROT_READ | libc::PROT_WRITE;
                    libc::mmap(address(start), bytes(length), access, flags, -1, 0) != address(start)
                }
                Self::Move {
                    start,
                    length,
                    grown,
                    to,
                } => {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    libc::mremap(address(start), bytes(length), bytes(grown), flags, address(to)) == libc::MAP_FAILED
                }
                Self::Grow { page, grown } => {
                    libc::mremap(address(page), bytes(1), bytes(grown), 0) == libc::MAP_FAILED
                }
            }
        };
        if failed { nix::errno::Errno::last_raw() } else { 0 }
    }
}

/// What each mapped page must hold.
#[derive(Clone)]
struct Model {
    pages: BTreeMap<u64, Page>,
    /// Every page that is, or was, or may come to be mapped.
    room: std::ops::Range<u64>,
}

impl Model {
    fn run(&self, random: &mut u64) -> (u64, u64) {
        let at = number(random, self.pages.len() as u64) as usize;
        let start = *self.pages.keys().nth(at).unwrap();
        let most = 1 + number(random, 12);
        let mut length = 1;
        while length < most && self.pages.contains_key(&(start + length)) {
            length += 1;
        }
        (start, length)
    }

    fn is_vacant(&self, start: u64, length: u64) -> bool {
        start + length <= self.room.end && self.pages.range(start..start + length).next().is_none()
    }

    /// The next operation; none where what was drawn cannot be done.
    fn draw(&self, random: &mut u64) -> Option<Operation> {
        let (start, length) = self.run(random);
        let anywhere = self.room.start + number(random, PAGES * 8);
        match number(random, 7) {
            0..=1 => {
                let (at, value) = (number(random, PAGE), number(random, 256) as u8);
                Some(Operation::Write { page: start, at, value })
            }
            2 => Some(Operation::Free { start, length }),
            3 if self.pages.len() as u64 > PAGES => Some(Operation::Unmap { start, length }),
            4 => {
                let (grown, to) = (length + number(random, 4), anywhere);
                self.is_vacant(to, grown).then_some(Operation::Move {
                    start,
                    length,
                    grown,
                    to,
                })
            }
            5 => {
                let (page, added) = (start + length - 1, 1 + number(random, 3));
                let grown = 1 + added;
                self.is_vacant(page + 1, added)
                    .then_some(Operation::Grow { page, grown })
            }
            6 => self.is_vacant(anywhere, 4).then_some(Operation::Map {
                start: anywhere,
                length: 4,
            }),
            _ => None,
        }
    }

    fn apply(&mut self, operation: &Operation) {
        let fresh = || Page::new(&[0; PAGE as usize]);
        match *operation {
            Operation::Write { page, at, value } => self.pages.get_mut(&page).unwrap().bytes[at as usize] = value,
            Operation::Free { start, length } => {
                for (_, page) in self.pages.range_mut(start..start + length) {
                    page.bytes = page.behind.to_vec();
                }
            }
            Operation::Unmap { start, length } => {
                for page in start..start + length {
                    self.pages.remove(&page);
                }
            }
            Operation::Map { start, length } => self.pages.extend((start..start + length).map(|page| (page, fresh()))),
            Operation::Move {
                start,
                length,
                grown,
                to,
            } => {
                for n in 0..grown {
                    let page = if n < length {
                        self.pages.remove(&(start + n)).unwrap()
                    } else {
                        fresh()
                    };
                    self.pages.insert(to + n, page);
                }
            }
            Operation::Grow { page, grown } => self.pages.extend((page + 1..page + grown).map(|page| (page, fresh()))),
        }
    }
}

/// The process and the model of it.
struct Process {
    model: Model,
    pager: Option<Pager>,
    snapshot: Arc<Snapshot>,
    taker: Option<JoinHandle<()>>,
    random: u64,
    performed: u64,
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
        let userfault = criu::userfaultfd();
        userfault.register(copied, PAGES, Register::Missing).unwrap();
        let pager = serve(seed, Arc::clone(&snapshot), &userfault, mapped, folded);
        let taking = Arc::clone(&snapshot);
        let taker = std::thread::spawn(move || taking.take_back(seed));
        let pages = [mapped, copied]
            .into_iter()
            .flat_map(|start| (0..PAGES).map(move |n| (start + n, Page::new(&content(n)))));
        let of_file = (0..PAGES).map(|n| {
            let (bytes, behind) = (content(7 * n).to_vec(), behind(n));
            (folded + n, Page { bytes, behind })
        });
        let model = Model {
            pages: pages.chain(of_file).collect(),
            room: first..first + PAGES * 8,
        };
        Self {
            model,
            pager: Some(pager),
            snapshot,
            taker: Some(taker),
            random: seed.wrapping_mul(2).wrapping_add(1),
            performed: 0,
        }
    }

    fn step(&mut self) {
        match number(&mut self.random, 12) {
            0..=2 => {
                let (page, _) = self.model.run(&mut self.random);
                self.check(page);
            }
            3 if number(&mut self.random, 4) == 0 => self.fork(),
            _ => self.operate(),
        }
    }

    fn operate(&mut self) {
        let Some(operation) = self.model.draw(&mut self.random) else {
            return;
        };
        match operation.perform() {
            0 => {
                self.model.apply(&operation);
                self.performed += 1;
            }
            // Pages of several mappings cannot be moved at once.
            libc::EFAULT if matches!(operation, Operation::Move { .. }) => {}
            other => panic!("{}", std::io::Error::from_raw_os_error(other)),
        }
    }

    /// A child has the same memory, and what either of them does to it afterwards is its own affair.
    fn fork(&mut self) {
        // Made before, as a child of a process with threads must not allocate.
        let mut of_child = self.model.clone();
        let planned: Vec<Operation> = (0..CHILD_OPERATIONS)
            .filter_map(|_| {
                let mut operation = of_child.draw(&mut self.random)?;
                if let Operation::Move { length, grown, .. } = &mut operation {
                    // One page is in one mapping.
                    (*length, *grown) = (1, *grown - *length + 1);
                }
                of_child.apply(&operation);
                Some(operation)
            })
            .collect();
        let (wait, go_on) = nix::unistd::pipe().unwrap();
        let child = criu::fork(|| {
            let done = planned.iter().all(|operation| operation.perform() == 0);
            let mut byte = 0_u8;
            // SAFETY: descriptors of its own, and a byte of its own; nothing comes if the parent has died.
            unsafe {
                libc::close(go_on.as_raw_fd());
                libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
            }
            let same = || {
                let mut pages = of_child.pages.iter();
                // SAFETY: mapped pages.
                pages.all(|(page, expected)| unsafe { is(*page, &expected.bytes) })
            };
            if done { i32::from(!same()) } else { 2 }
        });
        for _ in 0..CHILD_OPERATIONS {
            self.operate();
        }
        assert_eq!(nix::unistd::write(&go_on, &[1]), Ok(1));
        let (mut status, deadline) = (0, Instant::now() + LIMIT);
        // SAFETY: our own child.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            assert!(Instant::now() < deadline, "the child waits for a page");
            std::thread::yield_now();
        }
        assert_eq!(
            libc::WEXITSTATUS(status),
            0,
            "1: the child has other memory, 2: it could not do what it should"
        );
        assert_eq!(status, 0);
    }

    fn check(&self, page: u64) {
        let expected = &self.model.pages[&page].bytes;
        // SAFETY: a mapped page.
        let same = unsafe { is(page, expected) };
        assert!(same, "page {page:#x} differs");
    }

    /// Answers how many pages were taken back meanwhile.
    fn end(mut self) -> u64 {
        for page in self.model.pages.keys() {
            self.check(*page);
        }
        for page in self.model.pages.keys() {
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

fn serve(seed: u64, snapshot: Arc<Snapshot>, userfault: &Userfault, mapped: u64, folded: u64) -> Pager {
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
    criu::serve(config, PID, userfault, &ahead)
}

#[test]
fn memory_is_as_a_plain_process_would_have_it() {
    if !criu::is_possible() {
        return;
    }
    let (mut taken_back, mut performed) = (0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut process = Process::start(seed);
        for _ in 0..OPERATIONS {
            process.step();
        }
        performed += process.performed;
        taken_back += process.end();
    }
    println!("{performed} operations, {taken_back} pages taken back");
    assert!(performed > SEEDS * OPERATIONS as u64 / 2);
    assert!(taken_back > SEEDS);
}
