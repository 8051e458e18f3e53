//! Finds the locks that a restore loses: POSIX locks of a process on a file that it has mapped as shared. Databases do
//! this with the index of their write-ahead log. CRIU maps the file after it has taken the locks, then closes the
//! descriptor that it opened for the mapping. The kernel releases the locks at that close.

use rekindle_init::locks::Lock;
use rekindle_verify::{Process, Verified};

/// CRIU's flag of a mapping that is shared with others who map the file.
const FILE_SHARED: u32 = 1 << 7;
/// CRIU's flag of a lock that a process holds.
const POSIX: u32 = 1;
/// Maximum number of locks that are taken again. Each one costs a restore several system calls.
const MOST: usize = 64;

/// Returns the locks in the images that a restore loses.
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
