//! A process whose threads are stopped and traced: their registers, and system calls on its behalf.

#![expect(
    unsafe_code,
    reason = "ptrace has requests that no wrapper covers; each gets a buffer of its own with its size"
)]

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{iovec, user_regs_struct};
use nix::sys::prctl::set_timerslack;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::error::{Unfit, kernel};

/// How long a thread may take to stop. One that waits for a disk or for a page stops later.
const STOP_LIMIT: Duration = Duration::from_millis(20);
/// How long a call in its name may take. It goes on soon, unless others have the processors.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// How long a thread that was killed may take to end.
const END_LIMIT: Duration = Duration::from_secs(1);
/// How long it is looked away while a thread is to stop.
const FIRST_PAUSE: Duration = Duration::from_micros(5);
const LAST_PAUSE: Duration = Duration::from_micros(500);
/// By how much a sleep of this thread is prolonged, in ns, while it waits for others.
const SLACK: u64 = 1_000;
/// How often threads that appear meanwhile are looked for.
const ROUNDS: usize = 5;
/// Room for the state of a processor's extensions: 11 KiB with AMX.
const XSTATE: usize = 16 << 10;
/// `NT_X86_XSTATE`, the state of all extensions of the processor.
const NT_X86_XSTATE: libc::c_uint = 0x202;
/// `PTRACE_O_SUSPEND_SECCOMP`: no filter applies to a thread while it is traced. Needs root.
const SUSPEND_SECCOMP: i32 = 1 << 21;
/// The flag that a program may change to learn whether there is `cpuid`. No tracer can set it.
const EFLAGS_ID: u64 = 1 << 21;
/// The code segment of 64-bit programs.
const USER_64: u64 = 0x33;
/// The kernel's own errors that make it run an interrupted call again, which the program never sees.
const RESTART: std::ops::RangeInclusive<i64> = -514..=-512;
/// The same, by `restart_syscall`.
const RESTART_BLOCK: i64 = -516;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `syscall`.
const INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// The area of a thread that the kernel keeps up to date (`rseq(2)`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RseqArea {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// A thread as it is stopped.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) id: Pid,
    registers: user_regs_struct,
    extensions: Vec<u8>,
    mask: u64,
    pub(crate) rseq: Option<RseqArea>,
}

impl Thread {
    /// The number of the system call that it waits in, if it does.
    pub(crate) fn waits_in(&self) -> Option<u64> {
        (self.registers.orig_rax.cast_signed() >= 0).then_some(self.registers.orig_rax)
    }
}

/// A process whose threads are all stopped by this thread. They go on when it is dropped.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) pid: Pid,
    /// By id.
    threads: Vec<(Pid, Option<Signal>)>,
    /// The kernel knows a tracer by its thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Tracee {
    /// Lets all threads go on. Kills the process if one does not: it would stop later, and nobody would let it go.
    fn let_go(&mut self) {
        let deadline = Instant::now() + END_LIMIT;
        let mut threads = std::mem::take(&mut self.threads);
        // The first thread ends last, whatever its id is.
        threads.sort_unstable_by_key(|(thread, _)| *thread == self.pid);
        threads.retain(|(thread, signal)| !let_go(*thread, *signal, deadline));
        // Back to what is usual. It cannot fail where it did not before.
        let _ = set_timerslack(0);
        if threads.is_empty() {
            return;
        }
        // What is traced is not reaped, so the id is still its own.
        let _ = kill(self.pid, Signal::SIGKILL);
        // Some waits end late even then. Until each is reaped, nobody learns that the process has ended.
        let reap = move || threads.into_iter().for_each(|(thread, _)| reap(thread));
        drop(std::thread::Builder::new().name("reap".to_owned()).spawn(reap));
    }
}

/// Waits for the end of a thread that was killed.
fn reap(thread: Pid) {
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Lets a thread go on. One that ends is waited for: nobody else learns of its end before. Returns whether it went on
/// or ended.
fn let_go(thread: Pid, signal: Option<Signal>, deadline: Instant) -> bool {
    while ptrace::detach(thread, signal) == Err(Errno::ESRCH) {
        match wait(thread, deadline) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return true,
            Err(Unfit::Busy(_)) => return false,
            Err(_) => return true,
            // It has stopped only now.
            Ok(_) => {}
        }
    }
    true
}

/// The ids of a process's threads, in order.
pub(crate) fn threads(pid: Pid) -> Result<Vec<Pid>, Unfit> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(kernel("list its threads"))?;
    let mut threads = Vec::new();
    for task in tasks {
        let task = task.map_err(kernel("list its threads"))?;
        threads.extend(
            task.file_name()
                .to_str()
                .and_then(|id| id.parse().ok())
                .map(Pid::from_raw),
        );
    }
    threads.sort_unstable();
    Ok(threads)
}

impl Tracee {
    /// Stops all threads of a process. Blocks for some 100 us.
    ///
    /// # Errors
    /// Returns an error when a thread does not stop, has a signal, or ends. All go on then.
    pub(crate) fn stop(pid: Pid) -> Result<Self, Unfit> {
        let mut tracee = Self {
            pid,
            threads: Vec::new(),
            _of_this_thread: PhantomData,
        };
        set_timerslack(SLACK).map_err(kernel("have short pauses"))?;
        let deadline = Instant::now() + STOP_LIMIT;
        for _ in 0..ROUNDS {
            let known = tracee.threads.len();
            for thread in threads(pid)? {
                if tracee.threads.iter().any(|(known, _)| *known == thread) {
                    continue;
                }
                match ptrace::seize(thread, ptrace::Options::empty()) {
                    Err(Errno::ESRCH) => continue,
                    seized => seized.map_err(kernel("trace a thread"))?,
                }
                tracee.threads.push((thread, None));
                ptrace::interrupt(thread).map_err(kernel("stop a thread"))?;
            }
            for at in known..tracee.threads.len() {
                tracee.wait_for(at, deadline)?;
            }
            if known == tracee.threads.len() {
                tracee.threads.sort_unstable_by_key(|(id, _)| *id);
                return Ok(tracee);
            }
        }
        Err(Unfit::Threads("new ones come all the time".to_owned()))
    }

    /// Waits until a thread has stopped as it was told.
    fn wait_for(&mut self, at: usize, deadline: Instant) -> Result<(), Unfit> {
        let (thread, signal) = &mut self.threads[at];
        match wait(*thread, deadline)? {
            WaitStatus::PtraceEvent(..) => Ok(()),
            WaitStatus::Stopped(_, came) => {
                *signal = Some(came);
                Err(Unfit::Signals(format!("{came} has come")))
            }
            _ => Err(Unfit::Threads("one has ended".to_owned())),
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Pid> {
        self.threads.iter().map(|(id, _)| *id)
    }

    /// Reads the state of all threads. A call that the kernel would run again begins anew for whoever gets this state.
    pub(crate) fn state(&self) -> Result<Vec<Thread>, Unfit> {
        self.ids().map(state).collect()
    }

    /// Refuses threads with a flag that only they themselves can put back.
    pub(crate) fn check_flags(&self, threads: &[Thread]) -> Result<(), Unfit> {
        for thread in threads {
            let now = ptrace::getregs(thread.id).map_err(kernel("read registers"))?;
            if (now.eflags ^ thread.registers.eflags) & EFLAGS_ID != 0 {
                return Err(Unfit::Threads(format!("{} has changed EFLAGS.ID", thread.id)));
            }
        }
        Ok(())
    }

    /// Puts threads into this state.
    pub(crate) fn set_state(&self, threads: &[Thread]) -> Result<(), Unfit> {
        for thread in threads {
            ptrace::setregs(thread.id, thread.registers).map_err(kernel("set registers"))?;
            let mut extensions = thread.extensions.clone();
            request(
                libc::PTRACE_SETREGSET,
                thread.id,
                NT_X86_XSTATE as usize,
                &mut vector(&mut extensions),
            )
            .map_err(kernel("set the state of the processor's extensions"))?;
            let mut mask = thread.mask;
            request(libc::PTRACE_SETSIGMASK, thread.id, size_of::<u64>(), &mut mask)
                .map_err(kernel("set the mask of signals"))?;
        }
        Ok(())
    }

    /// Returns whether signals wait for the process or one of its threads.
    pub(crate) fn has_signals(&self) -> Result<bool, Unfit> {
        const SHARED: u32 = 1;
        for thread in self.ids() {
            let kinds: &[u32] = if thread == self.pid { &[0, SHARED] } else { &[0] };
            for flags in kinds {
                let mut arguments = libc::ptrace_peeksiginfo_args {
                    off: 0,
                    flags: *flags,
                    nr: 1,
                };
                // SAFETY: a plain structure of numbers.
                let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
                let arguments = &raw mut arguments as usize;
                let found = request(libc::PTRACE_PEEKSIGINFO, thread, arguments, &mut info);
                if found.map_err(kernel("look for signals"))? > 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Lifts the filters of its first thread until that goes on, so that the tracer's own calls pass.
    pub(crate) fn suspend_filters(&self, suspended: bool) -> Result<(), Unfit> {
        let options = if suspended { SUSPEND_SECCOMP } else { 0 };
        // SAFETY: the request takes two numbers.
        let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, self.pid.as_raw(), 0, options as usize) };
        Errno::result(set).map(drop).map_err(kernel("lift its filters"))
    }
}

/// Makes system calls in the first thread of a process, which waits in one.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    tracee: &'a Tracee,
    registers: user_regs_struct,
}

impl<'a> Caller<'a> {
    /// Prepares it for threads in this state.
    ///
    /// # Errors
    /// Returns `Busy` if the thread runs code of its own.
    pub(crate) fn of(tracee: &'a Tracee, threads: &[Thread]) -> Result<Self, Unfit> {
        let busy = || Unfit::Busy("its first thread runs".to_owned());
        // Ids begin anew at their end, so the first is not always the lowest.
        let first = threads.iter().find(|thread| thread.id == tracee.pid);
        let state = first.filter(|first| first.registers.cs == USER_64).ok_or_else(busy)?;
        let mut registers = state.registers;
        // The state of a call that begins anew is before its instruction, of one that has ended after it.
        let here = [registers.rip, registers.rip.wrapping_sub(2)];
        let found = here.into_iter().find(|at| {
            ptrace::read(state.id, *at as ptrace::AddressType)
                .is_ok_and(|word| word.to_le_bytes().starts_with(&INSTRUCTION))
        });
        registers.rip = found.ok_or_else(busy)?;
        registers.orig_rax = u64::MAX;
        Ok(Self { tracee, registers })
    }

    /// Makes a call. Returns what it returns.
    ///
    /// # Errors
    /// Returns the call's own error, or that the thread did something else.
    pub(crate) fn call(&self, what: &'static str, number: i64, arguments: &[u64]) -> Result<u64, Unfit> {
        let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
        let registers = user_regs_struct {
            rax: number.cast_unsigned(),
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.registers
        };
        let thread = self.tracee.pid;
        ptrace::setregs(thread, registers).map_err(kernel(what))?;
        ptrace::step(thread, None).map_err(kernel(what))?;
        match wait(thread, Instant::now() + CALL_LIMIT) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => {}
            other => return Err(Unfit::Threads(format!("{what}: {other:?}"))),
        }
        let returned = ptrace::getregs(thread).map_err(kernel(what))?.rax.cast_signed();
        match i32::try_from(-returned) {
            Ok(errno @ 1..4096) => Err(kernel(what)(Errno::from_raw(errno))),
            _ => Ok(returned.cast_unsigned()),
        }
    }
}

impl Caller<'_> {
    /// Writes to the process's memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unfit> {
        let remote = RemoteIoVec {
            base: address as usize,
            len: bytes.len(),
        };
        let written = process_vm_writev(self.tracee.pid, &[IoSlice::new(bytes)], &[remote]);
        written.map(drop).map_err(kernel("write its memory"))
    }

    /// Reads what a call has answered.
    pub(crate) fn read(&self, address: u64) -> Result<[u8; 32], Unfit> {
        let mut bytes = [0; 32];
        let remote = RemoteIoVec {
            base: address as usize,
            len: bytes.len(),
        };
        process_vm_readv(self.tracee.pid, &mut [IoSliceMut::new(&mut bytes)], &[remote])
            .map_err(kernel("read its memory"))?;
        Ok(bytes)
    }
}

/// Waits for a thread's next stop. Most come within 50 us, which is less than what a sleep is prolonged by.
fn wait(thread: Pid, deadline: Instant) -> Result<WaitStatus, Unfit> {
    let mut pause = FIRST_PAUSE;
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() >= deadline => {
                return Err(Unfit::Busy("a thread does not stop".to_owned()));
            }
            Ok(WaitStatus::StillAlive) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
            Err(Errno::EINTR) => {}
            waited => return waited.map_err(kernel("wait for a thread")),
        }
    }
}

fn state(id: Pid) -> Result<Thread, Unfit> {
    let mut registers = ptrace::getregs(id).map_err(kernel("read registers"))?;
    if registers.orig_rax.cast_signed() >= 0 {
        let returned = registers.rax.cast_signed();
        let is_known = registers.orig_rax != libc::SYS_restart_syscall.cast_unsigned();
        if RESTART.contains(&returned) || returned == RESTART_BLOCK && is_known {
            registers.rax = registers.orig_rax;
            registers.rip -= INSTRUCTION.len() as u64;
        } else if returned == RESTART_BLOCK {
            // Which call it was cannot be seen any more.
            registers.rax = -i64::from(libc::EINTR) as u64;
        }
    }
    let mut extensions = vec![0; XSTATE];
    let mut room = vector(&mut extensions);
    request(libc::PTRACE_GETREGSET, id, NT_X86_XSTATE as usize, &mut room)
        .map_err(kernel("read the state of the processor's extensions"))?;
    let length = room.iov_len;
    extensions.truncate(length);
    let mut mask = 0_u64;
    request(libc::PTRACE_GETSIGMASK, id, size_of::<u64>(), &mut mask).map_err(kernel("read the mask of signals"))?;
    let mut rseq = RseqConfiguration::default();
    let found = request(
        PTRACE_GET_RSEQ_CONFIGURATION,
        id,
        size_of::<RseqConfiguration>(),
        &mut rseq,
    );
    found.map_err(kernel("read where its restartable sequences are"))?;
    let rseq = (rseq.address != 0).then_some(RseqArea {
        address: rseq.address,
        bytes: rseq.size as usize,
    });
    Ok(Thread {
        id,
        registers,
        extensions,
        mask,
        rseq,
    })
}

fn vector(bytes: &mut [u8]) -> iovec {
    iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// A request of ptrace that reads or writes `data`, which must be what belongs to it.
fn request<T>(request: libc::c_uint, thread: Pid, address: usize, data: &mut T) -> Result<libc::c_long, Errno> {
    // SAFETY: `data` is the structure that the request takes, and lives as long as the call.
    Errno::result(unsafe { libc::ptrace(request, thread.as_raw(), address, &raw mut *data) })
}
