//! What may happen while a page is on its way: it is freed, unmapped, touched by others, its process dies, or it never
//! comes.
#![allow(unsafe_code, reason = "works on memory by its addresses")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod criu;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use criu::{LIMIT, map};
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rekindle_pager::address_map::{AddressMap, Origin};
use rekindle_pager::{
    Handover, Layout, LostPage, PAGE, PageLookup, PageRange, PageRef, PageSource, Pager, PagerConfig, PagerError, Pin,
    SourceError,
};

const PID: i32 = 501;
/// Of the mapping. The first half is in the template, the second half comes when the gate is open.
const PAGES: u64 = 512;
const HALF: u64 = PAGES / 2;
/// Of another mapping, of which nothing is in the snapshot.
const WIDE: u64 = 1 << 16;
const LOST: u64 = PAGES - 1;

/// Every byte of page `index`.
fn byte(index: u64) -> u8 {
    (index % 251) as u8 + 1
}

/// A snapshot of one mapping of a file.
struct Snapshot {
    file: File,
    template: MmapRaw,
    first: u64,
    ready: Vec<AtomicBool>,
    gate: Mutex<bool>,
    opened: Condvar,
    /// Pages that wait at the gate.
    waiting: AtomicU64,
    mishap: Mishap,
}

/// What a source does now and then.
#[derive(Debug, Default)]
enum Mishap {
    #[default]
    None,
    /// It panics when it is asked for this page,
    PanicsWhenAsked(u64),
    /// or when it brings it.
    PanicsWhenBringing(u64),
    /// It takes its time to say that it has one of these pages; how often it was asked for them.
    Slow([u64; 2], AtomicU64),
    /// It says so many times that all have this page.
    Settled(u64, AtomicU64),
    /// It has what is not in the file.
    HasBytes(u64, Vec<u8>),
}

impl Snapshot {
    fn fill(&self, index: u64) {
        self.file
            .write_all_at(&[byte(index); PAGE as usize], index * PAGE)
            .unwrap();
        self.ready[index as usize].store(true, Ordering::Release);
    }

    fn open_gate(&self) {
        *self.gate.lock() = true;
        self.opened.notify_all();
    }
}

impl PageSource for Snapshot {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        let Some(index) = page.page.checked_sub(self.first).filter(|i| *i < PAGES) else {
            return PageLookup::Zero;
        };
        match &self.mishap {
            Mishap::PanicsWhenAsked(bad) => assert_ne!(index, *bad, "asked for the page"),
            Mishap::Slow(pages, asked) if pages.contains(&index) => {
                asked.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(40));
            }
            Mishap::Settled(at, times) if index == *at => {
                let one_less = |n: u64| n.checked_sub(1);
                if times
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                    .is_ok()
                {
                    return PageLookup::Settled;
                }
            }
            Mishap::HasBytes(from, bytes) if index >= *from => {
                let start = ((index - from) * PAGE) as usize;
                return bytes
                    .get(start..)
                    .filter(|b| !b.is_empty())
                    .map_or(PageLookup::Absent, PageLookup::Bytes);
            }
            _ => {}
        }
        let run = self.ready[index as usize..]
            .iter()
            .take_while(|r| r.load(Ordering::Acquire))
            .count();
        if run == 0 {
            return PageLookup::Absent;
        }
        let size = PAGE as usize;
        // SAFETY: inside the mapping, and written before their marks were set.
        let bytes = unsafe {
            let start = self.template.as_ptr().add(index as usize * size);
            std::slice::from_raw_parts(start, run * size)
        };
        PageLookup::Mapped(bytes)
    }

    fn fetch(&self, page: PageRef) -> Result<(), SourceError> {
        let index = page.page - self.first;
        if index == LOST {
            let message = "the store has lost it".to_owned();
            return Err(SourceError { message });
        }
        if let Mishap::PanicsWhenBringing(bad) = self.mishap {
            assert_ne!(index, bad, "bringing the page");
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut gate = self.gate.lock();
        while !*gate {
            assert!(
                !self.opened.wait_for(&mut gate, LIMIT).timed_out(),
                "the gate stays shut"
            );
        }
        self.fill(index);
        Ok(())
    }
}

/// This process as a restored one.
struct Restored {
    snapshot: Arc<Snapshot>,
    pager: Option<Pager>,
    first: u64,
    /// First page of the other mapping, if there is one.
    wide: Option<u64>,
    lost: Mutex<Receiver<LostPage>>,
    /// Of a page that is lost.
    victim: Arc<Mutex<LostPageVictim>>,
    /// One at a time: a fork waits for the pagers of all memory in this process, and its child has their descriptors
    /// already.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy)]
enum LostPageVictim {
    /// The test, as none may be lost.
    Test,
    Child(libc::pid_t),
    /// The test sees to it.
    Nobody,
}

/// What is special about a restore.
#[derive(Default)]
struct RestoreOptions {
    mishap: Mishap,
    record: bool,
    /// Whether there is another mapping, of [`WIDE`] pages.
    wide: bool,
    /// Pages that were given up before the process came here.
    freed: Option<std::ops::Range<u64>>,
}

impl Restored {
    fn new() -> Self {
        Self::with(RestoreOptions::default())
    }

    fn with(special: RestoreOptions) -> Self {
        let alone = ALONE.lock();
        let file = criu::template();
        let template = MmapOptions::new().len((PAGES * PAGE) as usize).map_raw(&file).unwrap();
        let first = map(0, PAGES, libc::MAP_PRIVATE, file.as_raw_fd());
        let wide = special.wide.then(|| map(0, WIDE, libc::MAP_PRIVATE, file.as_raw_fd()));
        let snapshot = Arc::new(Snapshot {
            file,
            template,
            first,
            ready: (0..PAGES).map(|_| AtomicBool::new(false)).collect(),
            gate: Mutex::new(false),
            opened: Condvar::new(),
            waiting: AtomicU64::new(0),
            mishap: special.mishap,
        });
        for index in 0..HALF {
            snapshot.fill(index);
        }
        let victim = Arc::new(Mutex::new(LostPageVictim::Test));
        let (told, lost): (Sender<LostPage>, _) = channel();
        let killed = Arc::clone(&victim);
        let freed = special.freed.map(|freed| {
            let mut map = AddressMap::new(Arc::default());
            map.free(first + freed.start, first + freed.end);
            (PID, map)
        });
        let range = |page, pages| PageRange {
            first: PageRef { pid: PID, page },
            pages,
        };
        let mut mapped = vec![range(first, PAGES)];
        mapped.extend(wide.map(|wide| range(wide, WIDE)));
        let config = |listener| PagerConfig {
            name: "test".to_owned(),
            handover: Handover::Socket(listener),
            source: Arc::clone(&snapshot) as Arc<_>,
            layout: Layout {
                mapped,
                ..Layout::default()
            },
            record: special.record,
            maps: HashMap::from_iter(freed),
            handshake_limit: LIMIT,
            on_lost: Box::new(move |page| {
                match *killed.lock() {
                    LostPageVictim::Test => return criu::abort(page),
                    LostPageVictim::Child(child) => kill(child),
                    LostPageVictim::Nobody => {}
                }
                told.send(page).unwrap();
            }),
        };
        let pager = criu::serve(config, PID, &criu::userfaultfd(), &[]);
        Self {
            snapshot,
            pager: Some(pager),
            first,
            wide,
            lost: Mutex::new(lost),
            victim,
            _alone: alone,
        }
    }

    fn pager(&self) -> &Pager {
        self.pager.as_ref().unwrap()
    }

    fn faults(&self) -> u64 {
        self.pager().stats().faults.load(Ordering::Relaxed)
    }

    /// Without its pager this process must do nothing more to the memory, nor have children with it.
    fn let_pager_go(&mut self) {
        let (address, length) = (self.address(0) as *mut _, (PAGES * PAGE) as usize);
        // SAFETY: mapped by `new`.
        assert_eq!(unsafe { libc::madvise(address, length, libc::MADV_DONTFORK) }, 0);
        self.pager = None;
    }

    fn address(&self, index: u64) -> u64 {
        (self.first + index) * PAGE
    }

    fn read(&self, index: u64) -> u8 {
        // SAFETY: mapped by `new`.
        unsafe { (self.address(index) as *const u8).read_volatile() }
    }

    /// Has a page read by a system call in another thread: it waits like any touch, and is told instead of killed if
    /// the page goes away.
    fn read_by_call(&self, index: u64) -> thread::JoinHandle<Result<u8, i32>> {
        let address = self.address(index);
        thread::spawn(move || {
            let (reader, writer) = std::io::pipe().unwrap();
            // SAFETY: the kernel checks the address.
            let rc = unsafe { libc::write(writer.as_raw_fd(), address as *const _, 1) };
            if rc != 1 {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
            }
            let mut byte = [0];
            std::io::Read::read_exact(&mut &reader, &mut byte).unwrap();
            Ok(byte[0])
        })
    }

    /// A child that shares the memory by fork and does only this.
    fn child(&self, work: impl FnOnce()) -> libc::pid_t {
        criu::fork(|| {
            work();
            0
        })
    }

    fn wait_for(&self, what: impl Fn(&Self) -> bool) {
        let deadline = std::time::Instant::now() + LIMIT;
        while !what(self) {
            assert!(std::time::Instant::now() < deadline, "it never happens");
            thread::yield_now();
        }
    }

    fn madvise(&self, index: u64, pages: u64) {
        free(self.first + index, pages);
    }

    fn unmap(&self, index: u64, pages: u64) {
        unmap(self.first + index, pages);
    }

    fn waits_at_the_gate(&self, pages: u64) -> bool {
        self.snapshot.waiting.load(Ordering::Relaxed) >= pages
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if self.pager.is_some() {
            self.unmap(0, PAGES);
            if let Some(wide) = self.wide {
                unmap(wide, WIDE);
            }
        }
    }
}

/// Has a child read a page, which is lost: the child is killed without having seen anything.
fn lose(restored: &Restored, index: u64) -> LostPage {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let child = restored.child(|| {
        let mut word = [0_u8; 1];
        // SAFETY: a buffer of one byte.
        unsafe { libc::read(reader.as_raw_fd(), word.as_mut_ptr().cast(), 1) };
        restored.read(index);
    });
    *restored.victim.lock() = LostPageVictim::Child(child);
    std::io::Write::write_all(&mut writer, b"x").unwrap();
    let lost = restored.lost.lock().recv_timeout(LIMIT).unwrap();
    assert_eq!(status_of(child), libc::SIGKILL, "never wrong bytes");
    assert!(restored.lost.lock().try_recv().is_err(), "told once");
    lost
}

fn free(page: u64, pages: u64) {
    let (address, length) = ((page * PAGE) as *mut _, (pages * PAGE) as usize);
    // SAFETY: mapped by `with`; nothing holds a reference.
    assert_eq!(unsafe { libc::madvise(address, length, libc::MADV_DONTNEED) }, 0);
}

fn unmap(page: u64, pages: u64) {
    let (address, length) = ((page * PAGE) as *mut _, (pages * PAGE) as usize);
    // SAFETY: mapped by `with`; nothing holds a reference.
    assert_eq!(unsafe { libc::munmap(address, length) }, 0);
}

/// Ends a child that nobody has waited for yet.
fn kill(child: libc::pid_t) {
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_page_far_away_delays_no_page_that_is_here() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let far = restored.read_by_call(HALF);
    restored.wait_for(|r| r.waits_at_the_gate(1));
    for index in 0..HALF {
        assert_eq!(restored.read(index), byte(index));
    }
    assert!(!far.is_finished());
    restored.snapshot.open_gate();
    assert_eq!(far.join().unwrap(), Ok(byte(HALF)));
}

#[test]
fn a_page_that_is_freed_while_it_is_on_its_way_reads_as_zero() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let reader = restored.read_by_call(HALF);
    restored.wait_for(|r| r.waits_at_the_gate(1));
    restored.madvise(HALF, 1);
    restored.snapshot.open_gate();
    assert_eq!(reader.join().unwrap(), Ok(0));
}

#[test]
fn a_page_that_is_freed_before_its_fault_is_answered_stays_freed() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        mishap: Mishap::Slow([9, 99], AtomicU64::new(0)),
        ..RestoreOptions::default()
    });
    let asked = |r: &Restored| match &r.snapshot.mishap {
        Mishap::Slow(_, asked) => asked.load(Ordering::Relaxed),
        _ => 0,
    };
    let first = restored.read_by_call(9);
    restored.wait_for(|r| asked(r) == 1);
    // While the pager is at it, a fault and its page's end come, and are read at once.
    let second = restored.read_by_call(99);
    thread::sleep(Duration::from_millis(10));
    restored.madvise(99, 1);
    assert_eq!(first.join().unwrap(), Ok(byte(9)));
    assert!(second.join().unwrap().is_ok(), "before or after");
    assert_eq!(restored.read(99), 0);
}

#[test]
fn who_waits_for_a_page_that_is_unmapped_is_woken() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let reader = restored.read_by_call(HALF + 1);
    restored.wait_for(|r| r.waits_at_the_gate(1));
    restored.unmap(HALF + 1, 1);
    restored.snapshot.open_gate();
    assert_eq!(reader.join().unwrap(), Err(libc::EFAULT));
    assert_eq!(restored.read(HALF), byte(HALF), "its neighbour is served");
}

#[test]
fn the_pager_outlives_a_process_that_dies_waiting() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let child = restored.child(|| {
        restored.read(HALF);
    });
    restored.wait_for(|r| r.waits_at_the_gate(1));
    kill(child);
    assert_eq!(status_of(child), libc::SIGKILL);
    restored.snapshot.open_gate();
    for index in [HALF, 3] {
        assert_eq!(restored.read(index), byte(index));
    }
}

#[test]
fn threads_that_touch_one_page_at_once_all_get_it() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    restored.snapshot.open_gate();
    let together = Barrier::new(4);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (restored, together) = (&restored, &together);
            scope.spawn(move || {
                for index in 0..LOST {
                    together.wait();
                    if writer == 0 {
                        // SAFETY: mapped by `new`; a byte that no other thread touches.
                        unsafe { ((restored.address(index) + 8) as *mut u8).write_volatile(7) };
                    } else {
                        assert_eq!(restored.read(index), byte(index), "page {index}");
                    }
                }
            });
        }
    });
    for index in 0..LOST {
        // SAFETY: mapped by `new`.
        let written = unsafe { ((restored.address(index) + 8) as *const u8).read_volatile() };
        assert_eq!(written, 7);
    }
}

#[test]
fn pages_freed_while_others_are_filled_are_zero_or_what_they_were() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    restored.snapshot.open_gate();
    // Every second group of eight is freed, back to front, while two threads read everything.
    let freed = |index: u64| (index / 8).is_multiple_of(2);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for index in 0..LOST {
                    let found = restored.read(index);
                    assert!(
                        found == byte(index) || (freed(index) && found == 0),
                        "page {index}: {found}"
                    );
                }
            });
        }
        scope.spawn(|| {
            for index in (0..LOST).rev().filter(|index| freed(*index)) {
                restored.madvise(index, 1);
            }
        });
    });
    for index in 0..LOST {
        assert_eq!(
            restored.read(index),
            if freed(index) { 0 } else { byte(index) },
            "page {index}"
        );
    }
}

#[test]
fn a_lost_page_kills_its_process_and_is_told_once() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let lost = lose(&restored, LOST);
    assert_eq!((lost.pid, lost.page), (PID, restored.first + LOST));
    assert!(lost.to_string().contains("the store has lost it"), "{lost}");
}

#[test]
fn a_source_that_panics_bringing_a_page_has_lost_it() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        mishap: Mishap::PanicsWhenBringing(HALF),
        ..RestoreOptions::default()
    });
    let lost = lose(&restored, HALF);
    assert_eq!(lost.page, restored.first + HALF);
    assert!(lost.to_string().contains("panicked"), "{lost}");
}

#[test]
fn a_pager_that_panics_kills_its_processes() {
    if !criu::is_possible() {
        return;
    }
    let mut restored = Restored::with(RestoreOptions {
        mishap: Mishap::PanicsWhenAsked(HALF),
        ..RestoreOptions::default()
    });
    let lost = lose(&restored, HALF);
    assert!(lost.to_string().contains("panicked"), "{lost}");
    restored.let_pager_go();
}

#[test]
fn a_process_that_outlives_its_pager_reads_nothing_wrong() {
    if !criu::is_possible() {
        return;
    }
    let mut restored = Restored::new();
    let child = restored.child(|| {
        restored.read(HALF);
    });
    restored.wait_for(|r| r.waits_at_the_gate(1));
    restored.let_pager_go();
    thread::sleep(Duration::from_millis(100));
    let mut status = 0;
    // SAFETY: our own child.
    let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    assert_eq!(ended, 0, "it read something");
    kill(child);
    assert_eq!(status_of(child), libc::SIGKILL);
    restored.snapshot.open_gate();
}

#[test]
fn several_pages_are_on_their_way_at_once() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let far: Vec<_> = (0..4)
        .map(|n| (HALF + 16 * n, restored.read_by_call(HALF + 16 * n)))
        .collect();
    // Nobody is let through until all four are there.
    restored.wait_for(|r| r.waits_at_the_gate(4));
    restored.snapshot.open_gate();
    for (index, reader) in far {
        assert_eq!(reader.join().unwrap(), Ok(byte(index)));
    }
}

#[test]
fn who_waits_for_a_page_that_is_said_to_be_there_looks_again() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        mishap: Mishap::Settled(9, AtomicU64::new(3)),
        ..RestoreOptions::default()
    });
    let reader = restored.read_by_call(9);
    restored.wait_for(|_| reader.is_finished());
    assert_eq!(reader.join().unwrap(), Ok(byte(9)));
    assert_eq!(restored.faults(), 4);
}

#[test]
fn what_was_given_up_elsewhere_is_not_the_snapshot_s() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        freed: Some(3..5),
        ..RestoreOptions::default()
    });
    for index in 0..16 {
        let expected = if (3..5).contains(&index) { 0 } else { byte(index) };
        assert_eq!(restored.read(index), expected, "page {index}");
    }
}

#[test]
fn pages_that_follow_a_process_are_left_out_where_it_has_given_them_up() {
    if !criu::is_possible() {
        return;
    }
    let bytes = (HALF..HALF + 8)
        .flat_map(|index| [byte(index); PAGE as usize])
        .collect();
    let restored = Restored::with(RestoreOptions {
        mishap: Mishap::HasBytes(HALF, bytes),
        ..RestoreOptions::default()
    });
    restored.madvise(HALF + 2, 2);
    let first = PageRef {
        pid: PID,
        page: restored.first + HALF,
    };
    let filled = restored
        .pager()
        .fill(PageRange { first, pages: 8 }, first.page, LIMIT)
        .unwrap();
    assert_eq!((filled.filled, filled.left), (6, 0));
    let before = restored.faults();
    for index in HALF..HALF + 8 {
        let freed = (HALF + 2..HALF + 4).contains(&index);
        assert_eq!(
            restored.read(index),
            if freed { 0 } else { byte(index) },
            "page {index}"
        );
    }
    assert!(restored.faults() - before <= 2, "of those that were given up");
}

#[test]
fn maps_are_told_as_long_as_there_is_one_process() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    restored.madvise(7, 1);
    let maps = restored.pager().maps(LIMIT).unwrap();
    let [(PID, map)] = &maps[..] else { panic!("{maps:?}") };
    assert_eq!(map.origin(restored.first + 7), Origin::Zero);
    assert_eq!(map.origin(restored.first + 8), Origin::Snapshot(restored.first + 8));
    let child = restored.child(|| {
        // SAFETY: waits for its end.
        unsafe { libc::pause() };
    });
    assert!(matches!(restored.pager().maps(LIMIT), Err(PagerError::Forked(1))));
    kill(child);
    status_of(child);
    assert_eq!(restored.pager().maps(LIMIT).unwrap().len(), 1);
}

#[test]
fn children_that_have_ended_are_let_go_of() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let watched = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = open.filter_map(|e| std::fs::read_link(e.path()).ok());
        targets.filter(|t| t.to_string_lossy().contains("userfaultfd")).count()
    };
    for _ in 0..100 {
        let child = restored.child(|| {});
        assert_eq!(status_of(child), 0);
    }
    restored.read(3);
    assert!(watched() < 40, "{} are watched", watched());
}

#[test]
fn a_process_that_cuts_memory_into_too_many_pieces_is_killed() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        wide: true,
        ..RestoreOptions::default()
    });
    // Each page that is freed between others is a piece.
    let wide = restored.wide.unwrap();
    for page in (wide..wide + WIDE).step_by(2) {
        free(page, 1);
    }
    // Each child has as many again.
    let mut children = Vec::new();
    *restored.victim.lock() = LostPageVictim::Nobody;
    let lost = loop {
        if let Ok(lost) = restored.lost.lock().try_recv() {
            break lost;
        }
        assert!(children.len() < 100, "nobody minds");
        // SAFETY: waits for its end.
        let waits = || assert_eq!(unsafe { libc::pause() }, -1);
        children.push(restored.child(waits));
    };
    for child in &children {
        kill(*child);
    }
    for child in children {
        assert_eq!(status_of(child), libc::SIGKILL);
    }
    assert!(lost.to_string().contains("pieces"), "{lost}");
}

#[test]
fn a_page_that_vanishes_from_the_template_is_lost_not_zero() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    let (offset, length) = ((5 * PAGE) as libc::off_t, PAGE as libc::off_t);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: our own file; nobody looks at this page of it by our own mapping.
    let rc = unsafe { libc::fallocate(restored.snapshot.file.as_raw_fd(), mode, offset, length) };
    assert_eq!(rc, 0);
    assert_eq!(lose(&restored, 5).page, restored.first + 5);
}

#[test]
fn memory_that_is_read_from_front_to_back_takes_few_faults() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    for index in 0..HALF {
        assert_eq!(restored.read(index), byte(index));
    }
    let faults = restored.faults();
    assert!(faults <= HALF / 8, "{faults} faults for {HALF} pages");
}

#[test]
fn neighbours_of_a_touched_page_are_let_in_with_it() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::new();
    restored.read(9);
    restored.wait_for(|r| r.pager().stats().around.load(Ordering::Relaxed) == 3);
    // Blocks are aligned in the address space.
    let block = 9 - (restored.first + 9) % 4;
    for index in block..block + 4 {
        assert_eq!(restored.read(index), byte(index));
    }
    assert_eq!(restored.faults(), 1);
    // One fault, and so long as it took.
    assert_eq!(
        restored.pager().stats().latency.buckets().map(|(_, n)| n).sum::<u64>(),
        1
    );
}

#[test]
fn nothing_but_what_is_touched_is_let_in_while_it_is_recorded() {
    if !criu::is_possible() {
        return;
    }
    let restored = Restored::with(RestoreOptions {
        record: true,
        ..RestoreOptions::default()
    });
    let touched = [9, 8, 10];
    for index in touched {
        assert_eq!(restored.read(index), byte(index));
    }
    // It notes a page after who waits for it is woken.
    restored.pager().maps(LIMIT).unwrap();
    let recorded: Vec<_> = restored
        .pager()
        .take_working_set()
        .iter()
        .map(|p| p.page - restored.first)
        .collect();
    assert_eq!(recorded, touched);
    assert!(restored.pager().take_working_set().is_empty(), "only once");
}
