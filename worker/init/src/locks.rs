//! POSIX locks on files that are also mapped. CRIU first takes all locks. It then maps the files and closes the
//! descriptors it opened for that, upon which the kernel releases all locks of the process on such a file. So the locks
//! are taken again, in the place of the process, which CRIU holds before its first instruction.

use std::io;

use serde::{Deserialize, Serialize};

use crate::in_place::{self, with_bytes};

/// A lock to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The process, in this pid namespace.
    pub pid: i32,
    /// The process's descriptor of the file.
    pub fd: i32,
    /// `F_RDLCK` or `F_WRLCK`.
    pub kind: i16,
    /// First byte.
    pub start: i64,
    /// Number of bytes, or 0 for all.
    pub length: i64,
}

/// Takes `locks` in the place of their processes.
///
/// # Errors
/// If a lock cannot be taken. The remaining ones are not tried.
pub fn take(locks: &[Lock]) -> io::Result<()> {
    for lock in locks {
        let taken = in_place::of(lock.pid, |call| {
            with_bytes(lock.pid, call, &flock(lock), |call, order| {
                call((libc::SYS_fcntl, [lock.fd as u64, libc::F_SETLK as u64, order, 0, 0, 0]))
            })
        });
        taken.map_err(|e| io::Error::other(format!("process {}, descriptor {}: {e}", lock.pid, lock.fd)))?;
    }
    Ok(())
}

/// `struct flock`: kind and whence (0: from the start), start, length. The owner field is not used here.
fn flock(lock: &Lock) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&lock.kind.to_le_bytes());
    bytes[8..16].copy_from_slice(&lock.start.to_le_bytes());
    bytes[16..24].copy_from_slice(&lock.length.to_le_bytes());
    bytes
}
