//! What the process is before it knows its function: the function's user, with the few rights that a restore needs.

use rekindle_restore_program::{SIGNAL_MAX, UNHANDLED, rights};

use crate::sys::{Outcome, call, nr};

/// The function's user and group in every sandbox.
const USER: u64 = 1000;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_TIME: u64 = 1 << 25;
const CHECKPOINT_RESTORE: u64 = 1 << 40;
/// To make and enter a time namespace with clocks of its own, and to choose process ids.
const AHEAD: u64 = SYS_ADMIN | SYS_TIME | CHECKPOINT_RESTORE;

/// `CLONE_NEWTIME`.
pub(crate) const NEW_TIME: u64 = 0x80;

mod option {
    pub(super) const DUMPABLE: u64 = 4;
    pub(super) const KEEPCAPS: u64 = 8;
    pub(super) const DROP_BOUNDING: u64 = 24;
    pub(super) const NO_NEW_PRIVS: u64 = 38;
    pub(super) const THP_DISABLE: u64 = 41;
}

/// Sets effective and permitted capabilities.
fn set(effective: u64, permitted: u64) -> Outcome {
    let header = [0x2008_0522u32, 0];
    let [low, high] = [0, 32].map(|shift| [effective, permitted].map(|rights| (rights >> shift) as u32));
    let data = [low[0], low[1], 0, high[0], high[1], 0];
    call!(nr::CAPSET, header.as_ptr(), data.as_ptr())
}

/// Becomes the function's user, for good, before anything of a function is known.
pub(crate) fn prepare() -> Outcome {
    // Signals wait until each thread has its own mask.
    let all = u64::MAX;
    call!(nr::RT_SIGPROCMASK, 2, &raw const all, 0, 8)?;
    // What was ignored where this process was started, as Rust's programs ignore `SIGPIPE`, is the default here.
    let default = [0_u64; 4];
    for signal in (1..=SIGNAL_MAX).filter(|signal| !UNHANDLED.contains(signal)) {
        call!(nr::RT_SIGACTION, signal, default.as_ptr(), 0, 8)?;
    }
    call!(nr::SETSID)?;
    call!(nr::PRCTL, option::NO_NEW_PRIVS, 1)?;
    let mut right = 0;
    while call!(nr::PRCTL, option::DROP_BOUNDING, right).is_ok() {
        right += 1;
    }
    call!(nr::PRCTL, option::KEEPCAPS, 1)?;
    call!(nr::SETGROUPS, 0, 0)?;
    call!(nr::SETRESGID, USER, USER, USER)?;
    call!(nr::SETRESUID, USER, USER, USER)?;
    call!(nr::PRCTL, option::KEEPCAPS, 0)?;
    call!(nr::PRCTL, option::DUMPABLE, 1)?;
    // A huge page would have zeros for the pages beside what is read before the pager serves them.
    have_huge_pages(false)?;
    use_all()?;
    call!(nr::UNSHARE, NEW_TIME)
}

/// Lets the kernel make huge pages of this process's memory, where it is set up to, or not.
pub(crate) fn have_huge_pages(are_had: bool) -> Outcome {
    call!(nr::PRCTL, option::THP_DISABLE, u64::from(!are_had), 0, 0, 0)
}

/// Uses all rights that a hollow process has.
pub(crate) fn use_all() -> Outcome {
    set(AHEAD, AHEAD)
}

/// Uses only the right to choose ids and the program, and keeps no others, or all.
pub(crate) fn use_choice_of_ids(how: u32) -> Outcome {
    let kept = match how {
        rights::UNUSED => AHEAD,
        _ => CHECKPOINT_RESTORE,
    };
    set(CHECKPOINT_RESTORE, kept)
}

/// Keeps nothing. Applies to the calling thread.
pub(crate) fn drop_all() -> Outcome {
    set(0, 0)
}
