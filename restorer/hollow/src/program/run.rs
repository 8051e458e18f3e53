//! Runs the operations of a program, in order.

use core::mem::offset_of;

use rekindle_restore_program::message::HollowReport;
use rekindle_restore_program::{CLOSED, Code, Op, Program, leads, lock_of, source, window};

use crate::order::Order;
use crate::sys::{EINVAL, ENOEXEC, ENOTCONN, Errno, Outcome, call, nr};
use crate::{depart, identity, opening, threads};

/// The end of addresses of user space, with four levels of page tables.
const USER_END: u64 = 0x7fff_ffff_f000;

/// What operations share.
struct ProgramRun {
    program: Program<'static>,
    order: Order,
    /// The open file.
    file: u64,
}

const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const NONE: u64 = u64::MAX;
const CLOEXEC: u64 = 0o2_000_000;
const SETFD: u64 = 2;
const SETFL: u64 = 4;
const DUPFD_CLOEXEC: u64 = 1030;
const SET_PIPE_BYTES: u64 = 1031;
const ADD_SEALS: u64 = 1033;
const SIGNAL_BYTES: u64 = 128;
static NO_PRIORITY: u32 = 0;

/// Runs all operations.
///
/// # Errors
/// The number of the operation that failed, from 1, and the kernel's error.
pub(crate) fn run(program: Program<'static>, order: Order) -> Result<(), (u32, Errno)> {
    let mut run = ProgramRun {
        program,
        order,
        file: NONE,
    };
    for (at, op) in (1..).zip(program.ops()) {
        let code = Code::of(op.code).ok_or((at, ENOEXEC))?;
        run.one(code, &op).map_err(|e| (at, e))?;
    }
    run.order.close().map(drop).map_err(|e| (u32::MAX, e))
}

impl ProgramRun {
    fn part(&self, at: u64, length: u64) -> Result<&'static [u8], Errno> {
        self.program.part(at, length).map_err(|_| EINVAL)
    }

    fn one(&mut self, code: Code, op: &Op) -> Outcome {
        let a = u64::from(op.a);
        let [b, c, d, e, f] = op.args;
        match code {
            Code::Clear => call!(nr::MUNMAP, window::END, USER_END - window::END),
            Code::Open => {
                self.file = self.open(a, 0, b, c)?;
                Ok(0)
            }
            Code::OpenOwn => {
                let found = self.open(opening::LOOK, 0, b, c)?;
                self.file = opening::own(found, a, [d, e])?;
                Ok(0)
            }
            Code::Create => {
                /// `O_RDWR`, `O_CREAT`, `O_EXCL`.
                const NEW: u64 = 0o302;
                self.file = self.open(NEW | CLOEXEC, 0o600, b, c)?;
                call!(nr::FCHMOD, self.file, a)?;
                call!(nr::FTRUNCATE, self.file, d)
            }
            Code::MemoryFile => {
                self.file = call!(nr::MEMFD_CREATE, self.part(b, c)?.as_ptr(), a)?;
                call!(nr::FTRUNCATE, self.file, d)?;
                call!(nr::FCHMOD, self.file, e)
            }
            Code::Paste => self.paste(b, c, d),
            Code::Seal => call!(nr::FCNTL, self.file, ADD_SEALS, a),
            Code::Again => {
                let path = descriptor_path(a);
                self.file = call!(nr::OPENAT, 0, path.buffer.as_ptr(), b | CLOEXEC)?;
                Ok(0)
            }
            Code::Write => match call!(nr::PWRITE, self.file, self.part(c, d)?.as_ptr(), d, b)? {
                written if written == d => Ok(0),
                _ => Err(EINVAL),
            },
            Code::Times => call!(nr::UTIMENSAT, self.file, 0, self.part(b, 32)?.as_ptr(), 0),
            Code::Link => call!(nr::LINK, self.part(b, c)?.as_ptr(), self.part(d, e)?.as_ptr()),
            Code::Unlink => call!(nr::UNLINK, self.part(b, c)?.as_ptr()),
            Code::Gather => {
                let mut left = b;
                while left > 0 {
                    let mut counted = 0_u64;
                    call!(nr::READ, a, &raw mut counted, 8)?;
                    left = left.saturating_sub(counted);
                }
                Ok(0)
            }
            Code::Close => call!(nr::CLOSE, core::mem::replace(&mut self.file, NONE)),
            Code::Map => {
                let (file, how) = match op.a {
                    source::ANONYMOUS => (NONE, MAP_ANONYMOUS),
                    source::FILE => (self.file, 0),
                    template => (self.order.template(template - source::TEMPLATE)?, 0),
                };
                call!(nr::MMAP, b, c, d, e | how | MAP_FIXED, file, f)
            }
            Code::Read => self.read(a, b, c, d),
            Code::Protect => call!(nr::MPROTECT, b, c, d),
            Code::Advise => call!(nr::MADVISE, b, c, a),
            Code::Vdso => call!(nr::ARCH_PRCTL, 0x2003, b),
            Code::Memory => self.memory(b, c),
            Code::Clocks => self.clocks(b),
            Code::Identity => identity::use_choice_of_ids(op.a),
            Code::Keep => {
                call!(nr::LSEEK, self.file, b, 0).or_else(|e| if b == 0 { Ok(0) } else { Err(e) })?;
                let file = core::mem::replace(&mut self.file, NONE);
                place(file, a, c != 0)
            }
            Code::Output => place_new(self.reopen(b, c)?, a),
            Code::Copy => call!(nr::DUP3, b, a, if c != 0 { CLOEXEC } else { 0 }),
            Code::Pipe => self.pair(a, b, [c, d], |ends| call!(nr::PIPE2, ends, 0)),
            Code::Room => match call!(nr::FCNTL, a, SET_PIPE_BYTES, b)? {
                room if room == b => Ok(0),
                _ => Err(EINVAL),
            },
            Code::Fill => match call!(nr::WRITE, a, self.part(b, c)?.as_ptr(), c)? {
                written if written == c => Ok(0),
                _ => Err(EINVAL),
            },
            Code::SocketPair => self.pair(a, b, [e, f], |ends| call!(nr::SOCKETPAIR, c, d, 0, ends)),
            Code::Socket => place_new(call!(nr::SOCKET, b, c, d)?, a),
            Code::SocketOption => {
                let value = [e, f];
                let bytes = d.min(size_of_val(&value) as u64);
                call!(nr::SETSOCKOPT, a, b, c, value.as_ptr(), bytes)
            }
            Code::Bind => call!(nr::BIND, a, self.part(b, c)?.as_ptr(), c),
            Code::Listen => call!(nr::LISTEN, a, b),
            Code::Connect => call!(nr::CONNECT, a, self.part(b, c)?.as_ptr(), c),
            Code::Accept => place_new(call!(nr::ACCEPT4, b, 0, 0, c)?, a),
            Code::Send => {
                /// Neither waits nor signals.
                const AT_ONCE: u64 = 0x4040;
                match call!(nr::SENDTO, a, self.part(b, c)?.as_ptr(), c, AT_ONCE, 0, 0)? {
                    sent if sent == c => Ok(0),
                    _ => Err(EINVAL),
                }
            }
            Code::Shutdown => match call!(nr::SHUTDOWN, a, b) {
                // It takes effect all the same.
                Err(ENOTCONN) => Ok(0),
                other => other,
            },
            Code::EventFd => place_new(call!(nr::EVENTFD2, b, c)?, a),
            Code::TimerFd => {
                let timer = call!(nr::TIMERFD_CREATE, b, c)?;
                self.set_timer(timer, b, d, e, f)?;
                place_new(timer, a)
            }
            Code::SignalFd => place_new(call!(nr::SIGNALFD4, NONE, &raw const b, 8, c)?, a),
            Code::Epoll => place_new(call!(nr::EPOLL_CREATE1, b)?, a),
            Code::Watch => {
                // Packed in the kernel: events, then data.
                let event = [c as u32, d as u32, (d >> 32) as u32];
                call!(nr::EPOLL_CTL, a, 1, b, event.as_ptr())
            }
            Code::Inotify => place_new(call!(nr::INOTIFY_INIT1, b)?, a),
            Code::WatchFile => self.watch_file(a, b, c),
            Code::Directory => call!(nr::CHDIR, self.part(b, c)?.as_ptr()),
            Code::Umask => call!(nr::UMASK, a),
            Code::Handle => call!(nr::RT_SIGACTION, a, self.part(b, 32)?.as_ptr(), 0, 8),
            Code::IntervalTimer => call!(nr::SETITIMER, a, self.part(b, 32)?.as_ptr(), 0),
            Code::Priority => {
                // Of a thread (`PRIO_PROCESS`). No policy that a function may have has priorities of its own.
                call!(nr::SETPRIORITY, 0, a, b)?;
                call!(nr::SCHED_SETSCHEDULER, a, c, &raw const NO_PRIORITY)
            }
            Code::Limit => {
                let limit = [b, c];
                call!(nr::SETRLIMIT, a, limit.as_ptr())
            }
            Code::Control => call!(nr::PRCTL, a, b, c, d, e),
            Code::Child => self.child(op.a),
            Code::Orphans => self.orphans(op.a, b, c, d as u32),
            Code::Session => call!(nr::SETSID),
            Code::Group => call!(nr::SETPGID, 0, a),
            Code::Threads => {
                depart::lay_out(self.program, self.order.residue())?;
                threads::make(self.program)
            }
            Code::Tell => self.order.say(HollowReport::Mapped),
            Code::Files => self.order.wait(),
            Code::Start => {
                self.order.say(HollowReport::Begun)?;
                self.order.wait()
            }
            Code::Wait => {
                // Another process of the copy may run before this one: nothing is left here that it could use. Rights
                // go last, as without them that process may look into this one.
                self.order.close_others(self.program.header().descriptors_end.into())?;
                identity::drop_all()?;
                self.order.say(HollowReport::Ready)?;
                self.order.wait()?;
                identity::have_huge_pages(op.a != 0)
            }
            Code::Filter => {
                let filter = [a, self.part(b, a * 8)?.as_ptr() as u64];
                // In all threads, which also get `no_new_privs`. Answers with a thread's id if it has another.
                match call!(nr::SECCOMP, 1, 1, filter.as_ptr())? {
                    0 => Ok(0),
                    _ => Err(EINVAL),
                }
            }
            Code::Barrier => call!(nr::MEMBARRIER, a, 0, 0),
            Code::Lock => lock(a, op.args),
            Code::CloseRange => call!(nr::CLOSE_RANGE, a, b.wrapping_sub(1), 0),
            Code::Timer => self.timer(op.a, b, c, d),
            Code::Signal => {
                let what = self.part(d, SIGNAL_BYTES)?.as_ptr();
                match c {
                    0 => call!(nr::RT_SIGQUEUEINFO, b, a, what),
                    thread => call!(nr::RT_TGSIGQUEUEINFO, b, thread, a, what),
                }
            }
        }
    }

    /// Makes a child with its id, hollow as this process is. In the child it does not return.
    fn child(&self, number: u32) -> Outcome {
        let program = self.program.of(number).ok_or(EINVAL)?;
        let id = program.threads().next().ok_or(EINVAL)?.id;
        if threads::fork(id, threads::CHILD_ENDED)? != 0 {
            return Ok(0);
        }
        match self.order.introduce(id) {
            Ok(_) => crate::become_process(program, self.order),
            Err(error) => {
                let _said = self.order.say(HollowReport::Failed(0, error.0));
                crate::sys::exit(110)
            }
        }
    }

    /// Makes children that lose their parent: a process with this id makes them, and ends without a signal. It may lead
    /// a session or group that they are in. In a child it does not return.
    fn orphans(&self, id: u32, numbers: u64, count: u64, leads: u32) -> Outcome {
        /// Of any kind.
        const ALL: u64 = 0x4000_0000;
        let numbers = self.part(numbers, count.checked_mul(4).ok_or(EINVAL)?)?;
        if threads::fork(id, 0)? != 0 {
            let mut status = 0_u32;
            call!(nr::WAIT4, id, &raw mut status, ALL, 0)?;
            return if status == 0 { Ok(0) } else { Err(EINVAL) };
        }
        let led = match leads {
            leads::SESSION => call!(nr::SETSID),
            leads::GROUP => call!(nr::SETPGID, 0, 0),
            _ => Ok(0),
        };
        let (numbers, _) = numbers.as_chunks();
        let mut made = numbers.iter().map(|number| self.child(u32::from_le_bytes(*number)));
        let is_done = led.is_ok() && made.all(|made| made.is_ok());
        crate::sys::exit(if is_done { 0 } else { 114 })
    }

    /// Sets a timer, whose time is what is left of it, and its expirations.
    fn set_timer(&self, timer: u64, clock: u64, time: u64, flags: u64, expirations: u64) -> Outcome {
        const ABSOLUTE: u64 = 1;
        const SET_TICKS: u64 = 0x4008_5400;
        const SECOND: u64 = 1_000_000_000;
        let (longs, _) = self.part(time, 32)?.as_chunks::<8>();
        let mut time: [u64; 4] = core::array::from_fn(|at| u64::from_le_bytes(longs[at]));
        if flags & ABSOLUTE != 0 && time[2..] != [0, 0] {
            let mut now = [0_u64; 2];
            call!(nr::CLOCK_GETTIME, clock, now.as_mut_ptr())?;
            let nanoseconds = now[1].wrapping_add(time[3]);
            time[2] = time[2].wrapping_add(now[0] + nanoseconds / SECOND);
            time[3] = nanoseconds % SECOND;
        }
        call!(nr::TIMERFD_SETTIME, timer, flags, time.as_ptr(), 0)?;
        match expirations {
            0 => Ok(0),
            _ => call!(nr::IOCTL, timer, SET_TICKS, &raw const expirations),
        }
    }

    /// Makes a POSIX timer. The kernel counts their ids: those before it are made and deleted.
    fn timer(&self, wanted: u32, clock: u64, event: u64, time: u64) -> Outcome {
        let event = self.part(event, 64)?.as_ptr();
        let time = self.part(time, 32)?.as_ptr();
        loop {
            let mut id = 0_u32;
            call!(nr::TIMER_CREATE, clock, event, &raw mut id)?;
            if id == wanted {
                return call!(nr::TIMER_SETTIME, id, 0, time, 0);
            }
            call!(nr::TIMER_DELETE, id)?;
            if id > wanted {
                return Err(EINVAL);
            }
        }
    }

    /// Opens an output anew, so that its flags are its own.
    fn reopen(&self, index: u64, flags: u64) -> Outcome {
        let path = descriptor_path(self.order.output(index)?);
        call!(nr::OPENAT, 0, path.buffer.as_ptr(), flags)
    }

    /// Has an inotify watch the open file, with this number of the watch.
    fn watch_file(&self, inotify: u64, wanted: u64, events: u64) -> Outcome {
        const SET_NEXT: u64 = 0x4004_4900;
        call!(nr::IOCTL, inotify, SET_NEXT, wanted)?;
        let path = descriptor_path(self.file);
        match call!(nr::INOTIFY_ADD_WATCH, inotify, path.buffer.as_ptr(), events)? {
            number if number == wanted => Ok(0),
            _ => Err(EINVAL),
        }
    }

    /// Opens a file by a path without links.
    fn open(&self, flags: u64, mode: u64, path: u64, length: u64) -> Outcome {
        const HERE: u64 = -100_i64 as u64;
        const NO_MAGIC_LINKS: u64 = 2;
        const NO_SYMLINKS: u64 = 4;
        let how = [flags, mode, NO_MAGIC_LINKS | NO_SYMLINKS];
        call!(
            nr::OPENAT2,
            HERE,
            self.part(path, length)?.as_ptr(),
            how.as_ptr(),
            size_of_val(&how)
        )
    }

    /// Reads pages from consecutive places in their file to where these parts say.
    fn read(&self, count: u64, parts: u64, offset: u64, bytes: u64) -> Outcome {
        let parts = self.part(parts, count * 16)?;
        let read = call!(nr::PREADV, self.order.pages(), parts.as_ptr(), count, offset, 0)?;
        if read == bytes { Ok(0) } else { Err(EINVAL) }
    }

    /// Copies pages from their file into the open one.
    fn paste(&self, to: u64, from: u64, bytes: u64) -> Outcome {
        call!(nr::LSEEK, self.file, to, 0)?;
        let (mut at, end) = (from, from.checked_add(bytes).ok_or(EINVAL)?);
        while at < end {
            if call!(nr::SENDFILE, self.file, self.order.pages(), &raw mut at, end - at)? == 0 {
                return Err(EINVAL);
            }
        }
        Ok(0)
    }

    fn memory(&self, map: u64, auxv: u64) -> Outcome {
        const SET_MM: u64 = 35;
        const SET_MM_MAP: u64 = 14;
        #[repr(C)]
        struct Map {
            fields: [u64; 11],
            auxv: u64,
            auxv_bytes: u32,
            program: u32,
        }
        let given = self.part(map, size_of::<Map>() as u64)?;
        // SAFETY: there are enough bytes; the compiler aligned them.
        let mut map = unsafe { given.as_ptr().cast::<Map>().read_unaligned() };
        map.auxv = self.part(auxv, map.auxv_bytes.into())?.as_ptr() as u64;
        map.program = self.file as u32;
        const { assert!(offset_of!(Map, auxv_bytes) == 96) };
        call!(nr::PRCTL, SET_MM, SET_MM_MAP, &raw const map, size_of::<Map>(), 0)
    }

    /// Sets the clocks of the time namespace that was made ahead, so that they go on from the checkpoint. Enters it.
    fn clocks(&self, values: u64) -> Outcome {
        use identity::NEW_TIME;
        const WRITE_ONLY: u64 = 1;
        const CLOCKS: [(u64, &[u8]); 2] = [(1, b"monotonic "), (7, b"boottime ")];
        identity::use_all()?;
        let values = self.part(values, 32)?;
        let mut text = ShortText::default();
        for ((clock, name), wanted) in CLOCKS.into_iter().zip(values.chunks_exact(16)) {
            let mut now = [0i64; 2];
            call!(nr::CLOCK_GETTIME, clock, now.as_mut_ptr())?;
            let long = |at: usize| i64::from_le_bytes(core::array::from_fn(|byte| wanted[at + byte]));
            let (mut seconds, mut nanoseconds) = (long(0) - now[0], long(8) - now[1]);
            if nanoseconds < 0 {
                (seconds, nanoseconds) = (seconds - 1, nanoseconds + 1_000_000_000);
            }
            text.bytes(name);
            text.number(seconds);
            text.bytes(b" ");
            text.number(nanoseconds);
            text.bytes(b"\n");
        }
        let offsets = call!(nr::OPENAT, 0, c"/proc/self/timens_offsets".as_ptr(), WRITE_ONLY)?;
        call!(nr::WRITE, offsets, text.buffer.as_ptr(), text.length)?;
        call!(nr::CLOSE, offsets)?;
        let clocks = call!(nr::OPENAT, 0, c"/proc/self/ns/time_for_children".as_ptr(), 0)?;
        call!(nr::SETNS, clocks, NEW_TIME)?;
        call!(nr::CLOSE, clocks)
    }

    /// Makes two descriptors at once, and puts them in place: neither may take the other's number meanwhile.
    fn pair(&self, first: u64, second: u64, status: [u64; 2], make: impl FnOnce(*mut u32) -> Outcome) -> Outcome {
        let mut ends = [0u32; 2];
        make(ends.as_mut_ptr())?;
        let mut above = [0; 2];
        for (above, end) in above.iter_mut().zip(ends) {
            *above = call!(nr::FCNTL, end, DUPFD_CLOEXEC, self.program.header().shared_end)?;
            call!(nr::CLOSE, end)?;
        }
        for ((end, number), status) in above.into_iter().zip([first, second]).zip(status) {
            if number == u64::from(CLOSED) {
                call!(nr::CLOSE, end)?;
                continue;
            }
            call!(nr::DUP3, end, number, status & CLOEXEC)?;
            call!(nr::CLOSE, end)?;
            if status & !CLOEXEC != 0 {
                call!(nr::FCNTL, number, SETFL, status & !CLOEXEC)?;
            }
        }
        Ok(0)
    }
}

/// Takes a lock that nobody else has.
fn lock(descriptor: u64, [kind, start, length, flag, _]: [u64; 5]) -> Outcome {
    const SETLK: u64 = 6;
    const OFD_SETLK: u64 = 37;
    // The kernel's `flock`. Where it starts is counted from the file's start.
    let range = [kind, start, length, 0];
    match flag {
        lock_of::DESCRIPTION => call!(nr::FLOCK, descriptor, (kind + 1) | 4),
        lock_of::RANGE => call!(nr::FCNTL, descriptor, OFD_SETLK, range.as_ptr()),
        _ => call!(nr::FCNTL, descriptor, SETLK, range.as_ptr()),
    }
}

/// Gives a descriptor its number.
fn place(descriptor: u64, number: u64, close_on_exec: bool) -> Outcome {
    if descriptor == number {
        return call!(nr::FCNTL, number, SETFD, close_on_exec);
    }
    call!(nr::DUP3, descriptor, number, if close_on_exec { CLOEXEC } else { 0 })?;
    call!(nr::CLOSE, descriptor)
}

/// Gives a descriptor that was made with its flags its number. Only its flag of closing is looked up again.
fn place_new(descriptor: u64, number: u64) -> Outcome {
    if descriptor == number {
        return Ok(0);
    }
    const GETFD: u64 = 1;
    let close_on_exec = call!(nr::FCNTL, descriptor, GETFD)? != 0;
    place(descriptor, number, close_on_exec)
}

/// A path that leads to what a descriptor of this process is of.
pub(crate) fn descriptor_path(descriptor: u64) -> ShortText {
    let mut path = ShortText::default();
    path.bytes(b"/proc/self/fd/");
    path.number(descriptor as i64);
    path.bytes(b"\0");
    path
}

/// A short text.
pub(crate) struct ShortText {
    pub(crate) buffer: [u8; 128],
    length: usize,
}

impl Default for ShortText {
    fn default() -> Self {
        Self {
            buffer: [0; 128],
            length: 0,
        }
    }
}

impl ShortText {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.buffer.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }

    fn number(&mut self, number: i64) {
        if number < 0 {
            self.bytes(b"-");
        }
        let (mut digits, mut left) = (1, number.unsigned_abs());
        while left / digits >= 10 {
            digits *= 10;
        }
        while digits > 0 {
            self.bytes(&[b'0' + (left / digits) as u8]);
            left %= digits;
            digits /= 10;
        }
    }
}
