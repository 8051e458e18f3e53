//! Compares a restored process with its images, before its first instruction.
//!
//! Each thread is traced from where it waits to the end of its `rt_sigreturn`: it has loaded its registers by then, and
//! executed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use rekindle_verify::messages::{Core, Vma};
use rekindle_verify::{Process, Thread};

use crate::frame;
use crate::images::PAGE;
use crate::run::{Job, Restore};

/// What is compared, and how often it differed.
#[derive(Default)]
struct Findings {
    compared: BTreeMap<&'static str, (usize, usize)>,
}

impl Findings {
    fn hold(&mut self, what: &'static str, holds: bool, say: impl FnOnce() -> String) {
        let (compared, differ) = self.compared.entry(what).or_default();
        *compared += 1;
        if !holds {
            *differ += 1;
            if *differ <= 8 {
                println!("{what}: {}", say());
            }
        }
    }
}

/// Restores once and compares.
pub fn once(job: &Job) -> Result<()> {
    let restore = Restore::begin(job)?;
    let pids = processes(restore.sandbox.function)?;
    let (mut tasks, mut all) = (BTreeMap::new(), BTreeSet::new());
    for process in &job.images.verified.processes {
        let inner = process.tree.pid;
        let pid = *pids.get(&inner).with_context(|| format!("no process {inner}"))?;
        // Threads are made while memory is registered.
        let mut of = self::tasks(pid)?;
        for _ in 0..5000 {
            if of.len() == process.threads.len() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            of = self::tasks(pid)?;
        }
        all.extend(of.values().copied());
        tasks.insert(inner, of);
    }
    for task in &all {
        seize(*task)?;
    }
    restore.go()?;
    until_returned(&all)?;
    let mut found = Findings::default();
    for process in &job.images.verified.processes {
        let inner = process.tree.pid;
        let (pid, tasks) = pids
            .get(&inner)
            .zip(tasks.get(&inner))
            .with_context(|| format!("no process {inner}"))?;
        let first = process.threads[0].core.thread_core.as_ref();
        let filters = usize::from(first.is_some_and(|thread| thread.seccomp_filter.is_some()));
        for thread in &process.threads {
            let task = tasks
                .get(&thread.tid)
                .with_context(|| format!("no thread {}", thread.tid))?;
            registers(&mut found, *task, thread)?;
            status(&mut found, *pid, *task, &thread.core, filters)?;
        }
        process_status(&mut found, *pid, process)?;
        mappings(&mut found, *pid, process, restore.residue)?;
        memory(&mut found, job, *pid, process)?;
        descriptors(&mut found, *pid, process)?;
    }
    println!("| compared | number | differ |\n|---|---|---|");
    for (what, (compared, differ)) in &found.compared {
        println!("| {what} | {compared} | {differ} |");
    }
    ensure!(
        found.compared.values().all(|(_, differ)| *differ == 0),
        "the restored process differs from its images"
    );
    Ok(())
}

/// The host's ids of a process and its descendants by their ids inside.
fn processes(first: i32) -> Result<BTreeMap<u32, i32>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![first]);
    while let Some(pid) = left.pop() {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        found.insert(
            field(&status, "NSpid")
                .split_whitespace()
                .last()
                .unwrap_or_default()
                .parse()?,
            pid,
        );
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        for child in children.split_whitespace() {
            left.push(child.parse()?);
        }
    }
    Ok(found)
}

/// The host's ids of a process's threads by their ids inside.
fn tasks(pid: i32) -> Result<BTreeMap<u32, i32>> {
    let mut tasks = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")? {
        let task: i32 = entry?.file_name().to_string_lossy().parse()?;
        let status = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap_or_default();
        let inner = field(&status, "NSpid")
            .split_whitespace()
            .last()
            .unwrap_or_default()
            .to_owned();
        tasks.insert(inner.parse()?, task);
    }
    Ok(tasks)
}

fn wait(task: i32) -> Result<(i32, i32)> {
    let mut status = 0;
    // SAFETY: room for a status.
    let waited = unsafe { libc::waitpid(task, &raw mut status, libc::__WALL) };
    ensure!(waited > 0 && libc::WIFSTOPPED(status), "a thread ended: {status:#x}");
    Ok((waited, status >> 8))
}

/// Traces a thread, and lets it run to its next system call.
fn seize(task: i32) -> Result<()> {
    // SAFETY: traces our own descendant.
    unsafe {
        let seized = libc::ptrace(libc::PTRACE_SEIZE, task, 0, libc::PTRACE_O_TRACESYSGOOD);
        ensure!(seized == 0, "seize: {}", std::io::Error::last_os_error());
        libc::ptrace(libc::PTRACE_INTERRUPT, task, 0, 0);
        wait(task)?;
        libc::ptrace(libc::PTRACE_SYSCALL, task, 0, 0);
    }
    Ok(())
}

/// Waits until every thread is at the end of its `rt_sigreturn`.
fn until_returned(tasks: &BTreeSet<i32>) -> Result<()> {
    const IN_CALL: i32 = libc::SIGTRAP | 0x80;
    let (mut returning, mut returned) = (BTreeSet::new(), BTreeSet::new());
    while returned.len() < tasks.len() {
        let (task, stop) = wait(-1)?;
        if stop == IN_CALL {
            if returning.contains(&task) {
                returned.insert(task);
                continue;
            }
            // SAFETY: the thread is stopped; the buffer outlives the call.
            let number = unsafe {
                let mut general: libc::user_regs_struct = std::mem::zeroed();
                libc::ptrace(libc::PTRACE_GETREGS, task, 0, &raw mut general);
                general.orig_rax
            };
            if number == libc::SYS_rt_sigreturn as u64 {
                returning.insert(task);
            }
        }
        // SAFETY: the thread is stopped.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, task, 0, 0) };
    }
    Ok(())
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim()
}

fn registers(found: &mut Findings, task: i32, thread: &Thread) -> Result<()> {
    const XSTATE: usize = 0x202;
    // SAFETY: traces our own descendant, which is stopped; the buffers outlive the calls.
    let (general, extended) = unsafe {
        let mut general: libc::user_regs_struct = std::mem::zeroed();
        ensure!(
            libc::ptrace(libc::PTRACE_GETREGS, task, 0, &raw mut general) == 0,
            "registers"
        );
        let mut extended = vec![0u8; 4096];
        let mut part = libc::iovec {
            iov_base: extended.as_mut_ptr().cast(),
            iov_len: extended.len(),
        };
        ensure!(
            libc::ptrace(libc::PTRACE_GETREGSET, task, XSTATE, &raw mut part) == 0,
            "extended state"
        );
        extended.truncate(part.iov_len);
        (general, extended)
    };
    let (g, info) = (general, thread.core.thread_info.as_ref().context("registers")?);
    let r = &info.gpregs;
    let pairs = [
        ("r15", g.r15, r.r15),
        ("r14", g.r14, r.r14),
        ("r13", g.r13, r.r13),
        ("r12", g.r12, r.r12),
        ("bp", g.rbp, r.bp),
        ("bx", g.rbx, r.bx),
        ("r11", g.r11, r.r11),
        ("r10", g.r10, r.r10),
        ("r9", g.r9, r.r9),
        ("r8", g.r8, r.r8),
        ("ax", g.rax, r.ax),
        ("cx", g.rcx, r.cx),
        ("dx", g.rdx, r.dx),
        ("si", g.rsi, r.si),
        ("di", g.rdi, r.di),
        ("ip", g.rip, r.ip),
        ("cs", g.cs, r.cs),
        ("flags", g.eflags, r.flags),
        ("sp", g.rsp, r.sp),
        ("ss", g.ss, r.ss),
        ("fs_base", g.fs_base, r.fs_base),
        ("gs_base", g.gs_base, r.gs_base),
    ];
    for (name, is, was) in pairs {
        found.hold("registers", is == was, || {
            format!("thread {} {name} is {is:x}, was {was:x}", thread.tid)
        });
    }
    // The frame has the state as the images do; the kernel gives it in the same layout.
    let built = frame::build(&thread.core, 0)?;
    let state = &built[restore_program::frame::STATE..];
    let present = |state: &[u8]| u64::from_le_bytes(std::array::from_fn(|at| state[512 + at]));
    let (was, is) = (present(state), present(&extended));
    for (name, bit, range) in [
        ("x87", 1 << 0, 32..160),
        ("control", 1 << 0, 0..24),
        ("xmm", 1 << 1, 160..416),
        ("mxcsr", 1 << 1, 24..28),
        ("ymm", 1 << 2, 576..832),
    ] {
        // A component in its initial state may be left out.
        let zero = vec![0; range.len()];
        let of = |state: &'_ [u8], present: u64| {
            if present & bit != 0 || bit == 1 || name == "mxcsr" {
                state[range.clone()].to_vec()
            } else {
                zero.clone()
            }
        };
        let (is, was) = (of(&extended, is), of(state, was));
        found.hold("extended state", is == was, || {
            format!("thread {} {name}: {is:x?}, was {was:x?}", thread.tid)
        });
    }
    Ok(())
}

fn status(found: &mut Findings, pid: i32, task: i32, core: &Core, filters: usize) -> Result<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{task}/status"))?;
    let thread = core.thread_core.as_ref().context("thread")?;
    let mask = core
        .tc
        .as_ref()
        .map_or(thread.blk_sigset.unwrap_or(0), |tc| tc.blk_sigset);
    let name = core
        .tc
        .as_ref()
        .map_or(thread.comm.clone().unwrap_or_default(), |tc| tc.comm.clone());
    let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
    for (what, expected) in [
        ("SigBlk", format!("{mask:016x}")),
        ("Name", name),
        ("NoNewPrivs", thread.no_new_privs()),
        ("Seccomp_filters", filters.to_string()),
        ("CapInh", format!("{:016x}", 0)),
        ("CapPrm", format!("{:016x}", 0)),
        ("CapEff", format!("{:016x}", 0)),
        ("CapBnd", format!("{:016x}", 0)),
        ("CapAmb", format!("{:016x}", 0)),
        ("Uid", "3001000\t3001000\t3001000\t3001000".to_owned()),
        ("Gid", "3001000\t3001000\t3001000\t3001000".to_owned()),
        ("Groups", String::new()),
    ] {
        let is = field(&status, what);
        found.hold("thread's status", is == expected, || {
            format!("{what} is {is:?}, was {expected:?}")
        });
    }
    robust_and_rseq(found, task, core)
}

/// The kernel's list of robust futexes and area for restartable sequences of a thread.
fn robust_and_rseq(found: &mut Findings, task: i32, core: &Core) -> Result<()> {
    const GET_RSEQ: u32 = 0x420f;
    let thread = core.thread_core.as_ref().context("thread")?;
    let (mut head, mut length) = (0u64, 0u64);
    // SAFETY: the kernel writes two numbers.
    unsafe { libc::syscall(libc::SYS_get_robust_list, task, &raw mut head, &raw mut length) };
    found.hold("robust lists", head == thread.futex_rla, || {
        format!("{head:x}, was {:x}", thread.futex_rla)
    });
    let mut area = [0u64; 3];
    // SAFETY: traces our own descendant, which is stopped; the kernel writes three numbers.
    unsafe { libc::ptrace(GET_RSEQ, task, size_of_val(&area), area.as_mut_ptr()) };
    let was = thread.rseq_entry.as_ref().map_or(0, |rseq| rseq.rseq_abi_pointer);
    found.hold("rseq", area[0] == was, || format!("{:x}, was {was:x}", area[0]));
    Ok(())
}

trait Privileges {
    fn no_new_privs(&self) -> String;
}

impl Privileges for rekindle_verify::messages::ThreadCore {
    fn no_new_privs(&self) -> String {
        self.creds
            .as_ref()
            .and_then(|creds| creds.no_new_privs)
            .unwrap_or(0)
            .to_string()
    }
}

fn process_status(found: &mut Findings, pid: i32, process: &Process) -> Result<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let tc = process.threads[0].core.tc.as_ref().context("task")?;
    let (mut ignored, mut caught) = (0u64, 0u64);
    for (signal, action) in (1..=64).filter(|s| !matches!(s, 9 | 19)).zip(&tc.sigactions) {
        match action.sigaction {
            0 => {}
            1 => ignored |= 1 << (signal - 1),
            _ => caught |= 1 << (signal - 1),
        }
    }
    for (what, expected) in [("SigIgn", ignored), ("SigCgt", caught)] {
        let (is, expected) = (field(&status, what), format!("{expected:016x}"));
        found.hold("signal handlers", is == expected, || {
            format!("{what} is {is}, was {expected}")
        });
    }
    let tree = &process.tree;
    let inner = |name: &str| {
        field(&status, name)
            .split_whitespace()
            .last()
            .and_then(|id| id.parse().ok())
    };
    for (name, was) in [("NSpid", tree.pid), ("NSpgid", tree.pgid), ("NSsid", tree.sid)] {
        found.hold("family", inner(name) == Some(was), || {
            format!("{name} is {:?}, was {was}", inner(name))
        });
    }
    let mm = process.memory.as_ref().context("memory")?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // From field 3 on: proc(5).
    for (name, number, was) in [
        ("startcode", 26, mm.mm_start_code),
        ("endcode", 27, mm.mm_end_code),
        ("startstack", 28, mm.mm_start_stack),
        ("start_data", 45, mm.mm_start_data),
        ("end_data", 46, mm.mm_end_data),
        ("start_brk", 47, mm.mm_start_brk),
        ("arg_start", 48, mm.mm_arg_start),
        ("arg_end", 49, mm.mm_arg_end),
        ("env_start", 50, mm.mm_env_start),
        ("env_end", 51, mm.mm_env_end),
    ] {
        let is: u64 = fields[number - 3].parse()?;
        found.hold("memory's fields", is == was, || {
            format!("{name} is {is:x}, was {was:x}")
        });
    }
    let auxv: Vec<u8> = mm.mm_saved_auxv.iter().flat_map(|word| word.to_le_bytes()).collect();
    let is = fs::read(format!("/proc/{pid}/auxv"))?;
    // The kernel ends with the first null entry.
    let end = is
        .chunks(16)
        .position(|entry| entry[..8] == [0; 8])
        .map_or(is.len(), |at| at * 16);
    let same = end > 64 && auxv.get(..end) == is.get(..end);
    found.hold("auxiliary vector", same, || format!("{is:x?}, was {auxv:x?}"));
    println!("exe {}", fs::read_link(format!("/proc/{pid}/exe"))?.display());
    Ok(())
}

/// Bounds and protection of mappings, as runs of equal protection: what lies behind them differs by design.
fn mappings(found: &mut Findings, pid: i32, process: &Process, residue: u64) -> Result<()> {
    let letter = |on: bool, letter: char| if on { letter } else { '-' };
    let rights = |vma: &Vma| -> String {
        let shared = if vma.flags & 0xf == 1 { 's' } else { 'p' };
        let (r, w, x) = (vma.prot & 1 != 0, vma.prot & 2 != 0, vma.prot & 4 != 0);
        [letter(r, 'r'), letter(w, 'w'), letter(x, 'x'), shared]
            .iter()
            .collect()
    };
    let join = |all: Vec<(u64, u64, String)>| {
        let mut joined: Vec<(u64, u64, String)> = Vec::new();
        for (start, end, rights) in all {
            match joined.last_mut() {
                Some(last) if last.1 == start && last.2 == rights => last.1 = end,
                _ => joined.push((start, end, rights)),
            }
        }
        joined
    };
    let mm = process.memory.as_ref().context("memory")?;
    let was = join(mm.vmas.iter().map(|vma| (vma.start, vma.end, rights(vma))).collect());
    let mut now = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut words = line.split_whitespace();
        let (bounds, rights) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (start, end) = bounds.split_once('-').context("maps")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        if (residue..residue + restore_program::RESIDUE_MAX).contains(&start) {
            println!("residue {line}");
        } else {
            now.push((start, end, rights.to_owned()));
        }
    }
    let (was, now): (BTreeSet<_>, BTreeSet<_>) = (was.into_iter().collect(), join(now).into_iter().collect());
    for mapping in was.union(&now) {
        let (is, had) = (now.contains(mapping), was.contains(mapping));
        let (start, end, rights) = mapping;
        found.hold("mappings", is == had, || {
            format!("{start:x}-{end:x} {rights}: is {is}, was {had}")
        });
    }
    Ok(())
}

/// Every page of the images, byte for byte.
fn memory(found: &mut Findings, job: &Job, pid: i32, process: &Process) -> Result<()> {
    let memory = job.images.memory.get(&process.tree.pid).context("memory")?;
    let (is, was) = (File::open(format!("/proc/{pid}/mem"))?, &job.pages);
    // The kernel writes the processor's number into areas for restartable sequences.
    let rseq: BTreeSet<u64> = process
        .threads
        .iter()
        .filter_map(|t| Some(t.core.thread_core.as_ref()?.rseq_entry.as_ref()?.rseq_abi_pointer))
        .collect();
    let (mut a, mut b) = ([0; PAGE as usize], [0; PAGE as usize]);
    for (first, (count, at)) in &memory.runs {
        for page in 0..*count {
            let address = (first + page) * PAGE;
            is.read_exact_at(&mut a, address)
                .with_context(|| format!("read {address:x}"))?;
            was.read_exact_at(&mut b, (at + page) * PAGE)?;
            let within = |byte: usize| {
                rseq.iter()
                    .any(|area| (*area..area + 32).contains(&(address + byte as u64)))
            };
            let same = a == b || (0..PAGE as usize).all(|byte| a[byte] == b[byte] || within(byte));
            found.hold("pages", same, || format!("page {address:x} differs"));
        }
    }
    Ok(())
}

fn descriptors(found: &mut Findings, pid: i32, process: &Process) -> Result<()> {
    let mut is = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        is.insert(entry?.file_name().to_string_lossy().parse::<u32>()?);
    }
    let was: BTreeSet<u32> = process.descriptors.keys().copied().collect();
    found.hold("descriptors", is == was, || format!("{is:?}, were {was:?}"));
    Ok(())
}
