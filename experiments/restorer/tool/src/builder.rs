//! Puts a program together: header, data, tables.

use restore_program::{Code, Header, MAGIC, Op, Process, Span, Thread, VERSION};

/// A program under construction.
#[derive(Default)]
pub struct Builder {
    data: Vec<u8>,
    /// Operations and threads of processes that are done.
    processes: Vec<(Vec<Op>, Vec<Thread>)>,
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

    /// Begins the next process.
    pub fn next_process(&mut self) {
        self.processes
            .push((std::mem::take(&mut self.ops), std::mem::take(&mut self.threads)));
    }

    /// The program. Descriptors of the function end at the first number, those shared meanwhile at the second.
    pub fn finish(mut self, descriptors_end: u32, shared_end: u32) -> Vec<u8> {
        self.next_process();
        let mut processes = Vec::new();
        for (ops, threads) in std::mem::take(&mut self.processes) {
            let span = |at: u64, count: usize| Span {
                at: at as u32,
                count: count as u32,
            };
            let (ops, threads) = (
                span(self.data(bytes_of(&ops)), ops.len()),
                span(self.data(bytes_of(&threads)), threads.len()),
            );
            processes.push(Process { ops, threads });
        }
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            processes: Span {
                at: self.data(bytes_of(&processes)) as u32,
                count: processes.len() as u32,
            },
            size: (size_of::<Header>() + self.data.len()) as u32,
            descriptors_end,
            shared_end,
            unused: 0,
        };
        [bytes_of(&[header]), &self.data].concat()
    }
}
