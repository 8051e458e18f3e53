//! What a process and its threads have besides memory and files.

use rekindle_restore_program::{Code, SIGNAL_MAX, Thread, UNHANDLED, window};
use rekindle_verify::{Process, processor_clock};

use crate::builder::Builder;
use crate::{CompilerInput, Refusal, frame};

const ALIVE: u32 = 1;

/// Adds a process's handlers and interval timers.
pub(crate) fn compile(b: &mut Builder, process: &Process) -> Result<(), Refusal> {
    let refuse = |what| Refusal::Process(process.tree.pid, what);
    if process.threads.len() > window::THREADS_MAX {
        return Err(refuse("too many threads"));
    }
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    let task = task.ok_or_else(|| refuse("no first thread"))?;
    if task.task_state != ALIVE {
        return Err(refuse("been stopped"));
    }
    if task.oom_score_adj.unwrap_or(0) < 0 {
        return Err(refuse("a lowered score for when memory is short"));
    }
    // The list has no place for those without handlers.
    let handled = (1..=SIGNAL_MAX).filter(|signal| !UNHANDLED.contains(signal));
    for (signal, action) in handled.zip(&task.sigactions) {
        if (action.sigaction, action.flags, action.mask) != (0, 0, 0) {
            let at = b.longs(&[action.sigaction, action.flags, action.restorer, action.mask]);
            b.op(Code::Handle, signal, [at]);
        }
    }
    if let Some(timers) = &task.timers {
        for (which, timer) in [&timers.real, &timers.virt, &timers.prof].into_iter().enumerate() {
            let (sec, usec) = left((timer.vsec, timer.vusec), (timer.isec, timer.iusec));
            if (sec, usec) != (0, 0) {
                let at = b.longs(&[timer.isec, timer.iusec, sec, usec]);
                b.op(Code::IntervalTimer, which as u32, [at]);
            }
        }
    }
    let barriers = task.membarrier_registration_mask.unwrap_or(0);
    for command in (0..32).map(|bit| 1 << bit).filter(|command| barriers & command != 0) {
        b.op(Code::Barrier, command, []);
    }
    Ok(())
}

/// Adds the priorities of a process's threads, which are there, and its score for when memory is short. They are the
/// last that slows a restore.
pub(crate) fn priorities(b: &mut Builder, process: &Process) {
    /// `O_WRONLY`, `O_CLOEXEC`.
    const WRITE: u32 = 0o2_000_001;
    for thread in &process.threads {
        let of_thread = thread.core.thread_core.as_ref();
        let nice = of_thread.and_then(|of| of.sched_nice).unwrap_or(0);
        let policy = of_thread.and_then(|of| of.sched_policy).unwrap_or(0);
        if (nice, policy) != (0, 0) {
            b.op(Code::Priority, thread.tid, [nice.cast_unsigned().into(), policy.into()]);
        }
    }
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    let score = task.and_then(|task| task.oom_score_adj).unwrap_or(0);
    if score != 0 {
        let path = format!("/proc/{}/oom_score_adj", process.tree.pid);
        b.path(Code::Open, WRITE, path.as_bytes());
        let score = score.to_string();
        let at = b.data(score.as_bytes());
        b.op(Code::Write, 0, [0, at, score.len() as u64]);
        b.op(Code::Close, 0, []);
    }
}

/// Adds a process's limits. They apply to no other operation: HAProxy forbids itself processes and threads
/// (`RLIMIT_NPROC`) once it has its own.
pub(crate) fn limits(b: &mut Builder, process: &Process) {
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    let limits = task.and_then(|task| task.rlimits.as_ref());
    for (which, limit) in limits.iter().flat_map(|l| &l.rlimits).enumerate() {
        b.op(Code::Limit, which as u32, [limit.cur, limit.max]);
    }
}

/// Adds a process's POSIX timers, by id. Their threads are there.
pub(crate) fn timers(b: &mut Builder, process: &Process) -> Result<(), Refusal> {
    /// The kernel counts ids, so a timer costs two calls for each id below its own.
    const ID_MAX: u32 = 1024;
    /// `CLOCK_REALTIME`, `CLOCK_MONOTONIC`, `CLOCK_PROCESS_CPUTIME_ID`, `CLOCK_BOOTTIME`.
    const CLOCKS: [u32; 4] = [0, 1, 2, 7];
    /// `SIGEV_SIGNAL`, `SIGEV_NONE`, `SIGEV_THREAD_ID`.
    const WAYS: [u32; 3] = [0, 1, TO_THREAD];
    const TO_THREAD: u32 = 4;
    let refuse = |what| Refusal::Process(process.tree.pid, what);
    let task = process.threads.first().and_then(|thread| thread.core.tc.as_ref());
    let timers = task.and_then(|task| task.timers.as_ref());
    let mut timers: Vec<_> = timers.iter().flat_map(|timers| &timers.posix).collect();
    timers.sort_by_key(|timer| timer.it_id);
    let are_many = timers.last().is_some_and(|last| last.it_id > ID_MAX);
    if are_many || timers.windows(2).any(|pair| pair[0].it_id == pair[1].it_id) {
        return Err(refuse("POSIX timers with high or equal ids"));
    }
    for timer in timers {
        let counts = processor_clock(timer.clock_id);
        let counts_own = counts.is_some_and(|of| of == 0 || process.threads.iter().any(|own| own.tid == of));
        let is_known = CLOCKS.contains(&timer.clock_id) || counts_own;
        if !is_known || !WAYS.contains(&timer.it_sigev_notify) || timer.si_signo > 64 {
            return Err(refuse("a POSIX timer of an unusual kind"));
        }
        let thread = timer.notify_thread_id.unwrap_or(0).cast_unsigned();
        if timer.it_sigev_notify == TO_THREAD && !process.threads.iter().any(|own| own.tid == thread) {
            return Err(refuse("a POSIX timer for no thread of its own"));
        }
        let how = u64::from(timer.si_signo) | u64::from(timer.it_sigev_notify) << 32;
        let event = b.longs(&[timer.sival_ptr, how, thread.into(), 0, 0, 0, 0, 0]);
        let (sec, nsec) = left((timer.vsec, timer.vnsec), (timer.isec, timer.insec));
        let time = b.longs(&[timer.isec, timer.insec, sec, nsec]);
        b.op(Code::Timer, timer.it_id, [timer.clock_id.into(), event, time]);
    }
    Ok(())
}

/// Queues what is pending for a process and its first thread, which all signals wait for.
pub(crate) fn pending(b: &mut Builder, process: &Process) -> Result<(), Refusal> {
    const SIGNAL_BYTES: usize = 128;
    let pid = process.tree.pid;
    let Some(first) = process.threads.first().map(|thread| &thread.core) else {
        return Ok(());
    };
    let of_process = first.tc.as_ref().and_then(|task| task.signals_s.as_ref());
    let of_thread = first.thread_core.as_ref().and_then(|thread| thread.signals_p.as_ref());
    for (queue, thread) in [(of_process, 0), (of_thread, pid)] {
        for signal in queue.iter().flat_map(|queue| &queue.signals) {
            let number = signal.siginfo.first_chunk().map(|number| u32::from_le_bytes(*number));
            let number = number.filter(|number| (1..=SIGNAL_MAX).contains(number) && !UNHANDLED.contains(number));
            match number {
                Some(number) if signal.siginfo.len() == SIGNAL_BYTES => {
                    let at = b.data(&signal.siginfo);
                    b.op(Code::Signal, number, [pid.into(), thread.into(), at]);
                }
                _ => return Err(Refusal::Process(pid, "a pending signal of an unknown kind")),
            }
        }
    }
    Ok(())
}

/// What is left of a timer. One that repeats and has just expired is not armed until its signal or count is taken: a
/// whole interval is left of it then, as CRIU restores it.
pub(crate) fn left(value: (u64, u64), interval: (u64, u64)) -> (u64, u64) {
    if value == (0, 0) { interval } else { value }
}

pub(crate) fn thread(
    b: &mut Builder,
    source: CompilerInput<'_>,
    thread: &rekindle_verify::Thread,
) -> Result<(), Refusal> {
    let refuse = |what| Refusal::Thread(thread.tid, what);
    let core = &thread.core;
    let (Some(info), Some(of_thread)) = (&core.thread_info, &core.thread_core) else {
        return Err(refuse("no registers"));
    };
    // A thread can be sent most signals only by itself, and runs no operations.
    let has_pending = of_thread
        .signals_p
        .as_ref()
        .is_some_and(|queue| !queue.signals.is_empty());
    if has_pending && core.tc.is_none() {
        return Err(refuse("pending signals"));
    }
    let rseq = of_thread.rseq_entry.as_ref();
    if rseq.is_some_and(|rseq| rseq.rseq_cs_pointer.unwrap_or(0) != 0) {
        return Err(refuse("a restartable sequence in progress"));
    }
    let task = core.tc.as_ref();
    let mask = task.map_or(of_thread.blk_sigset.unwrap_or(0), |task| task.blk_sigset);
    let comm = task.map_or(of_thread.comm.as_deref().unwrap_or_default(), |task| &task.comm);
    let mut name = [0; 16];
    let length = comm.len().min(name.len() - 1);
    name[..length].copy_from_slice(&comm[..length]);
    let record = Thread {
        fs: info.gpregs.fs_base,
        gs: info.gpregs.gs_base,
        clear_tid: info.clear_tid_addr,
        robust: of_thread.futex_rla,
        rseq: rseq.map_or(0, |rseq| rseq.rseq_abi_pointer),
        rseq_bytes: rseq.map_or(0, |rseq| rseq.rseq_abi_size),
        rseq_signature: rseq.map_or(0, |rseq| rseq.signature),
        id: thread.tid,
        death_signal: of_thread.pdeath_sig.unwrap_or(0),
        name,
        ..Thread::default()
    };
    let frame = frame::build(info, of_thread, mask, source.host).map_err(refuse)?;
    b.thread(record, &frame);
    Ok(())
}
