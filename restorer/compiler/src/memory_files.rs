//! Memory files, and shared memory without a file. Each is made as a file in the first process, at a number above all
//! tables. It is opened anew wherever it was open or mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rekindle_restore_program::{Code, PAGE};
use rekindle_verify::Verified;
use rekindle_verify::messages::{MemFdInode, Vma};

use crate::builder::Builder;
use crate::{CompilerInput, PageRun, Refusal};

/// `O_RDWR`.
pub(crate) const READ_WRITE: u32 = 2;
/// `F_SEAL_SEAL`: no seals can be added.
const SEALED: u32 = 1;
/// `F_SEAL_FUTURE_WRITE`: mappings that may write were made before it.
const FUTURE_WRITE: u32 = 0x10;
/// `MFD_ALLOW_SEALING`.
const ALLOW_SEALING: u32 = 2;
const PERMISSIONS: u32 = 0o7777;
/// `S_ISUID`, `S_ISGID`.
pub(crate) const SET_IDS: u32 = 0o6000;
/// CRIU's status of a mapping of shared memory without a file.
pub(crate) const ANON_SHARED: u32 = 1 << 8;

/// The numbers of the files.
pub(crate) struct MemoryFiles {
    /// By inode.
    named: BTreeMap<u64, u32>,
    /// By the number of the shared memory.
    nameless: BTreeMap<u64, u32>,
    pub(crate) numbers: Range<u32>,
}

/// Whether a mapping is of shared memory without a file.
pub fn is_shared_memory(vma: &Vma) -> bool {
    vma.status & ANON_SHARED != 0
}

fn shared(images: &Verified) -> impl Iterator<Item = &Vma> {
    let memories = images.processes.iter().filter_map(|process| process.memory.as_ref());
    let all = memories.flat_map(|memory| &memory.vmas);
    all.filter(|vma| is_shared_memory(vma))
}

impl MemoryFiles {
    /// Numbers them from `first` on. Shared memory that is mapped whole and once needs no file.
    pub(crate) fn of(images: &Verified, first: u32) -> Self {
        let (mut once, mut several) = (BTreeSet::new(), BTreeSet::new());
        for vma in shared(images) {
            if !once.insert(vma.shmid) || vma.pgoff != 0 {
                several.insert(vma.shmid);
            }
        }
        let mut next = first..;
        let named = images.memory_files.keys().copied().zip(&mut next).collect();
        let nameless = several.into_iter().zip(&mut next).collect();
        Self {
            named,
            nameless,
            numbers: first..next.start,
        }
    }

    /// Returns the number of a memory file.
    pub(crate) fn named(&self, inode: u64) -> Option<u32> {
        self.named.get(&inode).copied()
    }

    /// Returns the number of the file of this shared memory. `None` if it needs none.
    pub(crate) fn nameless(&self, vma: &Vma) -> Option<u32> {
        self.nameless.get(&vma.shmid).copied()
    }

    /// Makes them with what they hold.
    pub(crate) fn make(&self, b: &mut Builder, source: CompilerInput<'_>) -> Result<(), Refusal> {
        for (inode, number) in &self.named {
            let missing = Refusal::Snapshot("a memory file that is not in its images");
            let file = source.images.memory_files.get(inode).ok_or(missing)?;
            let seals = seals(file)?;
            let flags = if file.seals & SEALED != 0 && seals == 0 {
                0
            } else {
                ALLOW_SEALING
            };
            let permissions = file.mode.unwrap_or(0o777) & PERMISSIONS;
            // The kernel takes them back when the file is written to.
            if permissions & SET_IDS != 0 {
                return Err(Refusal::Snapshot("a memory file that sets ids"));
            }
            create(b, &file.name, flags, file.size, permissions);
            paste(b, source, file.shmid.into(), file.size)?;
            if seals != 0 {
                b.op(Code::Seal, seals, []);
            }
            b.op(Code::Keep, *number, [0, 0]);
        }
        for (memory, number) in &self.nameless {
            let mapped = shared(source.images).filter(|vma| vma.shmid == *memory);
            let size = mapped.map(|vma| vma.pgoff + (vma.end - vma.start)).max().unwrap_or(0);
            create(b, b"", 0, size, 0o777);
            paste(b, source, *memory, size)?;
            b.op(Code::Keep, *number, [0, 0]);
        }
        Ok(())
    }
}

/// Returns the seals that a file is given once it is filled.
fn seals(file: &MemFdInode) -> Result<u32, Refusal> {
    if file.seals & FUTURE_WRITE != 0 {
        return Err(Refusal::Snapshot(
            "a memory file that only earlier mappings may write to",
        ));
    }
    // Made without sealing, it has this one.
    Ok(if file.seals == SEALED { 0 } else { file.seals })
}

fn create(b: &mut Builder, name: &[u8], flags: u32, size: u64, permissions: u32) {
    let (at, length) = b.text(name);
    b.op(Code::MemoryFile, flags, [at, length, size, permissions.into()]);
}

/// Copies what a file holds from the pages' file.
fn paste(b: &mut Builder, source: CompilerInput<'_>, memory: u64, size: u64) -> Result<(), Refusal> {
    for run in source.shared.get(&memory).into_iter().flatten() {
        if run.end() > size.div_ceil(PAGE) {
            return Err(Refusal::Snapshot("pages beyond the end of shared memory"));
        }
        // The last page may reach beyond the end.
        let bytes = (run.pages * PAGE).min(size - run.first * PAGE);
        b.op(Code::Paste, 0, [run.first * PAGE, run.at * PAGE, bytes]);
    }
    Ok(())
}

/// Returns what a mapping of shared memory that has no file is filled with, by address.
pub(crate) fn pages_of(source: CompilerInput<'_>, vma: &Vma) -> Vec<PageRun> {
    let runs = source.shared.get(&vma.shmid).into_iter().flatten();
    let first = vma.start / PAGE;
    let moved = runs.map(|run| PageRun {
        first: run.first + first,
        ..*run
    });
    moved.collect()
}

/// Opens a memory file anew.
pub(crate) fn open(b: &mut Builder, number: u32, flags: u32) {
    b.op(Code::Again, number, [flags.into()]);
}
