//! What this host provides to sandboxes: control groups, networks, connections and namespaces. Also its load, its
//! memory pressure and its disks.

pub(crate) mod bound_file;
pub(crate) mod breakpoints;
pub mod cgroup;
pub mod confined;
pub(crate) mod disk;
pub mod file_pages;
pub mod host_pids;
pub mod load;
pub mod netlink_memory;
pub mod network;
pub(crate) mod open_files;
pub mod own_mounts;
pub mod pagemap;
pub mod pressure;
pub mod sandbox;
pub mod start_limiter;
pub(crate) mod tcp;

use std::thread;
use std::time::{Duration, Instant};

/// Calls `done` until it returns true. Returns false if `limit` passed first. Blocks.
pub(crate) fn poll_until(limit: Duration, pause: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(pause);
    }
}
