//! Figures and pictures of snapshots and image directories, for people.

mod directory;
mod listing;
mod picture;
mod shared;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};

use rekindle_criu::images::{ImageError, StoredPagemap, file_names, parse_mappings};
use rekindle_store::Store;
use rekindle_wire::SnapshotId;
use rekindle_wire::api::SnapshotSummary;
use serde::Serialize;

use crate::keys;
use crate::manifest::Origin;
use crate::pagemap::{PageIndex, Region};
use crate::snapshot::{OpenError, Snapshot};
use crate::working_set::load_working_set;

pub use directory::{DirectoryInspection, inspect_directory};
pub use listing::{Listed, Listing, list};
pub use picture::draw;
pub use shared::SharedWith;
pub use view::{Kind, Kinds, MappingView, ProcessView, Span};

/// Regions by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RegionCounts {
    /// All zero.
    pub zero: usize,
    /// Uncompressed.
    pub raw: usize,
    /// Compressed by LZ4.
    pub compressed: usize,
    /// Stored as the difference to another snapshot's region.
    pub difference: usize,
}

/// Figures about a snapshot's working set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WorkingSetSummary {
    /// How often it was recorded again.
    pub recording: u32,
    /// Number of restores merged into it.
    pub restores: u32,
    /// Number of its pages.
    pub pages: usize,
    /// Number of its pages that are all zero.
    pub zero_pages: usize,
    /// Stored size.
    pub stored_bytes: u64,
}

/// What a snapshot was taken of, and the sizes of its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Its sizes, as in the admin API.
    pub summary: SnapshotSummary,
    /// What it was taken of.
    pub origin: Origin,
    /// The base of the regions stored as differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<SnapshotId>,
    /// Time of publication, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// CRIU's version. Empty if the images were imported.
    pub criu: String,
    /// Kernel that it was taken on.
    pub kernel: String,
    /// Its regions.
    pub regions: RegionCounts,
    /// Number of chunks that contain its regions.
    pub chunks: usize,
    /// Stored size of images, page maps and eager pages together.
    pub bundle_bytes: u64,
    /// Bytes of memory that a restore needs before it starts.
    pub eager_bytes: u64,
    /// Its working set, if there is one.
    pub working_set: Option<WorkingSetSummary>,
    /// Memory divided by stored bytes, bundle included.
    pub ratio: f64,
    /// The newest other snapshots that share regions with this one, those with the most shared bytes first.
    pub shared_with: Vec<SharedWith>,
    /// The memory of each process, by pid.
    pub processes: Vec<ProcessView>,
}

/// Inspects a snapshot in the store. Reads the manifest, the bundle and the working set, but no chunk.
pub async fn inspect(store: &Store, id: &SnapshotId) -> Result<Inspection, OpenError> {
    let snapshot = Snapshot::open(store, id).await?;
    let in_store = |cause| OpenError::Store { id: id.clone(), cause };
    let stored_bytes = match store.head(&keys::working_set(id)).await {
        Ok(found) => Some(found.len),
        Err(error) if error.is_not_found() => None,
        Err(cause) => return Err(in_store(cause)),
    };
    // A restore ignores a damaged or forged working set too.
    let pack = Box::pin(load_working_set(store, id)).await.ok().flatten();
    let pack = pack.and_then(|set| set.check(&snapshot.processes).ok());
    let working_set = stored_bytes
        .zip(pack.as_ref())
        .map(|(stored_bytes, pack)| WorkingSetSummary {
            recording: pack.recording.number,
            restores: pack.recording.restores,
            pages: pack.pages.len(),
            zero_pages: pack.pages.iter().filter(|p| p.content.is_none()).count(),
            stored_bytes,
        });
    let mut touched: BTreeMap<u32, Vec<PageIndex>> = BTreeMap::new();
    for page in pack.iter().flat_map(|pack| &pack.pages) {
        touched.entry(page.pid).or_default().push(page.page);
    }
    let maps = snapshot.processes.iter().map(|p| &*p.page_map);
    let shared_with = Box::pin(shared::shared_with(store, id, maps)).await.map_err(in_store)?;
    let regions = || snapshot.processes.iter().flat_map(|p| p.page_map.regions());
    let mut counts = RegionCounts::default();
    for region in regions() {
        match Kind::of(region) {
            Kind::Zero => counts.zero += 1,
            Kind::Raw => counts.raw += 1,
            Kind::Difference => counts.difference += 1,
            _ => counts.compressed += 1,
        }
    }
    let chunks: HashSet<_> = regions().flat_map(Region::chunks).map(|chunk| chunk.id).collect();
    let manifest = &snapshot.manifest;
    let stored = manifest.totals.stored_bytes + manifest.bundle_bytes;
    Ok(Inspection {
        summary: manifest.summary(),
        origin: manifest.origin.clone(),
        base: manifest.base.clone(),
        created_unix_s: manifest.created_unix_s,
        criu: manifest.criu.clone(),
        kernel: manifest.kernel.clone(),
        regions: counts,
        chunks: chunks.len(),
        bundle_bytes: manifest.bundle_bytes,
        eager_bytes: manifest.totals.eager_bytes,
        working_set,
        ratio: manifest.totals.memory_bytes as f64 / stored.max(1) as f64,
        shared_with,
        processes: processes(&snapshot, touched)?,
    })
}

fn processes(snapshot: &Snapshot, mut touched: BTreeMap<u32, Vec<PageIndex>>) -> Result<Vec<ProcessView>, OpenError> {
    let unusable = |name: &str| {
        let (id, name) = (snapshot.id().clone(), name.to_owned());
        move |cause: ImageError| OpenError::Image { id, name, cause }
    };
    let files = match snapshot.image("files.img") {
        Ok(bytes) => file_names(&bytes).map_err(unusable("files.img"))?,
        Err(OpenError::NoSuchFile { .. }) => HashMap::new(),
        Err(error) => return Err(error),
    };
    let mut views = Vec::with_capacity(snapshot.processes.len());
    for process in &snapshot.processes {
        let pid = process.pid;
        let name = format!("mm-{pid}.img");
        let mappings = parse_mappings(&snapshot.image(&name)?).map_err(unusable(&name))?;
        let name = format!("pagemap-{pid}.img");
        let pagemap = StoredPagemap::parse(&snapshot.pagemap_image(pid)?).map_err(unusable(&name))?;
        let spans = view::spans_of_snapshot(&process.page_map, &pagemap);
        let mut pages = touched.remove(&pid).unwrap_or_default();
        pages.sort_unstable();
        views.push(ProcessView::new(pid, &mappings, &files, &spans, &pages));
    }
    Ok(views)
}
