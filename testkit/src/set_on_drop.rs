//! An end for threads that a test starts, also where the test fails.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag on drop. Threads of a scope that run until then end, and so does the scope, which waits for them.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
