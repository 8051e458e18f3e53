//! The open files of processes.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_restore_program::{CLOSED, Code, lock_of};
use rekindle_verify::messages::{Descriptor, Fifo, FileEntry, MemFd, Pipe, RegularFile, TimerFd};
use rekindle_verify::{PipeContent, Process, Verified, shown_process};

use crate::builder::Builder;
use crate::flags::{ACCESS, ASYNC, LARGE_FILE, NONBLOCK, PLAIN, WRITE_ONLY, is_owned_by_nobody, made_with};
use crate::task::left;
use crate::unix::UnixSockets;
use crate::{CompilerInput, Refusal, RestorePlan, memory_files, opening, sockets};

/// The descriptors of a process, by number.
type Descriptors = BTreeMap<u32, Descriptor>;

/// Bytes of a pipe, unless it was given another room.
const PIPE_BYTES: u32 = 65_536;

/// Which numbers descriptors have.
pub(crate) struct Tables {
    /// One past the highest of any process.
    pub(crate) end: u32,
    /// Numbers from `end` on of files that processes share until each has its own, by file.
    shared: BTreeMap<u32, Descriptor>,
    /// One past the highest of these.
    pub(crate) shared_end: u32,
}

impl Tables {
    pub(crate) fn of(images: &Verified) -> Self {
        let all = || images.processes.iter().flat_map(|process| process.descriptors.values());
        let end = all().map(|d| d.fd + 1).max().unwrap_or(0).max(3);
        let mut shared = BTreeMap::new();
        if images.processes.len() > 1 {
            let is_shared = |descriptor: &&Descriptor| own_file(images, descriptor.id).is_none();
            for descriptor in all().filter(is_shared) {
                let fd = end + shared.len() as u32;
                shared.entry(descriptor.id).or_insert_with(|| Descriptor {
                    fd,
                    flags: 0,
                    ..descriptor.clone()
                });
            }
        }
        let shared_end = end + shared.len() as u32;
        Self {
            end,
            shared,
            shared_end,
        }
    }
}

/// Makes all files of several processes, in the first, before it has children.
pub(crate) fn make_shared(b: &mut Builder, source: CompilerInput<'_>, plan: &RestorePlan) -> Result<(), Refusal> {
    let mut maker = DescriptorCompiler::new(b, source, plan, plan.tables.shared.clone());
    maker.unix.reconnect(maker.b)?;
    let shared = plan.tables.shared.values();
    shared
        .clone()
        .try_for_each(|descriptor| maker.make(descriptor).map(drop))?;
    maker.unix.connect(maker.b)
}

/// The file of `/proc` that this is, if it tells of a process. Only that process has it, and opens it.
fn own_file(images: &Verified, file: u32) -> Option<&RegularFile> {
    let file = images.files.get(&file)?.reg.as_ref()?;
    shown_process(&file.name).map(|_| file)
}

/// Gives a process its descriptors of what was made before, and opens its own files. The shared numbers go with
/// everything of the restorer's.
pub(crate) fn take_shared(
    b: &mut Builder,
    images: &Verified,
    process: &Process,
    tables: &Tables,
) -> Result<(), Refusal> {
    let mut opened = BTreeMap::new();
    for (number, descriptor) in process.descriptors.iter() {
        if let Some(file) = own_file(images, descriptor.id) {
            let close = descriptor.flags & 1;
            match opened.insert(descriptor.id, *number) {
                None => {
                    opening::keep(b, descriptor, file, &file.name).map_err(|what| Refusal::Descriptor(*number, what))?
                }
                Some(first) => b.op(Code::Copy, *number, [first.into(), close.into()]),
            }
            continue;
        }
        let missing = Refusal::Descriptor(*number, "of no file");
        let made = tables.shared.get(&descriptor.id).ok_or(missing)?;
        b.op(Code::Copy, *number, [made.fd.into(), u64::from(descriptor.flags & 1)]);
    }
    Ok(())
}

/// Makes the descriptors of a single process.
pub(crate) fn make_own(
    b: &mut Builder,
    source: CompilerInput<'_>,
    process: &Process,
    plan: &RestorePlan,
) -> Result<(), Refusal> {
    // By file: the first descriptor of it, which the others are copies of.
    let mut first: BTreeMap<u32, Descriptor> = BTreeMap::new();
    for descriptor in process.descriptors.values() {
        first.entry(descriptor.id).or_insert_with(|| descriptor.clone());
    }
    let mut maker = DescriptorCompiler::new(b, source, plan, first);
    maker.unix.reconnect(maker.b)?;
    let mut copies = Vec::new();
    for descriptor in process.descriptors.values() {
        let made = maker.make(descriptor)?;
        if made != descriptor.fd {
            copies.push((descriptor, made));
        }
    }
    maker.unix.connect(maker.b)?;
    for (descriptor, made) in copies {
        let args = [made.into(), u64::from(descriptor.flags & 1)];
        maker.b.op(Code::Copy, descriptor.fd, args);
    }
    Ok(())
}

fn has(descriptors: &Descriptors, file: u32) -> bool {
    descriptors.values().any(|descriptor| descriptor.id == file)
}

/// The first descriptor of each file of a kind that a process has and none before it.
fn first_of<'a, T: 'a>(
    images: &'a Verified,
    number: usize,
    kind: impl Fn(&'a FileEntry) -> Option<&'a T>,
) -> impl Iterator<Item = (&'a Descriptor, &'a T)> {
    let mut seen = BTreeSet::new();
    let before = &images.processes[..number];
    let own = images.processes[number].descriptors.values();
    own.filter_map(move |descriptor| {
        let file = kind(images.files.get(&descriptor.id)?)?;
        let is_first = seen.insert(descriptor.id) && !before.iter().any(|p| has(&p.descriptors, descriptor.id));
        is_first.then_some((descriptor, file))
    })
}

/// Makes the epolls of a process watch what they watched. All descriptors are in place. Of several processes with the
/// same epoll, the first does it.
pub(crate) fn watch(b: &mut Builder, images: &Verified, number: usize) -> Result<(), Refusal> {
    let own = &images.processes[number].descriptors;
    for (descriptor, poll) in first_of(images, number, |file| file.epfd.as_ref()) {
        for watch in &poll.tfd {
            // The number was that of the watched file at the checkpoint: CRIU compares both.
            let refuse = |what| Refusal::Descriptor(descriptor.fd, what);
            let watched = own.get(&watch.tfd);
            let watched = watched.ok_or_else(|| refuse("an epoll that watches what is not open"))?;
            let others = images.processes.iter().map(|process| &process.descriptors);
            let mut sharing = others.filter(|other| has(other, descriptor.id));
            if sharing.any(|other| other.get(&watch.tfd).is_some_and(|d| d.id != watched.id)) {
                return Err(refuse("an epoll of processes with other files by its numbers"));
            }
            let args = [watch.tfd.into(), watch.events.into(), watch.data];
            b.op(Code::Watch, descriptor.fd, args);
        }
    }
    Ok(())
}

/// Makes the inotifys of a process watch what they watched, once all files are open: that would be events. Of several
/// processes with the same inotify, the first does it.
pub(crate) fn watch_files(b: &mut Builder, images: &Verified, number: usize) -> Result<(), Refusal> {
    /// `O_PATH`.
    const LOOK: u32 = 0o10_000_000;
    for (descriptor, inotify) in first_of(images, number, |file| file.ify.as_ref()) {
        for watch in &inotify.wd {
            let nowhere = Refusal::Descriptor(descriptor.fd, "an inotify of a file without a path");
            b.path(Code::Open, LOOK, watch.f_handle.path.as_ref().ok_or(nowhere)?);
            b.op(Code::WatchFile, descriptor.fd, [watch.wd.into(), watch.mask.into()]);
            b.op(Code::Close, 0, []);
        }
    }
    Ok(())
}

/// Takes the locks of a process.
pub(crate) fn locks(b: &mut Builder, images: &Verified, process: &Process) -> Result<(), Refusal> {
    /// `F_RDLCK` and `F_WRLCK`.
    const KINDS: [u32; 2] = [0, 1];
    const OF: [u64; 3] = [lock_of::PROCESS, lock_of::DESCRIPTION, lock_of::RANGE];
    let own = images
        .locks
        .iter()
        .filter(|lock| lock.pid.cast_unsigned() == process.tree.pid);
    for lock in own {
        let number = lock.fd.cast_unsigned();
        if !KINDS.contains(&lock.kind) || !OF.contains(&lock.flag.into()) {
            return Err(Refusal::Descriptor(number, "locked in an unusual way"));
        }
        if !process.descriptors.contains_key(&number) {
            return Err(Refusal::Descriptor(number, "locked and not open"));
        }
        let (start, length) = (lock.start.cast_unsigned(), lock.len.cast_unsigned());
        b.op(Code::Lock, number, [lock.kind.into(), start, length, lock.flag.into()]);
    }
    Ok(())
}

/// The working directory and the mask for new files.
pub(crate) fn directories(b: &mut Builder, images: &Verified, process: &Process) -> Result<(), Refusal> {
    let missing = || Refusal::Process(process.tree.pid, "no working directory");
    let directories = process.directories.as_ref().ok_or_else(missing)?;
    let directory = images.files.get(&directories.cwd_id).and_then(|file| file.reg.as_ref());
    b.path(Code::Directory, 0, &directory.ok_or_else(missing)?.name);
    b.op(Code::Umask, directories.umask.unwrap_or(0o22), []);
    Ok(())
}

/// Makes files at their numbers.
struct DescriptorCompiler<'a> {
    b: &'a mut Builder,
    source: CompilerInput<'a>,
    plan: &'a RestorePlan,
    /// The descriptor that each file is made as.
    of: BTreeMap<u32, Descriptor>,
    /// Files that are made.
    made: BTreeMap<u32, u32>,
    /// Named pipes that have what was in them.
    filled: BTreeSet<u32>,
    unix: UnixSockets<'a>,
}

impl<'a> DescriptorCompiler<'a> {
    fn new(
        b: &'a mut Builder,
        source: CompilerInput<'a>,
        plan: &'a RestorePlan,
        of: BTreeMap<u32, Descriptor>,
    ) -> Self {
        Self {
            b,
            source,
            plan,
            unix: UnixSockets::new(source.images, of.clone(), plan.spare()),
            of,
            made: BTreeMap::new(),
            filled: BTreeSet::new(),
        }
    }

    /// Makes the file of a descriptor, unless it is made. Returns the number that it has.
    fn make(&mut self, descriptor: &Descriptor) -> Result<u32, Refusal> {
        if let Some(number) = self.made.get(&descriptor.id) {
            return Ok(*number);
        }
        self.made.insert(descriptor.id, descriptor.fd);
        let refuse = |what| Refusal::Descriptor(descriptor.fd, what);
        let file = self.source.images.files.get(&descriptor.id);
        let file = file.ok_or_else(|| refuse("of no file"))?;
        self.file(descriptor, file).map_err(refuse)?;
        Ok(descriptor.fd)
    }

    /// Makes a file, or returns what it is.
    fn file(&mut self, descriptor: &Descriptor, file: &'a FileEntry) -> Result<(), &'static str> {
        let (number, close) = (descriptor.fd, descriptor.flags & 1);
        if let Some(regular) = &file.reg {
            let name = self.source.name(descriptor.id, regular);
            return opening::keep(self.b, descriptor, regular, name);
        }
        if let Some(pipe) = &file.pipe {
            return self.pipe(descriptor, pipe);
        }
        if let Some(pipe) = &file.fifo {
            return self.named_pipe(descriptor, pipe);
        }
        if let Some(event) = &file.efd {
            let is_plain = event.flags & !PLAIN == 0 && is_owned_by_nobody(&event.fown);
            if !is_plain || u32::try_from(event.counter).is_err() {
                return Err("an event counter with unusual flags or a large count");
            }
            let flags = made_with(event.flags, close);
            self.b.op(Code::EventFd, number, [event.counter, flags.into()]);
            return Ok(());
        }
        if let Some(timer) = &file.tfd {
            return self.timer(number, close, timer);
        }
        if let Some(signals) = &file.sgfd {
            if signals.flags & !PLAIN != 0 || !is_owned_by_nobody(&signals.fown) {
                return Err("a signalfd with unusual flags");
            }
            let args = [signals.sigmask, made_with(signals.flags, close).into()];
            self.b.op(Code::SignalFd, number, args);
            return Ok(());
        }
        if let Some(poll) = &file.epfd {
            if poll.flags & !(ACCESS | LARGE_FILE) != 0 || !is_owned_by_nobody(&poll.fown) {
                return Err("an epoll with unusual flags");
            }
            self.b.op(Code::Epoll, number, [made_with(0, close).into()]);
            return Ok(());
        }
        if let Some(inotify) = &file.ify {
            if inotify.flags & !PLAIN != 0 || !is_owned_by_nobody(&inotify.fown) {
                return Err("an inotify with unusual flags");
            }
            let flags = made_with(inotify.flags, close);
            self.b.op(Code::Inotify, number, [flags.into()]);
            return Ok(());
        }
        if let Some(socket) = &file.isk {
            return sockets::inet(self.b, number, close, socket, self.source.connected);
        }
        if let Some(socket) = &file.usk {
            return self.unix.make(self.b, descriptor, socket);
        }
        if let Some(memory) = &file.memfd {
            return self.memory_file(number, close, memory);
        }
        Err(kind_of(file))
    }

    fn memory_file(&mut self, number: u32, close: u32, file: &MemFd) -> Result<(), &'static str> {
        if !is_owned_by_nobody(&file.fown) || file.flags & ASYNC != 0 {
            return Err("a memory file that sends signals");
        }
        let made = self.plan.memory_files.named(file.inode_id.into());
        memory_files::open(
            self.b,
            made.ok_or("a memory file that is not in its images")?,
            file.flags,
        );
        self.b.op(Code::Keep, number, [file.pos, close.into()]);
        Ok(())
    }

    fn timer(&mut self, number: u32, close: u32, timer: &TimerFd) -> Result<(), &'static str> {
        if timer.flags & !PLAIN != 0 || !is_owned_by_nobody(&timer.fown) {
            return Err("a timerfd with unusual flags");
        }
        // Without expirations it was stopped, and keeps its interval.
        let value = (timer.vsec, timer.vnsec);
        let (sec, nsec) = match timer.ticks {
            0 => value,
            _ => left(value, (timer.isec, timer.insec)),
        };
        let at = self.b.longs(&[timer.isec, timer.insec, sec, nsec]);
        let flags = made_with(timer.flags, close);
        let args = [
            timer.clockid.into(),
            flags.into(),
            at,
            timer.settime_flags.into(),
            timer.ticks,
        ];
        self.b.op(Code::TimerFd, number, args);
        Ok(())
    }

    fn pipe(&mut self, descriptor: &Descriptor, pipe: &Pipe) -> Result<(), &'static str> {
        if !is_owned_by_nobody(&pipe.fown) || pipe.flags & !PLAIN != 0 {
            return Err("a pipe with unusual flags");
        }
        let (number, close) = (descriptor.fd, descriptor.flags & 1);
        if let Some(output) = self.source.outputs.get(&pipe.pipe_id) {
            if pipe.flags & ACCESS != WRITE_ONLY {
                return Err("an output that is read");
            }
            let flags = pipe.flags | made_with(0, close);
            self.b.op(Code::Output, number, [(*output).into(), flags.into()]);
            return Ok(());
        }
        let files = self.source.images.files.values();
        let ends: Vec<&Pipe> = files
            .filter_map(|f| f.pipe.as_ref())
            .filter(|p| p.pipe_id == pipe.pipe_id)
            .collect();
        let that = match ends.iter().find(|end| end.id != pipe.id) {
            // Everybody has closed it.
            None => (CLOSED, 0),
            Some(other) => {
                if (pipe.flags ^ other.flags) & ACCESS != WRITE_ONLY || ends.len() != 2 {
                    return Err("a pipe without just one end to read and one to write");
                }
                if other.flags & !PLAIN != 0 || !is_owned_by_nobody(&other.fown) {
                    return Err("a pipe with unusual flags");
                }
                let to = self.of.get(&other.id).ok_or("a pipe whose other end has no number")?;
                self.made.insert(to.id, to.fd);
                (to.fd, made_with(other.flags, to.flags))
            }
        };
        let this = (number, made_with(pipe.flags, close));
        let (read, mut write) = if pipe.flags & ACCESS == WRITE_ONLY {
            (that, this)
        } else {
            (this, that)
        };
        let contents = PipeContents::of(self.source.images.pipes.get(&pipe.pipe_id))?;
        // What its writer has left in it is written before that closes it.
        let closes = write.0 == CLOSED && !contents.bytes.is_empty();
        if closes {
            write.0 = self.plan.spare();
        }
        self.b
            .op(Code::Pipe, read.0, [write.0.into(), read.1.into(), write.1.into()]);
        contents.make_room(self.b, if read.0 == CLOSED { write.0 } else { read.0 });
        contents.fill(self.b, write.0);
        if closes {
            self.b.op(Code::CloseRange, write.0, [u64::from(write.0) + 1]);
        }
        Ok(())
    }

    /// Opens a named pipe by its name. Meanwhile it is open for both, as CRIU has it. To open one end waits for the
    /// other, and what is in it stays only as long as it is open.
    fn named_pipe(&mut self, descriptor: &Descriptor, pipe: &Fifo) -> Result<(), &'static str> {
        const BOTH: u32 = 2;
        const OWNER_READS_AND_WRITES: u32 = 0o600;
        let images = self.source.images;
        let file = pipe
            .regf_id
            .and_then(|id| Some((id, images.files.get(&id)?.reg.as_ref()?)));
        let (id, file) = file.ok_or("a named pipe without a name")?;
        if !is_owned_by_nobody(&file.fown) || file.flags & !PLAIN != 0 {
            return Err("a named pipe with unusual flags");
        }
        if file
            .mode
            .is_none_or(|mode| mode & OWNER_READS_AND_WRITES != OWNER_READS_AND_WRITES)
        {
            return Err("a named pipe that its owner may not read or write");
        }
        let (name, meanwhile) = (self.source.name(id, file), self.plan.spare());
        self.b.path(Code::Open, BOTH | NONBLOCK, name);
        self.b.op(Code::Keep, meanwhile, [0, 0]);
        if self.filled.insert(pipe.pipe_id) {
            let contents = PipeContents::of(images.named_pipes.get(&pipe.pipe_id))?;
            contents.make_room(self.b, meanwhile);
            contents.fill(self.b, meanwhile);
        }
        self.b.path(Code::Open, file.flags, name);
        self.b
            .op(Code::Keep, descriptor.fd, [0, u64::from(descriptor.flags & 1)]);
        self.b.op(Code::CloseRange, meanwhile, [u64::from(meanwhile) + 1]);
        Ok(())
    }
}

/// The room of a pipe, and what is in it.
struct PipeContents<'a> {
    room: u32,
    bytes: &'a [u8],
}

impl<'a> PipeContents<'a> {
    fn of(content: Option<&'a PipeContent>) -> Result<Self, &'static str> {
        let this = Self {
            room: content.and_then(|content| content.room).unwrap_or(PIPE_BYTES),
            bytes: content.map_or(&[], |content| &content.bytes),
        };
        match this.bytes.len() > this.room as usize {
            true => Err("a pipe with more data than room"),
            false => Ok(this),
        }
    }

    fn make_room(&self, b: &mut Builder, end: u32) {
        // One that is filled is made as large as it was, or fails. A user who has many gets small ones, and to fill
        // these would wait for a reader.
        if self.room != PIPE_BYTES || !self.bytes.is_empty() {
            b.op(Code::Room, end, [self.room.into()]);
        }
    }

    fn fill(&self, b: &mut Builder, end: u32) {
        if !self.bytes.is_empty() {
            let at = b.data(self.bytes);
            b.op(Code::Fill, end, [at, self.bytes.len() as u64]);
        }
    }
}

/// What a file is that has no operation.
fn kind_of(file: &FileEntry) -> &'static str {
    match file {
        FileEntry { nlsk: Some(_), .. } => "a netlink socket",
        FileEntry { pidfd: Some(_), .. } => "a pidfd",
        _ => "of an unknown kind",
    }
}
