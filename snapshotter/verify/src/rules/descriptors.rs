//! `fdinfo-N.img`, `fs-PID.img`, `filelocks.img`: the files that a process has open, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::files::{OpenFiles, kind};
use super::{Context, KIND_OF_MODE, note, paths};
use crate::error::{EntryLocation, VerifyError};
use crate::expected::Limit;
use crate::frames::{all, magic, required};
use crate::messages::{Descriptor, FileLock, Fs, ObjectIds};
use crate::verified::{OpenedPath, Process, Purpose};

/// `RLIMIT_NOFILE`.
const OPEN_FILES: usize = 7;
const CLOSE_ON_EXEC: u32 = 1;
const UMASK: u32 = 0o777;
/// Locks of POSIX, of BSD and of an open file description, as CRIU numbers them.
const LOCK_KINDS: [u32; 3] = [1, 2, 4];
const LEASE: u32 = 8;
/// Read and write.
const LOCK_MODES: [u32; 2] = [0, 1];

/// Maximum number of holders of an epoll that are asked what it watches. More of them are forks of a process that never
/// closed it.
const HOLDERS_MAX: usize = 16;

/// Files by descriptor.
type Table = Arc<BTreeMap<u32, Descriptor>>;
/// By the number of their image. Processes may share one.
type Tables = BTreeMap<u32, Table>;

pub(super) fn check(
    context: Context<'_>,
    files: &OpenFiles,
    ids: &BTreeMap<u32, ObjectIds>,
    processes: &mut [Process],
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let mut tables = Tables::new();
    for process in processes {
        let Some(ids) = ids.get(&process.tree.pid) else {
            continue;
        };
        let table = match tables.get(&ids.files_id) {
            Some(table) => table,
            None => tables
                .entry(ids.files_id)
                .or_insert(table(context, files, ids.files_id, opened)?),
        };
        process.descriptors = Arc::clone(table);
        check_shown(files, process)?;
        process.ids = Some(ids.clone());
        process.directories = Some(directories(context, files, process.tree.pid, opened)?);
    }
    check_polled(files, &tables)
}

fn table(
    context: Context<'_>,
    files: &OpenFiles,
    id: u32,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<Table, VerifyError> {
    let (Limit::AtMost(limit) | Limit::Exactly(limit)) = context.expected.limits[OPEN_FILES];
    let mut table = BTreeMap::new();
    for (at, descriptor) in all::<Descriptor>(context.images, &format!("fdinfo-{id}.img"), magic::DESCRIPTORS)? {
        let Descriptor { id, flags, kind, fd } = descriptor;
        let file = files.entries.get(&id);
        // The name given to a nameless file is not a file that may be open.
        let usable = file.is_some_and(|f| f.reg.is_none() || files.regular(id).is_some());
        at.hold(usable, "id", id)?;
        at.hold(file.is_some_and(|f| f.kind == kind), "type", kind)?;
        at.hold(flags & !CLOSE_ON_EXEC == 0, "flags", flags)?;
        at.hold(u64::from(fd) < limit && i32::try_from(fd).is_ok(), "fd", fd)?;
        at.hold(table.insert(fd, descriptor).is_none(), "fd", fd)?;
        files.note_opened(id, opened);
    }
    Ok(Arc::new(table))
}

/// A file of `/proc` about a process may be open in that process alone: it is there when the file is opened.
fn check_shown(files: &OpenFiles, process: &Process) -> Result<(), VerifyError> {
    let image = format!("fdinfo of {}", process.tree.pid);
    for descriptor in process.descriptors.values() {
        let Some(file) = files.regular(descriptor.id) else {
            continue;
        };
        if paths::shown_process(&file.name).is_some_and(|shown| shown != process.tree.pid) {
            let at = EntryLocation {
                image: &image,
                entry: 0,
            };
            return Err(at.refuse_of_kernel(&file.name));
        }
    }
    Ok(())
}

/// Every file that an epoll watches must be open in a process that holds the epoll. Otherwise CRIU would take a foreign
/// descriptor for one of its own.
fn check_polled(files: &OpenFiles, tables: &Tables) -> Result<(), VerifyError> {
    let mut holders: BTreeMap<u32, Vec<&Table>> = BTreeMap::new();
    for table in tables.values() {
        let polls: BTreeSet<u32> = table
            .values()
            .filter(|d| d.kind == kind::EVENTPOLL)
            .map(|d| d.id)
            .collect();
        for poll in polls {
            let holders = holders.entry(poll).or_default();
            if holders.len() < HOLDERS_MAX {
                holders.push(table);
            }
        }
    }
    for (entry, poll) in &files.polls {
        let holders = holders.get(&poll.id).map(Vec::as_slice).unwrap_or_default();
        let at = EntryLocation {
            image: "files.img",
            entry: *entry,
        };
        for target in &poll.tfd {
            let known = holders.iter().any(|table| table.contains_key(&target.tfd));
            at.hold(known, "epfd.tfd.tfd", target.tfd)?;
        }
    }
    Ok(())
}

fn directories(
    context: Context<'_>,
    files: &OpenFiles,
    pid: u32,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<Fs, VerifyError> {
    let (at, fs) = required::<Fs>(context.images, &format!("fs-{pid}.img"), magic::FS)?;
    let is_directory = |mode: u32| mode & KIND_OF_MODE == libc::S_IFDIR;
    for (field, id, purpose) in [
        ("cwd_id", fs.cwd_id, Purpose::WorkingDirectory),
        ("root_id", fs.root_id, Purpose::Root),
    ] {
        let file = files.regular(id).filter(|f| f.mode.is_some_and(is_directory));
        let file = file.ok_or_else(|| at.refuse(field, id))?;
        let placed = purpose != Purpose::Root || file.name == b"/";
        at.hold(placed, field, String::from_utf8_lossy(&file.name))?;
        note(opened, OpenedPath::of(file, purpose, file.flags));
    }
    at.hold(fs.umask.is_none_or(|umask| umask <= UMASK), "umask", fs.umask)?;
    Ok(fs)
}

pub(super) fn check_locks(context: Context<'_>, processes: &[Process]) -> Result<Vec<FileLock>, VerifyError> {
    let by_pid: BTreeMap<u32, &Process> = processes.iter().map(|p| (p.tree.pid, p)).collect();
    let mut locks = Vec::new();
    for (at, lock) in all::<FileLock>(context.images, "filelocks.img", magic::LOCKS)? {
        let FileLock {
            flag,
            kind,
            pid,
            fd,
            start,
            len,
        } = &lock;
        if *flag == LEASE {
            return Err(VerifyError::Lease);
        }
        at.hold(LOCK_KINDS.contains(flag), "flag", flag)?;
        at.hold(LOCK_MODES.contains(kind), "type", kind)?;
        let process = u32::try_from(*pid).ok().and_then(|pid| by_pid.get(&pid));
        let process = process.ok_or_else(|| at.refuse("pid", pid))?;
        let open = u32::try_from(*fd).is_ok_and(|fd| process.descriptors.contains_key(&fd));
        at.hold(open, "fd", fd)?;
        at.hold(*start >= 0 && *len >= 0, "start", (start, len))?;
        locks.push(lock);
    }
    Ok(locks)
}
