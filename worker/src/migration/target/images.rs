//! Images of a migrated instance, checked, laid out for CRIU, and compiled.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use rekindle_criu::images::place_external;
use rekindle_init::locks::Lock;
use rekindle_init::protocol::{Clocks, FUNCTION_UID, held_path};
use rekindle_restore_compiler::PageRun;
use rekindle_verify::{PageLocation, Verified, verify};
use rekindle_wire::ApiError;

use super::super::bundle::unpack;
use super::super::checks::{check_header, check_pages, check_size};
use super::super::header::{Header, eager_name};
use super::super::page_numbering::{MigratedProcess, PageNumbering, read};
use crate::errors::{restore_failed, unavailable};
use crate::snapshots::connections::{self, Connection};
use crate::snapshots::expected::expected_to_travel;
use crate::snapshots::lost_locks;
use crate::snapshots::{
    Directory, EditedImages, RestoreProgram, Snapshots, bind_by_whole_paths, clocks, join_time, let_be_read,
    name_outputs, outlive_criu, outputs, template_run,
};

/// The bundle's content, as CRIU finds it.
pub(super) struct ImagesOnDisk {
    pub(super) header: Header,
    pub(super) numbering: PageNumbering,
    pub(super) clocks: Clocks,
    /// Locks that CRIU's restore loses.
    pub(super) locks: Vec<Lock>,
    /// The function's connections to itself.
    pub(super) connections: Vec<Connection>,
    /// What restores it without CRIU, or why CRIU restores it.
    pub(super) program: Result<RestoreProgram, String>,
}

/// What the target knows of an arriving instance from elsewhere than its source.
pub(super) struct ExpectedImages {
    /// Number of templates of its snapshot.
    pub(super) templates: usize,
    /// Maximum memory of the instance, in bytes.
    pub(super) memory: u64,
    /// Whether the root filesystem is a container image's.
    pub(super) writes_root: bool,
}

/// Writes the images into `dir` for CRIU, if they are a function's, and compiles them under this name. Blocks.
pub(super) fn lay_out(
    bundle: impl Read,
    dir: &Path,
    expected_images: &ExpectedImages,
    (snapshots, name): (&Snapshots, &str),
) -> Result<ImagesOnDisk, ApiError> {
    let failed = |e: &dyn std::error::Error| unavailable("lay out the images", e);
    let refused = |e: &dyn std::error::Error| restore_failed("believe the images of an instance that moves", e);
    let header = unpack(bundle, dir, |header| {
        check_size(header, expected_images.memory)?;
        check_header(header, expected_images.templates)
    });
    let mut header = header.map_err(|e| refused(&e))?;
    // The files checked here are the files that are edited and restored: nobody else writes to the directory.
    let began = Instant::now();
    let writes_root = expected_images.writes_root;
    let expected = expected_to_travel(
        FUNCTION_UID,
        &header.pipes,
        writes_root,
        &header.templates,
        PageLocation::Eager,
    );
    let verified = verify(dir, &expected).map_err(|e| refused(&e))?;
    let locks = lost_locks::of(&verified);
    let connections = connections::noted(&verified, &header.connections);
    // By the numbers that they had at the source, as in what was checked.
    let outputs = outputs(&header.pipes);
    tracing::debug!(
        ms = began.elapsed().as_secs_f64() * 1e3,
        "checked the images of an instance that arrives"
    );
    let paths: Vec<_> = (0..header.templates.len()).map(|at| held_path(1 + at)).collect();
    let names = std::iter::zip(&header.templates, &paths).map(|(name, path)| (name.as_str(), path.as_str()));
    let files = read(dir, "files.img").map_err(|e| failed(&e))?;
    let (files, ids) = place_external(&files, &names.collect::<Vec<_>>()).map_err(|e| failed(&e))?;
    let numbering = PageNumbering::read(dir, &ids).map_err(|e| failed(&e))?;
    let eager = |pid| {
        let mut lengths = header.files.iter().filter(|(name, _)| *name == eager_name(pid));
        lengths.next().map_or(0, |(_, bytes)| *bytes)
    };
    check_pages(&numbering, expected_images.memory, eager).map_err(|e| refused(&e))?;
    let write = |name: String, bytes: &[u8]| std::fs::write(dir.join(name), bytes).map_err(|e| failed(&e));
    write("files.img".to_owned(), &files)?;
    for process in &numbering.processes {
        let pid = process.pid;
        write(format!("pagemap-{pid}.img"), &process.memory.pagemap())?;
        let (from, to) = (eager_name(pid), format!("pages-{}.img", process.memory.pages_id));
        std::fs::rename(dir.join(from), dir.join(to)).map_err(|e| failed(&e))?;
    }
    let mut images = Directory(dir);
    name_outputs(&mut images, &mut header.pipes).map_err(|e| failed(&e))?;
    join_time(dir).map_err(|e| failed(&e))?;
    let clocks = clocks(&images).map_err(|e| failed(&e))?;
    outlive_criu(&mut images, &verified).map_err(|e| failed(&e))?;
    bind_by_whole_paths(&mut images, &verified).map_err(|e| failed(&e))?;
    let_be_read(dir).map_err(|e| failed(&e))?;
    let began = Instant::now();
    let program = snapshots.compile(
        name,
        EditedImages {
            images: &images,
            dir,
            verified: &verified,
            templates: &mapped_templates(&verified, &header.templates, &numbering),
            outputs: &outputs,
            connected: &connections::sockets(&connections),
        },
    );
    tracing::debug!(
        ms = began.elapsed().as_secs_f64() * 1e3,
        "compiled the images of an instance that arrives"
    );
    Ok(ImagesOnDisk {
        header,
        numbering,
        clocks,
        locks,
        connections,
        program,
    })
}

/// Returns what maps the templates of these names, by process id. A process that was forked from another may map the
/// other's.
fn mapped_templates(images: &Verified, names: &[String], numbering: &PageNumbering) -> BTreeMap<u32, Vec<PageRun>> {
    let number = |name: &[u8]| (0..).zip(names).find(|(_, known)| known.as_bytes() == name);
    let numbers = images.files.iter().filter_map(|(id, file)| {
        let (number, _) = number(&file.reg.as_ref()?.name)?;
        Some((*id, number))
    });
    let numbers: HashMap<u32, u32> = numbers.collect();
    let of = |process: &MigratedProcess| {
        let mapped = process.memory.mapped.iter();
        let runs = mapped.filter_map(|(area, file)| Some(template_run(*area, *numbers.get(file)?)));
        (process.pid.cast_unsigned(), runs.collect())
    };
    numbering.processes.iter().map(of).collect()
}
