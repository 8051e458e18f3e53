//! The restore program: a flat list of operations that turns a hollow process into a snapshot's processes. See
//! `docs/reference/restore-program.md`.
//!
//! ```text
//! Header | data: paths, frames, tables, filters | Process, Op and Thread tables
//! ```
//!
//! Everything is little-endian and of fixed size. What an operation refers to is at an offset from the program's
//! start, so a program can be mapped anywhere. The compiler checks what a program does; its reader checks only that
//! offsets lie within it.
#![no_std]

mod code;
pub mod message;
mod record;
#[cfg(test)]
mod tests;

pub use code::Code;
pub use record::{Header, Op, Process, Span, Thread};

/// The first bytes of a program: "RKRP".
pub const MAGIC: u32 = u32::from_le_bytes(*b"RKRP");
/// The version of the format. Programs are compiled on the host that runs them, so a reader knows only one.
pub const VERSION: u32 = 8;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Maximum number of processes of a program.
pub const PROCESSES_MAX: usize = 32;

/// `SIGKILL`, `SIGSTOP`: no process has handlers of them.
pub const UNHANDLED: [u32; 2] = [9, 19];
/// The highest signal.
pub const SIGNAL_MAX: u32 = 64;

/// Bytes in whole pages.
pub const fn whole_pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

/// Addresses that belong to the hollow process until the end. No mapping of a snapshot may be there.
pub mod window {
    /// Start: the lowest address that a process may map where `vm.mmap_min_addr` is as usual.
    pub const START: u64 = 0x1_0000;
    /// Threads' stacks. Below is the hollow process itself.
    pub const STACKS: u64 = 0x10_0000;
    /// Size of a thread's stack in bytes.
    pub const STACK: u64 = 0x1000;
    /// Maximum number of threads of a process.
    pub const THREADS_MAX: usize = 128;
    /// The program.
    pub const PROGRAM: u64 = 0x18_0000;
    /// End: the lowest address at which linkers place programs.
    pub const END: u64 = 0x20_0000;
}

/// Maximum size in bytes of the residue: code that ends each thread, a counter, and the frames. Whoever orders a
/// restore chooses its place, where the snapshot has no mapping.
pub const RESIDUE_MAX: u64 = 0x8_0000;

/// What [`Code::Map`] maps.
pub mod source {
    /// Memory without a file.
    pub const ANONYMOUS: u32 = 0;
    /// The open file.
    pub const FILE: u32 = 1;
    /// The first template. The others follow.
    pub const TEMPLATE: u32 = 2;
}

/// How [`Code::Identity`] gives up rights.
pub mod rights {
    /// For good.
    pub const GONE: u32 = 0;
    /// Until [`Code::Clocks`](super::Code::Clocks) takes them up again.
    pub const UNUSED: u32 = 1;
}

/// In place of a descriptor's number: the end of a pipe that everybody has closed.
pub const CLOSED: u32 = u32::MAX;

/// Whose a lock is: CRIU's flags, which are the kernel's.
pub mod lock_of {
    /// A process's.
    pub const PROCESS: u64 = 1;
    /// An open file's, as a whole.
    pub const DESCRIPTION: u64 = 2;
    /// An open file's, for a range.
    pub const RANGE: u64 = 4;
}

/// What a process leads that makes others and ends.
pub mod leads {
    /// A group.
    pub const GROUP: u32 = 0;
    /// A session.
    pub const SESSION: u32 = 1;
    /// Neither: the others are in those of the process that it was made by.
    pub const NOTHING: u32 = 2;
}

/// The layout of a thread's frame.
pub mod frame {
    /// Offset of the extended state: after `ucontext`, aligned to 64 bytes.
    pub const STATE: usize = 320;
    /// Offset in `ucontext` of the address of the extended state, which the hollow process writes.
    pub const STATE_ADDRESS: usize = 40 + 23 * 8;
}

/// Why bytes are no program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A program in memory, as one of its processes runs it.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    bytes: &'a [u8],
    header: Header,
    process: Process,
}

impl<'a> Program<'a> {
    /// Reads a program's header.
    ///
    /// # Errors
    /// If it is not one of this version, or its parts reach beyond its end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = Header::from_bytes(bytes.first_chunk().ok_or(Malformed)?);
        let bytes = bytes.get(..header.size as usize).ok_or(Malformed)?;
        if header.magic != MAGIC || header.version != VERSION {
            return Err(Malformed);
        }
        let program = Self {
            bytes,
            header,
            process: Process::default(),
        };
        program.of(0).ok_or(Malformed)
    }

    /// The program of another process.
    pub fn of(self, process: u32) -> Option<Self> {
        let table = self.table::<{ Process::BYTES }>(self.header.processes).ok()?;
        let process = Process::from_bytes(table.get(process as usize)?);
        self.table::<{ Op::BYTES }>(process.ops).ok()?;
        self.table::<{ Thread::BYTES }>(process.threads).ok()?;
        Some(Self { process, ..self })
    }

    fn table<const N: usize>(&self, span: Span) -> Result<&'a [[u8; N]], Malformed> {
        let length = (span.count as usize).checked_mul(N).ok_or(Malformed)?;
        Ok(self.part(span.at.into(), length as u64)?.as_chunks().0)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The operations.
    pub fn ops(&self) -> impl Iterator<Item = Op> + use<'a> {
        let table = self.table(self.process.ops).unwrap_or_default();
        table.iter().map(Op::from_bytes)
    }

    /// The threads; the first is the process's first.
    pub fn threads(&self) -> impl ExactSizeIterator<Item = Thread> + use<'a> {
        let table = self.table(self.process.threads).unwrap_or_default();
        table.iter().map(Thread::from_bytes)
    }

    /// A part of the program.
    ///
    /// # Errors
    /// If it reaches beyond the end.
    pub fn part(&self, at: u64, length: u64) -> Result<&'a [u8], Malformed> {
        let start = usize::try_from(at).map_err(|_| Malformed)?;
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let end = start.checked_add(length).ok_or(Malformed)?;
        self.bytes.get(start..end).ok_or(Malformed)
    }
}
