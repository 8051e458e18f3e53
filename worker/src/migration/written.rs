//! The pages that a migrated instance had written at the source, as far as they have arrived. Below them lies the
//! snapshot that it came from.
#![expect(
    unsafe_code,
    reason = "pages are shared between threads by a bit each, which the borrow checker cannot follow"
)]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;
use rekindle_pager::address_map::{AddressMap, Origin};
use rekindle_pager::{Layout, PAGE, PageLookup, PageRange, PageRef, PageSource, Pin, SourceError, unpinned};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::WRITTEN;
use super::page_numbering::PageNumbering;
use super::peer::{Frame, SourcePeer};
use crate::snapshots::Template;

/// How long a page that somebody waits for may take to come from the source.
const FETCH_LIMIT: Duration = Duration::from_secs(10);
/// How long pagers may still look at pages that are being released.
const UNPINNED_LIMIT: Duration = Duration::from_secs(1);

/// Runs of a process's written pages: first page, number of pages, number of the first page.
type WrittenRuns = Vec<(u64, u64, u64)>;

/// The memory of an instance that has migrated here.
pub(super) struct WrittenPages {
    base: Option<Arc<Template>>,
    processes: HashMap<i32, Process>,
    pages: u64,
    memory: MmapRaw,
    ready: Vec<AtomicU64>,
    missing: AtomicU64,
    /// Whether all of it is in the processes.
    settled: Arc<AtomicBool>,
    runs_here: Arc<Notify>,
    source: SourcePeer,
    runtime: Handle,
    /// Held by whoever puts pages in.
    filling: Mutex<()>,
}

struct Process {
    runs: WrittenRuns,
    /// What its addresses belonged to before it wrote there.
    under: AddressMap,
}

impl WrittenPages {
    /// Creates it without any page present. `under` says what the addresses of each process belong to below the written
    /// pages.
    ///
    /// # Errors
    /// Returns an error when there is no memory for it.
    pub(super) fn new(
        base: Option<Arc<Template>>,
        numbering: &PageNumbering,
        mut under: HashMap<i32, AddressMap>,
        source: SourcePeer,
        runtime: Handle,
    ) -> std::io::Result<Self> {
        let bytes = (numbering.pages.max(1) * PAGE) as usize;
        let processes = numbering.processes.iter().map(|migrated| {
            let runs = migrated.runs.iter().map(|(run, at)| (run.first.0, run.pages, *at));
            let process = Process {
                runs: runs.collect(),
                under: under.remove(&migrated.pid).unwrap_or_default(),
            };
            (migrated.pid, process)
        });
        Ok(Self {
            base,
            processes: processes.collect(),
            pages: numbering.pages,
            memory: MmapOptions::new().len(bytes).map_anon()?.into(),
            ready: (0..numbering.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            missing: AtomicU64::new(numbering.pages),
            settled: Arc::default(),
            runs_here: Arc::default(),
            source,
            runtime,
            filling: Mutex::new(()),
        })
    }

    /// Returns the address maps of all processes, including their written pages. Adds to the layout the parts that a
    /// file backs.
    pub(super) fn maps(&self, layout: &mut Layout) -> HashMap<i32, AddressMap> {
        let is_backed = |page: &PageRef| layout.backed.iter().any(|range| contains(range, page));
        let mut backed = Vec::new();
        for (pid, process) in &self.processes {
            for (first, pages, _) in &process.runs {
                let mut page = *first;
                while page < first + pages {
                    let length = process.under.run(page, first + pages - page);
                    if let Origin::Snapshot(source) | Origin::File(source) = process.under.origin(page) {
                        let behind = (0..length).filter(|n| {
                            is_backed(&PageRef {
                                pid: *pid,
                                page: source + n,
                            })
                        });
                        backed.extend(behind.map(|n| PageRange {
                            first: PageRef {
                                pid: *pid,
                                page: (page + n) | WRITTEN,
                            },
                            pages: 1,
                        }));
                    }
                    page += length;
                }
            }
        }
        backed.sort_by_key(|range| range.first);
        layout.backed.extend(backed);
        let map = |(pid, process): (&i32, &Process)| {
            let mut map = AddressMap::new(layout.backed_of(*pid));
            for (pages, origin) in process.under.pieces() {
                map.set(pages, origin);
            }
            for (first, pages, _) in &process.runs {
                map.set(*first..first + pages, Origin::Snapshot(first | WRITTEN));
            }
            (*pid, map)
        };
        self.processes.iter().map(map).collect()
    }

    /// Returns the runs of written pages in the order of their numbers, each with the number of its first page.
    pub(super) fn runs(&self) -> impl Iterator<Item = (PageRange, u64)> {
        let of = |(pid, process): (&i32, &Process)| {
            let pid = *pid;
            let range = move |(page, pages, at): &(u64, u64, u64)| {
                let first = PageRef { pid, page: *page };
                (PageRange { first, pages: *pages }, *at)
            };
            process.runs.iter().map(range).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(of).collect();
        all.sort_by_key(|(_, at)| *at);
        all.into_iter()
    }

    /// Returns the number of pages to transfer.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of pages that have not arrived.
    pub(super) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Acquire)
    }

    /// Returns the first page from `number` on that has not arrived.
    pub(super) fn first_missing(&self, number: u64) -> Option<u64> {
        (number..self.pages).find(|number| !self.is_ready(*number))
    }

    /// Returns whether all pages are in the processes, so that nothing needs them here any more.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Returns what becomes true when all pages are in the processes.
    pub(super) fn settled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.settled)
    }

    /// Returns where processes have moved written pages since they came, each range with the source of its first page.
    /// A process that has ended, with its children, has no map.
    pub(super) fn moved(&self, maps: &[(i32, AddressMap)]) -> Vec<(PageRange, u64)> {
        let of = |(pid, map): &(i32, AddressMap)| {
            let pid = *pid;
            let moved = move |(pages, origin): (Range<u64>, Origin)| match origin {
                Origin::Snapshot(source) if source & WRITTEN != 0 && source & !WRITTEN != pages.start => {
                    let first = PageRef { pid, page: pages.start };
                    let pages = pages.end - pages.start;
                    Some((PageRange { first, pages }, source))
                }
                _ => None,
            };
            map.pieces().filter_map(moved).collect::<Vec<_>>()
        };
        maps.iter().flat_map(of).collect()
    }

    /// Records that all pages are in the processes. With `free`, nobody else can ask for them, and their memory is
    /// released. Blocks, with a limit.
    pub(super) fn settle(&self, free: bool) {
        self.settled.store(true, Ordering::Release);
        if !free {
            return;
        }
        let _alone = self.filling.lock();
        for word in &self.ready {
            word.store(0, Ordering::SeqCst);
        }
        if unpinned(UNPINNED_LIMIT) {
            // SAFETY: no bit is set, and nobody still looks at what was there when a bit was set.
            if let Err(error) = unsafe { self.memory.unchecked_advise(UncheckedAdvice::DontNeed) } {
                tracing::warn!(%error, "memory that has moved on stays taken");
            }
        }
    }

    /// Puts in pages that have arrived.
    pub(super) fn put(&self, frame: &Frame<'_>) -> Result<(), SourceError> {
        let end = frame.first.checked_add(frame.pages).filter(|end| *end <= self.pages);
        let plain = frame.bytes.is_empty() || frame.bytes.len() as u64 == frame.pages.saturating_mul(PAGE);
        let (Some(end), true) = (end, plain) else {
            let message = "the source sends pages that were not written".to_owned();
            return Err(SourceError { message });
        };
        let _alone = self.filling.lock();
        let mut filled = 0;
        for number in frame.first..end {
            if self.is_ready(number) || self.is_settled() {
                continue;
            }
            let at = ((number - frame.first) * PAGE) as usize;
            if let Some(bytes) = frame.bytes.get(at..at + PAGE as usize) {
                // SAFETY: the page lies inside the mapping. Nobody reads it before its bit is set, and nobody else
                // writes while the lock is held.
                unsafe {
                    let to = self.memory.as_mut_ptr().add((number * PAGE) as usize);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE as usize);
                }
            }
            self.ready[(number / 64) as usize].fetch_or(1 << (number % 64), Ordering::Release);
            filled += 1;
        }
        self.missing.fetch_sub(filled, Ordering::AcqRel);
        Ok(())
    }

    fn is_ready(&self, number: u64) -> bool {
        self.ready[(number / 64) as usize].load(Ordering::Acquire) & (1 << (number % 64)) != 0
    }

    /// Returns how many consecutive pages from `number` on are here, at most `limit`.
    pub(super) fn ready_run(&self, number: u64, limit: u64) -> u64 {
        let end = number.saturating_add(limit).min(self.pages);
        (number..end).take_while(|number| self.is_ready(*number)).count() as u64
    }

    /// Returns the number of a written page, and how many pages of its run there are from it on.
    fn number(&self, page: PageRef) -> Option<(u64, u64)> {
        let address = page.page & !WRITTEN;
        let runs = &self.processes.get(&page.pid)?.runs;
        let index = runs.partition_point(|(first, ..)| *first <= address).checked_sub(1)?;
        let (first, pages, at) = runs[index];
        (address - first < pages).then(|| (at + address - first, pages - (address - first)))
    }

    /// Receives the pages `number..end`.
    pub(super) async fn stream(&self, number: u64, end: u64) -> Result<(), SourceError> {
        self.source.stream(number, end, |frame| self.put(frame)).await
    }

    /// Records that the instance runs, or never will: the source's remaining pages may come now.
    pub(super) fn note_running(&self) {
        self.runs_here.notify_one();
    }

    /// Returns the notification for when the instance runs here.
    pub(super) fn runs_here(&self) -> Arc<Notify> {
        Arc::clone(&self.runs_here)
    }

    /// Tells the source that all pages have arrived.
    pub(super) async fn tell_done(&self) -> Result<(), rekindle_wire::ApiError> {
        self.source.done().await
    }

    fn ask(&self, number: u64) -> Result<(), SourceError> {
        let until = Instant::now() + FETCH_LIMIT;
        loop {
            let asked = self
                .runtime
                .block_on(self.source.block(number, |frame| self.put(frame)));
            match asked {
                _ if self.is_ready(number) || self.is_settled() => return Ok(()),
                Ok(()) => {
                    let message = "the source sent other pages than it was asked for".to_owned();
                    return Err(SourceError { message });
                }
                Err(e) if Instant::now() >= until => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn contains(range: &PageRange, page: &PageRef) -> bool {
    let pages: Range<u64> = range.first.page..range.first.page + range.pages;
    range.first.pid == page.pid && pages.contains(&page.page)
}

impl PageSource for WrittenPages {
    fn held<'a>(&'a self, page: PageRef, pin: &'a Pin) -> PageLookup<'a> {
        if page.page & WRITTEN == 0 {
            return self.base.as_ref().map_or(PageLookup::Zero, |base| base.held(page, pin));
        }
        let Some((number, left)) = self.number(page) else {
            return PageLookup::Zero;
        };
        let pages = self.ready_run(number, left);
        if pages == 0 {
            // A fault that was read before it was served from here may come up once more.
            return if self.is_settled() {
                PageLookup::Settled
            } else {
                PageLookup::Absent
            };
        }
        // SAFETY: these pages lie inside the mapping. Their bits are set, so they are written, and they are not
        // released before the caller is unpinned.
        let bytes = unsafe {
            let from = self.memory.as_ptr().add((number * PAGE) as usize);
            std::slice::from_raw_parts(from, (pages * PAGE) as usize)
        };
        PageLookup::Bytes(bytes)
    }

    fn fetch(&self, page: PageRef) -> Result<(), SourceError> {
        if page.page & WRITTEN == 0 {
            return self.base.as_ref().map_or(Ok(()), |base| base.fetch(page));
        }
        match self.number(page) {
            Some((number, _)) if !self.is_ready(number) && !self.is_settled() => self.ask(number),
            _ => Ok(()),
        }
    }

    fn file_page(&self, page: PageRef) -> Result<Box<[u8]>, SourceError> {
        let mut below = page;
        if page.page & WRITTEN != 0 {
            let process = self.processes.get(&page.pid);
            below.page = match process.map(|p| p.under.origin(page.page & !WRITTEN)) {
                Some(Origin::Snapshot(source) | Origin::File(source)) => source,
                _ => return Ok(vec![0; PAGE as usize].into()),
            };
        }
        match &self.base {
            Some(base) => base.file_page(below),
            None => Ok(vec![0; PAGE as usize].into()),
        }
    }
}
