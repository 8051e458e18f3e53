//! `files.img`: each entry is a file of a kind that functions have, with the fields of that kind only.

use std::collections::{BTreeMap, BTreeSet};

use super::open_flags::{self, PATH_ONLY};
use super::{Context, KIND_OF_MODE, PERMISSIONS, SIGNAL_MAX, note, paths, remaps, sockets};
use crate::error::{EntryLocation, VerifyError, WATCHED};
use crate::frames::{all, magic};
use crate::messages::{
    EventFd, EventPoll, Fifo, FileEntry, Inotify, MemFd, MemFdInode, Owner, PidFd, Pipe, RegularFile, Remap, SignalFd,
    TimerFd,
};
use crate::verified::{ImageMode, OpenedPath, Purpose, UnlinkedFile};

/// CRIU's numbers of the kinds of files.
pub(super) mod kind {
    pub(crate) const REGULAR: u32 = 1;
    pub(crate) const PIPE: u32 = 2;
    pub(crate) const FIFO: u32 = 3;
    pub(crate) const INET: u32 = 4;
    pub(crate) const UNIX: u32 = 5;
    pub(crate) const EVENTFD: u32 = 6;
    pub(crate) const EVENTPOLL: u32 = 7;
    pub(crate) const INOTIFY: u32 = 8;
    pub(crate) const SIGNALFD: u32 = 9;
    pub(crate) const NETLINK: u32 = 13;
    pub(crate) const TIMERFD: u32 = 17;
    pub(crate) const MEMFD: u32 = 18;
    pub(crate) const PIDFD: u32 = 20;
}

/// Maximum number of words of a build id that CRIU records.
const BUILD_ID_MAX: usize = 64;
/// Real time, monotonic, and since boot. Alarm clocks require a capability.
const TIMERFD_CLOCKS: [u32; 3] = [0, 1, 7];
const NANOSECONDS: u64 = 1_000_000_000;
/// `TFD_TIMER_ABSTIME` and `TFD_TIMER_CANCEL_ON_SET`.
const TIMERFD_FLAGS: u32 = 3;
/// Size in words of the file handles that CRIU writes.
const HANDLE_WORDS: usize = 16;
/// All events that can be watched for, and the kernel's flag for the entries of a directory.
const WATCH_MASK: u32 = 0xfff | 1 << 27 | 0x4000_0000 | 0x2000_0000 | 0x0400_0000 | 0x0200_0000 | 0x0100_0000;
const SEALS: u32 = 0x3f;
const MEMFD_NAME_MAX: usize = 249;
const MEMFD_BYTES_MAX: u64 = 1 << 44;

pub(super) struct OpenFiles {
    pub(super) entries: BTreeMap<u32, FileEntry>,
    pub(super) memory_files: BTreeMap<u64, MemFdInode>,
    pub(super) ghosts: BTreeMap<u32, UnlinkedFile>,
    pub(super) remaps: Vec<Remap>,
    /// Files that watch others, with the numbers of their entries.
    pub(super) polls: Vec<(usize, EventPoll)>,
}

impl OpenFiles {
    pub(super) fn read(context: Context<'_>, opened: &mut BTreeSet<OpenedPath>) -> Result<Self, VerifyError> {
        let found = all::<FileEntry>(context.images, "files.img", magic::FILES)?;
        let memory_files = memory_files(context)?;
        let (mut entries, mut polls) = (BTreeMap::new(), Vec::new());
        for (at, entry) in &found {
            at.hold(entry.id != 0 && !entries.contains_key(&entry.id), "id", entry.id)?;
            entries.insert(entry.id, entry.clone());
            polls.extend(entry.epfd.clone().map(|poll| (at.entry, poll)));
        }
        let (ghosts, remaps) = remaps::check(context, &entries, opened)?;
        let links: BTreeSet<u32> = remaps.iter().filter_map(Remap::link).collect();
        let unix = sockets::unix_inodes(&entries);
        for (at, entry) in &found {
            check_entry(context, *at, entry)?;
            if let Some(file) = &entry.reg {
                check_regular(context, *at, file, links.contains(&file.id))?;
            }
            if let Some(socket) = &entry.usk {
                sockets::check_unix(context, *at, socket, &unix, opened)?;
            }
            if let Some(fifo) = &entry.fifo {
                check_fifo(*at, fifo, &entries)?;
            }
            if let Some(MemFd { inode_id, .. }) = &entry.memfd {
                let known = memory_files.contains_key(&u64::from(*inode_id));
                at.hold(known, "memfd.inode_id", inode_id)?;
            }
            for watch in entry.ify.iter().flat_map(|i| &i.wd) {
                note(
                    opened,
                    OpenedPath::plain(watch.f_handle.path.clone().unwrap_or_default(), Purpose::Watch),
                );
            }
        }
        Ok(Self {
            entries,
            memory_files,
            ghosts,
            remaps,
            polls,
        })
    }

    /// The regular file with this id, except templates and the names given to nameless files.
    pub(super) fn regular(&self, id: u32) -> Option<&RegularFile> {
        let file = self.entries.get(&id)?.reg.as_ref()?;
        (file.mode.is_some() && !is_external(file)).then_some(file)
    }

    pub(super) fn template(&self, id: u32) -> Option<&RegularFile> {
        let file = self.entries.get(&id)?.reg.as_ref()?;
        is_external(file).then_some(file)
    }

    /// Records that file `id` is opened, according to its kind.
    pub(super) fn note_opened(&self, id: u32, opened: &mut BTreeSet<OpenedPath>) {
        let of_fifo = |entry: &FileEntry| entry.fifo.as_ref().and_then(|fifo| fifo.regf_id);
        let id = self.entries.get(&id).and_then(of_fifo).unwrap_or(id);
        if let Some(file) = self.regular(id) {
            let purpose = match file.mode.unwrap_or(0) & KIND_OF_MODE {
                libc::S_IFREG => Purpose::Regular,
                libc::S_IFDIR => Purpose::Directory,
                libc::S_IFIFO => Purpose::Fifo,
                libc::S_IFCHR => Purpose::Device,
                _ => Purpose::Other,
            };
            note(opened, OpenedPath::of(file, purpose, file.flags));
        }
    }
}

impl OpenedPath {
    pub(super) fn of(file: &RegularFile, purpose: Purpose, flags: u32) -> Self {
        Self {
            path: file.name.clone(),
            purpose,
            flags,
            size: file.size,
            mode: file.mode.map(ImageMode),
        }
    }

    pub(super) fn plain(path: Vec<u8>, purpose: Purpose) -> Self {
        Self {
            path,
            purpose,
            flags: 0,
            size: None,
            mode: None,
        }
    }
}

/// Checks the properties of a file that do not depend on other files.
fn check_entry(context: Context<'_>, at: EntryLocation<'_>, entry: &FileEntry) -> Result<(), VerifyError> {
    let FileEntry {
        kind: _,
        id: _,
        reg,
        isk,
        nlsk,
        efd,
        epfd,
        sgfd,
        tfd,
        ify,
        usk,
        fifo,
        pipe,
        memfd,
        pidfd,
    } = entry;
    let owners = [
        reg.as_ref().map(|f| (kind::REGULAR, f.id, Some(&f.fown))),
        isk.as_ref().map(|f| (kind::INET, f.id, Some(&f.fown))),
        nlsk.as_ref().map(|f| (kind::NETLINK, f.id, Some(&f.fown))),
        efd.as_ref().map(|f| (kind::EVENTFD, f.id, Some(&f.fown))),
        epfd.as_ref().map(|f| (kind::EVENTPOLL, f.id, Some(&f.fown))),
        sgfd.as_ref().map(|f| (kind::SIGNALFD, f.id, Some(&f.fown))),
        tfd.as_ref().map(|f| (kind::TIMERFD, f.id, Some(&f.fown))),
        ify.as_ref().map(|f| (kind::INOTIFY, f.id, Some(&f.fown))),
        usk.as_ref().map(|f| (kind::UNIX, f.id, Some(&f.fown))),
        fifo.as_ref().map(|f| (kind::FIFO, f.id, None)),
        pipe.as_ref().map(|f| (kind::PIPE, f.id, Some(&f.fown))),
        memfd.as_ref().map(|f| (kind::MEMFD, f.id, Some(&f.fown))),
        pidfd.as_ref().map(|f| (kind::PIDFD, f.id, Some(&f.fown))),
    ];
    let mut present = owners.into_iter().flatten();
    let (Some((kind, id, owner)), None) = (present.next(), present.next()) else {
        return Err(at.refuse("type", entry.kind));
    };
    at.hold(entry.kind == kind, "type", entry.kind)?;
    at.hold(entry.id == id, "id", (entry.id, id))?;
    owner.map_or(Ok(()), |owner| check_owner(context, at, owner))?;
    let flags = match entry {
        FileEntry { pipe: Some(pipe), .. } => check_pipe(context, at, pipe)?,
        FileEntry {
            efd: Some(EventFd { flags, .. }),
            ..
        } => *flags,
        FileEntry {
            epfd: Some(EventPoll { flags, .. }),
            ..
        } => *flags,
        FileEntry {
            sgfd: Some(SignalFd { flags, .. }),
            ..
        } => *flags,
        FileEntry {
            memfd: Some(MemFd { flags, .. }),
            ..
        } => *flags,
        FileEntry { tfd: Some(timer), .. } => check_timerfd(at, timer)?,
        FileEntry { ify: Some(inotify), .. } => check_inotify(at, inotify)?,
        FileEntry { pidfd: Some(pidfd), .. } => check_pidfd(context, at, pidfd)?,
        FileEntry { isk: Some(socket), .. } => sockets::check_inet(context, at, socket)?,
        FileEntry { nlsk: Some(socket), .. } => sockets::check_netlink(context, at, socket)?,
        _ => return Ok(()),
    };
    at.hold(open_flags::may_be(flags), "flags", flags)
}

/// The receiver of a signal when there is something to read: one of the function's own processes, as its own user.
pub(super) fn check_owner(context: Context<'_>, at: EntryLocation<'_>, owner: &Owner) -> Result<(), VerifyError> {
    at.hold(owner.signum <= SIGNAL_MAX, "fown.signum", owner.signum)?;
    if owner.pid == 0 {
        let none = owner.uid == 0 && owner.euid == 0 && owner.pid_type == 0;
        return at.hold(none, "fown", owner);
    }
    at.hold(owner.uid == context.expected.uid, "fown.uid", owner.uid)?;
    at.hold(owner.euid == context.expected.uid, "fown.euid", owner.euid)?;
    at.hold(owner.pid_type <= 2, "fown.pid_type", owner.pid_type)?;
    at.hold(context.tree.is_known(owner.pid), "fown.pid", owner.pid)
}

/// Whether it is not looked up by path.
fn is_external(file: &RegularFile) -> bool {
    file.ext.is_some()
}

/// The host chooses templates. The image only selects one of them.
fn check_template(context: Context<'_>, at: EntryLocation<'_>, file: &RegularFile) -> Result<(), VerifyError> {
    let RegularFile {
        id: _,
        flags,
        pos,
        fown: _,
        name,
        mnt_id,
        size,
        ext,
        mode,
        build_id,
    } = file;
    let templates = context
        .expected
        .travelling
        .as_ref()
        .map(|travelling| &travelling.templates);
    let known = templates.is_some_and(|names| names.iter().any(|known| known.as_bytes() == name));
    at.hold(
        known && *ext == Some(true),
        "reg.ext",
        (ext, String::from_utf8_lossy(name)),
    )?;
    at.hold(*flags == 0, "reg.flags", flags)?;
    at.hold(*pos == 0, "reg.pos", pos)?;
    at.hold(mnt_id.is_none(), "reg.mnt_id", mnt_id)?;
    at.hold(build_id.len() <= BUILD_ID_MAX, "reg.build_id", build_id.len())?;
    let bytes = size.unwrap_or(0);
    at.hold(i64::try_from(bytes).is_ok(), "reg.size", bytes)?;
    let plain = mode.is_some_and(|mode| mode & !PERMISSIONS == libc::S_IFREG);
    at.hold(plain, "reg.mode", mode)
}

fn check_regular(
    context: Context<'_>,
    at: EntryLocation<'_>,
    file: &RegularFile,
    is_link: bool,
) -> Result<(), VerifyError> {
    if is_external(file) {
        return check_template(context, at, file);
    }
    let writes_root = context.expected.writes_root;
    let RegularFile {
        id: _,
        flags,
        pos: _,
        fown: _,
        name,
        mnt_id,
        size,
        ext: _,
        mode,
        build_id,
    } = file;
    let allowed = paths::is_allowed(name) || paths::shown_process(name).is_some();
    if !allowed && paths::is_of_kernel(name) {
        return Err(at.refuse_of_kernel(name));
    }
    at.hold(allowed, "reg.name", String::from_utf8_lossy(name))?;
    at.hold(open_flags::may_open(name, *flags, writes_root), "reg.flags", flags)?;
    // Only for a file in another mount namespace than CRIU's.
    at.hold(mnt_id.is_none(), "reg.mnt_id", mnt_id)?;
    at.hold(build_id.len() <= BUILD_ID_MAX, "reg.build_id", build_id.len())?;
    let bytes = size.unwrap_or(0);
    at.hold(i64::try_from(bytes).is_ok(), "reg.size", bytes)?;
    let Some(mode) = mode.filter(|_| !is_link) else {
        let link = is_link && mode.is_none() && size.is_none() && *flags == 0;
        return at.hold(link && remaps::is_link_name(name, writes_root), "reg.mode", mode);
    };
    let by_path = flags & PATH_ONLY != 0;
    let good = match mode & KIND_OF_MODE {
        libc::S_IFREG | libc::S_IFDIR => !paths::is_device(name),
        libc::S_IFIFO => paths::is_below_writable(name, writes_root),
        libc::S_IFCHR => paths::is_device(name),
        libc::S_IFLNK | libc::S_IFSOCK => by_path && !paths::is_device(name),
        _ => false,
    };
    at.hold(good && mode <= u32::from(u16::MAX), "reg.mode", mode)
}

/// Pipes that lead out of the sandbox are those that the function was given to write to.
fn check_pipe(context: Context<'_>, at: EntryLocation<'_>, pipe: &Pipe) -> Result<u32, VerifyError> {
    let is_output = context.expected.output_pipes.contains(&pipe.pipe_id);
    let writes = pipe.flags & open_flags::ACCESS == libc::O_WRONLY.cast_unsigned();
    at.hold(!is_output || writes, "pipe.flags", pipe.flags)?;
    Ok(pipe.flags)
}

fn check_fifo(at: EntryLocation<'_>, fifo: &Fifo, entries: &BTreeMap<u32, FileEntry>) -> Result<(), VerifyError> {
    let file = fifo.regf_id.and_then(|id| entries.get(&id)?.reg.as_ref());
    let is_fifo = file
        .and_then(|f| f.mode)
        .is_some_and(|m| m & KIND_OF_MODE == libc::S_IFIFO);
    at.hold(is_fifo, "fifo.regf_id", fifo.regf_id)
}

fn check_timerfd(at: EntryLocation<'_>, timer: &TimerFd) -> Result<u32, VerifyError> {
    at.hold(TIMERFD_CLOCKS.contains(&timer.clockid), "tfd.clockid", timer.clockid)?;
    at.hold(
        timer.settime_flags & !TIMERFD_FLAGS == 0,
        "tfd.settime_flags",
        timer.settime_flags,
    )?;
    let seconds = i64::MAX.cast_unsigned();
    let sane = timer.vsec <= seconds && timer.isec <= seconds;
    at.hold(
        sane && timer.vnsec < NANOSECONDS && timer.insec < NANOSECONDS,
        "tfd",
        timer,
    )?;
    Ok(timer.flags)
}

/// Without a path for a watch, CRIU would look up the file by its handle, bypassing all permissions.
fn check_inotify(at: EntryLocation<'_>, inotify: &Inotify) -> Result<u32, VerifyError> {
    for watch in &inotify.wd {
        at.hold(watch.mask & !WATCH_MASK == 0, "ify.wd.mask", watch.mask)?;
        at.hold(watch.ignored_mask == 0, "ify.wd.ignored_mask", watch.ignored_mask)?;
        let handle = &watch.f_handle;
        at.hold(
            handle.handle.len() <= HANDLE_WORDS,
            "ify.wd.f_handle.handle",
            handle.handle.len(),
        )?;
        at.hold(handle.mnt_id.is_none(), "ify.wd.f_handle.mnt_id", handle.mnt_id)?;
        let path = handle.path.as_deref().unwrap_or_default();
        at.hold(paths::may_be_watched(path), WATCHED, String::from_utf8_lossy(path))?;
    }
    Ok(inotify.flags)
}

/// A pidfd of a dead process, or of one of these.
fn check_pidfd(context: Context<'_>, at: EntryLocation<'_>, pidfd: &PidFd) -> Result<u32, VerifyError> {
    let of_process = |pid: i32| u32::try_from(pid).is_ok_and(|pid| context.tree.is_process(pid));
    at.hold(pidfd.nspid == -1 || of_process(pidfd.nspid), "pidfd.nspid", pidfd.nspid)?;
    // The flags with which CRIU opens it.
    let flags = pidfd.flags & !libc::O_NONBLOCK.cast_unsigned();
    at.hold(flags == 0, "pidfd.flags", pidfd.flags)?;
    Ok(pidfd.flags)
}

fn memory_files(context: Context<'_>) -> Result<BTreeMap<u64, MemFdInode>, VerifyError> {
    let mut found = BTreeMap::new();
    for (at, inode) in all::<MemFdInode>(context.images, "memfd.img", magic::MEMFD)? {
        let MemFdInode {
            name,
            uid,
            gid,
            size,
            shmid: _,
            seals,
            inode_id,
            hugetlb_flag,
            mode,
        } = &inode;
        let shown = String::from_utf8_lossy(name);
        at.hold(name.len() <= MEMFD_NAME_MAX && !name.contains(&0), "name", shown)?;
        at.hold(*uid == context.expected.uid, "uid", uid)?;
        at.hold(*gid == context.expected.gid, "gid", gid)?;
        at.hold(*size <= MEMFD_BYTES_MAX, "size", size)?;
        at.hold(seals & !SEALS == 0, "seals", seals)?;
        at.hold(hugetlb_flag.is_none(), "hugetlb_flag", hugetlb_flag)?;
        let plain = mode.is_some_and(|m| m & !PERMISSIONS == libc::S_IFREG);
        at.hold(plain, "mode", mode)?;
        let id = *inode_id;
        at.hold(found.insert(id, inode).is_none(), "inode_id", id)?;
    }
    Ok(found)
}
