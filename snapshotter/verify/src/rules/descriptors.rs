//! `fdinfo-N.img`, `fs-PID.img`, `filelocks.img`: which files a process has open, and as what.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{KIND_OF_MODE, OpenFiles};
use super::{Context, note};
use crate::error::VerifyError;
use crate::expected::Limit;
use crate::frames::{all, magic, required};
use crate::messages::{Descriptor, FileLock, Fs, ObjectIds};
use crate::verified::{OpenedPath, Process, Purpose};

/// `RLIMIT_NOFILE`.
const OPEN_FILES: usize = 7;
const CLOSE_ON_EXEC: u32 = 1;
const UMASK: u32 = 0o777;
/// POSIX, BSD, and of an open file; not leases.
const LOCK_KINDS: [u32; 3] = [1, 2, 1024];
/// To read, to write.
const LOCK_MODES: [u32; 2] = [0, 1];

pub(super) fn check(
    context: Context<'_>,
    files: &OpenFiles,
    ids: &BTreeMap<u32, ObjectIds>,
    processes: &mut [Process],
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<(), VerifyError> {
    let mut tables: BTreeMap<u32, BTreeMap<u32, Descriptor>> = BTreeMap::new();
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
        process.descriptors = table.clone();
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
) -> Result<BTreeMap<u32, Descriptor>, VerifyError> {
    let (Limit::AtMost(limit) | Limit::Exactly(limit)) = context.expected.limits[OPEN_FILES];
    let mut table = BTreeMap::new();
    for (at, descriptor) in all::<Descriptor>(context.images, &format!("fdinfo-{id}.img"), magic::DESCRIPTORS)? {
        let Descriptor { id, flags, kind, fd } = descriptor;
        let file = files.entries.get(&id);
        // A name that a file was given is no file to have open.
        let usable = file.is_some_and(|f| f.reg.is_none() || files.regular(id).is_some());
        at.hold(usable, "id", id)?;
        at.hold(file.is_some_and(|f| f.kind == kind), "type", kind)?;
        at.hold(flags & !CLOSE_ON_EXEC == 0, "flags", flags)?;
        at.hold(u64::from(fd) < limit && i32::try_from(fd).is_ok(), "fd", fd)?;
        at.hold(table.insert(fd, descriptor).is_none(), "fd", fd)?;
        files.note_opened(id, opened);
    }
    Ok(table)
}

/// What an epoll watches is what its process has open: a number of its own, CRIU would take for one of CRIU's.
fn check_polled(files: &OpenFiles, tables: &BTreeMap<u32, BTreeMap<u32, Descriptor>>) -> Result<(), VerifyError> {
    for poll in files.entries.values().filter_map(|entry| entry.epfd.as_ref()) {
        let mut holders = tables
            .values()
            .filter(|t| t.values().any(|d| d.id == poll.id))
            .peekable();
        // One that is only on its way in a socket watches nothing.
        let alone = holders.peek().is_none();
        let good = |tfd: u32| !alone && tables.values().any(|table| table.contains_key(&tfd));
        if let Some(target) = poll.tfd.iter().find(|target| !good(target.tfd)) {
            let at = crate::error::Place {
                image: "files.img",
                entry: 0,
            };
            return Err(at.refuse("epfd.tfd.tfd", target.tfd));
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
        at.hold(LOCK_KINDS.contains(flag), "flag", flag)?;
        at.hold(LOCK_MODES.contains(kind), "type", kind)?;
        let process = processes.iter().find(|p| u32::try_from(*pid) == Ok(p.tree.pid));
        let process = process.ok_or_else(|| at.refuse("pid", pid))?;
        let open = u32::try_from(*fd).is_ok_and(|fd| process.descriptors.contains_key(&fd));
        at.hold(open, "fd", fd)?;
        at.hold(*start >= 0 && *len >= 0, "start", (start, len))?;
        locks.push(lock);
    }
    Ok(locks)
}
