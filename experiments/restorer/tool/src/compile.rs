//! Compiles a process of checked images into a restore program.
//!
//! What cannot be restored is named, and the snapshot is then CRIU's.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use rekindle_verify::Process;
use rekindle_verify::messages::{Core, Vma};
use restore_program::{Code, PROCESSES_MAX, Thread, window};

use crate::builder::Builder;
use crate::images::Images;
use crate::memory::Pages;
use crate::{descriptors, frame, memory};

/// The end of each stage, as a restore reports it.
pub const STAGES: [&str; 12] = [
    "set up, clocks",
    "unmap",
    "map",
    "read pages",
    "protect",
    "vdso, mm",
    "tell that all is mapped",
    "descriptors",
    "signals, limits",
    "threads",
    "filter",
    "wait to be told to go on",
];

/// A program, and what its process maps besides files.
pub struct Compiled {
    pub program: Vec<u8>,
    pub template: memory::Template,
}

/// Compiles the processes of `images`. `file` reads a file of the function's root.
pub fn compile(images: &Images, pages: Pages, file: &memory::ReadFile<'_>) -> Result<Compiled> {
    let processes = images.verified.processes.as_slice();
    ensure!(processes.len() <= PROCESSES_MAX, "{} processes", processes.len());
    share_nothing(processes)?;
    let (mut b, mut template) = (Builder::default(), memory::Template::default());
    clocks(&mut b, images);
    b.op(Code::Identity, 0, []);
    let tables = descriptors::Tables::of(images);
    // A single process makes its descriptors while its memory is registered; several inherit what they share.
    if processes.len() > 1 {
        descriptors::make_shared(&mut b, images, &tables)?;
    }
    for (number, process) in processes.iter().enumerate() {
        if number > 0 {
            b.next_process();
        }
        one(&mut b, images, number, pages, file, &mut template, &tables)
            .with_context(|| format!("process {}", process.tree.pid))?;
    }
    let program = b.finish(tables.end, tables.shared_end);
    let room = window::END - window::PROGRAM;
    ensure!((program.len() as u64) < room, "the program is too large");
    Ok(Compiled { program, template })
}

/// Processes that share more than files are not known here.
fn share_nothing(processes: &[Process]) -> Result<()> {
    let ids = processes
        .iter()
        .map(|p| p.ids.as_ref().context("a dead process"))
        .collect::<Result<Vec<_>>>()?;
    for (at, a) in ids.iter().enumerate() {
        for b in &ids[at + 1..] {
            let apart = (
                a.vm_id != b.vm_id,
                a.files_id != b.files_id,
                a.fs_id != b.fs_id,
                a.sighand_id != b.sighand_id,
            );
            ensure!(
                apart == (true, true, true, true),
                "processes share memory, descriptors, directories or handlers"
            );
        }
    }
    Ok(())
}

fn one(
    b: &mut Builder,
    images: &Images,
    number: usize,
    pages: Pages,
    file: &memory::ReadFile<'_>,
    template: &mut memory::Template,
    tables: &descriptors::Tables,
) -> Result<()> {
    let processes = images.verified.processes.as_slice();
    let process = &processes[number];
    let mm = process.memory.as_ref().context("the process is dead")?;
    family(b, processes, number)?;
    b.op(Code::Stage, 0, []);
    b.op(Code::Clear, 0, []);
    b.op(Code::Stage, 1, []);
    memory::compile(b, images, process, pages, file, template)?;
    let vvar = kernel_pages(&mm.vmas)?;
    b.op(Code::Vdso, 0, [vvar]);
    memory_fields(b, images, process)?;
    b.op(Code::Stage, 5, []);
    b.op(Code::Tell, 0, []);
    b.op(Code::Stage, 6, []);
    if processes.len() > 1 {
        descriptors::take_shared(b, images, process, tables)?;
    } else {
        descriptors::make_own(b, images, process)?;
    }
    descriptors::directories(b, images, process)?;
    b.op(Code::Stage, 7, []);
    task(b, &process.threads[0].core)?;
    b.op(Code::Stage, 8, []);
    for thread in &process.threads {
        add_thread(b, &thread.core, thread.tid)?;
    }
    b.op(Code::Threads, 0, []);
    b.op(Code::Stage, 9, []);
    let first = process.threads[0].core.thread_core.as_ref();
    if let Some(filter) = first.and_then(|thread| thread.seccomp_filter) {
        let filter = images.filters.get(filter as usize).context("no such filter")?;
        let at = b.data(filter);
        b.op(Code::Filter, (filter.len() / 8) as u32, [at]);
    }
    b.op(Code::Stage, 10, []);
    b.op(Code::Wait, 0, []);
    b.op(Code::Stage, 11, []);
    Ok(())
}

/// Session and group, then children: a session cannot begin once a process leads a group.
fn family(b: &mut Builder, processes: &[Process], number: usize) -> Result<()> {
    let tree = &processes[number].tree;
    if number > 0 {
        let parent = processes
            .iter()
            .find(|p| p.tree.pid == tree.ppid)
            .context("a process without its parent")?;
        match (tree.sid, tree.pgid) {
            (sid, pgid) if sid == tree.pid && pgid == tree.pid => b.op(Code::Session, 0, []),
            (sid, pgid) if sid == parent.tree.sid && pgid == tree.pid => b.op(Code::Group, 0, []),
            (sid, pgid) if sid == parent.tree.sid && pgid == parent.tree.pgid => {}
            _ => bail!("its session or group is neither its own nor its parent's"),
        }
    }
    for at in (0..processes.len()).filter(|at| processes[*at].tree.ppid == tree.pid) {
        ensure!(at > 0, "the first process has a parent");
        b.op(Code::Child, at as u32, []);
    }
    Ok(())
}

fn clocks(b: &mut Builder, images: &Images) {
    if let Some(clocks) = images.verified.clocks.values().next() {
        let (m, t) = (&clocks.monotonic, &clocks.boottime);
        let at = b.longs(&[m.tv_sec, m.tv_nsec, t.tv_sec, t.tv_nsec]);
        b.op(Code::Clocks, 0, [at]);
    }
}

/// The first page of the kernel's own. They must be as many, and as far from each other, as this kernel's.
fn kernel_pages(vmas: &[Vma]) -> Result<u64> {
    const VDSO: u32 = 1 << 3;
    const VVAR: u32 = 1 << 12;
    let of = |status: u32| vmas.iter().filter(move |vma| vma.status & status != 0);
    let start = of(VVAR | VDSO).map(|vma| vma.start).min().context("no vdso")?;
    let end = of(VVAR | VDSO).map(|vma| vma.end).max().context("no vdso")?;
    let vdso = of(VDSO).map(|vma| vma.start).next().context("no vdso")?;
    let own = own_kernel_pages()?;
    ensure!(
        own == (vdso - start, end - start),
        "the snapshot's vdso is another kernel's"
    );
    Ok(start)
}

/// From the first of the kernel's own pages in this process: the distance of the vdso, and the length of all.
fn own_kernel_pages() -> Result<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut found = BTreeMap::new();
    for line in maps
        .lines()
        .filter(|line| line.contains("[vdso]") || line.contains("[vvar"))
    {
        let (start, rest) = line.split_once('-').context("maps")?;
        let end = rest.split(' ').next().context("maps")?;
        found.insert(
            u64::from_str_radix(start, 16)?,
            (u64::from_str_radix(end, 16)?, line.contains("[vdso]")),
        );
    }
    let start = *found.keys().next().context("no vdso")?;
    let end = found.values().map(|(end, _)| *end).max().context("no vdso")?;
    let vdso = found.iter().find(|(_, (_, is))| *is).context("no vdso")?.0;
    Ok((vdso - start, end - start))
}

/// The kernel's `prctl_mm_map`.
fn memory_fields(b: &mut Builder, images: &Images, process: &Process) -> Result<()> {
    let mm = process.memory.as_ref().context("the process is dead")?;
    let program = &images
        .verified
        .files
        .get(&mm.exe_file_id)
        .and_then(|f| f.reg.as_ref())
        .context("no program")?;
    b.path(Code::Open, 0, &program.name);
    let auxv = b.longs(&mm.mm_saved_auxv);
    let fields = [
        mm.mm_start_code,
        mm.mm_end_code,
        mm.mm_start_data,
        mm.mm_end_data,
        mm.mm_start_brk,
        mm.mm_brk,
        mm.mm_start_stack,
        mm.mm_arg_start,
        mm.mm_arg_end,
        mm.mm_env_start,
        mm.mm_env_end,
        0,
        mm.mm_saved_auxv.len() as u64 * 8,
    ];
    let map = b.longs(&fields);
    b.op(Code::Memory, 0, [map, auxv]);
    b.op(Code::Close, 0, []);
    if mm.thp_disabled == Some(true) {
        b.op(Code::Control, 41, [1]);
    }
    Ok(())
}

/// `SIGKILL`, `SIGSTOP`: they have no handlers, and no place in the list.
const UNHANDLED: [u32; 2] = [9, 19];

fn task(b: &mut Builder, core: &Core) -> Result<()> {
    let tc = core.tc.as_ref().context("the first thread has no task")?;
    ensure!(
        tc.signals_s.as_ref().is_none_or(|s| s.signals.is_empty()),
        "signals are pending"
    );
    ensure!(tc.stop_signo.unwrap_or(0) == 0, "the process is stopped");
    for (signal, action) in (1..=64).filter(|s| !UNHANDLED.contains(s)).zip(&tc.sigactions) {
        if (action.sigaction, action.flags) != (0, 0) {
            let at = b.longs(&[action.sigaction, action.flags, action.restorer, action.mask]);
            b.op(Code::Handle, signal, [at]);
        }
    }
    if let Some(timers) = &tc.timers {
        ensure!(timers.posix.is_empty(), "POSIX timers");
        for (which, timer) in [&timers.real, &timers.virt, &timers.prof].into_iter().enumerate() {
            if (timer.vsec, timer.vusec) != (0, 0) {
                let at = b.longs(&[timer.isec, timer.iusec, timer.vsec, timer.vusec]);
                b.op(Code::IntervalTimer, which as u32, [at]);
            }
        }
    }
    for (which, limit) in tc.rlimits.iter().flat_map(|l| &l.rlimits).enumerate() {
        b.op(Code::Limit, which as u32, [limit.cur, limit.max]);
    }
    if tc.personality != 0 {
        b.op(Code::Personality, tc.personality, []);
    }
    if tc.child_subreaper == Some(true) {
        b.op(Code::Control, 36, [1]);
    }
    let barriers = tc.membarrier_registration_mask.unwrap_or(0);
    for command in (0..32).map(|bit| 1 << bit).filter(|command| barriers & command != 0) {
        b.op(Code::Barrier, command, []);
    }
    Ok(())
}

fn add_thread(b: &mut Builder, core: &Core, tid: u32) -> Result<()> {
    let info = core.thread_info.as_ref().context("a thread has no registers")?;
    let thread = core.thread_core.as_ref().context("a thread has no core")?;
    ensure!(
        thread.signals_p.as_ref().is_none_or(|s| s.signals.is_empty()),
        "thread {tid} has pending signals"
    );
    ensure!(
        (thread.sched_nice, thread.sched_policy) == (Some(0), Some(0)),
        "thread {tid} has another priority"
    );
    let rseq = thread.rseq_entry.as_ref();
    ensure!(
        rseq.is_none_or(|r| r.rseq_cs_pointer.unwrap_or(0) == 0),
        "thread {tid} is in a restartable sequence"
    );
    let mask = core
        .tc
        .as_ref()
        .map_or(thread.blk_sigset.unwrap_or(0), |tc| tc.blk_sigset);
    let mut name = [0; 16];
    let comm = core
        .tc
        .as_ref()
        .map_or(thread.comm.as_deref().unwrap_or_default(), |tc| &tc.comm);
    let length = comm.len().min(15);
    name[..length].copy_from_slice(&comm[..length]);
    let thread = Thread {
        fs: info.gpregs.fs_base,
        gs: info.gpregs.gs_base,
        clear_tid: info.clear_tid_addr,
        robust: thread.futex_rla,
        rseq: rseq.map_or(0, |r| r.rseq_abi_pointer),
        rseq_bytes: rseq.map_or(0, |r| r.rseq_abi_size),
        rseq_signature: rseq.map_or(0, |r| r.signature),
        id: tid,
        death_signal: thread.pdeath_sig.unwrap_or(0),
        name,
        ..Thread::default()
    };
    b.thread(thread, &frame::build(core, mask)?);
    Ok(())
}
