//! Puts a program together: header, data, tables.

use rekindle_restore_program::{Code, Header, MAGIC, Op, Process, Span, Thread, VERSION};

#[derive(Default)]
pub(crate) struct Builder {
    data: Vec<u8>,
    /// Operations and threads of processes that are done.
    processes: Vec<(Vec<Op>, Vec<Thread>)>,
    ops: Vec<Op>,
    threads: Vec<Thread>,
}

impl Builder {
    pub(crate) fn op<const N: usize>(&mut self, code: Code, a: u32, given: [u64; N]) {
        let mut args = [0; 5];
        args[..N].copy_from_slice(&given);
        self.ops.push(Op {
            code: code as u32,
            a,
            args,
        });
    }

    /// Adds data, and returns its offset in the program.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let at = Header::BYTES + self.data.len();
        self.data.extend_from_slice(bytes);
        at as u64
    }

    /// Adds numbers as data.
    pub(crate) fn longs(&mut self, longs: &[u64]) -> u64 {
        let bytes: Vec<u8> = longs.iter().flat_map(|long| long.to_le_bytes()).collect();
        self.data(&bytes)
    }

    /// Adds a path, and returns its offset and its length with the zero at its end.
    pub(crate) fn text(&mut self, path: &[u8]) -> (u64, u64) {
        (self.data(&[path, &[0]].concat()), path.len() as u64 + 1)
    }

    /// Adds an operation with a path.
    pub(crate) fn path(&mut self, code: Code, a: u32, path: &[u8]) {
        let (at, length) = self.text(path);
        self.op(code, a, [at, length]);
    }

    /// Adds a thread with its frame.
    pub(crate) fn thread(&mut self, mut thread: Thread, frame: &[u8]) {
        thread.frame = span(self.data(frame), frame.len());
        self.threads.push(thread);
    }

    pub(crate) fn next_process(&mut self) {
        let done = (std::mem::take(&mut self.ops), std::mem::take(&mut self.threads));
        self.processes.push(done);
    }

    /// The program. Descriptors of the function end at the first number, those shared meanwhile at the second.
    pub(crate) fn finish(mut self, descriptors_end: u32, shared_end: u32) -> Vec<u8> {
        self.next_process();
        let mut processes = Vec::new();
        for (ops, threads) in std::mem::take(&mut self.processes) {
            let (op_count, thread_count) = (ops.len(), threads.len());
            let ops: Vec<u8> = ops.iter().flat_map(Op::to_bytes).collect();
            let threads: Vec<u8> = threads.iter().flat_map(Thread::to_bytes).collect();
            let process = Process {
                ops: span(self.data(&ops), op_count),
                threads: span(self.data(&threads), thread_count),
            };
            processes.extend(process.to_bytes());
        }
        let count = processes.len() / Process::BYTES;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            processes: span(self.data(&processes), count),
            size: (Header::BYTES + self.data.len()) as u32,
            descriptors_end,
            shared_end,
        };
        [header.to_bytes().as_slice(), &self.data].concat()
    }
}

/// Programs are smaller than 4 GiB by far: a larger one is refused by its size.
fn span(at: u64, count: usize) -> Span {
    Span {
        at: at as u32,
        count: count as u32,
    }
}
