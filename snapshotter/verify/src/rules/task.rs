//! `core-PID.img`: the fields of a process.

use super::{Context, SIGNAL_MAX, thread};
use crate::error::{EntryLocation, VerifyError};
use crate::expected::Limit;
use crate::frames::{magic, required};
use crate::messages::{Core, IntervalTimer, PosixTimer, TaskCore, TaskTimers};
use crate::verified::{Process, Thread};
use std::sync::Arc;

const MACHINE_X86_64: u32 = 1;
const STATE_ALIVE: u32 = 1;
const STATE_STOPPED: u32 = 3;
/// All signals except the two that cannot be handled: CRIU assumes this number.
const SIGNAL_ACTIONS: usize = 62;
const TIMERS_MAX: usize = 65_536;
const OOM_SCORE_ADJ_MAX: i32 = 1000;
/// The commands that register with `membarrier`.
const MEMBARRIER_REGISTRATIONS: u32 = 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8;
const MICROSECONDS: u64 = 1_000_000;
const NANOSECONDS: u64 = 1_000_000_000;

/// All processes with their threads, parents first.
///
/// All are in one set of control groups. Its identity does not matter: images of control groups are rejected, so
/// restored processes stay in CRIU's.
pub(super) fn check(context: Context<'_>) -> Result<Vec<Process>, VerifyError> {
    let mut group = None;
    let mut processes = Vec::with_capacity(context.tree.entries.len());
    for (_, entry) in &context.tree.entries {
        let is_dead = context.tree.dead.contains(&entry.pid);
        let tids = if is_dead {
            vec![entry.pid]
        } else {
            entry.threads.clone()
        };
        let mut threads = Vec::with_capacity(tids.len());
        for tid in tids {
            let (at, core) = required::<Core>(context.images, &format!("core-{tid}.img"), magic::CORE)?;
            at.hold(core.mtype == MACHINE_X86_64, "mtype", core.mtype)?;
            if is_dead {
                check_dead(at, &core)?;
            } else {
                check_living(context, at, tid == entry.pid, &core)?;
                let own = core.thread_core.as_ref().and_then(|thread| thread.cg_set);
                thread::check(context, at, &core, *group.get_or_insert(own))?;
            }
            threads.push(Thread { tid, core });
        }
        processes.push(Process {
            tree: entry.clone(),
            ids: None,
            threads,
            memory: None,
            directories: None,
            descriptors: Arc::default(),
        });
    }
    Ok(processes)
}

/// A dead process has a name and an exit code.
fn check_dead(at: EntryLocation<'_>, core: &Core) -> Result<(), VerifyError> {
    at.hold(core.thread_info.is_none(), "thread_info", &core.thread_info)?;
    at.hold(core.thread_core.is_none(), "thread_core", &core.thread_core)?;
    let task = core.tc.as_ref().ok_or_else(|| at.refuse("tc", "missing"))?;
    at.hold(task.exit_code <= u32::from(u16::MAX), "tc.exit_code", task.exit_code)?;
    thread::check_comm(at, &task.comm)?;
    let bare = TaskCore {
        task_state: task.task_state,
        exit_code: task.exit_code,
        comm: task.comm.clone(),
        ..TaskCore::default()
    };
    at.hold(*task == bare, "tc", task)
}

fn check_living(context: Context<'_>, at: EntryLocation<'_>, is_first: bool, core: &Core) -> Result<(), VerifyError> {
    at.hold(core.tc.is_some() == is_first, "tc", core.tc.is_some())?;
    let Some(task) = &core.tc else { return Ok(()) };
    // The kernel's flags of a process are not restored, and masks are arbitrary.
    let TaskCore {
        task_state,
        exit_code,
        personality,
        flags: _,
        blk_sigset: _,
        comm,
        timers,
        rlimits: _,
        signals_s,
        loginuid,
        oom_score_adj,
        sigactions,
        child_subreaper: _,
        blk_sigset_extended: _,
        stop_signo,
        membarrier_registration_mask,
    } = task;
    let stands = matches!(*task_state, STATE_ALIVE | STATE_STOPPED);
    at.hold(stands, "tc.task_state", task_state)?;
    at.hold(*exit_code == 0, "tc.exit_code", exit_code)?;
    at.hold(*personality == 0, "tc.personality", personality)?;
    thread::check_comm(at, comm)?;
    let timers = timers.as_ref().ok_or_else(|| at.refuse("tc.timers", "missing"))?;
    check_timers(context, at, timers)?;
    check_timer_clocks(context, at, timers)?;
    check_limits(context, at, task)?;
    thread::check_signals(at, "tc.signals_s", signals_s.as_ref())?;
    at.hold(loginuid.is_none_or(|uid| uid == u32::MAX), "tc.loginuid", loginuid)?;
    let adjustments = context.expected.oom_score_adj_min..=OOM_SCORE_ADJ_MAX;
    // CRIU does not restore the value 0. The restored process then has the sandbox's value, which is the expected one.
    let adjusted = oom_score_adj.is_none_or(|adj| adj == 0 || adjustments.contains(&adj));
    at.hold(adjusted, "tc.oom_score_adj", oom_score_adj)?;
    at.hold(sigactions.len() == SIGNAL_ACTIONS, "tc.sigactions", sigactions.len())?;
    let compat = sigactions.iter().find(|a| a.compat_sigaction == Some(true));
    at.hold(compat.is_none(), "tc.sigactions.compat_sigaction", compat)?;
    at.hold(
        stop_signo.is_none_or(|s| (1..=SIGNAL_MAX).contains(&s)),
        "tc.stop_signo",
        stop_signo,
    )?;
    let mask = membarrier_registration_mask.unwrap_or(0);
    at.hold(
        mask & !MEMBARRIER_REGISTRATIONS == 0,
        "tc.membarrier_registration_mask",
        mask,
    )
}

fn check_limits(context: Context<'_>, at: EntryLocation<'_>, task: &TaskCore) -> Result<(), VerifyError> {
    let limits = task.rlimits.as_ref().map(|l| l.rlimits.as_slice()).unwrap_or_default();
    let expected = &context.expected.limits;
    at.hold(limits.len() == expected.len(), "tc.rlimits", limits.len())?;
    for (number, (limit, expected)) in limits.iter().zip(expected).enumerate() {
        let allowed = Limit::allows(*expected, limit.cur, limit.max);
        at.hold(allowed, "tc.rlimits", (number, limit))?;
    }
    Ok(())
}

fn check_timers(context: Context<'_>, at: EntryLocation<'_>, timers: &TaskTimers) -> Result<(), VerifyError> {
    for (field, timer) in [
        ("tc.timers.real", &timers.real),
        ("tc.timers.virt", &timers.virt),
        ("tc.timers.prof", &timers.prof),
    ] {
        let IntervalTimer {
            isec,
            iusec,
            vsec,
            vusec,
        } = timer;
        let seconds = i64::MAX.cast_unsigned();
        let sane = *isec <= seconds && *vsec <= seconds && *iusec < MICROSECONDS && *vusec < MICROSECONDS;
        at.hold(sane, field, timer)?;
    }
    at.hold(timers.posix.len() <= TIMERS_MAX, "tc.timers.posix", timers.posix.len())?;
    for timer in &timers.posix {
        check_posix_timer(context, at, timer)?;
    }
    Ok(())
}

/// The process or thread whose processor time a clock counts, 0 for the caller's process. `None` for other clocks,
/// and for that of the calling thread, which is not known later. The kernel keeps the inverted id above three bits:
/// two say what is counted, and one that it is a thread.
pub fn processor_clock(clock: u32) -> Option<u32> {
    const COUNTED: i32 = 3;
    /// A descriptor of a clock.
    const DEVICE: i32 = 3;
    const THREAD: i32 = 4;
    let clock = clock.cast_signed();
    let of = (!(clock >> 3)).cast_unsigned();
    let is_known = clock < 0 && clock & COUNTED != DEVICE && (of != 0 || clock & THREAD == 0);
    is_known.then_some(of)
}

/// Alarm clocks, which wake a sleeping machine, require a capability. Processor time may be that of a thread or process
/// that there is.
fn check_timer_clocks(context: Context<'_>, at: EntryLocation<'_>, timers: &TaskTimers) -> Result<(), VerifyError> {
    const CLOCKS: [u32; 6] = [0, 1, 2, 3, 7, 11];
    for clock in timers.posix.iter().map(|timer| timer.clock_id) {
        let counts = processor_clock(clock).is_some_and(|of| of == 0 || context.tree.tids.contains(&of));
        at.hold(CLOCKS.contains(&clock) || counts, "tc.timers.posix.clock_id", clock)?;
    }
    Ok(())
}

fn check_posix_timer(context: Context<'_>, at: EntryLocation<'_>, timer: &PosixTimer) -> Result<(), VerifyError> {
    /// By a signal, not at all, or to a thread.
    const NOTIFY: [u32; 3] = [0, 1, 4];
    let id = i32::try_from(timer.it_id);
    at.hold(id.is_ok(), "tc.timers.posix.it_id", timer.it_id)?;
    at.hold(timer.si_signo <= SIGNAL_MAX, "tc.timers.posix.si_signo", timer.si_signo)?;
    let notify = timer.it_sigev_notify;
    at.hold(NOTIFY.contains(&notify), "tc.timers.posix.it_sigev_notify", notify)?;
    let seconds = i64::MAX.cast_unsigned();
    let sane = timer.isec <= seconds && timer.vsec <= seconds;
    at.hold(
        sane && timer.insec < NANOSECONDS && timer.vnsec < NANOSECONDS,
        "tc.timers.posix",
        timer,
    )?;
    let thread = timer.notify_thread_id;
    let known = |id: i32| id == 0 || u32::try_from(id).is_ok_and(|id| context.tree.tids.contains(&id));
    at.hold(thread.is_none_or(known), "tc.timers.posix.notify_thread_id", thread)
}
