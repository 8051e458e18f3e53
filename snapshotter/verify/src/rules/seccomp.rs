//! Every thread is under a filter that is known.
//!
//! A thread names the filter it got last, and each filter the one before it. Where all threads of a process have the same,
//! CRIU notes them for the first alone, with the flag that has the kernel put the others under it too.

use std::collections::BTreeSet;

use super::Context;
use crate::error::{Place, VerifyError};
use crate::frames::{magic, required};
use crate::messages::{Seccomp, SeccompFilter, ThreadCore};
use crate::verified::Process;

const MODE_DISABLED: u32 = 0;
const MODE_FILTER: u32 = 2;
/// `SECCOMP_FILTER_FLAG_TSYNC`.
const FLAG_ALL_THREADS: u32 = 1 << 0;
/// `SECCOMP_FILTER_FLAG_LOG`.
const FLAG_LOG: u32 = 1 << 1;
/// Filters of all processes together at most.
const FILTERS_MAX: usize = 65_536;

/// The digests of all filters.
pub(super) fn check(context: Context<'_>, processes: &[Process]) -> Result<BTreeSet<[u8; 32]>, VerifyError> {
    let (at, seccomp) = required::<Seccomp>(context.images, "seccomp.img", magic::SECCOMP)?;
    let filters = seccomp.seccomp_filters;
    at.hold(filters.len() <= FILTERS_MAX, "seccomp_filters", filters.len())?;
    let mut digests = BTreeSet::new();
    for (index, filter) in filters.iter().enumerate() {
        let SeccompFilter { filter, prev, flags } = filter;
        let digest = *blake3::hash(filter).as_bytes();
        let known = context.expected.filters.contains(&digest);
        at.hold(known, "filter", blake3::hash(filter).to_hex())?;
        // Only ever backwards: CRIU follows them to their end.
        let before = |prev: u32| usize::try_from(prev).is_ok_and(|prev| prev < index);
        at.hold(prev.is_none_or(before), "prev", prev)?;
        let allowed = flags.is_none_or(|flags| flags & !(FLAG_ALL_THREADS | FLAG_LOG) == 0);
        at.hold(allowed, "flags", flags)?;
        digests.insert(digest);
    }
    for process in processes.iter().filter(|p| context.tree.is_living(p.tree.pid)) {
        check_threads(process, &filters)?;
    }
    Ok(digests)
}

fn check_threads(process: &Process, filters: &[SeccompFilter]) -> Result<(), VerifyError> {
    let mut of_all = false;
    for (number, thread) in process.threads.iter().enumerate() {
        let image = format!("core-{}.img", thread.tid);
        let at = Place {
            image: &image,
            entry: 0,
        };
        let Some(ThreadCore {
            seccomp_mode: mode,
            seccomp_filter: filter,
            ..
        }) = thread.core.thread_core.as_ref()
        else {
            return Err(at.refuse("thread_core", "missing"));
        };
        if *mode == Some(MODE_FILTER) {
            let last = filter.and_then(|last| filters.get(usize::try_from(last).ok()?));
            let last = last.ok_or_else(|| at.refuse("thread_core.seccomp_filter", filter))?;
            if number == 0 {
                of_all = chain(filters, last).all(|f| f.flags.unwrap_or(0) & FLAG_ALL_THREADS != 0);
            }
        } else {
            let covered = number > 0 && of_all && mode.unwrap_or(MODE_DISABLED) == MODE_DISABLED && filter.is_none();
            at.hold(covered, "thread_core.seccomp_mode", mode)?;
        }
    }
    Ok(())
}

/// A filter and those before it. Their numbers only fall: it ends.
fn chain<'a>(filters: &'a [SeccompFilter], last: &'a SeccompFilter) -> impl Iterator<Item = &'a SeccompFilter> {
    std::iter::successors(Some(last), |filter| filters.get(usize::try_from(filter.prev?).ok()?))
}
