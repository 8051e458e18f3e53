//! Compiles verified images into a restore program, once for each snapshot and host.
//!
//! What has no operation is refused by name, and the snapshot is CRIU's to restore. So every field of the images that a
//! restore must bring back is either compiled here or refused; none is passed over.
//!
//! - `family`: processes, sessions, groups, clocks
//! - `memory`: mappings, pages, the kernel's own pages
//! - `descriptors`, `opening`, `sockets`, `unix`, `names`: open files
//! - `memory_files`: those in memory, and shared memory
//! - `task`, `frame`: signals, timers, limits, threads, registers
//! - [`mod@print`]: a program as text

mod builder;
mod descriptors;
mod family;
mod flags;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod memory;
mod memory_files;
mod names;
mod opening;
pub mod print;
mod sockets;
mod task;
#[cfg(test)]
mod tests;
mod unix;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rekindle_restore_program::{Code, PROCESSES_MAX, RESIDUE_MAX, rights, window};
use rekindle_verify::messages::{FileEntry, Mm, RegularFile};
use rekindle_verify::{Process, Verified};

use builder::Builder;
use descriptors::Tables;
pub use host::{Host, HostError};
use memory_files::MemoryFiles;
pub use memory_files::is_shared_memory;
use names::OpenCounter;
pub use names::{OtherNames, other_names};

/// Why images are not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It concerns the snapshot as a whole.
    #[error("the snapshot has {0}")]
    Snapshot(&'static str),
    /// It concerns a process.
    #[error("process {0} has {1}")]
    Process(u32, &'static str),
    /// It concerns a thread.
    #[error("thread {0} has {1}")]
    Thread(u32, &'static str),
    /// It concerns a mapping.
    #[error("the mapping at {0:#x} is {1}")]
    Mapping(u64, &'static str),
    /// It concerns a descriptor.
    #[error("descriptor {0} is {1}")]
    Descriptor(u32, &'static str),
}

/// Consecutive pages of a process, and where they are in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// The template's number among those that are handed over. The pages' file is 0.
    pub file: u32,
    /// The file's page at the first.
    pub at: u64,
}

impl PageRun {
    fn end(&self) -> u64 {
        self.first + self.pages
    }
}

/// Where a process's memory comes from on this host.
#[derive(Debug, Clone, Default)]
pub struct MemoryRuns {
    /// What maps its template, by address.
    pub template: Vec<PageRun>,
    /// What each restore reads into its own memory from the pages' file, by address.
    pub eager: Vec<PageRun>,
}

/// What is compiled.
#[derive(Debug, Clone, Copy)]
pub struct CompilerInput<'a> {
    /// The checked images.
    pub images: &'a Verified,
    /// The memory of each process, in the order of the images.
    pub memory: &'a [MemoryRuns],
    /// The pages' file.
    pub pages: &'a [u8],
    /// What each restore copies from the pages' file into memory files and shared memory, by number.
    pub shared: &'a BTreeMap<u64, Vec<PageRun>>,
    /// The function's outputs: indices by the numbers of their pipes.
    pub outputs: &'a BTreeMap<u32, u32>,
    /// Numbers of the sockets that are connected after the program has made them.
    pub connected: &'a BTreeSet<u32>,
    /// Names that files which had lost theirs are given in its place ([`other_names`]).
    pub other_names: &'a OtherNames,
    /// This host.
    pub host: &'a Host,
}

impl<'a> CompilerInput<'a> {
    /// The name by which the program opens a file.
    fn name(&self, id: u32, file: &'a RegularFile) -> &'a [u8] {
        self.other_names.get(&id).unwrap_or(&file.name)
    }
}

/// A program, and what is needed to run it.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The program's bytes.
    pub program: Vec<u8>,
    /// Ids of its processes, in order.
    pub pids: Vec<u32>,
    /// Whether it gives files names, or takes them away. Directories have other times then.
    pub changes_directories: bool,
    /// Addresses that its processes use.
    mapped: Vec<Range<u64>>,
}

impl Compiled {
    /// An address for the residue where no process has a mapping, from random numbers. `None` if none is found.
    pub fn residue(&self, random: impl Iterator<Item = u64>) -> Option<u64> {
        /// Far from where kernels place programs, heaps and stacks by themselves.
        const PLACES: Range<u64> = 1 << 40..0x5000_0000_0000;
        const TRIES: usize = 64;
        let pages = (PLACES.end - PLACES.start - RESIDUE_MAX) / rekindle_restore_program::PAGE;
        let mut drawn = random
            .take(TRIES)
            .map(|number| PLACES.start + number % pages * rekindle_restore_program::PAGE);
        drawn.find(|at| {
            let apart = |mapped: &Range<u64>| mapped.end <= *at || at + RESIDUE_MAX <= mapped.start;
            self.mapped.iter().all(apart)
        })
    }
}

/// Compiles images.
///
/// # Errors
/// Names what a restore program cannot restore.
pub fn compile(source: CompilerInput<'_>) -> Result<Compiled, Refusal> {
    let images = source.images;
    let processes = images.processes.as_slice();
    if processes.is_empty() || processes.len() > PROCESSES_MAX {
        return Err(Refusal::Snapshot("no process, or too many"));
    }
    if processes.len() != source.memory.len() {
        return Err(Refusal::Snapshot("processes that have ended, and were not waited for"));
    }
    family::share_nothing(processes)?;
    let owns = |pid: i32| processes.iter().any(|p| p.tree.pid.cast_signed() == pid);
    if !images.locks.iter().all(|lock| owns(lock.pid)) {
        return Err(Refusal::Snapshot("locks of none of its processes"));
    }
    let mut b = Builder::default();
    let tables = Tables::of(images);
    let counter = OpenCounter {
        number: tables.shared_end,
        others: processes.len() - 1,
    };
    let plan = RestorePlan {
        memory_files: MemoryFiles::of(images, counter.number + 2),
        tables,
        counter,
    };
    // A single process makes its descriptors while its memory is registered. Several inherit what they share.
    if processes.len() > 1 {
        files(&mut b, source, &plan.memory_files)?;
        if !images.remaps.is_empty() {
            b.op(Code::EventFd, plan.counter.number, [0, 0]);
        }
        descriptors::make_shared(&mut b, source, &plan)?;
    }
    for number in 0..processes.len() {
        if number > 0 {
            b.next_process();
        }
        one(&mut b, source, number, &plan)?;
    }
    let program = b.finish(plan.tables.end, plan.memory_files.numbers.end);
    if program.len() as u64 > window::END - window::PROGRAM {
        return Err(Refusal::Snapshot("more than a program has room for"));
    }
    let mappings = processes
        .iter()
        .filter_map(|p| p.memory.as_ref())
        .flat_map(|mm| &mm.vmas);
    Ok(Compiled {
        program,
        pids: processes.iter().map(|p| p.tree.pid).collect(),
        changes_directories: !images.remaps.is_empty() || images.files.values().any(is_bound_to_file),
        mapped: mappings.map(|vma| vma.start..vma.end).collect(),
    })
}

/// Whether it is a socket with a name on a file system.
fn is_bound_to_file(file: &FileEntry) -> bool {
    let name = file.usk.as_ref().and_then(|socket| socket.name.first());
    name.is_some_and(|first| *first != 0)
}

/// Waits for the private files. Then gives them the names, and makes the memory files, that others need.
fn files(b: &mut Builder, source: CompilerInput<'_>, memory_files: &MemoryFiles) -> Result<(), Refusal> {
    b.op(Code::Files, 0, []);
    match source.images.processes.len() {
        1 => b.op(Code::Identity, rights::UNUSED, []),
        _ => start(b, source)?,
    }
    names::give(b, source)?;
    memory_files.make(b, source)
}

/// Waits for the restore to begin. What comes before may be done long before it, so it must not depend on time.
fn start(b: &mut Builder, source: CompilerInput<'_>) -> Result<(), Refusal> {
    b.op(Code::Start, 0, []);
    family::clocks(b, source.images)?;
    b.op(Code::Identity, rights::GONE, []);
    Ok(())
}

/// What is decided for all processes.
struct RestorePlan {
    tables: Tables,
    counter: OpenCounter,
    memory_files: MemoryFiles,
}

impl RestorePlan {
    /// A number that an operation may use for a moment.
    fn spare(&self) -> u32 {
        self.counter.number + 1
    }
}

fn one(b: &mut Builder, source: CompilerInput<'_>, number: usize, plan: &RestorePlan) -> Result<(), Refusal> {
    let (tables, counter) = (&plan.tables, plan.counter);
    let processes = source.images.processes.as_slice();
    let process = &processes[number];
    family::compile(b, processes, number)?;
    b.op(Code::Clear, 0, []);
    memory::compile(b, source, number, &plan.memory_files)?;
    let is_single = processes.len() == 1;
    // Timers among the descriptors count from when they are made.
    let has_timers = source.images.files.values().any(|file| file.tfd.is_some());
    if is_single && has_timers {
        start(b, source)?;
    }
    if processes.len() > 1 {
        descriptors::take_shared(b, source.images, process, tables)?;
        // A lock of a process goes with any descriptor of its file.
        b.op(Code::CloseRange, tables.end, [tables.shared_end.into()]);
    } else {
        descriptors::make_own(b, source, process, plan)?;
    }
    descriptors::watch(b, source.images, number)?;
    // The same holds for memory files, which are open as they are used by now.
    let numbers = &plan.memory_files.numbers;
    if !numbers.is_empty() {
        b.op(Code::CloseRange, numbers.start, [numbers.end.into()]);
    }
    descriptors::directories(b, source.images, process)?;
    if is_single && !has_timers {
        start(b, source)?;
    }
    // A copy that nobody has asked for yet must not hold locks that others want.
    descriptors::locks(b, source.images, process)?;
    task::compile(b, process)?;
    for thread in &process.threads {
        task::thread(b, source, thread)?;
    }
    b.op(Code::Threads, 0, []);
    task::timers(b, process)?;
    task::pending(b, process)?;
    descriptors::watch_files(b, source.images, number)?;
    task::priorities(b, process);
    task::limits(b, process);
    filter(b, source.images, process)?;
    match number {
        0 => names::take(b, source, counter)?,
        _ => names::count(b, source, counter),
    }
    let disables_huge_pages = |mm: &Mm| mm.thp_disabled == Some(true);
    let has_huge_pages = !process.memory.as_ref().is_some_and(disables_huge_pages);
    b.op(Code::Wait, has_huge_pages.into(), []);
    Ok(())
}

/// One filter, which applies to all threads.
fn filter(b: &mut Builder, images: &Verified, process: &Process) -> Result<(), Refusal> {
    /// `SECCOMP_FILTER_FLAG_TSYNC`.
    const ALL_THREADS: u32 = 1;
    let cores = process.threads.iter().map(|thread| thread.core.thread_core.as_ref());
    let mut indices = cores.map(|core| core.and_then(|core| core.seccomp_filter));
    let of = |index: u32| images.filters.get(usize::try_from(index).ok()?);
    let missing = Refusal::Process(process.tree.pid, "no filter");
    let first = indices.next().flatten().and_then(of).ok_or(missing)?;
    let others = indices.flatten().map(of);
    let is_same = others
        .into_iter()
        .all(|other| other.is_some_and(|other| other.filter == first.filter));
    let is_plain = |flags: u32| flags & !ALL_THREADS == 0;
    if first.prev.is_some() || !is_same || !first.flags.is_none_or(is_plain) {
        return Err(Refusal::Process(process.tree.pid, "several filters"));
    }
    let at = b.data(&first.filter);
    b.op(Code::Filter, (first.filter.len() / 8) as u32, [at]);
    Ok(())
}
