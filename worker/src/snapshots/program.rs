//! A restore program: the images of a snapshot, or of an instance that arrives, compiled for this host.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_criu::descriptors::{OUTPUT_STREAMS, pipe_number};
use rekindle_criu::images::{ImageError, PagemapImage, TemplateArea, TemplateLayout};
use rekindle_pager::PAGE;
use rekindle_restore_compiler::{
    Compiled, CompilerInput, Host, HostError, MemoryRuns, PageRun, Refusal, compile, is_shared_memory, other_names,
};
use rekindle_restore_program::message::HollowOrder;
use rekindle_restore_program::{Code, Program};
use rekindle_verify::Verified;

use super::image_set::ImageSet;
use super::memory_fs::{MemoryFs, MemoryFsError};
use super::notes::{FILES_ARCHIVE, PipeNote};
use super::originals;

/// Pause after a program's first failure. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// This host, or why there are no programs for it.
static HOST: LazyLock<Result<Host, HostError>> = LazyLock::new(Host::current);

/// Why a snapshot has no restore program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramUnavailable {
    /// This host cannot run programs.
    #[error("this host has no restore programs")]
    Host(#[source] &'static HostError),
    /// It has something that no program restores.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A pagemap or its pages cannot be read.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// A pagemap is malformed.
    #[error("{}", .0.display())]
    Pagemap(PathBuf, #[source] ImageError),
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] MemoryFsError),
    /// It cannot be written to its memory.
    #[error("write the restore program")]
    Write(#[source] io::Error),
}

#[derive(Clone, Copy)]
pub(crate) struct EditedImages<'a> {
    /// They were edited to map templates.
    pub(crate) images: &'a dyn ImageSet,
    /// The directory of the archive of private files.
    pub(crate) dir: &'a Path,
    /// What they were before.
    pub(crate) verified: &'a Verified,
    /// What maps templates, by process id and by address.
    pub(crate) templates: &'a BTreeMap<u32, Vec<PageRun>>,
    /// The function's outputs: indices by the numbers of their pipes.
    pub(crate) outputs: &'a BTreeMap<u32, u32>,
    /// Numbers of the sockets that are connected after the program has made them.
    pub(crate) connected: &'a BTreeSet<u32>,
}

/// A restore program, which all restores of its snapshot share.
#[derive(Debug)]
pub struct RestoreProgram {
    compiled: Compiled,
    program: OwnedFd,
    /// Pages that each restore reads.
    pages: OwnedFd,
    bytes: u64,
    failures: Mutex<Failures>,
    /// Failures to begin ahead.
    beginnings: Mutex<Failures>,
}

/// A program's failures since it last restored its snapshot.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    fn add(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = Some(now);
    }

    /// Returns whether the pause after the last one is over.
    fn are_over(&self, now: Instant) -> bool {
        let pause = || PAUSE_MAX.min(PAUSE * 2_u32.saturating_pow(self.count.saturating_sub(1)).min(1024));
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= pause())
    }
}

impl RestoreProgram {
    /// Compiles images, as [`compile_images`] does, into files on `fs` that begin with this name.
    ///
    /// # Errors
    /// Returns an error when something has no operation, or a file cannot be read or written.
    pub(super) fn of(name: &str, fs: &MemoryFs, images: EditedImages<'_>) -> Result<Self, ProgramUnavailable> {
        let (compiled, pages) = compile_images(images)?;
        let keep = |what: &str, bytes: &[u8]| {
            let file = fs.create(&format!("{name}-{what}"), bytes.len() as u64)?;
            file.writable
                .write_all_at(bytes, 0)
                .map_err(ProgramUnavailable::Write)?;
            Ok::<_, ProgramUnavailable>(file.read_only)
        };
        Ok(Self {
            program: keep("program", &compiled.program)?,
            pages: keep("pages", &pages)?,
            bytes: (compiled.program.len() + pages.len()) as u64,
            compiled,
            failures: Mutex::default(),
            beginnings: Mutex::default(),
        })
    }

    /// Returns the memory that it takes, in bytes, with the pages that each restore copies.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether it may be tried: it has not failed, or not recently.
    pub(super) fn is_usable(&self) -> bool {
        self.failures.lock().are_over(Instant::now())
    }

    /// Records that it has failed. CRIU restores the snapshot for a while.
    pub(crate) fn failed(&self) {
        self.failures.lock().add(Instant::now());
    }

    /// Records that it has restored its snapshot.
    pub(crate) fn succeeded(&self) {
        *self.failures.lock() = Failures::default();
    }

    /// Returns whether restores may begin ahead by it: none has failed to, or not recently.
    pub(crate) fn may_begin(&self) -> bool {
        self.beginnings.lock().are_over(Instant::now())
    }

    /// Records that it has restored its snapshot, which had begun ahead.
    pub(crate) fn succeeded_ahead(&self) {
        self.succeeded();
        *self.beginnings.lock() = Failures::default();
    }

    /// Records that a restore has failed which was to begin ahead, or had begun.
    pub(crate) fn failed_to_begin(&self) {
        self.beginnings.lock().add(Instant::now());
    }

    /// Returns the ids of its processes.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.compiled.pids
    }

    /// Returns whether its processes give files names, or take them away.
    pub(crate) fn changes_directories(&self) -> bool {
        self.compiled.changes_directories
    }

    /// Returns the name of an operation, counted from 1, of the process with this id in the sandbox.
    pub(crate) fn operation(&self, pid: u32, number: u32) -> Option<String> {
        let process = self.pids().iter().position(|other| *other == pid)?;
        let program = Program::parse(&self.compiled.program).ok()?;
        let program = program.of(u32::try_from(process).ok()?)?;
        let op = program.ops().nth(number.checked_sub(1)? as usize)?;
        Code::of(op.code).map(|code| format!("{code:?}"))
    }

    /// Returns the first descriptors of an order: the program and its pages.
    pub(crate) fn files(&self) -> [&OwnedFd; 2] {
        [&self.program, &self.pages]
    }

    /// Returns an order to run it. `None` if there is no address for what it leaves behind.
    pub(crate) fn order(&self) -> Option<HollowOrder> {
        // The low bits of the second half are random.
        let random = std::iter::repeat_with(|| uuid::Uuid::new_v4().as_u64_pair().1);
        Some(HollowOrder {
            bytes: self.compiled.program.len() as u64,
            residue: self.compiled.residue(random)?,
        })
    }
}

/// Returns the function's outputs, by the numbers of their pipes.
pub(crate) fn outputs(pipes: &[PipeNote]) -> BTreeMap<u32, u32> {
    let indexed = pipes.iter().filter_map(|note| {
        let index = OUTPUT_STREAMS.iter().position(|stream| *stream == note.stream)?;
        Some((pipe_number(&note.key)?, index as u32))
    });
    indexed.collect()
}

/// Returns what maps the templates of a snapshot's processes, from the layout of each. Templates are numbered in this
/// order.
pub(super) fn templates<'a>(layouts: impl Iterator<Item = (u32, &'a TemplateLayout)>) -> BTreeMap<u32, Vec<PageRun>> {
    let runs = |(file, (pid, layout)): (u32, (u32, &TemplateLayout))| {
        let areas = layout.mappings.iter();
        (pid, areas.map(|area| template_run(*area, file)).collect())
    };
    (0..).zip(layouts).map(runs).collect()
}

/// Returns how a program maps this part of a template.
pub(crate) fn template_run(area: TemplateArea, file: u32) -> PageRun {
    PageRun {
        first: area.first.0,
        pages: area.pages,
        file,
        at: area.at,
    }
}

/// Compiles images. Also returns the pages that each restore reads.
///
/// # Errors
/// Returns an error when something has no operation, or a pagemap or its pages cannot be read.
pub(super) fn compile_images(edited: EditedImages<'_>) -> Result<(Compiled, Vec<u8>), ProgramUnavailable> {
    let host = HOST.as_ref().map_err(ProgramUnavailable::Host)?;
    let images = edited.verified;
    let (mut pages, mut memory) = (Vec::new(), Vec::new());
    for process in images.processes.iter().filter(|process| process.memory.is_some()) {
        let pid = process.tree.pid;
        memory.push(MemoryRuns {
            template: edited.templates.get(&pid).cloned().unwrap_or_default(),
            eager: read_eager(edited.images, &pid.to_string(), &mut pages)?,
        });
    }
    let mut shared = BTreeMap::new();
    for number in shared_memory(images) {
        let name = format!("shmem-{number}");
        if edited.images.contains(&format!("pagemap-{name}.img")) {
            shared.insert(number, read_eager(edited.images, &name, &mut pages)?);
        }
    }
    // Names on the file systems, where they matter.
    let names = match images.remaps.is_empty() {
        true => BTreeSet::new(),
        false => {
            originals::names(edited.dir).map_err(|e| ProgramUnavailable::File(edited.dir.join(FILES_ARCHIVE), e))?
        }
    };
    let compiled = compile(CompilerInput {
        images,
        memory: &memory,
        pages: &pages,
        shared: &shared,
        outputs: edited.outputs,
        connected: edited.connected,
        other_names: &other_names(images, &names),
        host,
    })?;
    Ok((compiled, pages))
}

/// Returns the numbers of memory files and of shared memory without a file.
fn shared_memory(images: &Verified) -> BTreeSet<u64> {
    let named = images.memory_files.values().map(|file| u64::from(file.shmid));
    let memories = images.processes.iter().filter_map(|process| process.memory.as_ref());
    let nameless = memories
        .flat_map(|memory| &memory.vmas)
        .filter(|vma| is_shared_memory(vma));
    named.chain(nameless.map(|vma| vma.shmid)).collect()
}

/// Appends the pages that CRIU reads of a process or of shared memory to `all`. Returns where they are.
fn read_eager(images: &dyn ImageSet, of: &str, all: &mut Vec<u8>) -> Result<Vec<PageRun>, ProgramUnavailable> {
    let failed = |name: &str, e| ProgramUnavailable::File(images.path(name), e);
    let name = format!("pagemap-{of}.img");
    let pagemap = images.read(&name).map_err(|e| failed(&name, e))?;
    let pagemap = PagemapImage::parse(&pagemap).map_err(|e| ProgramUnavailable::Pagemap(images.path(&name), e))?;
    let (mut at, mut runs) = (all.len() as u64 / PAGE, Vec::new());
    for entry in pagemap.entries.iter().filter(|entry| !entry.lazy) {
        let (first, pages) = (entry.first.0, entry.pages);
        runs.push(PageRun {
            first,
            pages,
            file: 0,
            at,
        });
        at += pages;
    }
    let name = format!("pages-{}.img", pagemap.pages_id);
    all.extend_from_slice(&images.read(&name).map_err(|e| failed(&name, e))?);
    if all.len() as u64 != at * PAGE {
        let why = io::Error::new(io::ErrorKind::InvalidData, "its pages are not those of its pagemap");
        return Err(failed(&name, why));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_tried_again_after_ever_longer_pauses() {
        let (mut failures, mut now) = (Failures::default(), Instant::now());
        assert!(failures.are_over(now));
        let mut pauses = Vec::new();
        for _ in 0..20 {
            failures.add(now);
            let pause = (0..)
                .map(Duration::from_secs)
                .find(|pause| failures.are_over(now + *pause));
            pauses.push(pause.unwrap().as_secs());
            now += Duration::from_secs(1);
        }
        assert_eq!(pauses[..4], [30, 60, 120, 240]);
        assert!(pauses[8..].iter().all(|pause| *pause == 3600), "{pauses:?}");
    }
}
