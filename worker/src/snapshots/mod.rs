//! Snapshots open on this host: opened once, kept while used and for a while after, within a memory limit.

pub(crate) mod dump_dir;
mod edit;
pub mod expected;
mod known;
mod level;
pub(crate) mod lost_locks;
mod made_with;
mod memory_fs;
mod notes;
mod originals;
mod program;
mod refusals;
mod template;
mod tier;
mod working_set;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_criu::images::TemplateLayout;
use rekindle_init::causes::chain;
use rekindle_init::locks::Lock;
use rekindle_init::protocol::{Clocks, FUNCTION_UID};
use rekindle_pager::{AheadPage, PAGE, PageRef, SourceError};
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::working_set::{Touched, WorkingSetError};
use rekindle_snapshotter::{
    Digest, OpenError, PageIndex, Process, Region, RegionReader, Snapshot, Store, UncheckedWorkingSet, WorkingSetPack,
    WorkingSetPage, keys, load_working_set, store_working_set,
};
use rekindle_verify::{Verified, VerifyError, verify};
use rekindle_wire::api::RestoredBy;
use rekindle_wire::{FunctionId, SnapshotId};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use self::expected::expected;
use crate::host::start_limiter::StartLimiter;
pub use edit::EditError;
pub(crate) use edit::{become_user, clocks, forget_outside, join_time, let_be_read, name_outputs, touched_early};
use known::Known;
use level::Charge;
pub use made_with::made_with;
pub use memory_fs::{MemoryFs, MemoryFsError};
pub use notes::ProcessGenerators;
pub use notes::{AfterRestore, CaptureNotes, FILE as NOTES_FILE, FILES_ARCHIVE, NotesError, PipeNote};
pub use originals::Originals;
pub use program::{NoProgram, RestoreProgram, ShowError, show as show_program};
pub use refusals::Refusals;
pub use template::{ProcessMemory, Template, TemplateError};
use tier::Tier;
pub use tier::{MemoryTier, TemplateUse};
pub use working_set::WorkingSetUse;
use working_set::{Stored, WorkingSet};

/// Why a snapshot cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read from the store.
    #[error("open snapshot {0}")]
    Open(SnapshotId, #[source] OpenError),
    /// It belongs to no function.
    #[error("snapshot {0} was imported: no function can be restored from it")]
    Imported(SnapshotId),
    /// Its images cannot be written.
    #[error("write the images of snapshot {0}")]
    Images(SnapshotId, #[source] OpenError),
    /// Its images cannot be read.
    #[error("measure the images of snapshot {0}")]
    Measure(SnapshotId, #[source] std::io::Error),
    /// It lacks the notes that this worker wrote at the checkpoint, or they are malformed.
    #[error("read the notes of snapshot {0}")]
    Notes(SnapshotId, #[source] NotesError),
    /// Its images contain something that those of a function do not.
    #[error("the images of snapshot {0} are not a function's")]
    Refused(SnapshotId, #[source] VerifyError),
    /// It belongs to another function.
    #[error("snapshot {snapshot} is of user {of}, and not of user {wanted}")]
    User {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The user that it belongs to.
        of: u32,
        /// The user that it should belong to.
        wanted: u32,
    },
    /// Its manifest is not the one that the scheduler knows.
    #[error(
        "the manifest of snapshot {snapshot} has the digest {found}, and the order says {ordered}: somebody has \
         exchanged it in the store; deploy its function again"
    )]
    Exchanged {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The digest in the store.
        found: Digest,
        /// The digest in the scheduler's order.
        ordered: String,
    },
    /// Its images cannot be edited.
    #[error("edit the images of snapshot {0}")]
    Edit(SnapshotId, #[source] EditError),
    /// The pages that the kernel touches first are not available.
    #[error("bring the first pages of snapshot {0}")]
    FirstPages(SnapshotId, #[source] SourceError),
    /// There is no memory for its template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// A snapshot that instances can be restored from.
pub struct OpenSnapshot {
    /// The snapshot id.
    pub id: SnapshotId,
    /// Its images as CRIU reads them, on tmpfs; restores link to them.
    pub images_dir: ImagesDir,
    /// The user set apart for its function, which identifies the function.
    pub uid: u32,
    /// The clocks of its processes.
    pub clocks: Clocks,
    /// The notes of the checkpoint.
    pub notes: CaptureNotes,
    /// Its memory.
    pub template: Arc<Template>,
    /// What restores it without CRIU, or why CRIU restores it.
    program: Result<Arc<RestoreProgram>, String>,
    snapshot: Snapshot,
    /// Addresses that the kernel touches first.
    first: Vec<u64>,
    working_set: Mutex<WorkingSet>,
    /// Held by whoever stores the working set.
    storing: tokio::sync::Mutex<()>,
    /// Memory that the images take.
    images: Charge,
    /// When it was last asked for.
    restored: Mutex<Instant>,
    /// Where its memory was when it was opened.
    found_in: MemoryTier,
    /// Bytes of its memory that CRIU itself reads at each restore.
    pub eager_bytes: u64,
    /// Locks that CRIU's restore loses.
    pub locks: Vec<Lock>,
    /// Closed when the template has been filled, as far as it is worth its memory.
    filling: watch::Receiver<()>,
}

impl OpenSnapshot {
    /// Returns whether it is of an instance of this function.
    fn is_of(&self, name: &FunctionId) -> bool {
        matches!(&self.snapshot.manifest.origin, Origin::Function { function, .. } if function == name)
    }

    /// Returns the program that restores it without CRIU, unless it has none or it has failed recently.
    pub(crate) fn program(&self) -> Option<&Arc<RestoreProgram>> {
        self.program.as_ref().ok().filter(|program| program.is_usable())
    }

    /// Returns what restores it on this host.
    pub(crate) fn restored_by(&self) -> RestoredBy {
        let because = match &self.program {
            Ok(program) if program.is_usable() => return RestoredBy::Program,
            Ok(_) => "its restore program has failed",
            Err(why) => why,
        };
        RestoredBy::Criu {
            because: because.to_owned(),
        }
    }

    /// Waits until the template has been filled in the background.
    pub async fn until_filled(&self) {
        let mut filling = self.filling.clone();
        // Nothing is ever sent.
        while filling.changed().await.is_ok() {}
    }

    /// Begins a restore. Returns whether it is recorded, and the pages to map before its first instruction, by address.
    pub fn begin(&self) -> (WorkingSetUse, Arc<[AheadPage]>) {
        let set = self.working_set.lock();
        (set.begin(), set.ahead())
    }

    /// Records a restore that has taken `faults` up to its first response. `begun` is the result of `begin`, `touched`
    /// lists its pages if they are recorded, and `written` returns which of some pages it has written. Returns whether
    /// the working set is to be stored now.
    pub fn record(
        &self,
        begun: WorkingSetUse,
        touched: &[PageRef],
        written: impl FnOnce(&[PageRef]) -> HashSet<PageRef>,
        faults: u64,
    ) -> bool {
        let written = if begun.records {
            let known: Vec<_> = self.working_set.lock().ahead().iter().map(|ahead| ahead.page).collect();
            written(&[touched, &known].concat())
        } else {
            HashSet::new()
        };
        self.change_working_set(|set| set.record(begun, touched, written, faults))
    }

    fn change_working_set<R>(&self, change: impl FnOnce(&mut WorkingSet) -> R) -> R {
        // Both change under one lock, so that the template keeps the newer of two sets.
        let mut set = self.working_set.lock();
        let before = set.ahead();
        let answer = change(&mut set);
        let ahead = set.ahead();
        if !Arc::ptr_eq(&before, &ahead) {
            self.template.set_ahead(&ahead);
        }
        answer
    }
}

/// Maximum number of bytes that the kernel maps around a touched page of a file; the kernel's default.
const FAULT_AROUND: u64 = 64 << 10;
/// Maximum number of chunks, over all templates, that are being fetched or wait in memory to be decoded while nobody
/// waits for them.
const FETCHED_AT_ONCE: usize = 16;
/// How long a chunk of a template waits for a moment without a start.
const CALM_LIMIT: Duration = Duration::from_millis(500);

/// A directory of images, removed on drop.
pub struct ImagesDir(PathBuf);

impl ImagesDir {
    /// Takes over `path`, which may only contain what a killed worker left.
    fn claim(path: PathBuf) -> Self {
        // If something cannot be removed, the creation of the first file reports it.
        drop(std::fs::remove_dir_all(&path));
        Self(path)
    }
}

impl std::ops::Deref for ImagesDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for ImagesDir {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a snapshot's images");
            }
            _ => {}
        }
    }
}

/// The snapshots open on this host.
pub struct Snapshots {
    store: Store,
    reader: Arc<RegionReader>,
    dir: PathBuf,
    layers_dir: PathBuf,
    memory: MemoryFs,
    openings: AtomicU64,
    tier: Arc<Tier>,
    known: Known,
    /// The starts that the filling of templates gives way to.
    starts: Arc<StartLimiter>,
    /// Bounds the fetching of chunks that nobody waits for.
    fetching: Arc<Semaphore>,
    refused_working_sets: Arc<AtomicU64>,
    exchanged: AtomicU64,
    /// Whether snapshots are compiled into restore programs.
    compiles: bool,
}

impl Snapshots {
    /// Creates it with no snapshot open. Images go below `dir`, and layers are found by digest below `layers_dir`.
    /// Templates and images take at most `limit_bytes` of `memory` together, except for a moment. Must be called within
    /// a runtime, where a task enforces the limit.
    pub fn new(
        store: Store,
        reader: Arc<RegionReader>,
        dir: &Path,
        layers_dir: &Path,
        memory: MemoryFs,
        limit_bytes: u64,
        starts: Arc<StartLimiter>,
    ) -> Self {
        Self {
            store,
            reader,
            dir: dir.to_owned(),
            layers_dir: layers_dir.to_owned(),
            memory,
            openings: AtomicU64::new(0),
            tier: Tier::start(limit_bytes),
            known: Known::default(),
            starts,
            fetching: Arc::new(Semaphore::new(FETCHED_AT_ONCE)),
            refused_working_sets: Arc::default(),
            exchanged: AtomicU64::new(0),
            compiles: false,
        }
    }

    /// Compiles snapshots into restore programs, or does not.
    #[must_use]
    pub fn compiling(self, compiles: bool) -> Self {
        Self { compiles, ..self }
    }

    /// Returns the number of working sets that were damaged or belonged to another snapshot.
    pub fn refused_working_sets(&self) -> u64 {
        self.refused_working_sets.load(Ordering::Relaxed)
    }

    /// Returns how often a snapshot's manifest was not the one that the scheduler knows.
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Checks that a snapshot with this manifest is the one that was ordered.
    ///
    /// # Errors
    /// Returns an error, and counts it, when the snapshot is another one.
    #[expect(clippy::result_large_err, reason = "once for each order")]
    pub fn compare(&self, id: &SnapshotId, found: Digest, ordered: Option<&str>) -> Result<(), SnapshotError> {
        match ordered.filter(|ordered| *ordered != found.to_string()) {
            None => Ok(()),
            Some(ordered) => {
                self.exchanged.fetch_add(1, Ordering::Relaxed);
                Err(SnapshotError::Exchanged {
                    snapshot: id.clone(),
                    found,
                    ordered: ordered.to_owned(),
                })
            }
        }
    }

    /// Returns how much memory snapshots take, and what was evicted.
    pub fn usage(&self) -> TemplateUse {
        self.tier.usage()
    }

    /// Returns the reader of regions.
    pub fn reader(&self) -> &RegionReader {
        &self.reader
    }

    /// Opens a snapshot, once for all callers, if its manifest has the digest that was `ordered`. Also returns where
    /// its memory was.
    ///
    /// # Errors
    /// Returns an error when the snapshot cannot be read, is another one or does not verify. The next call tries again.
    pub async fn open(
        &self,
        id: &SnapshotId,
        uid: u32,
        writes_root: bool,
        ordered: Option<&str>,
    ) -> Result<(Arc<OpenSnapshot>, MemoryTier), SnapshotError> {
        let cell = self.tier.cell(id);
        let was_open = cell.initialized();
        let snapshot = Arc::clone(
            cell.get_or_try_init(|| self.load(id, uid, writes_root, ordered))
                .await?,
        );
        // It may have been opened for an order without a digest.
        self.compare(id, snapshot.snapshot.digest, ordered)?;
        if snapshot.uid != uid {
            return Err(SnapshotError::User {
                snapshot: id.clone(),
                of: snapshot.uid,
                wanted: uid,
            });
        }
        self.tier.used(&snapshot);
        self.known.used(id);
        let found_in = if was_open {
            MemoryTier::Template
        } else {
            snapshot.found_in
        };
        Ok((snapshot, found_in))
    }

    async fn load(
        &self,
        id: &SnapshotId,
        uid: u32,
        writes_root: bool,
        ordered: Option<&str>,
    ) -> Result<Arc<OpenSnapshot>, SnapshotError> {
        // Everything that can be requested by the snapshot's name is requested at once: one round trip.
        let recorded = load_working_set(&self.store, id);
        let (snapshot, recorded) = tokio::join!(Snapshot::open(&self.store, id), recorded);
        let snapshot = snapshot.map_err(|e| SnapshotError::Open(id.clone(), e))?;
        self.compare(id, snapshot.digest, ordered)?;
        // The check runs in parallel with what follows, until the pages are needed.
        let recorded = self.check_working_set(id, recorded, &snapshot.processes);
        let cached = |chunk: &Digest| self.reader.is_cached(chunk);
        let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions());
        let chunks: BTreeSet<_> = regions.flat_map(Region::chunks).map(|chunk| chunk.id).collect();
        let found_in = if chunks.iter().all(cached) {
            MemoryTier::Disk
        } else {
            MemoryTier::S3
        };
        self.known.opened(id, chunks);
        // Each opening has its own directory: instances may still use the files of an earlier one.
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        let images_dir = ImagesDir::claim(self.dir.join(format!("{id}-{opening}")));
        let writing = |e| SnapshotError::Images(id.clone(), e);
        write_images(&snapshot, &images_dir).await.map_err(writing)?;
        let mut notes = CaptureNotes::read(&images_dir).map_err(|e| SnapshotError::Notes(id.clone(), e))?;
        // The files checked here are the files restored: nobody else writes to the directory.
        let recorded_uid = edit::user_of(&images_dir, uid).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let verified = verify(&images_dir, &expected(recorded_uid, &notes.pipes, writes_root));
        let verified = verified.map_err(|e| SnapshotError::Refused(id.clone(), e))?;
        let locks = lost_locks::of(&verified);
        let outputs = program::outputs(&notes.pipes);
        let become_function = edit::become_user(&images_dir, recorded_uid, FUNCTION_UID);
        become_function.map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let clocks = edit::clocks(&images_dir).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        // Only an image's root is written to.
        let written = match writes_root {
            true => originals::written(&images_dir),
            false => Ok(HashSet::new()),
        };
        let written = written.map_err(|e| SnapshotError::Edit(id.clone(), EditError::File(FILES_ARCHIVE.into(), e)))?;
        let edited = edit::use_templates(&images_dir, &snapshot.processes, &written);
        let edited = edited.map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let named = edit::name_outputs(&images_dir, &mut notes.pipes);
        named.map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let first = edit::touched_early(&images_dir).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let layouts = std::iter::zip(&snapshot.processes, &edited);
        let layouts: BTreeMap<_, _> = layouts
            .map(|(process, edited)| (process.pid, edited.layout.clone()))
            .collect();
        let processes = std::iter::zip(&snapshot.processes, edited).map(|(process, edited)| ProcessMemory {
            pid: process.pid.cast_signed(),
            map: Arc::clone(&process.page_map),
            layout: edited.layout,
            folded: edited.folded,
            unwritten: edited.unwritten,
        });
        let (rootfs, app) = snapshot.layers().ok_or_else(|| SnapshotError::Imported(id.clone()))?;
        let rootfs = self.layers_dir.join(&rootfs.digest);
        // The `/app` of an image is in its root.
        let app = match writes_root {
            true => rootfs.join("app"),
            false => self.layers_dir.join(&app.digest),
        };
        let originals = Originals { rootfs, app };
        let runtime = tokio::runtime::Handle::current();
        let template = Template::new(
            id.as_str(),
            processes.collect(),
            originals,
            &self.memory,
            self.tier.level(),
            Arc::clone(&self.reader),
            runtime,
        )?;
        let template = Arc::new(template);
        // It fails only in a shutdown.
        let recorded = recorded.await.ok().flatten();
        let recorded = recorded.map(|pack| put_working_set(pack, &template, &HashSet::new()));
        // Folded pages were eager for CRIU's sake. They are present, and mapping them costs less than their first
        // faults.
        let folded = template.folded();
        let folded = folded.iter().flat_map(|range| {
            let (pid, first) = (range.first.pid, range.first.page);
            (first..first + range.pages).map(move |page| PageRef { pid, page })
        });
        let working_set = WorkingSet::new(recorded.as_ref(), folded.collect());
        template.set_ahead(&working_set.ahead());
        template.keep(&first);
        let brought = template.bring(&first).await;
        brought.map_err(|e| SnapshotError::FirstPages(id.clone(), e))?;
        for (pid, early) in template.anonymous_at(&first) {
            edit::make_eager(&images_dir, pid, &early).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        }
        edit::let_be_read(&images_dir).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let program = if self.compiles {
            self.compile(id, &images_dir, &verified, &layouts, &outputs)
        } else {
            Err("this worker has no restore programs".to_owned())
        };
        let eager_bytes = size_of_pages(&images_dir).map_err(|e| SnapshotError::Measure(id.clone(), e))?;
        let images = size_of(&images_dir).map_err(|e| SnapshotError::Measure(id.clone(), e))?;
        let room = Room {
            tier: Arc::clone(&self.tier),
            starts: Arc::clone(&self.starts),
            id: id.clone(),
        };
        let (filled, filling) = watch::channel(());
        let fill = fill(Arc::clone(&template), room, Arc::clone(&self.fetching));
        tokio::spawn(async move {
            fill.await;
            drop(filled);
        });
        Ok(Arc::new(OpenSnapshot {
            id: id.clone(),
            uid,
            clocks,
            images_dir,
            images: Charge::new(
                self.tier.level(),
                images + program.as_ref().map_or(0, RestoreProgram::bytes),
            ),
            notes,
            template,
            program: program.map(Arc::new),
            first,
            working_set: Mutex::new(working_set),
            storing: tokio::sync::Mutex::default(),
            snapshot,
            restored: Mutex::new(Instant::now()),
            found_in,
            eager_bytes,
            locks,
            filling,
        }))
    }

    /// Compiles a snapshot's images, or says why CRIU restores it.
    fn compile(
        &self,
        id: &SnapshotId,
        dir: &Path,
        images: &Verified,
        layouts: &BTreeMap<u32, TemplateLayout>,
        outputs: &BTreeMap<u32, u32>,
    ) -> Result<RestoreProgram, String> {
        let name = self.openings.fetch_add(1, Ordering::Relaxed);
        match RestoreProgram::of(&format!("{id}-{name}"), &self.memory, dir, images, layouts, outputs) {
            Ok(program) => {
                tracing::info!(snapshot = %id, bytes = program.bytes(), "compiled");
                Ok(program)
            }
            Err(e) => {
                let why = chain(&e);
                tracing::info!(snapshot = %id, why, "criu restores this snapshot");
                Err(why)
            }
        }
    }

    /// Stores the pages that a snapshot's restores touched, in that order, for hosts without any of it. They are merged
    /// with what other hosts have stored.
    ///
    /// The set also contains the pages that the kernel touches before, so that they are not requested separately. And
    /// it contains the pages that the kernel maps along with these, whose first touch no restore on this host records.
    /// If two hosts store at the same moment, one may lose its additions, or a recording that it has begun again.
    ///
    /// # Errors
    /// Returns an error when the store fails; the set is used here, and the next restore tries again. Also returns an
    /// error when a later build has stored a set, which stays.
    pub async fn store_working_set(&self, snapshot: &OpenSnapshot) -> Result<(), WorkingSetError> {
        let _one = snapshot.storing.lock().await;
        let (known, number) = {
            let set = snapshot.working_set.lock();
            if !set.has_unsent() {
                // Whoever held the lock before has stored this as well.
                return Ok(());
            }
            (set.pages(), set.begin().number)
        };
        let loaded = match load_working_set(&self.store, &snapshot.id).await {
            Err(error) if error.is_of_a_later_build() => {
                snapshot.change_working_set(|set| set.sent(number, u32::MAX));
                return Err(error);
            }
            Err(error @ (WorkingSetError::Store { .. } | WorkingSetError::Shutdown)) => return Err(error),
            loaded => loaded,
        };
        let checked = self.check_working_set(&snapshot.id, loaded, &snapshot.snapshot.processes);
        let checked = checked.await.map_err(|_| WorkingSetError::Shutdown)?;
        let template = Arc::clone(&snapshot.template);
        let put = move || checked.map(|pack| put_working_set(pack, &template, &known));
        let stored = tokio::task::spawn_blocking(put).await;
        let stored = stored.map_err(|_| WorkingSetError::Shutdown)?;
        let Some((merged, restores)) = snapshot.change_working_set(|set| set.merge(stored.as_ref())) else {
            return Ok(());
        };
        let first = snapshot.template.pages_at(&mapped_around(&snapshot.first)).into_iter();
        // Pages that are also in the recorded order keep their entry there.
        let recorded: HashSet<_> = merged.pages.iter().map(|p| p.page).collect();
        let first = first.filter(|page| !recorded.contains(page));
        let first = first.map(|page| AheadPage { page, written: false });
        let order: Vec<_> = first
            .chain(merged.pages.iter().copied())
            .map(|AheadPage { page, written }| Touched {
                pid: page.pid.cast_unsigned(),
                page: PageIndex(page.page),
                written,
            })
            .collect();
        if !self.tier.is_open(&snapshot.id) {
            // Nothing may be stored for a snapshot that was deleted in the meantime.
            return Ok(());
        }
        store_working_set(&self.store, &snapshot.snapshot, &self.reader, merged.recording, &order).await?;
        snapshot.change_working_set(|set| set.sent(merged.recording.number, restores));
        Ok(())
    }

    /// Compares a working set with its snapshot, in a blocking task that starts now. A damaged or forged set is logged,
    /// counted and ignored. Without it a snapshot restores as well, only more slowly.
    fn check_working_set(
        &self,
        id: &SnapshotId,
        loaded: Result<Option<UncheckedWorkingSet>, WorkingSetError>,
        processes: &[Process],
    ) -> JoinHandle<Option<WorkingSetPack>> {
        let (id, processes) = (id.clone(), processes.to_vec());
        let refused = Arc::clone(&self.refused_working_sets);
        tokio::task::spawn_blocking(move || {
            let checked = loaded.and_then(|set| {
                let checked = set.map(|set| set.check(&processes)).transpose();
                let key = keys::working_set(&id);
                checked.map_err(|cause| WorkingSetError::Pack { key, cause })
            });
            let error = match checked {
                Ok(pack) => return pack,
                Err(error) => error,
            };
            if matches!(error, WorkingSetError::Pack { .. }) && !error.is_of_a_later_build() {
                refused.fetch_add(1, Ordering::Relaxed);
                let error = chain(&error);
                tracing::warn!(snapshot = %id, error, "a working set is refused: restores go on by faults, and record \
                    another");
            } else {
                tracing::warn!(snapshot = %id, error = chain(&error), "no working set");
            }
            None
        })
    }

    /// Evicts the memory of templates whose instances have been idle for long (`idle`, by snapshot), as far as their
    /// chunks are on this host's disk. Blocks.
    pub fn take_idle(&self, after: Duration, idle: &HashMap<SnapshotId, Duration>) {
        let is_cached = |region: &Region| region.chunks().all(|chunk| self.reader.is_cached(&chunk.id));
        self.tier.take_idle(after, |id| idle.get(id).copied(), is_cached);
    }

    /// Forgets a snapshot that was deleted or found broken. Instances that use it keep it until they end.
    pub fn forget(&self, id: &SnapshotId) {
        self.tier.forget(id);
        self.known.forget(id);
    }

    /// Forgets all snapshots of a function that was deleted, in the same way. Nothing of them is stored afterwards: the
    /// call waits for stores in progress. Blocks.
    pub fn forget_function(&self, function: &FunctionId) {
        for snapshot in self.tier.of_function(function) {
            self.forget(&snapshot.id);
            drop(snapshot.storing.blocking_lock());
        }
    }

    /// Returns the open snapshots, at most [`KEPT_MAX`](rekindle_wire::internal::KEPT_MAX), those used last, sorted by
    /// name.
    pub fn open_ids(&self) -> Vec<SnapshotId> {
        let open = self.tier.open_ids();
        self.known.latest(|id, _| open.contains(id))
    }

    /// Returns snapshots that were open, no longer are, and have all chunks in the disk's cache. Limit and order are
    /// the same.
    pub fn cached_ids(&self) -> Vec<SnapshotId> {
        let open = self.tier.open_ids();
        let cached = |chunk: &Digest| self.reader.is_cached(chunk);
        self.known
            .latest(|id, chunks| !open.contains(id) && chunks.iter().all(cached))
    }
}

/// Returns the pages that the kernel may map when one of these addresses is touched before a pager watches it. They are
/// those of the same 64 KiB (its fault-around), as far as the file has them. A thread's stack begins below its rseq
/// area.
fn mapped_around(addresses: &[u64]) -> Vec<u64> {
    let windows: BTreeSet<u64> = addresses.iter().map(|at| at - at % FAULT_AROUND).collect();
    let pages = |window: u64| (window..window.saturating_add(FAULT_AROUND)).step_by(PAGE as usize);
    windows.into_iter().flat_map(pages).collect()
}

/// Fills the template in the background, as far as it is worth its memory. Chunks are fetched at once where there is
/// room. They are decoded, and others evicted for them, only after the start that opened the template, and other
/// starts, have had the processors.
async fn fill(template: Arc<Template>, room: Room, fetching: Arc<Semaphore>) {
    if let Err(e) = template.fill_all(&room, &fetching).await {
        tracing::warn!(snapshot = %room.id, error = %e, "the template stays incomplete");
    }
}

/// The room that a template may use.
struct Room {
    tier: Arc<Tier>,
    starts: Arc<StartLimiter>,
    id: SnapshotId,
}

impl Room {
    /// Returns whether there is room for `bytes` more without evicting anything.
    fn is_free(&self, bytes: u64) -> bool {
        self.tier.is_free(bytes)
    }

    /// Waits for a moment without a start, then makes room. Returns `false` if the memory is not worth it.
    async fn make(&self, bytes: u64) -> bool {
        self.starts.until_calm(CALM_LIMIT).await;
        let (tier, id) = (Arc::clone(&self.tier), self.id.clone());
        let made = tokio::task::spawn_blocking(move || tier.make_room(&id, bytes));
        made.await.unwrap_or(false)
    }
}

/// Writes a snapshot's images to `dir`, which does not exist yet.
async fn write_images(snapshot: &Snapshot, dir: &Path) -> Result<(), OpenError> {
    snapshot.write_images(dir).await?;
    // The images that are separate objects are fetched at once: one round trip.
    let extras = snapshot.extra_files().map(|name| {
        let path = dir.join(name);
        async move { snapshot.write_extra(name, &path).await }
    });
    // All of them finish, even if one fails: the directory must not be removed while something is being written there.
    futures::future::join_all(extras).await.into_iter().collect()
}

/// Returns the size of the files in `dir`.
fn size_of(dir: &Path) -> std::io::Result<u64> {
    let files = std::fs::read_dir(dir)?;
    files.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// Returns the size of the pages that CRIU reads by itself.
fn size_of_pages(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("pages-") {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Puts the pages of a working set into the template, except those that are `known`.
fn put_working_set(pack: WorkingSetPack, template: &Template, known: &HashSet<PageRef>) -> Stored {
    let put = |page: WorkingSetPage| {
        let at = PageRef {
            pid: page.pid.cast_signed(),
            page: page.page.0,
        };
        if !known.contains(&at) {
            template.put_page(at, page.bytes());
        }
        AheadPage {
            page: at,
            written: page.written,
        }
    };
    Stored {
        recording: pack.recording,
        pages: pack.pages.into_iter().map(put).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_maps_around_is_whole_windows_each_once() {
        let pages = mapped_around(&[0x7f12_3456_7a80, 0x7f12_3456_0000, 0x7f12_3457_0008]);
        let expected: Vec<u64> = (0x7f12_3456_0000..0x7f12_3458_0000).step_by(4096).collect();
        assert_eq!(pages, expected);
        assert_eq!(
            mapped_around(&[u64::MAX]).len(),
            16,
            "a wrong address is no reason to panic"
        );
    }
}
