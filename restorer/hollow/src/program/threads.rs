//! Threads: made with their ids while all memory is in place, they wait until the process may run. None of them has any
//! rights when the first of them runs the snapshot's code: that shares the memory of all.

use core::sync::atomic::{AtomicU32, Ordering};

use rekindle_restore_program::{Program, Thread, whole_pages, window};

use crate::sys::{EINVAL, Errno, Outcome, call, exit, nr};
use crate::{depart, identity};

/// Set when threads may go.
static GO: AtomicU32 = AtomicU32::new(0);
/// Threads that only wait to go.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Memory, directories, files, handlers, process, System V's undo, thread-local storage, id cleared at its end.
const SHARED: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x20_0000;

#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_bytes: u64,
    tls: u64,
    ids: u64,
    id_count: u64,
    cgroup: u64,
}

core::arch::global_asm!(
    // clone3(arguments in rdi, their size in rsi). The child finds its record on its stack.
    ".globl restorer_clone",
    "restorer_clone:",
    "mov eax, 435",
    "syscall",
    "test rax, rax",
    "jz 1f",
    "ret",
    "1: xor ebp, ebp",
    "pop rdi",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

unsafe extern "C" {
    fn restorer_clone(arguments: *const CloneArguments, size: usize) -> i64;
}

/// `SIGCHLD`.
pub(crate) const CHILD_ENDED: u64 = 17;

/// Forks a child with this id, at whose end this process gets `exit_signal`, if any. Returns 0 in the child.
pub(crate) fn fork(id: u32, exit_signal: u64) -> Outcome {
    let arguments = CloneArguments {
        exit_signal,
        ids: &raw const id as u64,
        id_count: 1,
        ..CloneArguments::default()
    };
    call!(nr::CLONE3, &raw const arguments, size_of::<CloneArguments>())
}

/// Makes all threads but the first, and waits until they wait.
pub(crate) fn make(program: Program<'static>) -> Outcome {
    let others = program.threads().len().saturating_sub(1);
    if others == 0 {
        return Ok(0);
    }
    if others >= window::THREADS_MAX {
        return Err(EINVAL);
    }
    let bytes = whole_pages(others as u64 * window::STACK);
    // Private, fixed, without a file.
    call!(nr::MMAP, window::STACKS, bytes, 3, 0x32, u64::MAX, 0)?;
    WAITING.store(0, Ordering::Release);
    for (number, thread) in program.threads().skip(1).enumerate() {
        let stack = window::STACKS + number as u64 * window::STACK;
        // The record is at the stack's end, aligned to 16 bytes, and its address below it.
        let record = (stack + window::STACK - size_of::<Thread>() as u64) & !15;
        // SAFETY: within the stack that has just been mapped.
        unsafe {
            (record as *mut Thread).write(thread);
            ((record - 8) as *mut u64).write(record);
        }
        let id = thread.id;
        let arguments = CloneArguments {
            flags: SHARED,
            child_tid: thread.clear_tid,
            stack,
            stack_bytes: record - 8 - stack,
            tls: thread.fs,
            ids: &raw const id as u64,
            id_count: 1,
            ..CloneArguments::default()
        };
        // SAFETY: the child has a stack and thread-local storage of its own, and uses nothing of ours that changes.
        let made = unsafe { restorer_clone(&raw const arguments, size_of::<CloneArguments>()) };
        if made < 0 {
            return Err(Errno(-made as i32));
        }
    }
    loop {
        let waiting = WAITING.load(Ordering::Acquire);
        if waiting as usize == others {
            return Ok(0);
        }
        wait(&WAITING, waiting);
    }
}

/// Waits for as long as the futex has this value, or less long.
fn wait(futex: &AtomicU32, value: u32) {
    const WAIT: u64 = 128;
    let _ = call!(nr::FUTEX, futex.as_ptr(), WAIT, value, 0);
}

/// Wakes all who wait.
fn wake(futex: &AtomicU32) {
    const WAKE: u64 = 1 | 128;
    let _ = call!(nr::FUTEX, futex.as_ptr(), WAKE, i32::MAX);
}

/// Ends the first thread's restore: from here on the process is the snapshot's.
pub(crate) fn depart(program: Program<'static>) -> ! {
    const SET_FS: u64 = 0x1002;
    const SET_GS: u64 = 0x1001;
    let Some(thread) = program.threads().next() else {
        exit(112)
    };
    let done = call!(nr::ARCH_PRCTL, SET_FS, thread.fs)
        .and_then(|_| {
            if thread.gs == 0 {
                Ok(0)
            } else {
                call!(nr::ARCH_PRCTL, SET_GS, thread.gs)
            }
        })
        .and_then(|_| call!(nr::SET_TID_ADDRESS, thread.clear_tid))
        .and_then(|_| become_thread(&thread));
    if done.is_err() {
        exit(113);
    }
    GO.store(1, Ordering::Release);
    wake(&GO);
    go(&thread)
}

extern "C" fn begin(thread: *const Thread) -> ! {
    // SAFETY: its record, which is mapped until the last thread has departed.
    let thread = unsafe { &*thread };
    if thread.gs != 0 && call!(nr::ARCH_PRCTL, 0x1001, thread.gs).is_err() {
        exit(110);
    }
    if become_thread(thread).is_err() {
        exit(111);
    }
    WAITING.fetch_add(1, Ordering::Release);
    wake(&WAITING);
    while GO.load(Ordering::Acquire) == 0 {
        wait(&GO, 0);
    }
    go(thread)
}

/// What each thread has of its own, besides what is in its frame and what it was made with. Its rights go last.
fn become_thread(thread: &Thread) -> Outcome {
    const NAME: u64 = 15;
    const DEATH_SIGNAL: u64 = 1;
    /// Bytes of the head of a list of robust futexes.
    const HEAD: u64 = 24;
    if thread.robust != 0 {
        call!(nr::SET_ROBUST_LIST, thread.robust, HEAD)?;
    }
    call!(nr::PRCTL, NAME, thread.name.as_ptr())?;
    if thread.death_signal != 0 {
        call!(nr::PRCTL, DEATH_SIGNAL, thread.death_signal)?;
    }
    identity::drop_all()
}

/// Runs the snapshot's code. From its registration the kernel writes to a thread's restartable sequence, so that is
/// last.
fn go(thread: &Thread) -> ! {
    if thread.rseq != 0 && call!(nr::RSEQ, thread.rseq, thread.rseq_bytes, 0, thread.rseq_signature).is_err() {
        exit(115);
    }
    depart::one(thread)
}
