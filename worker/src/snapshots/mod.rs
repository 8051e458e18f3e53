//! Snapshots open on this host: opened once, kept while used and for a while after, within a limit of memory.

mod edit;
mod memory_fs;
mod notes;
mod originals;
mod ready;
mod template;
mod working_set;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rekindle_pager::{PageRef, SourceError};
use rekindle_snapshotter::working_set::WorkingSetError;
use rekindle_snapshotter::{
    OpenError, PageIndex, RegionReader, Snapshot, Store, WorkingSetPage, load_working_set, store_working_set,
};
use rekindle_wire::SnapshotId;
use tokio::sync::OnceCell;

pub use edit::EditError;
pub use memory_fs::{MemoryFs, MemoryFsError};
pub use notes::{CaptureNotes, FILE as NOTES_FILE, FILES_ARCHIVE, NotesError, PipeNote};
pub use originals::Originals;
pub use template::{ProcessMemory, Template, TemplateError};
use working_set::WorkingSet;

/// Why a snapshot cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read from the store.
    #[error("open snapshot {0}")]
    Open(SnapshotId, #[source] OpenError),
    /// It is no function's.
    #[error("snapshot {0} was imported: no function can be restored from it")]
    Imported(SnapshotId),
    /// Its images cannot be written.
    #[error("write the images of snapshot {0}")]
    Images(SnapshotId, #[source] OpenError),
    /// It lacks what this worker noted at the checkpoint, or it is malformed.
    #[error("read the notes of snapshot {0}")]
    Notes(SnapshotId, #[source] NotesError),
    /// Its images cannot be edited.
    #[error("edit the images of snapshot {0}")]
    Edit(SnapshotId, #[source] EditError),
    /// What the kernel touches first cannot be had.
    #[error("bring the first pages of snapshot {0}")]
    FirstPages(SnapshotId, #[source] SourceError),
    /// No memory for its template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// A snapshot that instances can be restored from.
pub struct OpenSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its images as CRIU reads them, on tmpfs; restores link to them.
    pub images_dir: ImagesDir,
    /// What was noted at the checkpoint.
    pub notes: CaptureNotes,
    /// Its memory.
    pub template: Arc<Template>,
    snapshot: Snapshot,
    /// Addresses that the kernel touches first.
    first: Vec<u64>,
    working_set: Mutex<WorkingSet>,
    last_used: AtomicU64,
}

impl OpenSnapshot {
    /// Pages to map before the first instruction, by address.
    pub fn working_set(&self) -> Arc<[PageRef]> {
        self.working_set.lock().ahead()
    }

    /// Whether what a restore touches is still to be recorded.
    pub fn is_recording(&self) -> bool {
        self.working_set.lock().is_recording()
    }

    /// A restore has taken `faults` until its first answer, and touched these pages, where they are recorded. Answers the
    /// working set if it is to be stored now.
    pub fn record(&self, touched: &[PageRef], faults: u64) -> Option<Vec<PageRef>> {
        self.working_set.lock().record(touched, faults)
    }
}

/// A directory of images, removed when dropped.
pub struct ImagesDir(PathBuf);

impl ImagesDir {
    /// Takes over `path`, where nothing may be but what a killed worker left.
    fn claim(path: PathBuf) -> Self {
        // What cannot be removed is told by the first file that cannot be made.
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
    limit_bytes: u64,
    openings: AtomicU64,
    started: Instant,
    open: Mutex<HashMap<SnapshotId, Arc<OnceCell<Arc<OpenSnapshot>>>>>,
}

impl Snapshots {
    /// None open yet; images go below `dir`, layers are by digest below `layers_dir`, and templates take at most `limit_bytes`
    /// of `memory` together (but for those in use).
    pub fn new(
        store: Store,
        reader: Arc<RegionReader>,
        dir: &Path,
        layers_dir: &Path,
        memory: MemoryFs,
        limit_bytes: u64,
    ) -> Self {
        Self {
            store,
            reader,
            dir: dir.to_owned(),
            layers_dir: layers_dir.to_owned(),
            memory,
            limit_bytes,
            openings: AtomicU64::new(0),
            started: Instant::now(),
            open: Mutex::default(),
        }
    }

    /// Opens a snapshot, once however many ask.
    ///
    /// # Errors
    /// When it cannot be read or does not verify; the next call tries again.
    pub async fn open(&self, id: &SnapshotId) -> Result<Arc<OpenSnapshot>, SnapshotError> {
        let cell = Arc::clone(self.open.lock().entry(id.clone()).or_default());
        let snapshot = Arc::clone(cell.get_or_try_init(|| self.load(id)).await?);
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        snapshot.last_used.store(now, Ordering::Relaxed);
        self.evict();
        Ok(snapshot)
    }

    async fn load(&self, id: &SnapshotId) -> Result<Arc<OpenSnapshot>, SnapshotError> {
        // Everything that can be asked for by the snapshot's name is, at once: one round trip.
        let recorded = load_working_set(&self.store, id);
        let (snapshot, recorded) = tokio::join!(Snapshot::open(&self.store, id), recorded);
        let snapshot = snapshot.map_err(|e| SnapshotError::Open(id.clone(), e))?;
        // Its own each time: instances may still use what an earlier opening wrote.
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        let images_dir = ImagesDir::claim(self.dir.join(format!("{id}-{opening}")));
        let writing = |e| SnapshotError::Images(id.clone(), e);
        snapshot.write_images(&images_dir).await.map_err(writing)?;
        for name in snapshot.extra_files() {
            snapshot
                .write_extra(name, &images_dir.join(name))
                .await
                .map_err(writing)?;
        }
        let notes = CaptureNotes::read(&images_dir).map_err(|e| SnapshotError::Notes(id.clone(), e))?;
        let edited = edit::use_templates(&images_dir, &snapshot.processes);
        let edited = edited.map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let first = edit::touched_early(&images_dir).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let processes = std::iter::zip(&snapshot.processes, edited).map(|(process, edited)| ProcessMemory {
            pid: process.pid.cast_signed(),
            map: Arc::clone(&process.page_map),
            layout: edited.layout,
            folded: edited.folded,
        });
        let (rootfs, app) = snapshot.layers().ok_or_else(|| SnapshotError::Imported(id.clone()))?;
        let originals = Originals {
            rootfs: self.layers_dir.join(&rootfs.digest),
            app: self.layers_dir.join(&app.digest),
        };
        let runtime = tokio::runtime::Handle::current();
        let template = Template::new(
            id.as_str(),
            processes.collect(),
            originals,
            &self.memory,
            Arc::clone(&self.reader),
            runtime,
        )?;
        let template = Arc::new(template);
        let recorded = put_working_set(id, recorded, &template);
        // What was eager was so for CRIU's sake; it is there, and letting it in costs less than its first faults.
        let folded = template.folded();
        let folded = folded.iter().flat_map(|range| {
            let (pid, first) = (range.first.pid, range.first.page);
            (first..first + range.pages).map(move |page| PageRef { pid, page })
        });
        let working_set = WorkingSet::new(recorded, folded.collect());
        let brought = template.bring(&first).await;
        brought.map_err(|e| SnapshotError::FirstPages(id.clone(), e))?;
        let filling = Arc::clone(&template);
        let name = id.clone();
        tokio::spawn(async move {
            if let Err(e) = filling.fill_all().await {
                tracing::warn!(snapshot = %name, error = %e, "the template stays incomplete");
            }
        });
        Ok(Arc::new(OpenSnapshot {
            id: id.clone(),
            images_dir,
            notes,
            template,
            first,
            working_set: Mutex::new(working_set),
            snapshot,
            last_used: AtomicU64::new(0),
        }))
    }

    /// Stores what a snapshot's restores touched, in that order, for hosts that have nothing of it yet; with it what the kernel
    /// touches before, so that it is not asked for by itself.
    ///
    /// # Errors
    /// When the store fails; the set is still used here.
    pub async fn store_working_set(&self, snapshot: &OpenSnapshot, order: &[PageRef]) -> Result<(), WorkingSetError> {
        let first = snapshot.template.pages_at(&snapshot.first);
        let order: Vec<_> = first
            .iter()
            .chain(order)
            .map(|p| (p.pid.cast_unsigned(), PageIndex(p.page)))
            .collect();
        store_working_set(&self.store, &snapshot.snapshot, &self.reader, &order)
            .await
            .map(drop)
    }

    /// Forgets a snapshot that was deleted or found broken; instances that use it keep it until they end.
    pub fn forget(&self, id: &SnapshotId) {
        self.open.lock().remove(id);
    }

    /// Closes the least recently used of those that no instance uses, until the rest fits.
    fn evict(&self) {
        let mut open = self.open.lock();
        let mut total: u64 = open.values().filter_map(|c| c.get()).map(|s| s.template.bytes()).sum();
        while total > self.limit_bytes {
            let idle = open
                .iter()
                .filter_map(|(id, cell)| Some((id, cell.get()?)))
                .filter(|(_, s)| Arc::strong_count(s) == 1)
                .min_by_key(|(_, s)| s.last_used.load(Ordering::Relaxed))
                .map(|(id, s)| (id.clone(), s.template.bytes()));
            let Some((id, bytes)) = idle else { return };
            open.remove(&id);
            total -= bytes;
        }
    }
}

/// Puts a working set into the template: what pages it has. Best effort: without it a snapshot restores as well, only slower.
fn put_working_set(
    id: &SnapshotId,
    loaded: Result<Option<Vec<WorkingSetPage>>, WorkingSetError>,
    template: &Template,
) -> Vec<PageRef> {
    let pages = loaded.unwrap_or_else(|e| {
        tracing::warn!(snapshot = %id, error = %e, "no working set");
        None
    });
    let put = |page: WorkingSetPage| {
        let at = PageRef {
            pid: page.pid.cast_signed(),
            page: page.page.0,
        };
        template.put_page(at, page.bytes());
        at
    };
    pages.unwrap_or_default().into_iter().map(put).collect()
}
