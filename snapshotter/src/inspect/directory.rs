//! Figures about an image directory, without a store.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rekindle_criu::images::{file_names, parse_mappings};
use serde::Serialize;

use super::view::{Kinds, ProcessView, spans_of_pagemap};
use crate::interchange::{Directory, InterchangeError, image_at, io_at};

/// Contents of an image directory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirectoryInspection {
    /// Whether CRIU 4.3 would decompress it.
    pub compressed: bool,
    /// Bytes of memory per compressed block.
    pub block_bytes: Option<u32>,
    /// Whether some of its pages are in a parent directory.
    pub has_parent: bool,
    /// Memory of all processes by kind.
    pub kinds: Kinds,
    /// Bytes of all pages images.
    pub stored_bytes: u64,
    /// The part of `stored_bytes` that holds shared memory.
    pub shared_memory_bytes: u64,
    /// Processes, by pid.
    pub processes: Vec<ProcessView>,
}

/// Inspects an image directory without reading its pages. Blocks on disk I/O.
pub fn inspect_directory(path: &Path) -> Result<DirectoryInspection, InterchangeError> {
    let directory = Directory::read(path)?;
    let (compressed, block_bytes) = {
        let inventory = directory.inventory()?;
        (inventory.compressed, inventory.block_bytes)
    };
    let files_path = path.join("files.img");
    let files = match fs::read(&files_path) {
        Ok(bytes) => file_names(&bytes).map_err(image_at(&files_path))?,
        // A pre-dump has none.
        Err(_) => HashMap::new(),
    };
    let mut found = DirectoryInspection {
        compressed,
        block_bytes,
        has_parent: directory.has_parent,
        kinds: Kinds::default(),
        stored_bytes: 0,
        shared_memory_bytes: 0,
        processes: Vec::new(),
    };
    for pair in &directory.pairs {
        let bytes = pair.map.layout().1;
        found.stored_bytes += bytes;
        let pid = pair
            .pagemap
            .strip_prefix("pagemap-")
            .and_then(|n| n.strip_suffix(".img"));
        let Some((name, pid)) = pid.and_then(|p| Some((p, p.parse::<u32>().ok()?))) else {
            found.shared_memory_bytes += bytes;
            continue;
        };
        let mm = path.join(format!("mm-{name}.img"));
        let mappings = match fs::read(&mm) {
            Ok(bytes) => parse_mappings(&bytes).map_err(image_at(&mm))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(io_at("read", &mm)(e)),
        };
        let spans = spans_of_pagemap(&pair.map);
        found
            .processes
            .push(ProcessView::new(pid, &mappings, &files, &spans, &[]));
    }
    found.processes.sort_by_key(|p| p.pid);
    for process in &found.processes {
        found.kinds = found.kinds.plus(&process.kinds());
    }
    Ok(found)
}
