//! How a snapshot is opened: its images are read, checked and edited, its template is made and filled.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_init::causes::chain;
use rekindle_pager::PageRef;
use rekindle_snapshotter::manifest::Origin;
use rekindle_snapshotter::{Digest, Region, Snapshot, load_working_set};
use rekindle_wire::SnapshotId;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::cache::Snapshots;
use super::criu_images::CriuImages;
use super::edit;
use super::edited_snapshot::EditedSnapshot;
use super::error::SnapshotError;
use super::image_set::ImagesInMemory;
use super::images_dir::{ImagesDir, size_of, write_extras};
use super::level::Charge;
use super::lost_locks;
use super::open_snapshot::{MemoryTier, OpenSnapshot};
use super::originals::Originals;
use super::program::{EditedImages, RestoreProgram};
use super::stored_working_set::put_working_set;
use super::template::{MemoryBudget, ProcessMemory, Template};
use super::tier::Tier;
use super::working_set::WorkingSet;
use crate::host::start_limiter::StartLimiter;

/// How long a chunk of a template waits for a moment without a start.
const CALM_LIMIT: Duration = Duration::from_millis(500);

impl Snapshots {
    pub(super) async fn load(
        &self,
        id: &SnapshotId,
        uid: u32,
        writes_root: bool,
        ordered: Option<&str>,
    ) -> Result<Arc<OpenSnapshot>, SnapshotError> {
        // Each opening has its own directory: instances may still use the files of an earlier one.
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        let images_dir = ImagesDir::claim(self.dir.join(format!("{id}-{opening}")));
        // Everything that can be requested by the snapshot's name is requested at once: one round trip. Images and
        // working set are decoded in parallel.
        let opened = async {
            let asked = Instant::now();
            let snapshot = Snapshot::open(&self.store, id).await;
            let snapshot = snapshot.map_err(|e| SnapshotError::Open(id.clone(), e))?;
            let fetching = asked.elapsed();
            self.compare(id, snapshot.digest, ordered)?;
            let found_in = self.note_opened(id, &snapshot);
            // Both end, even if one fails: what is written there must not be removed meanwhile.
            let (images, extras) = tokio::join!(snapshot.images(), write_extras(&snapshot, &images_dir));
            let images = extras.and(images).map_err(|e| SnapshotError::Images(id.clone(), e))?;
            Ok::<_, SnapshotError>((snapshot, ImagesInMemory::new(images), found_in, fetching))
        };
        let (opened, recorded) = tokio::join!(opened, load_working_set(&self.store, id));
        let (snapshot, images, found_in, fetching) = opened?;
        // The check runs in parallel with what follows, until the pages are needed.
        let recorded = self.check_working_set(id, recorded, &snapshot.processes);
        let mut edited = EditedSnapshot::of(&snapshot, images, &images_dir, (uid, writes_root))?;
        let locks = lost_locks::of(&edited.verified);
        let first = edit::touched_early(&edited.images).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let memories = std::mem::take(&mut edited.processes);
        let processes = std::iter::zip(&snapshot.processes, memories).map(|(process, memory)| ProcessMemory {
            pid: process.pid.cast_signed(),
            map: Arc::clone(&process.page_map),
            layout: memory.layout,
            folded: memory.folded,
            unwritten: memory.unwritten,
        });
        let (rootfs, app) = snapshot.layers().ok_or_else(|| SnapshotError::Imported(id.clone()))?;
        let originals = Originals {
            places: Arc::clone(&self.layer_places),
            rootfs: rootfs.digest.clone(),
            // The `/app` of an image is in its root.
            app: (!writes_root).then(|| app.digest.clone()),
        };
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
            edit::make_eager(&mut edited.images, pid, &early).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        }
        edit::outlive_criu(&mut edited.images, &edited.verified).map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        edit::bind_by_whole_paths(&mut edited.images, &edited.verified)
            .map_err(|e| SnapshotError::Edit(id.clone(), e))?;
        let name = format!("{id}-{}", self.openings.fetch_add(1, Ordering::Relaxed));
        let program = self.compile(&name, edited.to_compile(&images_dir));
        let EditedSnapshot {
            images,
            notes,
            clocks,
            connections,
            ..
        } = edited;
        let extras = size_of(&images_dir).map_err(|e| SnapshotError::Measure(id.clone(), e))?;
        let (eager_bytes, bytes) = (images.bytes_of_pages(), extras + images.bytes());
        let room = TierBudget {
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
            images: CriuImages::new(images, images_dir),
            images_charge: Charge::new(
                self.tier.level(),
                bytes + program.as_ref().map_or(0, RestoreProgram::bytes),
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
            fetching,
            eager_bytes,
            locks,
            connections,
            file_pages: OnceLock::new(),
            forgotten: CancellationToken::new(),
            filling,
        }))
    }

    /// Notes that a snapshot is being opened. Returns where its memory is.
    fn note_opened(&self, id: &SnapshotId, snapshot: &Snapshot) -> MemoryTier {
        let cached = |chunk: &Digest| self.reader.is_cached(chunk);
        let regions = snapshot.processes.iter().flat_map(|p| p.page_map.regions());
        let chunks: BTreeSet<_> = regions.flat_map(Region::chunks).map(|chunk| chunk.id).collect();
        let found_in = match chunks.iter().all(cached) {
            true => MemoryTier::Disk,
            false => MemoryTier::S3,
        };
        let function = match &snapshot.manifest.origin {
            Origin::Function { function, .. } => Some(function.clone()),
            Origin::Runtime { .. } | Origin::Import { .. } => None,
        };
        self.known.opened(id, function, chunks);
        found_in
    }

    /// Compiles images into a program whose files begin with this name, or says why CRIU restores them.
    pub(crate) fn compile(&self, name: &str, images: EditedImages<'_>) -> Result<RestoreProgram, String> {
        if !self.compiles {
            return Err("this worker has no restore programs".to_owned());
        }
        match RestoreProgram::of(name, &self.memory, images) {
            Ok(program) => {
                tracing::info!(name, bytes = program.bytes(), "compiled");
                Ok(program)
            }
            Err(e) => {
                let why = chain(&e);
                tracing::info!(name, why, "criu restores these images");
                Err(why)
            }
        }
    }
}

/// Fills the template in the background, as far as it is worth its memory: after the start that opened the template,
/// and other starts, have had the processors.
async fn fill(template: Arc<Template>, room: TierBudget, fetching: Arc<Semaphore>) {
    if let Err(e) = template.fill_all(&room, &fetching).await {
        tracing::warn!(snapshot = %room.id, error = %e, "the template stays incomplete");
    }
}

/// The room that a template may use.
pub(super) struct TierBudget {
    pub(super) tier: Arc<Tier>,
    pub(super) starts: Arc<StartLimiter>,
    pub(super) id: SnapshotId,
}

impl MemoryBudget for TierBudget {
    async fn make(&self, bytes: u64) -> bool {
        self.starts.until_calm(CALM_LIMIT).await;
        let (tier, id) = (Arc::clone(&self.tier), self.id.clone());
        let made = tokio::task::spawn_blocking(move || tier.make_room(&id, bytes));
        made.await.unwrap_or(false)
    }
}
