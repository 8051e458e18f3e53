//! Which locks a restore loses: POSIX locks of a process on a file that it has mapped and shares with others, as
//! databases do with their index of a write-ahead log. CRIU maps the file after it has taken the locks, and closes
//! what it opened for that; the kernel then lets go of them.

use rekindle_init::locks::Lock;
use rekindle_verify::{Process, Verified};

/// A mapping that is shared with whoever else has the file, as CRIU marks it.
const FILE_SHARED: u32 = 1 << 7;
/// A lock that a process has, as CRIU marks it.
const POSIX: u32 = 1;
/// Locks that are taken anew at most: each is some system calls of a restore.
const MOST: usize = 64;

/// Those of the locks that images describe.
pub(crate) fn of(verified: &Verified) -> Vec<Lock> {
    let lost = verified
        .locks
        .iter()
        .filter(|lock| lock.flag == POSIX)
        .filter_map(|lock| {
            let is_owner = |process: &&Process| process.tree.pid.cast_signed() == lock.pid;
            let owner = verified.processes.iter().find(is_owner)?;
            let path = |file: u32| Some(verified.files.get(&file)?.reg.as_ref()?.name.as_slice());
            let locked = path(owner.descriptors.get(&lock.fd.cast_unsigned())?.id)?;
            let mappings = owner
                .memory
                .as_ref()?
                .vmas
                .iter()
                .filter(|vma| vma.status & FILE_SHARED != 0);
            let mut mapped = mappings.filter_map(|vma| path(u32::try_from(vma.shmid).ok()?));
            mapped.any(|mapped| mapped == locked).then_some(Lock {
                pid: lock.pid,
                fd: lock.fd,
                kind: i16::try_from(lock.kind).ok()?,
                start: lock.start,
                length: lock.len,
            })
        });
    lost.take(MOST).collect()
}
