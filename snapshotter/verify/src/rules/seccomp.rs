//! Requires a known filter for every thread.
//!
//! A thread refers to its newest filter, and each filter to the one before it. If all threads of a process have the
//! same filters, CRIU records them for the first thread only, with the flag that makes the kernel apply them to the
//! others.

use super::Context;
use crate::error::{EntryLocation, VerifyError};
use crate::frames::{magic, required};
use crate::messages::{Seccomp, SeccompFilter, ThreadCore};
use crate::verified::Process;

const MODE_DISABLED: u32 = 0;
const MODE_FILTER: u32 = 2;
/// `SECCOMP_FILTER_FLAG_TSYNC`.
const FLAG_ALL_THREADS: u32 = 1 << 0;
/// `SECCOMP_FILTER_FLAG_LOG`.
const FLAG_LOG: u32 = 1 << 1;
/// Maximum number of filters of all processes together.
const FILTERS_MAX: usize = 65_536;

/// All filters.
pub(super) fn check(context: Context<'_>, processes: &[Process]) -> Result<Vec<SeccompFilter>, VerifyError> {
    let (at, seccomp) = required::<Seccomp>(context.images, "seccomp.img", magic::SECCOMP)?;
    let filters = seccomp.seccomp_filters;
    at.hold(filters.len() <= FILTERS_MAX, "seccomp_filters", filters.len())?;
    let mut of_all = Vec::with_capacity(filters.len());
    for (index, filter) in filters.iter().enumerate() {
        let SeccompFilter { filter, prev, flags } = filter;
        let digest = blake3::hash(filter);
        let known = context.expected.filters.contains(digest.as_bytes());
        at.hold(known, "filter", digest.to_hex())?;
        // Only backwards references: CRIU follows them to the end.
        let before = |prev: u32| usize::try_from(prev).is_ok_and(|prev| prev < index);
        at.hold(prev.is_none_or(before), "prev", prev)?;
        let allowed = flags.is_none_or(|flags| flags & !(FLAG_ALL_THREADS | FLAG_LOG) == 0);
        at.hold(allowed, "flags", flags)?;
        let earlier = prev.and_then(|prev| of_all.get(usize::try_from(prev).ok()?).copied());
        of_all.push(flags.unwrap_or(0) & FLAG_ALL_THREADS != 0 && earlier.unwrap_or(true));
    }
    for process in processes.iter().filter(|p| context.tree.is_living(p.tree.pid)) {
        check_threads(process, &of_all)?;
    }
    Ok(filters)
}

/// `of_all` states for each filter whether it, and those before it, apply to all threads of a process.
fn check_threads(process: &Process, of_all: &[bool]) -> Result<(), VerifyError> {
    let mut covers = false;
    for (number, thread) in process.threads.iter().enumerate() {
        let image = format!("core-{}.img", thread.tid);
        let at = EntryLocation {
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
            let last = filter.and_then(|last| of_all.get(usize::try_from(last).ok()?));
            let last = last.ok_or_else(|| at.refuse("thread_core.seccomp_filter", filter))?;
            covers |= number == 0 && *last;
        } else {
            let covered = covers && mode.unwrap_or(MODE_DISABLED) == MODE_DISABLED && filter.is_none();
            at.hold(covered, "thread_core.seccomp_mode", mode)?;
        }
    }
    Ok(())
}
