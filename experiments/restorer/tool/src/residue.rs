//! Removes the residue of a restore, once a thread waits in a system call that the kernel restarts. It is made to issue
//! one more.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use restore_program::window;

/// The instruction, and its length.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Results of a call that the kernel will restart.
const AGAIN: std::ops::RangeInclusive<i64> = -516..=-512;

fn wait(pid: i32) -> Result<()> {
    let mut status = 0;
    // SAFETY: room for a status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    ensure!(
        waited == pid && libc::WIFSTOPPED(status),
        "the process ended: {status:#x}"
    );
    Ok(())
}

/// Calls that end with EINTR when a thread is traced: `epoll_wait`, `epoll_pwait`, `epoll_pwait2`.
const ENDING: [&str; 3] = ["232", "281", "441"];

/// Whether every thread has left the hollow process's code for good: the last one has unmapped the window, and each was
/// seen waiting elsewhere since.
pub fn is_left(pid: i32, residue: Range<u64>) -> Result<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let first = maps
        .split('-')
        .next()
        .and_then(|start| u64::from_str_radix(start, 16).ok());
    if first.is_none_or(|first| first < window::END) {
        return Ok(false);
    }
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let call = std::fs::read_to_string(entry?.path().join("syscall")).unwrap_or_default();
        let at = call
            .rsplit(" 0x")
            .next()
            .and_then(|at| u64::from_str_radix(at.trim(), 16).ok());
        if at.is_none_or(|at| residue.contains(&at)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Unmaps `length` bytes at `start` in the process. Returns how long the thread was stopped that did it.
pub fn remove(pid: i32, start: u64, length: u64) -> Result<Duration> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task: i32 = entry?.file_name().to_string_lossy().parse()?;
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/syscall")).unwrap_or_default();
        let number = call.split_whitespace().next().unwrap_or("running");
        if number.parse::<u32>().is_ok() && !ENDING.contains(&number) {
            return by(task, start, length);
        }
    }
    bail!("no thread waits")
}

fn by(pid: i32, start: u64, length: u64) -> Result<Duration> {
    let began = Instant::now();
    // SAFETY: traces our own descendant; structures outlive the calls.
    unsafe {
        let seized = libc::ptrace(libc::PTRACE_SEIZE, pid, 0, libc::PTRACE_O_TRACESYSGOOD);
        ensure!(seized == 0, "seize: {}", std::io::Error::last_os_error());
        libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0);
        wait(pid)?;
        let mut before: libc::user_regs_struct = std::mem::zeroed();
        libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut before);
        let instruction = before.rip - SYSCALL.len() as u64;
        let word = libc::ptrace(libc::PTRACE_PEEKTEXT, pid, instruction, 0);
        let waits = before.orig_rax.cast_signed() >= 0 && AGAIN.contains(&before.rax.cast_signed());
        if !waits || word.to_le_bytes()[..2] != SYSCALL {
            libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0);
            bail!("the process does not wait");
        }
        let mut call = before;
        (call.rip, call.rax, call.orig_rax) = (instruction, libc::SYS_munmap as u64, u64::MAX);
        (call.rdi, call.rsi) = (start, length);
        libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const call);
        for _ in 0..2 {
            libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, 0);
            wait(pid)?;
        }
        libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut call);
        let mut again = before;
        (again.rip, again.rax, again.orig_rax) = (instruction, before.orig_rax, u64::MAX);
        libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const again);
        libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0);
        ensure!(call.rax == 0, "munmap: {}", call.rax.cast_signed());
    }
    Ok(began.elapsed())
}
