//! The template: this host's plain copy of a snapshot's memory, shared by all its clones. It is filled region by region
//! from the chunk cache or the store: first the working set, then what is touched, and the rest in the background.
//!
//! Each process has one file. It begins with the ranges that clones map from it (`TemplateLayout`). Memory that clones
//! cannot map and get as copies follows without gaps.
//!
//! A page is written before its bit is set. Whoever is pinned and sees the bit may read the page without a lock.
//! Eviction works in reverse: it clears the bit, then removes the page once nobody is pinned who could have seen the
//! bit. The page is then absent, as before it was filled, for all clones that have not written it.

mod page_bits;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_criu::images::{TemplateArea, TemplateLayout};
use rekindle_init::causes::chain;
use rekindle_pager::{AheadPage, Layout, PAGE, PageLookup, PageRange, PageRef, PageSource, Pin, SourceError, pin};
use rekindle_snapshotter::pagemap::ChunkRef;
use rekindle_snapshotter::{Digest, PageIndex, PageMap, Region, RegionReader};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

pub(super) use self::process::Pages;
use self::process::ProcessTemplate;
use super::edit::MAPPED_MAX;
use super::level::{ByteBudget, Charge};
use super::memory_fs::{MemoryFs, MemoryFsError};
use super::originals::Originals;

/// How long a fault may wait for its page: longer than the store's own limit for a chunk.
const FETCH_LIMIT: Duration = Duration::from_secs(12);
/// Number of chunks that the background fills from at once: a store far away answers as late for one as for all.
const BACKGROUND: usize = 8;

/// Why a template could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// Its file cannot be created.
    #[error(transparent)]
    File(#[from] MemoryFsError),
    /// A region is only partly in a mapping.
    #[error("{region} of {snapshot} reaches over the end of its mapping: delete the snapshot and deploy again")]
    Straddles {
        /// The snapshot.
        snapshot: String,
        /// The region.
        region: String,
    },
    /// The images contain less than they should.
    #[error("the eager pages of snapshot {0} are fewer than its mappings: delete the snapshot and deploy again")]
    FoldedShort(String),
    /// Its eager pages cannot be written to its file.
    #[error("write the eager pages of the template of {snapshot}")]
    Write {
        /// The snapshot.
        snapshot: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// There is no address space.
    #[error("map {bytes} bytes of the template of {snapshot}")]
    Map {
        /// The snapshot.
        snapshot: String,
        /// Size of the mapping.
        bytes: usize,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

/// What a template needs to know of a process.
pub struct ProcessMemory {
    /// Its pid at the checkpoint.
    pub pid: i32,
    /// The source of its pages.
    pub map: Arc<PageMap>,
    /// The mappings of clones; empty for a process that is restored without a template.
    pub layout: TemplateLayout,
    /// The bytes of the layout's folded areas, one after the other.
    pub folded: Vec<u8>,
    /// Pages of these areas that must still be read from their files.
    pub unwritten: Vec<PageIndex>,
}

/// A snapshot's memory on this host.
pub struct Template {
    processes: Vec<ProcessTemplate>,
    originals: Originals,
    /// Whether the unwritten pages of folded areas have been read.
    completed: Mutex<bool>,
    reader: Arc<RegionReader>,
    runtime: Handle,
    /// Memory that is present.
    charge: Charge,
}

/// A region, as the indices of its process and of the region.
#[derive(Debug, Clone, Copy)]
struct RegionRef {
    process: usize,
    index: usize,
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

/// Pages of a process, by address.
type PageBytes = Vec<(PageIndex, Vec<u8>)>;

/// The room that a template may use.
pub(super) trait MemoryBudget {
    /// Waits for a moment without a start, then makes room. Returns `false` if the memory is not worth it.
    fn make(&self, bytes: u64) -> impl Future<Output = bool> + Send;
}

impl Template {
    /// Creates a template for these processes, empty except for folded pages. Its memory counts at `level`.
    ///
    /// # Errors
    /// Returns an error when no file or address space is available.
    pub(super) fn new(
        snapshot: &str,
        processes: Vec<ProcessMemory>,
        originals: Originals,
        fs: &MemoryFs,
        level: &Arc<ByteBudget>,
        reader: Arc<RegionReader>,
        runtime: Handle,
    ) -> Result<Self, TemplateError> {
        let processes = processes
            .into_iter()
            .map(|process| ProcessTemplate::new(snapshot, process, fs))
            .collect::<Result<Vec<_>, _>>()?;
        let folded = processes.iter().flat_map(|p| &p.layout.folded);
        let charge = Charge::new(level, folded.map(|f| f.area.pages * PAGE).sum());
        Ok(Self {
            processes,
            originals,
            completed: Mutex::default(),
            reader,
            runtime,
            charge,
        })
    }

    /// Reads the unwritten pages of folded areas from their files. Does so once, when the layers are here, and before
    /// anything is restored from this template. Blocks for about 100 us.
    ///
    /// # Errors
    /// Returns an error when a file cannot be read.
    pub fn complete(&self) -> Result<(), SourceError> {
        let mut completed = self.completed.lock();
        if !*completed {
            for process in &self.processes {
                for page in process.unwritten() {
                    let at = PageRef {
                        pid: process.pid,
                        page: page.0,
                    };
                    process.put_unwritten(*page, &self.file_page(at)?);
                }
            }
            *completed = true;
        }
        Ok(())
    }

    /// Returns the files that the processes map, in order, of the processes that may map any. Each descriptor can be
    /// read and mapped privately.
    pub fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.processes.iter().take(MAPPED_MAX).map(|p| &p.read_only)
    }

    /// Returns the memory layout of all processes, for a pager that registers all of it. Returns `None` if only CRIU
    /// could register some of it. CRIU must restore the anonymous memory that the kernel touches before the pager
    /// registers it.
    pub fn layout(&self) -> Option<Layout> {
        let mapped = self.processes.iter();
        let mapped = mapped.flat_map(|p| p.layout.mappings.iter().map(|a| range(p.pid, a)));
        let anonymous = self.processes.iter().map(|p| {
            let anonymous = p.layout.anonymous.as_ref()?;
            Some(anonymous.iter().map(|a| range(p.pid, a)).collect::<Vec<_>>())
        });
        Some(Layout {
            mapped: mapped.collect(),
            anonymous: anonymous.collect::<Option<Vec<_>>>()?.concat(),
            // Nobody registers empty ranges.
            empty: Vec::new(),
            backed: self.folded(),
        })
    }

    /// Returns the ids of its processes.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.iter().map(|p| p.pid).collect()
    }

    /// Returns, by process and address, the pages with these addresses that no mapping of the template has, as far as
    /// they are present. Processes without any are left out.
    pub(super) fn anonymous_at(&self, addresses: &[u64]) -> Vec<(i32, PageBytes)> {
        let pages: BTreeSet<_> = addresses.iter().map(|address| address / PAGE).collect();
        let _pin = pin();
        let of = |process: &ProcessTemplate| -> Vec<_> {
            let anonymous = pages.iter().filter_map(|page| match process.held(*page) {
                PageLookup::Bytes(bytes) => Some((PageIndex(*page), bytes[..PAGE as usize].to_vec())),
                _ => None,
            });
            anonymous.collect()
        };
        let all = self.processes.iter().map(|process| (process.pid, of(process)));
        all.filter(|(_, pages)| !pages.is_empty()).collect()
    }

    /// Returns a digest of the layout. Two hosts with the same digest for a snapshot have its pages at the same places.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for process in &self.processes {
            hash.update(format!("{}{:?}", process.pid, process.layout).as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }

    /// Returns whether the snapshot holds any of a process's `pages` pages from page `first` on.
    pub fn holds_any(&self, pid: i32, first: u64, pages: u64) -> bool {
        let end = PageIndex(first.saturating_add(pages));
        let holds = |p: &ProcessTemplate| p.map.holds_any(PageIndex(first), end);
        self.process(pid).is_some_and(holds)
    }

    /// Returns the folded ranges, which are complete from the beginning.
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

    /// Fills the pages with these addresses, of all processes that have them.
    ///
    /// # Errors
    /// Returns an error when a page is not available.
    pub async fn bring(&self, addresses: &[u64]) -> Result<(), SourceError> {
        let missing = self.pages_at(addresses).into_iter();
        let missing = missing.filter(|page| self.held(*page, &pin()) == PageLookup::Absent);
        // They are fetched at once, since each may be in another chunk.
        let brought = missing.filter_map(|page| {
            let process = self.process(page.pid)?;
            Some(self.fill_region(process, process.index(page.page)?))
        });
        futures::future::try_join_all(brought).await.map(drop)
    }

    /// Returns the pages with these addresses, of all processes that have them.
    pub fn pages_at(&self, addresses: &[u64]) -> Vec<PageRef> {
        let of = |p: &ProcessTemplate| {
            let pages = addresses.iter().map(|a| a / PAGE);
            let held = pages.filter(|page| p.index(*page).is_some());
            held.map(|page| PageRef { pid: p.pid, page }).collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    /// Returns the memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Makes these pages the working set, and no others.
    pub(super) fn set_ahead(&self, pages: &[AheadPage]) {
        for process in &self.processes {
            let own = pages.iter().filter(|ahead| ahead.page.pid == process.pid);
            process.set_ahead(own.map(|ahead| ahead.page.page));
        }
    }

    /// Exempts the pages with these addresses from eviction, in all processes that have them.
    pub(super) fn keep(&self, addresses: &[u64]) {
        for page in self.pages_at(addresses) {
            if let Some(process) = self.process(page.pid) {
                process.keep(page.page);
            }
        }
    }

    /// Returns how many bytes of these pages are present and could be evicted.
    pub(super) fn there(&self, pages: Pages) -> u64 {
        self.processes.iter().map(|p| p.there(pages) * PAGE).sum()
    }

    /// Evicts up to `bytes` of these pages, in regions that `may_go`, from all clones at once. They are filled again
    /// when they are touched. Returns the number of bytes evicted. Blocks, with a limit.
    pub(super) fn take_back(&self, pages: Pages, bytes: u64, may_go: &dyn Fn(&Region) -> bool) -> u64 {
        let (most, mut taken) = (bytes.div_ceil(PAGE), 0);
        for process in &self.processes {
            if taken >= most {
                break;
            }
            taken += process.take_back(pages, most - taken, may_go, &self.charge);
        }
        taken * PAGE
    }

    fn process(&self, pid: i32) -> Option<&ProcessTemplate> {
        self.processes.iter().find(|p| p.pid == pid)
    }

    /// Puts in one page's plain bytes, which are verified already.
    ///
    /// # Errors
    /// Returns an error when the template's file cannot be written. The page is fetched when it is touched.
    pub fn put_page(&self, page: PageRef, bytes: &[u8]) -> io::Result<()> {
        match self.process(page.pid) {
            Some(process) => process.fill_page(page.page, bytes, &self.charge),
            None => Ok(()),
        }
    }

    /// Fills what is still missing, from a few chunks at a time, as long as there is `room` for them. `fetching` bounds
    /// the fetches in flight of all templates.
    ///
    /// # Errors
    /// Returns the error of the first chunk that is not available, or cannot be written. What was filled stays.
    pub(super) async fn fill_all(
        self: &Arc<Self>,
        room: &impl MemoryBudget,
        fetching: &Semaphore,
    ) -> Result<(), SourceError> {
        use futures::TryStreamExt;
        let mut by_chunk: BTreeMap<Digest, (ChunkRef, Vec<RegionRef>)> = BTreeMap::new();
        for (process, template) in self.processes.iter().enumerate() {
            for (index, region) in template.map.regions().iter().enumerate() {
                if let Some(payload) = region.payload.filter(|_| !template.is_full(index)) {
                    let chunk = by_chunk.entry(payload.chunk.id);
                    let (_, places) = chunk.or_insert((payload.chunk, Vec::new()));
                    places.push(RegionRef { process, index });
                }
            }
        }
        futures::stream::iter(by_chunk.into_values().map(Ok))
            .try_for_each_concurrent(BACKGROUND, |(chunk, mut places)| async move {
                // It is never closed.
                let _one_of_them = fetching.acquire().await.ok();
                let bytes = places.iter().map(|place| self.region(*place).plain_len() as u64).sum();
                if !room.make(bytes).await {
                    return Ok(());
                }
                places.retain(|place| !self.processes[place.process].is_full(place.index));
                self.fill_chunk(chunk, places).await
            })
            .await
    }

    fn region(&self, place: RegionRef) -> &Region {
        &self.processes[place.process].map.regions()[place.index]
    }

    /// Fills these regions, all of one chunk.
    async fn fill_chunk(self: &Arc<Self>, chunk: ChunkRef, places: Vec<RegionRef>) -> Result<(), SourceError> {
        let regions = places.iter().map(|place| *self.region(*place)).collect();
        let (this, failed) = (Arc::clone(self), Arc::new(OnceLock::new()));
        let first_failure = Arc::clone(&failed);
        let take = move |at: usize, plain: &[u8]| {
            let place = places[at];
            if first_failure.get().is_none()
                && let Err(error) = this.processes[place.process].fill(place.index, 0, plain, &this.charge)
            {
                let _is_first = first_failure.set(unwritten(this.region(place), &error));
            }
            // Instances that start meanwhile take priority.
            std::thread::yield_now();
        };
        // Nobody waits for it, and the store has limits of its own.
        let read = self.reader.read_chunk(chunk, regions, take).await;
        read.map_err(|e| SourceError { message: chain(&e) })?;
        failed.get().cloned().map_or(Ok(()), Err)
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
        let filled = process.fill(index, 0, &plain, &self.charge);
        filled.map_err(|e| unwritten(&region, &e))
    }
}

fn unwritten(region: &Region, error: &io::Error) -> SourceError {
    SourceError {
        message: format!("{region} cannot be written to the template: {error}"),
    }
}

impl PageSource for Template {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        self.process(page.pid)
            .map_or(PageLookup::Zero, |process| process.held(page.page))
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
