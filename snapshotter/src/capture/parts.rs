//! The parts of a snapshot other than its chunks: the bundle and the extra files.

use bytes::Bytes;
use rekindle_wire::SnapshotId;

use super::dump_dir::Dump;
use super::{ExtraFile, PublishError, on_blocking_thread};
use crate::bundle::BundleBuilder;
use crate::digest::Digest;
use crate::manifest::{ExtraEntry, ExtraPlace, ImageEntry, ProcessEntry};
use crate::pagemap::PageMap;

/// Maximum size of an extra file that is stored in the bundle.
const EXTRA_IN_BUNDLE_MAX: u64 = 1 << 20;

/// The bundle, and the manifest's entries about it.
pub(super) struct SnapshotParts {
    pub(super) bytes: Bytes,
    pub(super) processes: Vec<ProcessEntry>,
    pub(super) images: Vec<ImageEntry>,
    pub(super) extra: Vec<ExtraEntry>,
}

/// An extra file, whose bytes are read if it is small.
pub(super) struct HashedExtra {
    name: String,
    small: Option<Vec<u8>>,
    bytes: u64,
    blake3: Digest,
}

/// Builds the bundle: page maps first, so that they can be read on their own, then images, then extra files. Blocks.
pub(super) fn bundle(
    id: &SnapshotId,
    dump: &Dump,
    maps: &[PageMap],
    extra: Vec<HashedExtra>,
) -> Result<SnapshotParts, PublishError> {
    let too_large = |cause| PublishError::TooLarge { id: id.clone(), cause };
    let mut builder = BundleBuilder::default();
    let mut processes = Vec::new();
    let sections = maps.iter().map(|map| builder.add(&map.encode()).map_err(too_large));
    let page_maps = sections.collect::<Result<Vec<_>, _>>()?;
    for (process, page_map) in dump.processes.iter().zip(page_maps) {
        processes.push(ProcessEntry {
            pid: process.pid,
            page_map,
            pagemap: builder.add(&process.pagemap).map_err(too_large)?,
        });
    }
    let mut images = Vec::new();
    for (name, bytes) in &dump.images {
        images.push(ImageEntry {
            name: name.clone(),
            section: builder.add(bytes).map_err(too_large)?,
        });
    }
    for process in &dump.processes {
        images.push(ImageEntry {
            name: process.pagemap_name(),
            section: builder.add(&process.eager_pagemap).map_err(too_large)?,
        });
        let pages = process.eager_pages();
        let pages = pages.map_err(|cause| PublishError::dump(&dump.path, cause))?;
        images.push(ImageEntry {
            name: process.pages_name(),
            section: builder.add(&pages).map_err(too_large)?,
        });
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    let mut entries = Vec::new();
    for file in extra {
        let place = match file.small {
            Some(bytes) => ExtraPlace::Section(builder.add(&bytes).map_err(too_large)?),
            None => ExtraPlace::Object {
                bytes: file.bytes,
                blake3: file.blake3,
            },
        };
        entries.push(ExtraEntry { name: file.name, place });
    }
    Ok(SnapshotParts {
        bytes: builder.finish().into(),
        processes,
        images,
        extra: entries,
    })
}

/// Reads the small files and hashes the others.
pub(super) async fn hash_extra(files: Vec<ExtraFile>) -> Result<Vec<HashedExtra>, PublishError> {
    let hash = |file: ExtraFile| -> std::io::Result<HashedExtra> {
        let bytes = std::fs::metadata(&file.path)?.len();
        let small = (bytes <= EXTRA_IN_BUNDLE_MAX)
            .then(|| std::fs::read(&file.path))
            .transpose()?;
        let mut hasher = blake3::Hasher::new();
        if small.is_none() {
            hasher.update_reader(std::fs::File::open(&file.path)?)?;
        }
        Ok(HashedExtra {
            name: file.name,
            small,
            bytes,
            blake3: Digest(*hasher.finalize().as_bytes()),
        })
    };
    on_blocking_thread(move || {
        let hashed = files.into_iter().map(|file| {
            let path = file.path.clone();
            hash(file).map_err(|cause| PublishError::Extra { path, cause })
        });
        hashed.collect()
    })
    .await
}
