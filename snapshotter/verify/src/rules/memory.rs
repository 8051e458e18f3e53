//! `mm-PID.img`: a process's program and mappings.

use std::collections::BTreeSet;

use super::files::OpenFiles;
use super::{Context, KIND_OF_MODE, PAGE, USER_END, note, open_flags};
use crate::error::{EntryLocation, VerifyError};
use crate::expected::Limit;
use crate::frames::{magic, required};
use crate::messages::{Mm, Vma};
use crate::verified::{OpenedPath, Process, Purpose};

/// Maximum number of mappings in a process: the kernel's limit, plus guard ranges inside them.
const MAPPINGS_MAX: usize = 131_072;
/// Maximum number of words in CRIU's buffer.
const AUXV_MAX: usize = 64;
/// Only root may map lower addresses: a null pointer in the kernel would lead there.
const LOWEST_ADDRESS: u64 = 65_536;
const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;
/// `RLIMIT_MEMLOCK`.
const LOCKED_MEMORY: usize = 8;
/// Maximum size of the arguments and of the environment, in bytes. The kernel allows 6 MiB at program start. A process
/// may later declare any range as its arguments, and whoever restores the process would look at each page of the range.
const ARGUMENTS_MAX: u64 = 8 << 20;
/// Maximum size of a mapping of the kernel's own, in bytes.
const KERNEL_MAPPING_MAX: u64 = 64 << 10;

/// CRIU's status flags of mappings.
pub(crate) mod status {
    pub(crate) const REGULAR: u32 = 1 << 0;
    pub(crate) const STACK: u32 = 1 << 1;
    pub(crate) const VSYSCALL: u32 = 1 << 2;
    pub(crate) const VDSO: u32 = 1 << 3;
    pub(crate) const HEAP: u32 = 1 << 5;
    pub(crate) const FILE_PRIVATE: u32 = 1 << 6;
    pub(crate) const FILE_SHARED: u32 = 1 << 7;
    pub(crate) const ANON_SHARED: u32 = 1 << 8;
    pub(crate) const ANON_PRIVATE: u32 = 1 << 9;
    pub(crate) const VVAR: u32 = 1 << 12;
    pub(crate) const MEMFD: u32 = 1 << 14;
    /// Not a mapping, but guard pages inside one.
    pub(crate) const GUARD: u32 = 1 << 16;
}
use status::{ANON_PRIVATE, ANON_SHARED, FILE_PRIVATE, FILE_SHARED, GUARD, HEAP, MEMFD, REGULAR, STACK, VDSO, VVAR};

const WRITE: u32 = 2;
const ACCESS: u32 = 7;
const SHARED: u32 = 1;
const PRIVATE: u32 = 2;
const DROPPABLE: u32 = 8;
const MAP_TYPE: u32 = 0xf;
const ANONYMOUS: u32 = 0x20;
const LOCKED: u32 = 0x2000;
/// Grows down, locked, not reserved.
const MAP_FLAGS: u32 = 0x100 | LOCKED | 0x4000;
/// Random, sequential, not inherited by forks, mergeable, huge pages or none, not in core dumps, empty in forks.
const ADVICE: u64 = 1 << 1 | 1 << 2 | 1 << 10 | 1 << 12 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 18;

pub(super) fn check(
    context: Context<'_>,
    files: &OpenFiles,
    processes: &mut [Process],
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    for process in processes.iter_mut().filter(|p| context.tree.is_living(p.tree.pid)) {
        let name = format!("mm-{}.img", process.tree.pid);
        let (at, mm) = required::<Mm>(context.images, &name, magic::MM)?;
        check_layout(at, &mm)?;
        let program = files.regular(mm.exe_file_id).filter(|f| {
            let read_only = f.flags & open_flags::ACCESS == 0;
            read_only && f.mode.is_some_and(|m| m & KIND_OF_MODE == libc::S_IFREG)
        });
        let program = program.ok_or_else(|| at.refuse("exe_file_id", mm.exe_file_id))?;
        note(opened, OpenedPath::of(program, Purpose::Program, program.flags));
        check_mappings(context, at, files, &mm, opened)?;
        process.memory = Some(mm);
    }
    Ok(())
}

fn check_layout(at: EntryLocation<'_>, mm: &Mm) -> Result<(), VerifyError> {
    for (field, start, end) in [
        ("mm_start_code", mm.mm_start_code, mm.mm_end_code),
        ("mm_start_data", mm.mm_start_data, mm.mm_end_data),
        ("mm_start_stack", mm.mm_start_stack, mm.mm_start_stack),
        ("mm_start_brk", mm.mm_start_brk, mm.mm_brk),
        ("mm_arg_start", mm.mm_arg_start, mm.mm_arg_end),
        ("mm_env_start", mm.mm_env_start, mm.mm_env_end),
    ] {
        at.hold(
            LOWEST_ADDRESS <= start && start <= end && end <= USER_END,
            field,
            (start, end),
        )?;
    }
    for (field, start, end) in [
        ("mm_arg_end", mm.mm_arg_start, mm.mm_arg_end),
        ("mm_env_end", mm.mm_env_start, mm.mm_env_end),
    ] {
        at.hold(end - start <= ARGUMENTS_MAX, field, (start, end))?;
    }
    at.hold(
        mm.mm_saved_auxv.len() <= AUXV_MAX,
        "mm_saved_auxv",
        mm.mm_saved_auxv.len(),
    )?;
    at.hold(matches!(mm.dumpable, None | Some(0 | 1)), "dumpable", mm.dumpable)?;
    at.hold(mm.vmas.len() <= MAPPINGS_MAX, "vmas", mm.vmas.len())
}

fn check_mappings(
    context: Context<'_>,
    at: EntryLocation<'_>,
    files: &OpenFiles,
    mm: &Mm,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let (Limit::AtMost(lockable) | Limit::Exactly(lockable)) = context.expected.limits[LOCKED_MEMORY];
    let (mut end, mut locked) = (LOWEST_ADDRESS, 0_u64);
    for vma in &mm.vmas {
        at.hold(vma.fd == -1 || vma.status == GUARD, "vmas.fd", vma.fd)?;
        if vma.start == VSYSCALL.start {
            let empty = Vma {
                start: VSYSCALL.start,
                end: VSYSCALL.end,
                prot: vma.prot & 5,
                flags: PRIVATE | ANONYMOUS,
                status: status::VSYSCALL | ANON_PRIVATE,
                fd: -1,
                ..Vma::default()
            };
            at.hold(*vma == empty, "vmas.vsyscall", vma)?;
            continue;
        }
        let aligned = vma.start.is_multiple_of(PAGE) && vma.end.is_multiple_of(PAGE);
        at.hold(aligned && vma.start < vma.end && vma.end <= USER_END, "vmas.start", vma)?;
        if vma.status == GUARD {
            check_guard(at, vma)?;
            continue;
        }
        at.hold(vma.start >= end, "vmas.start", vma)?;
        end = vma.end;
        if vma.flags & LOCKED != 0 {
            locked = locked.saturating_add(vma.end - vma.start);
            at.hold(locked <= lockable, "vmas.flags", (vma, locked))?;
        }
        check_mapping(context, at, files, vma, opened)?;
    }
    Ok(())
}

/// A range without properties other than its bounds.
fn check_guard(at: EntryLocation<'_>, vma: &Vma) -> Result<(), VerifyError> {
    let bare = Vma {
        start: vma.start,
        end: vma.end,
        status: GUARD,
        fd: vma.fd,
        ..Vma::default()
    };
    at.hold(*vma == bare && matches!(vma.fd, -1 | 0), "vmas.guard", vma)
}

fn check_mapping(
    context: Context<'_>,
    at: EntryLocation<'_>,
    files: &OpenFiles,
    vma: &Vma,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let Vma {
        start,
        end,
        pgoff,
        shmid,
        prot,
        flags,
        status,
        fd: _,
        madv,
        fdflags,
    } = vma;
    let (kind, anonymous) = (flags & MAP_TYPE, flags & ANONYMOUS != 0);
    at.hold(prot & !ACCESS == 0, "vmas.prot", vma)?;
    at.hold(flags & !(MAP_TYPE | ANONYMOUS | MAP_FLAGS) == 0, "vmas.flags", vma)?;
    at.hold(madv.unwrap_or(0) & !ADVICE == 0, "vmas.madv", vma)?;
    let offset = pgoff.is_multiple_of(PAGE)
        && pgoff
            .checked_add(end - start)
            .is_some_and(|end| i64::try_from(end).is_ok());
    at.hold(offset, "vmas.pgoff", vma)?;
    at.hold(status & REGULAR != 0, "vmas.status", vma)?;
    let is_of_file = match status & !(REGULAR | STACK | HEAP) {
        ANON_PRIVATE => {
            at.hold(anonymous && matches!(kind, PRIVATE | DROPPABLE), "vmas.flags", vma)?;
            at.hold(*shmid == 0, "vmas.shmid", vma)?;
            false
        }
        // The kernel's own code and clocks.
        of_kernel if of_kernel == ANON_PRIVATE | VDSO || of_kernel == ANON_PRIVATE | VVAR => {
            let plain = anonymous && kind == PRIVATE && prot & WRITE == 0 && *shmid == 0;
            at.hold(plain && end - start <= KERNEL_MAPPING_MAX, "vmas.flags", vma)?;
            false
        }
        ANON_SHARED => {
            at.hold(anonymous && kind == SHARED, "vmas.flags", vma)?;
            false
        }
        of_file if of_file & !MEMFD == FILE_PRIVATE || of_file & !MEMFD == FILE_SHARED => {
            let wanted = if of_file & FILE_SHARED != 0 { SHARED } else { PRIVATE };
            at.hold(!anonymous && kind == wanted, "vmas.flags", vma)?;
            true
        }
        _ => return Err(at.refuse("vmas.status", vma)),
    };
    match fdflags {
        Some(fdflags) if is_of_file => check_file(context, at, files, vma, *fdflags, opened),
        None if !is_of_file => Ok(()),
        _ => Err(at.refuse("vmas.fdflags", vma)),
    }
}

fn check_file(
    context: Context<'_>,
    at: EntryLocation<'_>,
    files: &OpenFiles,
    vma: &Vma,
    fdflags: u32,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let id = u32::try_from(vma.shmid).map_err(|_| at.refuse("vmas.shmid", vma))?;
    if vma.status & MEMFD != 0 {
        let known = files.entries.get(&id).is_some_and(|entry| entry.memfd.is_some());
        at.hold(known, "vmas.shmid", vma)?;
        return at.hold(open_flags::may_be(fdflags), "vmas.fdflags", vma);
    }
    if files.template(id).is_some() {
        // Writing to it would write to the memory of others.
        at.hold(vma.status & FILE_SHARED == 0, "vmas.status", vma)?;
        return at.hold(
            fdflags & open_flags::ACCESS == 0 && open_flags::may_be(fdflags),
            "vmas.fdflags",
            vma,
        );
    }
    let file = files.regular(id).ok_or_else(|| at.refuse("vmas.shmid", vma))?;
    let kind = file.mode.unwrap_or(0) & KIND_OF_MODE;
    let mappable = kind == libc::S_IFREG || file.name == b"/dev/zero";
    at.hold(mappable, "vmas.shmid", String::from_utf8_lossy(&file.name))?;
    at.hold(
        open_flags::may_open(&file.name, fdflags, context.expected.writes_root),
        "vmas.fdflags",
        vma,
    )?;
    note(opened, OpenedPath::of(file, Purpose::Mapping, fdflags));
    Ok(())
}
