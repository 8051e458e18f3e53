//! The last step of each thread: `rt_sigreturn` loads its registers from its frame.
//!
//! The frames and the code that issues the call cannot be unmapped by the process itself: whoever unmaps them would
//! still need them. So this *residue* stays, and everything else of the window goes with the last thread.
//!
//! ```text
//! residue: code (r-x) | counter, frame, frame, … (rw-)
//! ```

use restore_program::{PAGE, Program, Report, Thread, frame, window};

use crate::run::whole_pages;
use crate::sys::{EINVAL, Outcome, call, nr, now};
use crate::threads::{self, become_thread};

/// Where the counter is.
const COUNTER: u64 = window::RESIDUE + PAGE;
/// Where frames begin.
const FRAMES: u64 = COUNTER + 64;

core::arch::global_asm!(
    // Frame in r12, counter in r13, end of the residue in r14. It is copied to the residue, and needs no stack.
    ".globl depart_start",
    "depart_start:",
    "lock dec dword ptr [r13]",
    "jnz 1f",
    "mov edi, {start}",
    "mov esi, {before}",
    "mov eax, 11",
    "syscall",
    "mov rdi, r14",
    "mov esi, {end}",
    "sub rsi, r14",
    "mov eax, 11",
    "syscall",
    "1: mov rsp, r12",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".globl depart_end",
    "depart_end:",
    start = const window::START,
    before = const window::RESIDUE - window::START,
    end = const window::END,
);

unsafe extern "C" {
    static depart_start: u8;
    static depart_end: u8;
}

/// Where the frames of a program are in it: offset of the first, and bytes of all. They follow each other.
fn frames(program: Program<'static>) -> Option<(u64, u64)> {
    let (first, last) = (program.threads().first()?.frame, program.threads().last()?.frame);
    let end = last.at.checked_add(last.count)?;
    Some((first.at.into(), end.checked_sub(first.at)?.into()))
}

/// Bytes of the residue.
const fn residue_bytes(frames: u64) -> u64 {
    PAGE + whole_pages(FRAMES - COUNTER + frames)
}

/// Lays out the residue.
pub(crate) fn lay_out(program: Program<'static>) -> Outcome {
    let (first, bytes) = frames(program).ok_or(EINVAL)?;
    let length = residue_bytes(bytes);
    if length > window::RESIDUE_MAX {
        return Err(EINVAL);
    }
    call!(nr::MMAP, window::RESIDUE, length, 3, 0x8032, u64::MAX, 0)?;
    let all = program.part(first, bytes).map_err(|_| EINVAL)?;
    let (code, code_end) = (&raw const depart_start, &raw const depart_end);
    // SAFETY: what is written was just mapped, and is long enough. Frames are in the order of threads.
    unsafe {
        core::ptr::copy_nonoverlapping(code, window::RESIDUE as *mut u8, code_end as usize - code as usize);
        core::ptr::copy_nonoverlapping(all.as_ptr(), FRAMES as *mut u8, all.len());
        (COUNTER as *mut u32).write(program.threads().len() as u32);
        for thread in program.threads() {
            let at = FRAMES + u64::from(thread.frame.at) - first;
            ((at + frame::STATE_ADDRESS as u64) as *mut u64).write(at + frame::STATE as u64);
        }
    }
    call!(nr::MPROTECT, window::RESIDUE, PAGE, 5)
}

/// Ends the first thread's restore: from here on the process is the snapshot's.
pub(crate) fn first(program: Program<'static>, report: &mut Report) -> ! {
    const SET_FS: u64 = 0x1002;
    const SET_GS: u64 = 0x1001;
    let Some(thread) = program.threads().first() else {
        crate::sys::exit(112)
    };
    threads::release();
    let done = call!(nr::ARCH_PRCTL, SET_FS, thread.fs)
        .and_then(|_| if thread.gs == 0 { Ok(0) } else { call!(nr::ARCH_PRCTL, SET_GS, thread.gs) })
        .and_then(|_| call!(nr::SET_TID_ADDRESS, thread.clear_tid))
        .and_then(|_| become_thread(thread));
    if done.is_err() {
        crate::sys::exit(113);
    }
    report.departed = now();
    one(thread)
}

/// Loads a thread's registers.
pub(crate) fn one(thread: &Thread) -> ! {
    // SAFETY: the program is mapped at its place, and has been checked.
    let program = unsafe { Program::parse(core::slice::from_raw_parts(window::PROGRAM as *const u8, program_bytes())) };
    let Ok(program) = program else {
        crate::sys::exit(114)
    };
    let Some((first, bytes)) = frames(program) else {
        crate::sys::exit(114)
    };
    let residue_end = window::RESIDUE + residue_bytes(bytes);
    let at = FRAMES + u64::from(thread.frame.at) - first;
    // SAFETY: the code is there, and the frame; nothing of this program is used any more.
    unsafe {
        core::arch::asm!("jmp {code}", code = in(reg) window::RESIDUE, in("r12") at, in("r13") COUNTER,
            in("r14") residue_end, options(noreturn));
    }
}

fn program_bytes() -> usize {
    // SAFETY: a program is mapped there, and begins with its header.
    unsafe { (*(window::PROGRAM as *const restore_program::Header)).size as usize }
}
