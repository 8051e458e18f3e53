//! Reusable buffers. Fresh memory costs the kernel a page fault and a zeroed page per 4 KiB, which takes as long as
//! reading the data. Recently used memory costs nothing.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

/// A buffer that grew beyond this size is not kept.
const KEPT_BYTES: usize = 8 << 20;

/// A pool of idle buffers. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Maximum number of idle buffers.
    most: usize,
}

/// A buffer of the pool. Returns to it on drop.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    home: Buffers,
}

impl Buffers {
    /// A pool that keeps up to `most` idle buffers.
    pub(crate) fn keeping(most: usize) -> Self {
        let free = Arc::default();
        Self { free, most }
    }

    fn take(&self) -> Buffer {
        let bytes = self.free.lock().pop().unwrap_or_default();
        let home = self.clone();
        Buffer { bytes, home }
    }

    /// An empty buffer with a capacity of at least `bytes`.
    pub(crate) fn empty(&self, bytes: usize) -> Buffer {
        let mut buffer = self.take();
        buffer.bytes.clear();
        buffer.bytes.reserve(bytes);
        buffer
    }

    /// A buffer of this length with arbitrary contents.
    pub(crate) fn filled(&self, len: usize) -> Buffer {
        let mut buffer = self.take();
        buffer.bytes.resize(len, 0);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > KEPT_BYTES {
            return;
        }
        let mut free = self.home.free.lock();
        if free.len() < self.home.most && bytes.capacity() > 0 {
            free.push(bytes);
        }
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_says_nothing_of_what_was_in_it_where_it_is_appended_to() {
        let buffers = Buffers::keeping(2);
        let mut first = buffers.filled(5000);
        first.fill(7);
        let at = first.as_ptr();
        drop(first);
        let again = buffers.empty(5000);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert_eq!(buffers.filled(3).len(), 3, "another, as that one is taken");
        drop((again, buffers.filled(1), buffers.filled(1), buffers.filled(1)));
        assert_eq!(buffers.free.lock().len(), 2);
    }
}
