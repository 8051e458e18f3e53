//! The mappings of a process, and where their pages come from.

use rekindle_restore_program::{Code, PAGE, source, window};
use rekindle_verify::Process;
use rekindle_verify::messages::{Mm, Vma};

use crate::builder::Builder;
use crate::memory_files::{self, ANON_SHARED, MemoryFiles};
use crate::{CompilerInput, MemoryRuns, PageRun, Refusal, opening};

/// CRIU's status flags of mappings.
mod status {
    pub(super) const VSYSCALL: u32 = 1 << 2;
    pub(super) const VDSO: u32 = 1 << 3;
    pub(super) const FILE_PRIVATE: u32 = 1 << 6;
    pub(super) const FILE_SHARED: u32 = 1 << 7;
    pub(super) const VVAR: u32 = 1 << 12;
    /// Not a mapping, but guard pages inside one.
    pub(super) const GUARD: u32 = 1 << 16;
}

/// Of a file.
const FILES: u32 = status::FILE_SHARED | status::FILE_PRIVATE;
/// The kernel's own.
const KERNELS: u32 = status::VSYSCALL | status::VDSO | status::VVAR;
const WRITE: u64 = 2;
const MAP_TYPE: u32 = 0xf;
const MAP_PRIVATE: u32 = 2;
/// State of random numbers: the kernel may drop its content, and no fork or copy has it.
const MAP_DROPPABLE: u32 = 8;
const MAP_ANONYMOUS: u32 = 0x20;
const MAP_LOCKED: u32 = 0x2000;
/// `MADV_GUARD_INSTALL`.
const GUARD_INSTALL: u32 = 102;
/// Maximum number of parts that the kernel reads in one call.
const PARTS_MAX: usize = 1024;

/// Adds the operations that make a process's memory. What the pager registers comes first: it does so, and fills it,
/// while the files are mapped.
pub(crate) fn compile(
    b: &mut Builder,
    source: CompilerInput<'_>,
    number: usize,
    memory_files: &MemoryFiles,
) -> Result<(), Refusal> {
    let process = &source.images.processes[number];
    let dead = Refusal::Process(process.tree.pid, "ended and is not yet reaped");
    let mm = process.memory.as_ref().ok_or(dead)?;
    let mut plan = MappingCompiler {
        b,
        source,
        memory: &source.memory[number],
        memory_files,
        read: Vec::new(),
        protect: Vec::new(),
        open: None,
    };
    let (guards, mappings): (Vec<_>, Vec<_>) = mm.vmas.iter().partition(|vma| vma.status & status::GUARD != 0);
    let mappings: Vec<&Vma> = mappings.into_iter().filter(|vma| vma.status & KERNELS == 0).collect();
    let (of_files, anonymous): (Vec<&Vma>, Vec<&Vma>) = mappings
        .iter()
        .copied()
        .partition(|vma| vma.status & (FILES | ANON_SHARED) != 0);
    for vma in &mappings {
        plan.of_template(vma)?;
    }
    plan.own(&anonymous)?;
    plan.b.op(Code::Tell, 0, []);
    // Several processes have opened some by then.
    if source.images.processes.len() == 1 {
        crate::files(plan.b, source, memory_files)?;
    }
    plan.own(&of_files)?;
    for vma in mappings {
        for advice in (0..64).filter(|bit| vma.madv.unwrap_or(0) & 1 << bit != 0) {
            plan.b.op(Code::Advise, advice, [vma.start, vma.end - vma.start]);
        }
    }
    for guard in guards {
        plan.b
            .op(Code::Advise, GUARD_INSTALL, [guard.start, guard.end - guard.start]);
    }
    kernel_pages(b, source, number, mm)?;
    fields(b, source, process, mm)
}

struct MappingCompiler<'a> {
    b: &'a mut Builder,
    source: CompilerInput<'a>,
    memory: &'a MemoryRuns,
    memory_files: &'a MemoryFiles,
    read: Vec<PageRun>,
    /// Mappings that are written to before they have their protection: address, bytes, protection.
    protect: Vec<(u64, u64, u64)>,
    open: Option<OpenedFile>,
}

/// The open file, with the flags it is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenedFile {
    /// A file with a name, by its id.
    Named(u32, u32),
    /// A memory file, by its number.
    Memory(u32, u32),
}

/// The runs in these pages, cut to them.
fn within(runs: &[PageRun], first: u64, end: u64) -> impl Iterator<Item = PageRun> {
    let from = runs.partition_point(|run| run.end() <= first);
    let inside = runs[from..].iter().take_while(move |run| run.first < end);
    inside.map(move |run| {
        let start = run.first.max(first);
        PageRun {
            first: start,
            pages: run.end().min(end) - start,
            file: run.file,
            at: run.at + (start - run.first),
        }
    })
}

impl MappingCompiler<'_> {
    /// Maps the parts of a mapping that are a template's. Notes what is read there: pages of an instance that moves
    /// which the kernel touches before the pager could answer.
    fn of_template(&mut self, vma: &Vma) -> Result<(), Refusal> {
        let refuse = |what| Err(Refusal::Mapping(vma.start, what));
        if vma.start < window::END && window::START < vma.end {
            return refuse("where the restorer itself is");
        }
        if vma.flags & MAP_LOCKED != 0 {
            return refuse("locked");
        }
        let is_shared = vma.status & (status::FILE_SHARED | ANON_SHARED) != 0;
        let is_droppable = !is_shared && vma.flags & MAP_TYPE == MAP_DROPPABLE;
        if !is_shared && !is_droppable && vma.flags & MAP_TYPE != MAP_PRIVATE {
            return refuse("neither private nor shared");
        }
        let (first, end) = (vma.start / PAGE, vma.end / PAGE);
        let is_stored = within(&self.memory.eager, first, end).next().is_some();
        let mut parts = within(&self.memory.template, first, end).peekable();
        if (is_shared || is_droppable) && (is_stored || parts.peek().is_some()) {
            return refuse("shared or droppable, and has pages of its own");
        }
        for part in parts {
            let protection = self.read_into(vma, part.first, part.end());
            let flags = u64::from(vma.flags & !MAP_ANONYMOUS);
            let args = [part.first * PAGE, part.pages * PAGE, protection, flags, part.at * PAGE];
            self.b.op(Code::Map, source::TEMPLATE + part.file, args);
        }
        Ok(())
    }

    /// Maps the other parts of mappings, with what they have of their own.
    fn own(&mut self, mappings: &[&Vma]) -> Result<(), Refusal> {
        mappings.iter().try_for_each(|vma| self.own_of(vma))?;
        self.close();
        self.reads();
        for (start, length, protection) in std::mem::take(&mut self.protect) {
            self.b.op(Code::Protect, 0, [start, length, protection]);
        }
        Ok(())
    }

    fn own_of(&mut self, vma: &Vma) -> Result<(), Refusal> {
        let (mut at, end) = (vma.start / PAGE, vma.end / PAGE);
        let mut gaps = Vec::new();
        for part in within(&self.memory.template, at, end) {
            gaps.push((at, part.first));
            at = part.end();
        }
        gaps.push((at, end));
        gaps.retain(|(first, end)| first < end);
        if gaps.is_empty() {
            return Ok(());
        }
        if vma.status & (FILES | ANON_SHARED) != 0 {
            self.open(vma)?;
        }
        for (first, end) in gaps {
            self.gap(vma, first, end);
        }
        Ok(())
    }

    /// Maps pages of a mapping that are not the template's, and notes what is read there.
    fn gap(&mut self, vma: &Vma, first: u64, end: u64) {
        let (address, length) = (first * PAGE, (end - first) * PAGE);
        let protection = self.read_into(vma, first, end);
        let flags = u64::from(vma.flags & !MAP_ANONYMOUS);
        let (from, offset) = if self.open.is_some() {
            (source::FILE, vma.pgoff + (address - vma.start))
        } else {
            (source::ANONYMOUS, 0)
        };
        self.b.op(Code::Map, from, [address, length, protection, flags, offset]);
    }

    /// Notes what is read into pages of a mapping. Returns the protection that they have until then.
    fn read_into(&mut self, vma: &Vma, first: u64, end: u64) -> u64 {
        let before = self.read.len();
        self.read.extend(within(&self.memory.eager, first, end));
        if vma.status & ANON_SHARED != 0 && self.open.is_none() {
            let pages = memory_files::pages_of(self.source, vma);
            self.read.extend(within(&pages, first, end));
        }
        let protection = u64::from(vma.prot);
        if self.read.len() == before || protection & WRITE != 0 {
            return protection;
        }
        self.protect.push((first * PAGE, (end - first) * PAGE, protection));
        protection | WRITE
    }

    /// Opens the file of a mapping. Shared memory may have none.
    fn open(&mut self, vma: &Vma) -> Result<(), Refusal> {
        let missing = Refusal::Mapping(vma.start, "of no file with a name");
        let wanted = if vma.status & ANON_SHARED != 0 {
            let number = self.memory_files.nameless(vma);
            number.map(|number| OpenedFile::Memory(number, memory_files::READ_WRITE))
        } else {
            let id = u32::try_from(vma.shmid).map_err(|_| missing.clone())?;
            let (file, flags) = (self.source.images.files.get(&id), vma.fdflags.unwrap_or(0));
            match file.and_then(|file| file.memfd.as_ref()) {
                Some(file) => {
                    let number = self
                        .memory_files
                        .named(file.inode_id.into())
                        .ok_or_else(|| missing.clone())?;
                    Some(OpenedFile::Memory(number, flags))
                }
                None => Some(OpenedFile::Named(id, flags)),
            }
        };
        if self.open == wanted {
            return Ok(());
        }
        self.close();
        match wanted {
            Some(OpenedFile::Named(id, flags)) => {
                let file = self.source.images.files.get(&id).and_then(|file| file.reg.as_ref());
                let file = file.filter(|file| file.ext != Some(true)).ok_or(missing)?;
                opening::open(self.b, flags, self.source.name(id, file), file);
            }
            Some(OpenedFile::Memory(number, flags)) => memory_files::open(self.b, number, flags),
            None => {}
        }
        self.open = wanted;
        Ok(())
    }

    fn close(&mut self) {
        if self.open.take().is_some() {
            self.b.op(Code::Close, 0, []);
        }
    }

    /// Reads what is to be read, in few calls: each reads consecutive pages of the file.
    fn reads(&mut self) {
        let runs = std::mem::take(&mut self.read);
        for together in runs.chunk_by(|run, next| run.at + run.pages == next.at) {
            for parts in together.chunks(PARTS_MAX) {
                let iovecs: Vec<u64> = parts
                    .iter()
                    .flat_map(|run| [run.first * PAGE, run.pages * PAGE])
                    .collect();
                let pages: u64 = parts.iter().map(|run| run.pages).sum();
                let at = self.b.longs(&iovecs);
                let args = [at, parts[0].at * PAGE, pages * PAGE];
                self.b.op(Code::Read, parts.len() as u32, args);
            }
        }
    }
}

/// The kernel's own pages. They must be this kernel's, byte for byte: the process knows addresses in them.
fn kernel_pages(b: &mut Builder, source: CompilerInput<'_>, number: usize, mm: &Mm) -> Result<(), Refusal> {
    let pid = source.images.processes[number].tree.pid;
    let own = mm
        .vmas
        .iter()
        .filter(|vma| vma.status & (status::VVAR | status::VDSO) != 0);
    let vdso = mm.vmas.iter().find(|vma| vma.status & status::VDSO != 0);
    let (start, end) = (own.clone().map(|v| v.start).min(), own.map(|v| v.end).max());
    let Some(((start, end), vdso)) = start.zip(end).zip(vdso) else {
        return Err(Refusal::Process(pid, "no vdso"));
    };
    let host = source.host;
    let is_placed = (vdso.start - start, end - start) == (host.vdso_offset, host.own_bytes);
    if !is_placed || vdso.end - vdso.start != host.vdso.len() as u64 || start < window::END {
        return Err(Refusal::Process(pid, "a vdso of another kernel"));
    }
    let (first, end) = (vdso.start / PAGE, vdso.end / PAGE);
    let runs = within(&source.memory[number].eager, first, end);
    let mut compared = 0;
    for run in runs {
        let (at, bytes) = ((run.at * PAGE) as usize, (run.pages * PAGE) as usize);
        let own = ((run.first - first) * PAGE) as usize;
        let stored = source.pages.get(at..at + bytes);
        if stored.is_none() || stored != host.vdso.get(own..own + bytes) {
            return Err(Refusal::Process(pid, "a vdso of another kernel"));
        }
        compared += run.pages;
    }
    if compared != end - first {
        return Err(Refusal::Process(pid, "a vdso whose bytes are not in its images"));
    }
    b.op(Code::Vdso, 0, [start]);
    Ok(())
}

/// The fields of the memory descriptor: the kernel's `prctl_mm_map`.
fn fields(b: &mut Builder, source: CompilerInput<'_>, process: &Process, mm: &Mm) -> Result<(), Refusal> {
    let refuse = |what| Refusal::Process(process.tree.pid, what);
    if mm.dumpable.is_some_and(|dumpable| dumpable != 1) {
        return Err(refuse("memory that may not be dumped"));
    }
    let program = source
        .images
        .files
        .get(&mm.exe_file_id)
        .and_then(|file| file.reg.as_ref());
    let program = program.ok_or_else(|| refuse("no program"))?;
    b.path(Code::Open, 0, source.name(mm.exe_file_id, program));
    let auxv = b.longs(&mm.mm_saved_auxv);
    let map = b.longs(&[
        mm.mm_start_code,
        mm.mm_end_code,
        mm.mm_start_data,
        mm.mm_end_data,
        mm.mm_start_brk,
        mm.mm_brk,
        mm.mm_start_stack,
        mm.mm_arg_start,
        mm.mm_arg_end,
        mm.mm_env_start,
        mm.mm_env_end,
        0,
        mm.mm_saved_auxv.len() as u64 * 8,
    ]);
    b.op(Code::Memory, 0, [map, auxv]);
    b.op(Code::Close, 0, []);
    Ok(())
}
