//! The records of a program and their bytes.

/// A part of the program: offset of its first byte, and number of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset from the program's start.
    pub at: u32,
    /// Number of elements.
    pub count: u32,
}

/// The start of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`](crate::MAGIC).
    pub magic: u32,
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// Processes ([`Process`]). The first is the one that becomes the hollow process; parents come first.
    pub processes: Span,
    /// Size of the program in bytes.
    pub size: u32,
    /// Descriptors of the function are below this number.
    pub descriptors_end: u32,
    /// Descriptors that processes share are below this number until each has its own.
    pub shared_end: u32,
}

/// A process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Process {
    /// Operations ([`Op`]).
    pub ops: Span,
    /// Threads ([`Thread`]). The first is the process's first.
    pub threads: Span,
}

/// An operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Op {
    /// Its [`Code`](crate::Code), as a number.
    pub code: u32,
    /// Its first argument.
    pub a: u32,
    /// Its other arguments.
    pub args: [u64; 5],
}

/// A thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// Size of that area in bytes.
    pub rseq_bytes: u32,
    /// The number that the kernel requires before each abort handler of that area.
    pub rseq_signature: u32,
    /// Its id.
    pub id: u32,
    /// Signal at the death of its parent. 0 for none.
    pub death_signal: u32,
    /// Its name, which ends with a zero.
    pub name: [u8; 16],
    /// The frame from which the kernel loads its registers, signal mask and alternate stack: a `ucontext`, then the
    /// processor's extended state, in the layout of [`frame`](crate::frame).
    pub frame: Span,
}

/// Takes the fields of a record from its bytes, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((part, rest)) => {
                self.0 = rest;
                *part
            }
            // No record is shorter than its parts.
            None => [0; N],
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn span(&mut self) -> Span {
        Span {
            at: self.word(),
            count: self.word(),
        }
    }
}

/// Concatenates the bytes of a record's fields.
fn concat<const N: usize>(fields: &[&[u8]]) -> [u8; N] {
    let (mut bytes, mut at) = ([0; N], 0);
    for field in fields {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    bytes
}

impl Span {
    fn to_bytes(self) -> [u8; 8] {
        concat(&[&self.at.to_le_bytes(), &self.count.to_le_bytes()])
    }
}

impl Header {
    /// Size in bytes.
    pub const BYTES: usize = 28;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            magic: fields.word(),
            version: fields.word(),
            processes: fields.span(),
            size: fields.word(),
            descriptors_end: fields.word(),
            shared_end: fields.word(),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        concat(&[
            &self.magic.to_le_bytes(),
            &self.version.to_le_bytes(),
            &self.processes.to_bytes(),
            &self.size.to_le_bytes(),
            &self.descriptors_end.to_le_bytes(),
            &self.shared_end.to_le_bytes(),
        ])
    }
}

impl Process {
    /// Size in bytes.
    pub const BYTES: usize = 16;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            ops: fields.span(),
            threads: fields.span(),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        concat(&[&self.ops.to_bytes(), &self.threads.to_bytes()])
    }
}

impl Op {
    /// Size in bytes.
    pub const BYTES: usize = 48;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            code: fields.word(),
            a: fields.word(),
            args: core::array::from_fn(|_| fields.long()),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let args = self.args.map(u64::to_le_bytes);
        concat(&[&self.code.to_le_bytes(), &self.a.to_le_bytes(), args.as_flattened()])
    }
}

impl Thread {
    /// Size in bytes.
    pub const BYTES: usize = 80;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            fs: fields.long(),
            gs: fields.long(),
            clear_tid: fields.long(),
            robust: fields.long(),
            rseq: fields.long(),
            rseq_bytes: fields.word(),
            rseq_signature: fields.word(),
            id: fields.word(),
            death_signal: fields.word(),
            name: fields.bytes(),
            frame: fields.span(),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let longs = [self.fs, self.gs, self.clear_tid, self.robust, self.rseq].map(u64::to_le_bytes);
        let words = [self.rseq_bytes, self.rseq_signature, self.id, self.death_signal].map(u32::to_le_bytes);
        concat(&[
            longs.as_flattened(),
            words.as_flattened(),
            &self.name,
            &self.frame.to_bytes(),
        ])
    }
}
