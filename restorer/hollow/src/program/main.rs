//! The hollow process: waits in an empty sandbox for a restore program, runs it, and is then the snapshot's process.
//!
//! ```text
//! start ──> own code in anonymous memory, the function's user, no rights but those to choose ids and clocks
//!   └─ wait for a program ──> run its operations ──> each thread departs ──> the snapshot's code
//! ```
//!
//! It has no C library, no allocator, no thread-local storage and no relocations. Everything that it needs is in its
//! window of addresses, so all other memory can go. Its system calls are the program's purpose. What they do to memory
//! outside the window is what the compiler of programs checked.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "system calls and a stack of its own are what it consists of")]

mod depart;
mod identity;
mod opening;
mod order;
mod run;
mod sys;
mod threads;

use rekindle_restore_program::Program;
use rekindle_restore_program::message::HollowReport;

use order::Order;
use sys::{call, exit, nr};

/// The stack on which programs are run: the kernel's is unmapped by then.
const STACK_BYTES: usize = 0x8000;

#[repr(C, align(4096))]
struct Stack([u8; STACK_BYTES]);
static mut STACK: Stack = Stack([0; STACK_BYTES]);

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    // On the kernel's stack, while the own is replaced.
    "xor ebp, ebp",
    "and rsp, -16",
    "call {settle}",
    "lea rsp, [{stack} + {bytes}]",
    "call {begin}",
    "ud2",
    settle = sym settle,
    stack = sym STACK,
    bytes = const STACK_BYTES,
    begin = sym begin,
);

unsafe extern "C" {
    static code_start: u8;
    static data_start: u8;
    static data_end: u8;
}

/// Replaces this program's pages of its file with equal ones of no file. While a process maps its program's file, the
/// kernel lets it have no other program.
fn leave_file() -> Result<(), sys::Errno> {
    let [code, data, end] = [&raw const code_start, &raw const data_start, &raw const data_end].map(|at| at as u64);
    for (start, length, protection) in [(code, data - code, 5), (data, end - data, 3)] {
        let copy = call!(nr::MMAP, 0, length, 3, 0x22, u64::MAX, 0)?;
        // SAFETY: the copy is a fresh mapping of this length. Nothing is written to the original until the copy is in
        // its place.
        unsafe { core::ptr::copy_nonoverlapping(start as *const u8, copy as *mut u8, length as usize) };
        call!(nr::MPROTECT, copy, length, protection)?;
        // May move, to a fixed address.
        call!(nr::MREMAP, copy, length, length, 3, start)?;
    }
    Ok(())
}

extern "C" fn settle() {
    if leave_file().is_err() {
        exit(101);
    }
}

extern "C" fn begin() -> ! {
    if identity::prepare().is_err() {
        exit(102);
    }
    if order::introduce().is_err() {
        exit(103);
    }
    let Ok(mut order) = order::receive() else { exit(104) };
    let Ok(bytes) = order.map() else { exit(105) };
    let Ok(program) = Program::parse(bytes) else { exit(106) };
    if order.make_room(program.header().shared_end.into()).is_err() {
        exit(107);
    }
    become_process(program, order)
}

/// Runs a process's program, and is that process then.
fn become_process(program: Program<'static>, order: Order) -> ! {
    match run::run(program, order) {
        Ok(()) => threads::depart(program),
        Err((operation, error)) => {
            // Nobody may listen any more.
            let _said = order.say(HollowReport::Failed(operation, error.0));
            exit(108)
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(109)
}

/// The core library names it, though nothing here unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
