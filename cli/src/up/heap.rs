//! Has the C library give freed memory back to the kernel. It has an arena for each few threads, and by itself raises
//! what each may keep to twice the largest block that was freed: after fifty deploys a platform that used 8 MiB held 70.
#![allow(unsafe_code, reason = "mallopt has no safe wrapper")]

use libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// What each arena may keep at its end, bytes.
const KEPT: c_int = 1 << 20;
/// From this size on a block has a mapping of its own, bytes: above what chunks are read and compressed in. Has to be
/// given with the other, which would leave it at 128 KiB, and those at a page fault for each page.
const MAPPED: c_int = 4 << 20;

/// From now on, in the whole process.
pub(super) fn give_back() {
    for (parameter, value) in [(M_MMAP_THRESHOLD, MAPPED), (M_TRIM_THRESHOLD, KEPT)] {
        // SAFETY: both are plain settings, taken under the allocator's own lock. One that is refused leaves what was.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    /// Memory of the process's own, MiB.
    fn resident() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 10
    }

    #[test]
    fn what_a_thread_frees_goes_back_though_larger_blocks_were_freed_before() {
        give_back();
        drop(vec![1_u8; 30 << 20]);
        let before = resident();
        let used = thread::spawn(|| {
            let pieces: Vec<Vec<u8>> = (0..3_000).map(|_| vec![1; 64 << 10]).collect();
            let used = resident();
            drop(pieces);
            // The thread's arena stays: it lives on.
            (used, resident())
        });
        let (used, after) = used.join().unwrap();
        assert!(used > before + 150, "{before}, {used}");
        assert!(after < before + 60, "{before}, {used}, {after}");
    }
}
