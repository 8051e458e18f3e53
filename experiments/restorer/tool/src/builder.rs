//! Puts a program together: header, data, operations, threads.

use restore_program::{Code, Header, MAGIC, Op, Span, Thread, VERSION};

/// A program under construction.
#[derive(Default)]
pub struct Builder {
    data: Vec<u8>,
    ops: Vec<Op>,
    threads: Vec<Thread>,
}

/// The bytes of a structure of plain numbers without padding.
fn bytes_of<T>(value: &[T]) -> &[u8] {
    // SAFETY: only used for the format's structures, which have no padding.
    unsafe { std::slice::from_raw_parts(value.as_ptr().cast(), size_of_val(value)) }
}

impl Builder {
    /// Adds an operation.
    pub fn op<const N: usize>(&mut self, code: Code, a: u32, given: [u64; N]) {
        let mut args = [0; 5];
        args[..N].copy_from_slice(&given);
        self.ops.push(Op {
            code: code as u32,
            a,
            args,
        });
    }

    /// Adds data, and returns its offset in the program.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let at = size_of::<Header>() + self.data.len();
        self.data.extend_from_slice(bytes);
        at as u64
    }

    /// Adds numbers as data.
    pub fn longs(&mut self, longs: &[u64]) -> u64 {
        self.data(bytes_of(longs))
    }

    /// Adds an operation with a path: its offset, its length.
    pub fn path(&mut self, code: Code, a: u32, path: &[u8]) {
        let at = self.data(&[path, &[0]].concat());
        self.op(code, a, [at, path.len() as u64 + 1]);
    }

    /// Adds a thread with its frame.
    pub fn thread(&mut self, mut thread: Thread, frame: &[u8]) {
        thread.frame = Span {
            at: self.data(frame) as u32,
            count: frame.len() as u32,
        };
        self.threads.push(thread);
    }

    /// The program.
    pub fn finish(mut self, descriptors_end: u32) -> Vec<u8> {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let ops = size_of::<Header>() + self.data.len();
        let threads = ops + size_of_val(self.ops.as_slice());
        let size = threads + size_of_val(self.threads.as_slice());
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            ops: Span {
                at: ops as u32,
                count: self.ops.len() as u32,
            },
            threads: Span {
                at: threads as u32,
                count: self.threads.len() as u32,
            },
            size: size as u32,
            descriptors_end,
        };
        [
            bytes_of(&[header]),
            &self.data,
            bytes_of(&self.ops),
            bytes_of(&self.threads),
        ]
        .concat()
    }
}
