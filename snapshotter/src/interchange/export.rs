//! Turns a snapshot into a directory that stock `criu restore` accepts: the images as CRIU wrote them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use rekindle_criu::images::{ImageError, PagemapEntry, PagemapImage};
use rekindle_store::Store;
use rekindle_wire::SnapshotId;

use crate::chunks::{CacheError, ChunkCache, ReadError, RegionReader};
use crate::codec::PAGE_BYTES;
use crate::pagemap::{PageIndex, PageMap, Region};
use crate::snapshot::{OpenError, Process, Snapshot};

/// Bytes of chunks kept on disk while reading. Each chunk is needed many times, mostly in short succession.
const CHUNKS_BYTES: u64 = 256 << 20;
/// Number of regions read ahead.
const REGIONS_AT_ONCE: usize = 32;

/// Why a snapshot was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The directory exists already.
    #[error("{} is there already: name a directory that is not", .0.display())]
    Exists(PathBuf),
    /// The snapshot cannot be opened.
    #[error("could not export snapshot {id}")]
    Open {
        /// The snapshot.
        id: SnapshotId,
        /// The error of opening it.
        #[source]
        cause: Box<OpenError>,
    },
    /// An image in it does not parse.
    #[error("pagemap of process {pid} of snapshot {id} cannot be used")]
    Image {
        /// The snapshot.
        id: SnapshotId,
        /// The process.
        pid: u32,
        /// The parser's error.
        #[source]
        cause: ImageError,
    },
    /// Memory cannot be read.
    #[error("could not read the memory of snapshot {id}")]
    Memory {
        /// The snapshot.
        id: SnapshotId,
        /// The reader's error.
        #[source]
        cause: ReadError,
    },
    /// The directory for chunks cannot be used.
    #[error("could not keep chunks while exporting")]
    Cache(#[from] CacheError),
    /// A file could not be written.
    #[error("could not write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

impl ExportError {
    /// Whether the store answered and its data is missing or wrong. Retrying later does not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Open { cause, .. } => cause.is_damage(),
            Self::Memory { cause, .. } => cause.is_damage(),
            Self::Image { .. } => true,
            Self::Exists(_) | Self::Cache(_) | Self::Write { .. } => false,
        }
    }
}

fn writing(path: &Path) -> impl FnOnce(io::Error) -> ExportError {
    let path = path.to_owned();
    move |cause| ExportError::Write { path, cause }
}

/// A directory under construction. It is removed on drop unless it was finished.
struct DraftDirectory(PathBuf);

impl Drop for DraftDirectory {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty()
            && let Err(error) = fs::remove_dir_all(&self.0)
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(path = %self.0.display(), error, "unfinished export stays");
        }
    }
}

/// Result of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Number of files.
    pub files: usize,
    /// Size of all files.
    pub bytes: u64,
}

/// Writes all images of a snapshot and the worker's extra files into `dir`. `dir` must not exist, and appears once it
/// is complete. Memory use does not grow with the snapshot, except for some hundred bytes per region.
pub async fn export(store: &Store, id: &SnapshotId, dir: &Path) -> Result<Exported, ExportError> {
    if fs::symlink_metadata(dir).is_ok() {
        return Err(ExportError::Exists(dir.to_owned()));
    }
    let opening = |cause| ExportError::Open {
        id: id.clone(),
        cause: Box::new(cause),
    };
    let snapshot = Snapshot::open(store, id).await.map_err(opening)?;
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(format!(".export-{id}"));
    let mut draft = DraftDirectory(dir.with_file_name(name));
    fs::create_dir_all(&draft.0).map_err(writing(&draft.0))?;
    let chunks = draft.0.join(".chunks");
    let reader = RegionReader::new(store.clone(), ChunkCache::open(&chunks, CHUNKS_BYTES)?);
    let written = write_whole(&snapshot, &reader, &draft.0).await;
    // No chunk is written there any more, whether it is removed now or with the draft.
    reader.settled().await;
    written?;
    fs::remove_dir_all(&chunks).map_err(writing(&chunks))?;
    let exported = measure(&draft.0).map_err(writing(&draft.0))?;
    fs::rename(&draft.0, dir).map_err(writing(dir))?;
    draft.0 = PathBuf::new();
    Ok(exported)
}

/// Writes all images of a snapshot, with all its memory, and the worker's extra files into `dir`, which has none of
/// them yet.
pub async fn write_whole(snapshot: &Snapshot, reader: &RegionReader, dir: &Path) -> Result<(), ExportError> {
    let opening = |cause| ExportError::Open {
        id: snapshot.id().clone(),
        cause: Box::new(cause),
    };
    snapshot.write_images(dir).await.map_err(opening)?;
    for process in &snapshot.processes {
        restore_pages(snapshot, process, reader, dir).await?;
    }
    for name in snapshot.extra_files() {
        snapshot.write_extra(name, &dir.join(name)).await.map_err(opening)?;
    }
    Ok(())
}

fn measure(dir: &Path) -> io::Result<Exported> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(dir)? {
        files += 1;
        bytes += entry?.metadata()?.len();
    }
    Ok(Exported { files, bytes })
}

/// A step of writing a pages image.
enum WriteStep {
    /// This many eager pages, which are in the same order.
    Eager(u64),
    /// Pages of a region: the first page in it, and their number.
    Lazy(Region, u64, u64),
    /// This many pages in no region.
    Zero(u64),
}

/// Merges lazy memory with the eager pages, and writes the pagemap that lists both.
async fn restore_pages(
    snapshot: &Snapshot,
    process: &Process,
    reader: &RegionReader,
    dir: &Path,
) -> Result<(), ExportError> {
    let (id, pid) = (snapshot.id(), process.pid);
    let image = snapshot.pagemap_image(pid).map_err(|cause| ExportError::Open {
        id: id.clone(),
        cause: Box::new(cause),
    })?;
    let pagemap = PagemapImage::parse(&image).map_err(|cause| ExportError::Image {
        id: id.clone(),
        pid,
        cause,
    })?;
    let path = dir.join(format!("pagemap-{pid}.img"));
    fs::write(&path, &image).map_err(writing(&path))?;
    let path = dir.join(format!("pages-{}.img", pagemap.pages_id));
    let mut eager = File::open(&path).map_err(writing(&path))?;
    fs::remove_file(&path).map_err(writing(&path))?;
    let file = File::create_new(&path).map_err(writing(&path))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);

    let steps: Vec<WriteStep> = pagemap
        .entries
        .iter()
        .flat_map(|entry| steps(entry, &process.page_map))
        .collect();
    let mut read = stream::iter(steps)
        .map(|step| {
            Box::pin(async move {
                let bytes = match &step {
                    WriteStep::Lazy(region, ..) => reader.read(region).await?,
                    WriteStep::Eager(_) | WriteStep::Zero(_) => Bytes::new(),
                };
                Ok((step, bytes))
            })
        })
        .buffered(REGIONS_AT_ONCE);
    while let Some(next) = read.next().await {
        let (step, bytes) = next.map_err(|cause| ExportError::Memory { id: id.clone(), cause })?;
        let page = PAGE_BYTES as u64;
        let written = match step {
            WriteStep::Eager(pages) => copy_exact(&mut eager, &mut out, pages * page),
            WriteStep::Zero(pages) => copy_exact(&mut io::repeat(0), &mut out, pages * page),
            WriteStep::Lazy(_, skip, pages) => {
                // Within a region, as the page map states.
                let (from, to) = (skip as usize * PAGE_BYTES, (skip + pages) as usize * PAGE_BYTES);
                match bytes.get(from..to) {
                    Some(plain) => out.write_all(plain),
                    None => Err(io::ErrorKind::InvalidData.into()),
                }
            }
        };
        written.map_err(writing(&path))?;
    }
    out.flush().map_err(writing(&path))
}

fn copy_exact(from: &mut impl io::Read, to: &mut impl io::Write, bytes: u64) -> io::Result<()> {
    if io::copy(&mut from.take(bytes), to)? == bytes {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The steps that assemble the pages of one run.
fn steps(entry: &PagemapEntry, map: &PageMap) -> Vec<WriteStep> {
    if !entry.lazy {
        return vec![WriteStep::Eager(entry.pages)];
    }
    let end = PageIndex(entry.first.0 + entry.pages);
    let (mut page, mut steps) = (entry.first, Vec::new());
    while page < end {
        let start = page;
        match map.lookup(start) {
            Some(region) => {
                page = region.end().min(end);
                steps.push(WriteStep::Lazy(*region, start.0 - region.first.0, page.0 - start.0));
            }
            None => {
                page = PageIndex(start.0 + 1);
                match steps.last_mut() {
                    Some(WriteStep::Zero(pages)) => *pages += 1,
                    _ => steps.push(WriteStep::Zero(1)),
                }
            }
        }
    }
    steps
}
