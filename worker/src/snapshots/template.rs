//! The template: this host's plain copy of a snapshot's memory, shared by all its clones. Filled region by region, from the
//! chunk cache or the store: first what the working set names, then what is touched, and the rest in the background.
//!
//! One file a process. It begins with the ranges that clones map from it (`TemplateLayout`); behind them lies, without gaps,
//! memory that clones cannot map and get as copies.
//!
//! A page is written once, before its bit is set, and never again; who sees the bit may read the page without a lock.
#![expect(
    unsafe_code,
    reason = "pages are shared between threads by a bit each, which the borrow checker cannot follow"
)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_pager::{Held, Layout, PAGE, PageRange, PageRef, PageSource, SourceError};
use rekindle_snapshotter::images::{TemplateArea, TemplateLayout};
use rekindle_snapshotter::{Digest, PageIndex, PageMap, RegionReader};
use tokio::runtime::Handle;

use super::edit::MAPPED_MAX;
use super::memory_fs::{MemoryFs, MemoryFsError};
use super::originals::Originals;
use super::ready::ReadyPages;

/// How long a fault may wait for its page: longer than the store's own limit for a chunk.
const FETCH_LIMIT: Duration = Duration::from_secs(12);
/// Chunks that the background fills from at once: as many are asked for together, so that what was forgotten in the working set
/// is on its way before it is missed.
const BACKGROUND: usize = 8;

/// Size of a template's file: as a mapping may grow by `mremap`, there must be file behind all it could grow to. Sparse.
const FILE_BYTES: u64 = 1 << 50;

/// Why a template could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// No file for it.
    #[error(transparent)]
    File(#[from] MemoryFsError),
    /// A region that is only partly in a mapping.
    #[error("{region} of {snapshot} reaches over the end of its mapping: delete the snapshot and deploy again")]
    Straddles {
        /// The snapshot.
        snapshot: String,
        /// The region.
        region: String,
    },
    /// The images have less than they should.
    #[error("the eager pages of snapshot {0} are fewer than its mappings: delete the snapshot and deploy again")]
    FoldedShort(String),
    /// No address space.
    #[error("map {bytes} bytes of the template of {snapshot}")]
    Map {
        /// The snapshot.
        snapshot: String,
        /// How much.
        bytes: usize,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A process, as its template needs to know it.
pub struct ProcessMemory {
    /// Its pid at the checkpoint.
    pub pid: i32,
    /// Where its pages are to be had.
    pub map: Arc<PageMap>,
    /// What clones map; nothing for one that is restored the plain way.
    pub layout: TemplateLayout,
    /// The bytes of the layout's folded areas, one after the other.
    pub folded: Vec<u8>,
}

struct ProcessTemplate {
    pid: i32,
    map: Arc<PageMap>,
    layout: TemplateLayout,
    /// Where each region's plain bytes start in `memory`.
    starts: Vec<usize>,
    /// Which pages are there, by region; those of regions that hold nothing are not counted.
    ready: ReadyPages,
    memory: MmapRaw,
    read_only: OwnedFd,
    filling: Mutex<()>,
}

/// A snapshot's memory on this host.
pub struct Template {
    processes: Vec<ProcessTemplate>,
    originals: Originals,
    reader: Arc<RegionReader>,
    runtime: Handle,
    bytes: u64,
}

fn range(pid: i32, area: &TemplateArea) -> PageRange {
    PageRange {
        first: PageRef {
            pid,
            page: area.first.0,
        },
        pages: area.pages,
    }
}

impl Template {
    /// A template for these processes, empty but for what is folded.
    ///
    /// # Errors
    /// When no file or address space can be had.
    pub fn new(
        snapshot: &str,
        processes: Vec<ProcessMemory>,
        originals: Originals,
        fs: &MemoryFs,
        reader: Arc<RegionReader>,
        runtime: Handle,
    ) -> Result<Self, TemplateError> {
        let processes = processes
            .into_iter()
            .map(|process| ProcessTemplate::new(snapshot, process, fs))
            .collect::<Result<Vec<_>, _>>()?;
        let held = processes.iter().flat_map(|p| p.map.regions());
        let held = held.filter(|r| r.payload.is_some()).map(|r| r.plain_len() as u64);
        let folded = processes
            .iter()
            .flat_map(|p| &p.layout.folded)
            .map(|f| f.area.pages * PAGE);
        let bytes = held.chain(folded).sum();
        Ok(Self {
            processes,
            originals,
            reader,
            runtime,
            bytes,
        })
    }

    /// What the processes map, in their order, of those that may map anything: descriptors to read and map privately.
    pub fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.processes.iter().take(MAPPED_MAX).map(|p| &p.read_only)
    }

    /// How the memory of all processes is laid out, for the pager.
    pub fn layout(&self) -> Layout {
        let ranges = |areas: fn(&TemplateLayout) -> &[TemplateArea]| {
            let of = |p: &ProcessTemplate| areas(&p.layout).iter().map(|a| range(p.pid, a)).collect::<Vec<_>>();
            self.processes.iter().flat_map(of).collect()
        };
        Layout {
            mapped: ranges(|l| &l.mappings),
            empty: ranges(|l| &l.empty),
            backed: self.folded(),
        }
    }

    /// What was folded into it, whole from the beginning.
    pub fn folded(&self) -> Vec<PageRange> {
        let of = |p: &ProcessTemplate| {
            p.layout
                .folded
                .iter()
                .map(|f| range(p.pid, &f.area))
                .collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    /// Brings the pages with these addresses, of all processes that have them.
    ///
    /// # Errors
    /// When one cannot be had.
    pub async fn bring(&self, addresses: &[u64]) -> Result<(), SourceError> {
        let missing = self.pages_at(addresses).into_iter();
        let missing = missing.filter(|page| self.held(*page) == Held::Absent);
        // At once: each may be in another chunk.
        let brought = missing.filter_map(|page| {
            let process = self.process(page.pid)?;
            Some(self.fill_region(process, process.index(page.page)?))
        });
        futures::future::try_join_all(brought).await.map(drop)
    }

    /// The pages with these addresses, of all processes that have them.
    pub fn pages_at(&self, addresses: &[u64]) -> Vec<PageRef> {
        let of = |p: &ProcessTemplate| {
            let pages = addresses.iter().map(|a| a / PAGE);
            let held = pages.filter(|page| p.index(*page).is_some());
            held.map(|page| PageRef { pid: p.pid, page }).collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    /// Its size when full, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn process(&self, pid: i32) -> Option<&ProcessTemplate> {
        self.processes.iter().find(|p| p.pid == pid)
    }

    /// Puts in one page's plain bytes, already verified.
    pub fn put_page(&self, page: PageRef, bytes: &[u8]) {
        if let Some((process, index)) = self.process(page.pid).and_then(|p| Some((p, p.index(page.page)?)))
            && bytes.len() == PAGE as usize
        {
            let region = process.map.regions()[index];
            process.fill(index, (page.page - region.first.0) as usize, bytes);
        }
    }

    /// Fills everything that is still missing, from a few chunks at a time.
    ///
    /// # Errors
    /// The first region that cannot be had; what was filled stays.
    pub async fn fill_all(&self) -> Result<(), SourceError> {
        use futures::TryStreamExt;
        let mut by_chunk: BTreeMap<Digest, Vec<(&ProcessTemplate, usize)>> = BTreeMap::new();
        for process in &self.processes {
            for (index, region) in process.map.regions().iter().enumerate() {
                if let Some(payload) = region.payload.filter(|_| !process.is_full(index)) {
                    by_chunk.entry(payload.chunk.id).or_default().push((process, index));
                }
            }
        }
        futures::stream::iter(by_chunk.into_values().map(Ok))
            .try_for_each_concurrent(BACKGROUND, |regions| async move {
                for (process, index) in regions {
                    // Instances that start meanwhile come first.
                    tokio::task::yield_now().await;
                    self.fill_region(process, index).await?;
                }
                Ok(())
            })
            .await
    }

    async fn fill_region(&self, process: &ProcessTemplate, index: usize) -> Result<(), SourceError> {
        if process.is_full(index) {
            return Ok(());
        }
        let region = process.map.regions()[index];
        let read = tokio::time::timeout(FETCH_LIMIT, self.reader.read(&region)).await;
        let plain = match read {
            Ok(Ok(plain)) => plain,
            Ok(Err(e)) => return Err(SourceError { message: chain(&e) }),
            Err(_) => {
                let message = format!("{region} did not arrive within {} s", FETCH_LIMIT.as_secs());
                return Err(SourceError { message });
            }
        };
        process.fill(index, 0, &plain);
        Ok(())
    }
}

impl ProcessTemplate {
    fn new(snapshot: &str, process: ProcessMemory, fs: &MemoryFs) -> Result<Self, TemplateError> {
        let ProcessMemory {
            pid,
            map,
            layout,
            folded,
        } = process;
        // Regions end where a mapping ends, so each is inside one or outside all.
        let mut length = (layout.pages() * PAGE) as usize;
        let starts = map.regions().iter().map(|region| match layout.mapping(region.first) {
            Some(area) if region.end() <= area.end() => Ok(((area.at + region.first.0 - area.first.0) * PAGE) as usize),
            Some(_) => Err(TemplateError::Straddles {
                snapshot: snapshot.to_owned(),
                region: region.to_string(),
            }),
            None => {
                let start = length;
                length += if region.payload.is_some() {
                    region.plain_len()
                } else {
                    0
                };
                Ok(start)
            }
        });
        let starts = starts.collect::<Result<_, _>>()?;
        let file = fs.create(&format!("{snapshot}-{pid}"), FILE_BYTES)?;
        let mapped = MmapOptions::new()
            .len(length.max(PAGE as usize))
            .map_raw(&file.writable);
        let memory = mapped.map_err(|source| TemplateError::Map {
            snapshot: snapshot.to_owned(),
            bytes: length,
            source,
        })?;
        let mut rest = folded.as_slice();
        for area in layout.folded.iter().map(|f| &f.area) {
            let Some((bytes, behind)) = rest.split_at_checked((area.pages * PAGE) as usize) else {
                return Err(TemplateError::FoldedShort(snapshot.to_owned()));
            };
            // SAFETY: the area lies inside the mapping, as all of the layout's, and nobody else has it yet.
            unsafe {
                let to = memory.as_mut_ptr().add((area.at * PAGE) as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            rest = behind;
        }
        let held = map.regions().iter();
        let ready = ReadyPages::none(held.map(|r| r.payload.map_or(0, |_| r.pages)));
        Ok(Self {
            pid,
            map,
            layout,
            starts,
            ready,
            memory,
            read_only: file.read_only,
            filling: Mutex::new(()),
        })
    }

    fn index(&self, page: u64) -> Option<usize> {
        let regions = self.map.regions();
        let index = regions.partition_point(|r| r.first.0 <= page).checked_sub(1)?;
        regions[index].contains(PageIndex(page)).then_some(index)
    }

    fn held_folded(&self, page: u64) -> Held<'_> {
        let Some(folded) = self.layout.folded(PageIndex(page)) else {
            return Held::Zero;
        };
        let (start, end) = (
            folded.area.at + page - folded.area.first.0,
            folded.area.at + folded.area.pages,
        );
        // SAFETY: these pages lie inside the mapping, which lives as long as `self`, and were written when it was made.
        let bytes = unsafe {
            let from = self.memory.as_ptr().add((start * PAGE) as usize);
            std::slice::from_raw_parts(from, ((end - start) * PAGE) as usize)
        };
        Held::Mapped(bytes)
    }

    fn is_full(&self, index: usize) -> bool {
        self.ready.all(index)
    }

    /// Copies whole pages into region `index` from its page `first` on, but for those that are there already.
    fn fill(&self, index: usize, first: usize, bytes: &[u8]) {
        let region = &self.map.regions()[index];
        if region.payload.is_none() {
            return;
        }
        let _one_writer = self.filling.lock();
        for (page, content) in (first..usize::from(region.pages)).zip(bytes.chunks_exact(PAGE as usize)) {
            if self.ready.run(index, page) != 0 {
                continue;
            }
            let start = self.starts[index] + page * PAGE as usize;
            // SAFETY: the page lies inside the mapping by the way `starts` was made; nobody reads it before its bit is set
            // below, and nobody else writes while the lock is held.
            unsafe {
                let to = self.memory.as_mut_ptr().add(start);
                std::ptr::copy_nonoverlapping(content.as_ptr(), to, PAGE as usize);
            }
            self.ready.set(index, page);
        }
    }
}

impl PageSource for Template {
    fn held(&self, page: PageRef) -> Held<'_> {
        let Some(process) = self.process(page.pid) else {
            return Held::Zero;
        };
        let Some(index) = process.index(page.page) else {
            return process.held_folded(page.page);
        };
        let region = &process.map.regions()[index];
        if region.payload.is_none() {
            return Held::Zero;
        }
        let offset = (page.page - region.first.0) as usize;
        let run = process.ready.run(index, offset);
        if run == 0 {
            return Held::Absent;
        }
        let start = process.starts[index] + offset * PAGE as usize;
        // SAFETY: these pages lie inside the mapping, which lives as long as `self`; their bits are set, so they are written
        // and will not be written again.
        let bytes = unsafe { std::slice::from_raw_parts(process.memory.as_ptr().add(start), run * PAGE as usize) };
        if process.layout.mapping(region.first).is_some() {
            Held::Mapped(bytes)
        } else {
            Held::Bytes(bytes)
        }
    }

    fn fetch(&self, page: PageRef) -> Result<(), SourceError> {
        let Some(process) = self.process(page.pid) else {
            return Ok(());
        };
        let Some(index) = process.index(page.page) else {
            return Ok(());
        };
        self.runtime.block_on(self.fill_region(process, index))
    }
    fn file_page(&self, page: PageRef) -> Result<Box<[u8]>, SourceError> {
        let process = self.process(page.pid);
        let folded = process.and_then(|p| p.layout.folded(PageIndex(page.page)));
        let Some(folded) = folded else {
            return Ok(vec![0; PAGE as usize].into());
        };
        let offset = folded.offset + (page.page - folded.area.first.0) * PAGE;
        let read = self.originals.page(&folded.file, offset);
        read.map_err(|e| SourceError {
            message: format!("{} cannot be read at {offset}: {e}", folded.file),
        })
    }
}
