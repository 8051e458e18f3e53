//! The last step of each thread: `rt_sigreturn` loads its registers from its frame.
//!
//! The frames and the code that issues the call cannot be unmapped by the process itself: whoever unmaps them would
//! still need them. So this *residue* stays, and the window goes with the last thread.
//!
//! ```text
//! residue: code (r-x) | counter, frame, frame, … (rw-)
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

use rekindle_restore_program::{PAGE, Program, RESIDUE_MAX, Thread, frame, whole_pages, window};

use crate::sys::{EINVAL, Outcome, call, nr};

/// Address of the residue.
static RESIDUE: AtomicU64 = AtomicU64::new(0);
/// Address of a frame in the residue, less its offset in the program.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// Offset of the counter.
const COUNTER: u64 = PAGE;
/// Offset of the first frame.
const FRAMES: u64 = COUNTER + 64;

core::arch::global_asm!(
    // Frame in r12, counter in r13. It is copied to the residue, and needs no stack.
    ".globl depart_start",
    "depart_start:",
    "lock dec dword ptr [r13]",
    "jnz 1f",
    "mov edi, {start}",
    "mov esi, {length}",
    "mov eax, 11",
    "syscall",
    "1: mov rsp, r12",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".globl depart_end",
    "depart_end:",
    start = const window::START,
    length = const window::END - window::START,
);

unsafe extern "C" {
    static depart_start: u8;
    static depart_end: u8;
}

/// Where the frames of a program are in it: offset of the first, and bytes of all. They follow each other.
fn frames(program: Program<'static>) -> Option<(u64, u64)> {
    let mut threads = program.threads().map(|thread| thread.frame);
    let first = threads.next()?;
    let last = threads.last().unwrap_or(first);
    let end = last.at.checked_add(last.count)?;
    Some((first.at.into(), end.checked_sub(first.at)?.into()))
}

const fn residue_bytes(frames: u64) -> u64 {
    PAGE + whole_pages(FRAMES - COUNTER + frames)
}

pub(crate) fn lay_out(program: Program<'static>, residue: u64) -> Outcome {
    let (first, bytes) = frames(program).ok_or(EINVAL)?;
    let length = residue_bytes(bytes);
    if length > RESIDUE_MAX {
        return Err(EINVAL);
    }
    // Only where nothing is.
    if call!(nr::MMAP, residue, length, 3, 0x10_8022, u64::MAX, 0)? != residue {
        return Err(EINVAL);
    }
    RESIDUE.store(residue, Ordering::Release);
    FIRST.store(residue + FRAMES - first, Ordering::Release);
    let all = program.part(first, bytes).map_err(|_| EINVAL)?;
    let (code, code_end) = (&raw const depart_start, &raw const depart_end);
    // SAFETY: what is written was just mapped, and is long enough. Frames are in the order of threads.
    unsafe {
        core::ptr::copy_nonoverlapping(code, residue as *mut u8, code_end as usize - code as usize);
        core::ptr::copy_nonoverlapping(all.as_ptr(), (residue + FRAMES) as *mut u8, all.len());
        ((residue + COUNTER) as *mut u32).write(program.threads().len() as u32);
        for thread in program.threads() {
            let at = residue + FRAMES + u64::from(thread.frame.at) - first;
            ((at + frame::STATE_ADDRESS as u64) as *mut u64).write(at + frame::STATE as u64);
        }
    }
    call!(nr::MPROTECT, residue, PAGE, 5)
}

/// Loads a thread's registers.
pub(crate) fn one(thread: &Thread) -> ! {
    let residue = RESIDUE.load(Ordering::Acquire);
    let at = FIRST.load(Ordering::Acquire) + u64::from(thread.frame.at);
    // SAFETY: the code is there, and the frame; nothing of this program is used any more.
    unsafe {
        core::arch::asm!("jmp {code}", code = in(reg) residue, in("r12") at, in("r13") residue + COUNTER,
            options(noreturn));
    }
}
