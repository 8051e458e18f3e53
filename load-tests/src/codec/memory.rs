//! Memory into which several threads put regions at once. No region crosses a multiple of 4 MiB.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

const WINDOW: usize = 4 << 20;

/// Windows of the memory, each locked by one thread at a time.
pub(super) struct Memory(Vec<Mutex<Vec<u8>>>);

impl Memory {
    /// Zeros, already touched: the cost of fresh pages is not measured.
    pub(super) fn new(bytes: usize) -> Self {
        let memory = Self(
            (0..bytes.div_ceil(WINDOW))
                .map(|_| Mutex::new(vec![1; WINDOW]))
                .collect(),
        );
        memory.clear();
        memory
    }

    fn each(&self, mut see: impl FnMut(&mut [u8])) {
        for window in &self.0 {
            see(&mut window.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) fn clear(&self) {
        self.each(|window| window.fill(0));
    }

    /// Puts `bytes` at `at`, within a window.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        let (window, at) = ((at / WINDOW as u64) as usize, (at % WINDOW as u64) as usize);
        let mut window = self.0[window].lock().unwrap_or_else(PoisonError::into_inner);
        window[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Passes each block of so many bytes to `fill`, in order.
    pub(super) fn fill_blocks<E>(
        &self,
        block: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for window in &self.0 {
            let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
            window.chunks_exact_mut(block).try_for_each(&mut fill)?;
        }
        Ok(())
    }

    pub(super) fn write_to(&self, mut to: impl Write) -> io::Result<()> {
        let mut written = Ok(());
        self.each(|window| {
            if written.is_ok() {
                written = to.write_all(window);
            }
        });
        written
    }
}
