//! Gives the kernel back what was freed. The C library keeps that for later, in each of its arenas: after builds and
//! checkpoints a worker held several times what it used.
#![allow(unsafe_code, reason = "mallinfo2 and malloc_trim have no safe wrapper")]

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(10);
/// What may be kept, bytes: less is not worth the walk through the heap, for which each arena is locked.
const KEPT: u64 = 32 << 20;

/// Looks from now on, on a thread of its own, as long as the process lives.
///
/// # Errors
/// When the thread cannot be started.
pub(super) fn keep_trimmed() -> io::Result<()> {
    let look = || {
        loop {
            thread::sleep(EVERY);
            if resident().saturating_sub(used()) > KEPT {
                // SAFETY: it takes no pointer, and locks what it touches. Whether there was something to give back is
                // seen the next time.
                let _ = unsafe { libc::malloc_trim(0) };
            }
        }
    };
    thread::Builder::new().name("heap".to_owned()).spawn(look).map(drop)
}

/// Bytes that the process has asked for and not freed.
fn used() -> u64 {
    // SAFETY: it takes nothing and answers numbers.
    let heap = unsafe { libc::mallinfo2() };
    (heap.uordblks + heap.hblkhd) as u64
}

/// Bytes of memory of its own that the process has from the kernel; none where that cannot be read.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_shows_and_goes_back() {
        // Below the size that is mapped by itself, and so freed by itself.
        let mut pieces: Vec<Vec<u8>> = (0..4_000).map(|_| vec![1; 64 << 10]).collect();
        let held = used();
        // What stays lies between what goes, so that nothing goes by itself.
        let mut n = 0;
        pieces.retain(|_| {
            n += 1;
            n % 16 == 0
        });
        assert!(held - used() > 200 << 20);
        let kept = resident().saturating_sub(used());
        assert!(kept > 200 << 20, "{kept}");
        // SAFETY: as above.
        let _ = unsafe { libc::malloc_trim(0) };
        let kept = resident().saturating_sub(used());
        assert!(kept < 100 << 20, "{kept}");
        assert_eq!(pieces.len(), 250);
    }
}
