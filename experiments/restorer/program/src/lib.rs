//! The restore program: a flat list of operations that turns a hollow process into a snapshot's process.
//!
//! ```text
//! Header | data: paths, frames, tables, filters | Process, Op, Thread tables
//! ```
//!
//! Everything is little-endian, 8-byte aligned and of fixed size. What an operation refers to is at an offset from the
//! program's start, so a program can be mapped anywhere. The compiler checks what a program does; the hollow process
//! checks only that offsets lie within it.
#![no_std]

#[cfg(test)]
mod tests;

/// The first bytes of a program: "RKRP".
pub const MAGIC: u32 = u32::from_le_bytes(*b"RKRP");
/// The version of the format. Programs are compiled on the host that runs them, so a hollow process knows only one.
pub const VERSION: u32 = 1;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

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
    /// Size of a thread's stack.
    pub const STACK: u64 = 0x1000;
    /// Maximum number of threads.
    pub const THREADS_MAX: u64 = 128;
    /// Where times are reported: a page shared with the caller.
    pub const REPORT: u64 = 0x18_0000;
    /// The program.
    pub const PROGRAM: u64 = 0x18_1000;
    /// End: the lowest address at which linkers place programs.
    pub const END: u64 = 0x20_0000;
}

/// Maximum size of the residue: code that ends each thread, a counter, and the frames. Whoever orders a restore chooses
/// its place, where the snapshot has no mapping.
pub const RESIDUE_MAX: u64 = 0x8_0000;

/// What a hollow process is sent, besides descriptors.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Order {
    /// Size of the program in bytes.
    pub bytes: u64,
    /// Address of the residue.
    pub residue: u64,
}

/// A part of the program: offset of its first byte, and number of elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset from the program's start.
    pub at: u32,
    /// Number of elements.
    pub count: u32,
}

/// The start of a program.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Processes ([`Process`]). The first is the one that becomes the hollow process; parents come first.
    pub processes: Span,
    /// Size of the program in bytes.
    pub size: u32,
    /// Descriptors of the function are below this number.
    pub descriptors_end: u32,
    /// Descriptors that processes share are below this number until each has its own.
    pub shared_end: u32,
    /// Nothing.
    pub unused: u32,
}

/// A process.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Process {
    /// Operations ([`Op`]).
    pub ops: Span,
    /// Threads ([`Thread`]). The first is the process's first.
    pub threads: Span,
}

/// What an operation does. Arguments are named in the order of [`Op::args`]; `a` is [`Op::a`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Note the time. `a`: number of the stage that ends here.
    Stage = 1,
    /// Unmap everything outside the window.
    Clear,
    /// Open a file for the operations that follow. `a`: flags. Path, its length.
    Open,
    /// Close that file.
    Close,
    /// Map memory at its place. `a`: [`source`]. Address, length, protection, flags, offset.
    Map,
    /// Read pages. `a`: number of `iovec`s. Offset of the `iovec`s, offset in the pages' file, bytes.
    Read,
    /// Change protection. Address, length, protection.
    Protect,
    /// Give advice. `a`: the advice. Address, length.
    Advise,
    /// Map the kernel's own pages. Address of the first.
    Vdso,
    /// Set the fields of the memory descriptor. The open file becomes the program. Offset of `prctl_mm_map`, offset of
    /// the auxiliary vector.
    Memory,
    /// Make a time namespace with these clocks and enter it. Offset of seconds and nanoseconds of `CLOCK_MONOTONIC`,
    /// then of `CLOCK_BOOTTIME`.
    Clocks,
    /// Give up all rights but that to choose ids and the program.
    Identity,
    /// Keep the open file as a descriptor. `a`: number. Position, close-on-exec.
    Keep,
    /// Make an inherited output a descriptor. `a`: number. Index of the output, flags.
    Output,
    /// Copy a descriptor. `a`: new number. Old number, close-on-exec.
    Copy,
    /// Make a pipe. `a`: number of the end to read from. Number of the end to write to, flags of the first, of the
    /// second.
    Pipe,
    /// Write into a pipe. `a`: number of the end to write to. Offset of the bytes, their number.
    Fill,
    /// Make a socket. `a`: number. Domain, type with flags, protocol.
    Socket,
    /// Make a pair of sockets. `a`: number. Number of the second, domain, type, close-on-exec of each as in `open`.
    SocketPair,
    /// Set an option of a socket, of four bytes. `a`: number. Level, name, value.
    SocketOption,
    /// Bind a socket. `a`: number. Address, its length.
    Bind,
    /// Listen. `a`: number. Backlog.
    Listen,
    /// Make an event counter. `a`: number. Count, flags.
    EventFd,
    /// Make an epoll. `a`: number. Flags.
    Epoll,
    /// Watch a descriptor. `a`: number of the epoll. Watched number, events, data.
    Watch,
    /// Set a descriptor's status flags. `a`: number. Flags.
    Status,
    /// Go to a directory. Path, its length.
    Directory,
    /// Set the mask for new files. `a`: mask.
    Umask,
    /// Handle a signal. `a`: its number. Offset of the kernel's `sigaction`.
    Handle,
    /// Set an interval timer. `a`: which. Offset of its `itimerval`.
    IntervalTimer,
    /// Set a limit. `a`: which. Soft, hard.
    Limit,
    /// Call `prctl`. `a`: option. Its arguments.
    Control,
    /// Set the personality. `a`: it.
    Personality,
    /// Make a child. `a`: its number in the program.
    Child,
    /// Begin a session.
    Session,
    /// Join a process group. `a`: its number, or 0 for an own one.
    Group,
    /// Make all threads but the first.
    Threads,
    /// Say that all is mapped.
    Tell,
    /// Wait to be told to go on.
    Wait,
    /// Install a filter in all threads. `a`: number of instructions. Their offset.
    Filter,
    /// Register for barriers. `a`: command.
    Barrier,
}

impl Code {
    /// The operation with this number.
    pub fn of(number: u32) -> Option<Self> {
        const LAST: u32 = Code::Barrier as u32;
        // SAFETY: the numbers from 1 to the last are all taken, and the type is a `u32`.
        (1..=LAST)
            .contains(&number)
            .then(|| unsafe { core::mem::transmute(number) })
    }
}

/// What is mapped.
pub mod source {
    /// Memory without a file.
    pub const ANONYMOUS: u32 = 0;
    /// The open file.
    pub const FILE: u32 = 1;
    /// The template.
    pub const TEMPLATE: u32 = 2;
}

/// An operation.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Op {
    /// Its [`Code`].
    pub code: u32,
    /// Its first argument.
    pub a: u32,
    /// Its other arguments.
    pub args: [u64; 5],
}

/// A thread.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Thread {
    /// Base of the segment FS: its thread-local storage.
    pub fs: u64,
    /// Base of the segment GS.
    pub gs: u64,
    /// Where the kernel clears its id when it ends.
    pub clear_tid: u64,
    /// Head of its list of robust futexes. 0 for none.
    pub robust: u64,
    /// Its area for restartable sequences. 0 for none.
    pub rseq: u64,
    /// Size of that area.
    pub rseq_bytes: u32,
    /// Its signature.
    pub rseq_signature: u32,
    /// Its id.
    pub id: u32,
    /// Signal at the death of its parent. 0 for none.
    pub death_signal: u32,
    /// Its name, which ends with a zero.
    pub name: [u8; 16],
    /// The frame from which the kernel loads its registers, signal mask and alternate stack: a `ucontext` in
    /// [`frame`]'s layout, then the processor's extended state.
    pub frame: Span,
}

/// The layout of a frame.
pub mod frame {
    /// Offset of the extended state: after `ucontext`, aligned to 64 bytes.
    pub const STATE: usize = 320;
    /// Offset in `ucontext` of the address of the extended state. The hollow process writes it.
    pub const STATE_ADDRESS: usize = 40 + 23 * 8;
}

/// Distance of the reports of processes on the shared page, in bytes.
pub const REPORT_BYTES: u64 = 256;
/// Maximum number of processes.
pub const PROCESSES_MAX: usize = 16;

/// Number of stages.
pub const STAGES: usize = 16;

/// What a hollow process reports on the shared page. All times are nanoseconds of `CLOCK_REALTIME`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// When the message with the program arrived.
    pub began: u64,
    /// When each stage ended.
    pub stages: [u64; STAGES],
    /// When the first thread was about to run.
    pub departed: u64,
    /// Processor time from then on, of all threads, in nanoseconds.
    pub processor: u64,
    /// The operation that failed, counted from 1. 0 if none.
    pub failed: u32,
    /// The kernel's error.
    pub error: i32,
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
    /// If it is not one of this version, is not aligned to 8 bytes, or its parts reach beyond its end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < size_of::<Header>() || !(bytes.as_ptr() as usize).is_multiple_of(8) {
            return Err(Malformed);
        }
        // SAFETY: there are enough bytes, aligned, and every bit pattern is a header.
        let header = unsafe { *bytes.as_ptr().cast::<Header>() };
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
        let process = *self
            .table::<Process>(self.header.processes)
            .ok()?
            .get(process as usize)?;
        self.table::<Op>(process.ops).ok()?;
        self.table::<Thread>(process.threads).ok()?;
        Some(Self { process, ..self })
    }

    fn table<T>(&self, span: Span) -> Result<&'a [T], Malformed> {
        let length = (span.count as usize).checked_mul(size_of::<T>()).ok_or(Malformed)?;
        let bytes = self.part(span.at.into(), length as u64)?;
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<T>()) {
            return Err(Malformed);
        }
        // SAFETY: within the program and aligned. It is only used for structures of plain numbers.
        Ok(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), span.count as usize) })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The operations.
    pub fn ops(&self) -> &'a [Op] {
        self.table(self.process.ops).unwrap_or_default()
    }

    /// The threads.
    pub fn threads(&self) -> &'a [Thread] {
        self.table(self.process.threads).unwrap_or_default()
    }

    /// A part of the program.
    ///
    /// # Errors
    /// If it reaches beyond the end.
    pub fn part(&self, at: u64, length: u64) -> Result<&'a [u8], Malformed> {
        let start = usize::try_from(at).map_err(|_| Malformed)?;
        let end = start
            .checked_add(usize::try_from(length).map_err(|_| Malformed)?)
            .ok_or(Malformed)?;
        self.bytes.get(start..end).ok_or(Malformed)
    }
}
