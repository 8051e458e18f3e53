//! Makes the C library return freed memory to the kernel. It has an arena for every few threads. By default it raises
//! what each may keep to twice the largest block that was freed: after fifty deploys a platform that used 8 MiB held 70
//! MiB. Memory between blocks in use is returned only on request: 22 MiB then became 13 MiB. Pages that hold a few
//! bytes in use cannot be returned, and each arena has its own. With sixteen arenas 7 MiB in use took 17, with four 8
//! MiB took 13.
#![allow(
    unsafe_code,
    reason = "the settings of the C library's allocator have no safe wrapper"
)]

use std::time::Duration;
use std::{fs, io, thread};

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Arenas for each core. The threads that serve requests are one a core, and those that block come and go.
const ARENAS: usize = 2;
/// What each arena may keep at its end, bytes.
const KEPT: c_int = 1 << 20;
/// Size from which a block has a mapping of its own, bytes: above the sizes in which chunks are read and compressed. It
/// must be set with the other, which would leave it at 128 KiB, and such blocks at a page fault for each page.
const MAPPED: c_int = 4 << 20;
/// How often to check for free memory between blocks.
const EVERY: Duration = Duration::from_secs(20);
/// Free memory that may remain there, bytes. Less is not worth the walk, which locks each arena.
const BETWEEN: u64 = 8 << 20;

/// Returns freed memory from now on, in the whole process, which is [`settle`]d.
///
/// # Errors
/// If no thread can be started for it.
pub(super) fn give_back() -> io::Result<()> {
    let look = || {
        let mut most = 0;
        loop {
            thread::sleep(EVERY);
            let used = used();
            most = used.max(most);
            // After a large release, as of a function's versions, less between blocks is worth the walk, too.
            if resident().saturating_sub(used) > BETWEEN || used < most / 4 * 3 {
                trim();
                most = used;
            }
        }
    };
    thread::Builder::new().name("heap".to_owned()).spawn(look).map(drop)
}

/// Limits what the allocator keeps. It must be called before there are threads: their arenas stay.
pub(super) fn settle() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let arenas = c_int::try_from(cores * ARENAS).unwrap_or(c_int::MAX);
    let settings = [
        (M_ARENA_MAX, arenas),
        (M_MMAP_THRESHOLD, MAPPED),
        (M_TRIM_THRESHOLD, KEPT),
    ];
    for (parameter, value) in settings {
        // SAFETY: all are plain settings, taken under the allocator's own lock. A refused one leaves the old value.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

fn trim() {
    // SAFETY: it takes no pointer, and locks what it touches. The next check shows whether anything was returned.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Bytes that the process has allocated and not freed.
fn used() -> u64 {
    // SAFETY: it takes nothing and returns numbers.
    let heap = unsafe { libc::mallinfo2() };
    (heap.uordblks + heap.hblkhd) as u64
}

/// Bytes of private memory that the process has from the kernel; 0 if that cannot be read.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const CHILD: &str = "FN_TEST_HEAP_ALONE";

    /// The test runs itself again, since each of its parts measures the whole process, which other tests use too.
    #[test]
    fn what_is_freed_goes_back() {
        if std::env::var_os(CHILD).is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "up::heap::tests::what_is_freed_goes_back", "--nocapture"]);
            let ran = again.env(CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            let wrong = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(ran.status.success() && said.contains("1 passed"), "{said}{wrong}");
            return;
        }
        settle();
        let pieces = || -> Vec<Vec<u8>> { (0..4_000).map(|_| vec![1; 64 << 10]).collect() };

        // At the end of a thread's arena, although larger blocks were freed before.
        drop(vec![1_u8; 30 << 20]);
        let before = resident();
        let used_by_thread = thread::spawn(move || {
            let all = pieces();
            let used = resident();
            drop(all);
            (used, resident())
        });
        let (at_most, after) = used_by_thread.join().unwrap();
        assert!(at_most > before + 200 * MIB, "{before}, {at_most}");
        assert!(after < before + 60 * MIB, "{before}, {at_most}, {after}");

        // Between blocks in use: on request.
        let mut kept = pieces();
        let mut n = 0;
        kept.retain(|_| {
            n += 1;
            n % 16 == 0
        });
        let between = resident().saturating_sub(used());
        assert!(between > 150 * MIB, "{between}");
        trim();
        let left = resident().saturating_sub(used());
        assert!(left < between / 2, "{between}, {left}");
        assert_eq!(kept.len(), 250);
    }
}
