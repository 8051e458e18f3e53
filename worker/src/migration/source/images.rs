//! Images of an instance that migrates, packed for the target.

use std::path::Path;

use rekindle_criu::images::place_external;
use rekindle_pager::address_map::AddressMap;
use rekindle_wire::ApiError;

use super::super::bundle::{Bundle, pack};
use super::super::header::{Header, eager_name, pieces};
use super::super::page_numbering::{PageNumbering, read};
use super::memory::SourcePages;
use crate::criu::open_files::OpenFiles;
use crate::errors::unavailable;
use crate::host::sandbox::InnerProc;
use crate::instance::RunningInstance;
use crate::snapshots::FILES_ARCHIVE;
use crate::snapshots::connections::ConnectionNote;

/// Packs what goes to the target first.
pub(super) fn pack_up(
    dir: &Path,
    proc: &InnerProc,
    running: &RunningInstance,
    templates: Vec<String>,
    maps: &[(i32, AddressMap)],
    (connections, open_files): (Vec<ConnectionNote>, OpenFiles),
) -> Result<(Bundle, SourcePages), ApiError> {
    let failed = |e: &dyn std::error::Error| unavailable("pack the instance up", e);
    let files = read(dir, "files.img").map_err(|e| failed(&e))?;
    // The target chooses their paths.
    let names: Vec<_> = templates.iter().map(|name| (name.as_str(), "")).collect();
    let (_, ids) = place_external(&files, &names).map_err(|e| failed(&e))?;
    let numbering = PageNumbering::read(dir, &ids).map_err(|e| failed(&e))?;
    let own: Vec<_> = numbering
        .processes
        .iter()
        .map(|t| format!("pages-{}.img", t.memory.pages_id))
        .collect();
    let left = SourcePages::open(numbering, proc, dir).map_err(|e| failed(&e))?;
    let eager = left.eager().map_err(|e| failed(&e))?;
    let header = Header {
        pipes: running.pipes.clone(),
        templates,
        connections,
        file_numbers: left
            .file_numbers(&open_files, &running.file_numbers)
            .map_err(|e| failed(&e))?,
        maps: maps.iter().map(|(pid, map)| (*pid, pieces(map))).collect(),
        files: Vec::new(),
    };
    let wanted = |name: &str| (name.ends_with(".img") && !own.iter().any(|o| o == name)) || name == FILES_ARCHIVE;
    let more = eager.into_iter().map(|(pid, bytes)| (eager_name(pid), bytes));
    let bundle = pack(header, dir, wanted, more.collect()).map_err(|e| failed(&e))?;
    Ok((bundle, left))
}
