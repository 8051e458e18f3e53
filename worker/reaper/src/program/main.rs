//! The reaper of a function that has processes which outlive their parents.
//!
//! ```text
//! init ── reaper ─┬─ program ─── its children
//!                 └─ processes whose parent has ended
//! ```
//!
//! It waits for its children, as the kernel has it adopt what loses its parent below it. It ends as the program ends.
//! It has a page of memory and makes few system calls, because each copy of the function has it.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "system calls are what it consists of")]

use core::arch::asm;

mod nr {
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const BRK: u64 = 12;
    pub(crate) const RT_SIGPROCMASK: u64 = 14;
    pub(crate) const GETPID: u64 = 39;
    pub(crate) const CLONE: u64 = 56;
    pub(crate) const EXECVE: u64 = 59;
    pub(crate) const WAIT4: u64 = 61;
    pub(crate) const KILL: u64 = 62;
    pub(crate) const SETSID: u64 = 112;
    pub(crate) const PRCTL: u64 = 157;
    pub(crate) const EXIT_GROUP: u64 = 231;
}

/// `SIGCHLD`.
const CHILD_ENDED: u64 = 17;
/// Exit code where the program cannot be run, as shells have it.
const NOT_RUN: u64 = 127;

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

/// Issues a system call. Returns the kernel's result.
fn call(number: u64, [a, b, c, d, e]: [u64; 5]) -> i64 {
    let result: i64;
    // SAFETY: what the call does is what the place of use is there for.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

fn exit(code: u64) -> ! {
    loop {
        call(nr::EXIT_GROUP, [code, 0, 0, 0, 0]);
    }
}

/// Blocks these signals, and no others.
fn block(signals: u64) {
    const SET: u64 = 2;
    call(nr::RT_SIGPROCMASK, [SET, &raw const signals as u64, 0, 8, 0]);
}

/// Makes a page of memory. Processes have their memory from templates, so each has some.
fn touch_heap_page() {
    const PAGE: u64 = 4096;
    let start = call(nr::BRK, [0; 5]) as u64;
    if call(nr::BRK, [start + PAGE, 0, 0, 0, 0]) as u64 == start + PAGE {
        // SAFETY: the page was just made.
        unsafe { (start as *mut u8).write_volatile(1) };
    }
}

/// `stack` is the kernel's: the number of arguments, these, a null pointer, and the environment.
extern "C" fn begin(stack: *const u64) -> ! {
    const SET_CHILD_SUBREAPER: u64 = 36;
    // SAFETY: the kernel has put the number there.
    let count = unsafe { *stack };
    if count < 3 {
        exit(NOT_RUN);
    }
    touch_heap_page();
    call(nr::PRCTL, [SET_CHILD_SUBREAPER, 1, 0, 0, 0]);
    // Signals to all processes are not for this one. The kernel keeps none of its children's ends for it.
    block(!(1 << (CHILD_ENDED - 1)));
    match call(nr::CLONE, [CHILD_ENDED, 0, 0, 0, 0]) {
        0 => run(stack, count),
        child if child > 0 => reap(child),
        _ => exit(NOT_RUN),
    }
}

/// Becomes the program, which leads a session of its own as it would without a reaper.
fn run(stack: *const u64, count: u64) -> ! {
    const STDERR: u64 = 2;
    const SAID: &[u8] = b"rekindle: the program cannot be run\n";
    call(nr::SETSID, [0; 5]);
    block(0);
    // SAFETY: there are `count` arguments, and a null pointer before the environment.
    let (program, arguments, environment) = unsafe { (*stack.add(2), stack.add(3), stack.add(count as usize + 2)) };
    call(nr::EXECVE, [program, arguments as u64, environment as u64, 0, 0]);
    call(nr::WRITE, [STDERR, SAID.as_ptr() as u64, SAID.len() as u64, 0, 0]);
    exit(NOT_RUN)
}

/// Waits for children until the program ends.
fn reap(program: i64) -> ! {
    /// Of any kind.
    const ALL: u64 = 0x4000_0000;
    const ANY: u64 = u64::MAX;
    const NO_CHILD: i64 = -10;
    loop {
        let mut status = 0_u32;
        match call(nr::WAIT4, [ANY, &raw mut status as u64, ALL, 0, 0]) {
            ended if ended == program => end(status),
            NO_CHILD => exit(NOT_RUN),
            _ => {}
        }
    }
}

/// Ends with the status of the program.
fn end(status: u32) -> ! {
    let signal = u64::from(status & 0x7f);
    if signal == 0 {
        exit(u64::from(status >> 8 & 0xff));
    }
    block(0);
    let own = call(nr::GETPID, [0; 5]);
    call(nr::KILL, [own as u64, signal, 0, 0, 0]);
    exit(128 + signal)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(NOT_RUN)
}

/// The core library names it, though nothing here unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
