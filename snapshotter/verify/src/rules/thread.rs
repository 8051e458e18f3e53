//! `core-TID.img`: the fields of a thread.

use super::{Context, SIGNAL_MAX, credentials, in_user_space, registers};
use crate::error::{EntryLocation, VerifyError};
use crate::messages::{Core, Rseq, SignalQueue, SignalStack, ThreadCore};

/// Size in bytes of the head of the robust futex list: the kernel accepts no other.
const ROBUST_LIST_BYTES: u32 = 24;
/// `SCHED_OTHER`, `SCHED_BATCH`, `SCHED_IDLE`: policies that need no privilege.
const SCHED_POLICIES: [u32; 3] = [0, 3, 5];
/// `SS_ONSTACK`, `SS_DISABLE`, `SS_AUTODISARM`.
const SIGNAL_STACK_FLAGS: u32 = 1 | 2 | 1 << 31;
/// Maximum size of the area in bytes, with room for additions by later kernels.
const RSEQ_BYTES_MAX: u32 = 1024;

/// Size in bytes of a signal's information in the kernel's format: CRIU copies this many.
const SIGNAL_INFO_BYTES: usize = 128;
/// Maximum number of pending signals of a process or thread.
const SIGNALS_MAX: usize = 65_536;
const COMM_MAX: usize = 15;

pub(super) fn check(
    context: Context<'_>,
    at: EntryLocation<'_>,
    core: &Core,
    cgroups: Option<u32>,
) -> Result<(), VerifyError> {
    let info = core
        .thread_info
        .as_ref()
        .ok_or_else(|| at.refuse("thread_info", "missing"))?;
    registers::check(at, info)?;
    let thread = core
        .thread_core
        .as_ref()
        .ok_or_else(|| at.refuse("thread_core", "missing"))?;
    // The filter is checked for all threads of a process together. The mask is arbitrary.
    let ThreadCore {
        futex_rla,
        futex_rla_len,
        sched_nice,
        sched_policy,
        sched_prio,
        blk_sigset: _,
        sas,
        pdeath_sig,
        signals_p,
        creds,
        seccomp_mode: _,
        seccomp_filter: _,
        comm,
        blk_sigset_extended: _,
        rseq_entry,
        cg_set,
    } = thread;
    let none = *futex_rla == 0 && *futex_rla_len == 0;
    let robust = *futex_rla_len == ROBUST_LIST_BYTES && in_user_space(*futex_rla, u64::from(ROBUST_LIST_BYTES));
    at.hold(none || robust, "thread_core.futex_rla", (futex_rla, futex_rla_len))?;
    at.hold(
        sched_nice.is_some_and(|nice| (0..=19).contains(&nice)),
        "thread_core.sched_nice",
        sched_nice,
    )?;
    at.hold(
        sched_policy.is_some_and(|policy| SCHED_POLICIES.contains(&policy)),
        "thread_core.sched_policy",
        sched_policy,
    )?;
    at.hold(sched_prio.unwrap_or(0) == 0, "thread_core.sched_prio", sched_prio)?;
    if let Some(SignalStack {
        ss_sp,
        ss_size,
        ss_flags,
    }) = sas
    {
        at.hold(in_user_space(*ss_sp, *ss_size), "thread_core.sas", sas)?;
        at.hold(
            ss_flags & !SIGNAL_STACK_FLAGS == 0,
            "thread_core.sas.ss_flags",
            ss_flags,
        )?;
    }
    at.hold(
        pdeath_sig.unwrap_or(0) <= SIGNAL_MAX,
        "thread_core.pdeath_sig",
        pdeath_sig,
    )?;
    check_signals(at, "thread_core.signals_p", signals_p.as_ref())?;
    let creds = creds
        .as_ref()
        .ok_or_else(|| at.refuse("thread_core.creds", "missing"))?;
    credentials::check(context.expected, at, creds)?;
    check_comm(at, comm.as_deref().unwrap_or_default())?;
    if let Some(rseq) = rseq_entry {
        check_rseq(at, rseq)?;
    }
    // Processes stay in the control group that CRIU runs in.
    at.hold(*cg_set == cgroups, "thread_core.cg_set", cg_set)
}

fn check_rseq(at: EntryLocation<'_>, rseq: &Rseq) -> Result<(), VerifyError> {
    let area = rseq.rseq_abi_size <= RSEQ_BYTES_MAX && in_user_space(rseq.rseq_abi_pointer, rseq.rseq_abi_size.into());
    at.hold(area, "thread_core.rseq_entry", rseq)?;
    let section = in_user_space(rseq.rseq_cs_pointer.unwrap_or(0), 32);
    at.hold(section, "thread_core.rseq_entry.rseq_cs_pointer", rseq.rseq_cs_pointer)
}

pub(super) fn check_comm(at: EntryLocation<'_>, comm: &[u8]) -> Result<(), VerifyError> {
    at.hold(comm.len() <= COMM_MAX && !comm.contains(&0), "comm", comm)
}

/// Pending signals. Their senders are whatever the process claims, which is harmless: it can send itself the same
/// signals.
pub(super) fn check_signals(
    at: EntryLocation<'_>,
    field: &'static str,
    queue: Option<&SignalQueue>,
) -> Result<(), VerifyError> {
    let signals = queue.map(|q| q.signals.as_slice()).unwrap_or_default();
    at.hold(signals.len() <= SIGNALS_MAX, field, signals.len())?;
    for signal in signals {
        at.hold(signal.siginfo.len() == SIGNAL_INFO_BYTES, field, signal.siginfo.len())?;
        let number = signal.siginfo.first_chunk::<4>().map(|n| u32::from_le_bytes(*n));
        at.hold(number.is_some_and(|n| (1..=SIGNAL_MAX).contains(&n)), field, number)?;
    }
    Ok(())
}
