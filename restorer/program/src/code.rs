//! The operations.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an operation does. Arguments are named in the order of [`Op::args`](crate::Op::args); `a` is
        /// [`Op::a`](crate::Op::a).
        #[repr(u32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

codes! {
    /// Unmap everything outside the window.
    Clear,
    /// Open a file for the operations that follow. `a`: flags. Path, its length with the zero at its end.
    Open,
    /// Open a file whose permissions keep its owner from it, for the operations that follow. `a`: flags. Path, its
    /// length with the zero at its end, permissions while it is opened, permissions after that.
    OpenOwn,
    /// Close that file.
    Close,
    /// Map memory at its place. `a`: [`source`](crate::source). Address, length, protection, flags, offset.
    Map,
    /// Read pages. `a`: number of `iovec`s. Offset of the `iovec`s, offset in the pages' file, bytes.
    Read,
    /// Change protection. Address, length, protection.
    Protect,
    /// Give advice. `a`: the advice. Address, length.
    Advise,
    /// Map the kernel's own pages. Address of the first.
    Vdso,
    /// Set the fields of the memory descriptor. The open file becomes the program. Offset of `prctl_mm_map`, offset of
    /// the auxiliary vector.
    Memory,
    /// Make a time namespace with these clocks and enter it. Offset of seconds and nanoseconds of `CLOCK_MONOTONIC`,
    /// then of `CLOCK_BOOTTIME`.
    Clocks,
    /// Give up all rights but that to choose ids and the program. `a`: [`rights`](crate::rights).
    Identity,
    /// Make a file that does not exist, and open it for the operations that follow. `a`: permissions. Path, its length
    /// with the zero at its end, size.
    Create,
    /// Make a memory file, and open it for the operations that follow. `a`: flags. Name, its length with the zero at
    /// its end, size, permissions.
    MemoryFile,
    /// Copy pages into the open file. Offset in the file, offset in the pages' file, bytes.
    Paste,
    /// Seal the open file, which is a memory file. `a`: seals.
    Seal,
    /// Open the file of a descriptor anew for the operations that follow. `a`: its number. Flags.
    Again,
    /// Write into the open file. Offset in the file, offset of the bytes, their number.
    Write,
    /// Set the times of the open file. Offset of seconds and nanoseconds of its last access, then of its last change.
    Times,
    /// Give a file another name. Path with its length, new path with its length, each with the zero at its end.
    Link,
    /// Take a name away. Path, its length with the zero at its end.
    Unlink,
    /// Wait until as many have been counted. `a`: number of the event counter. Their number.
    Gather,
    /// Keep the open file as a descriptor. `a`: number. Position, close-on-exec.
    Keep,
    /// Open an output of the function anew. `a`: number. Index of the output, flags.
    Output,
    /// Copy a descriptor. `a`: new number. Old number, close-on-exec.
    Copy,
    /// Make a pipe. `a`: number of the end to read from. Number of the end to write to, flags of the first, of the
    /// second. The number of one may be [`CLOSED`](crate::CLOSED).
    Pipe,
    /// Give a pipe another room. `a`: number of an end. Bytes.
    Room,
    /// Write into a pipe. `a`: number of the end to write to. Offset of the bytes, their number.
    Fill,
    /// Make a socket. `a`: number. Domain, type with flags, protocol.
    Socket,
    /// Make a pair of sockets. `a`: number. Number of the second, which may be [`CLOSED`](crate::CLOSED), domain, type,
    /// close-on-exec of each as in `open`.
    SocketPair,
    /// Set an option of a socket. `a`: number. Level, name, bytes of the value, which are at most 16, and the value.
    SocketOption,
    /// Bind a socket. `a`: number. Offset of the address, its length.
    Bind,
    /// Listen. `a`: number. Backlog.
    Listen,
    /// Connect a socket. `a`: number. Offset of the address, its length.
    Connect,
    /// Accept a connection. `a`: its number. Number of the listening socket, flags.
    Accept,
    /// Send a packet, or bytes of a stream, without waiting. `a`: number. Offset of the bytes, their number.
    Send,
    /// Shut a socket down, whether it is connected or not. `a`: number. Reading (0), writing (1) or both (2).
    Shutdown,
    /// Make an event counter. `a`: number. Count, flags.
    EventFd,
    /// Make a timer. `a`: number. Clock, flags, offset of its `itimerspec`, flags that it is set with, expirations that
    /// were not read. With `TFD_TIMER_ABSTIME`, the time left is added to the clock's.
    TimerFd,
    /// Make a descriptor of signals. `a`: number. Their mask, flags.
    SignalFd,
    /// Make an epoll. `a`: number. Flags.
    Epoll,
    /// Watch a descriptor. `a`: number of the epoll. Watched number, events, data.
    Watch,
    /// Make an inotify. `a`: number. Flags.
    Inotify,
    /// Have an inotify watch the open file. `a`: number of the inotify. Number of the watch, its events.
    WatchFile,
    /// Go to a directory. Path, its length with the zero at its end.
    Directory,
    /// Set the mask for new files. `a`: mask.
    Umask,
    /// Handle a signal. `a`: its number. Offset of the kernel's `sigaction`.
    Handle,
    /// Set an interval timer. `a`: which. Offset of its `itimerval`.
    IntervalTimer,
    /// Set a thread's priority. `a`: its id. Nice value, scheduling policy.
    Priority,
    /// Set a limit. `a`: which. Soft, hard.
    Limit,
    /// Call `prctl`. `a`: option. Its arguments.
    Control,
    /// Make a child. `a`: its number in the program.
    Child,
    /// Make a process that makes children, and ends: they become the children of the nearest process, from this one up,
    /// that adopts them. `a`: its id. Offset of the children's numbers in the program, how many there are, what it
    /// [`leads`](crate::leads).
    Orphans,
    /// Begin a session.
    Session,
    /// Join a process group. `a`: its number, or 0 for an own one.
    Group,
    /// Make all threads but the first.
    Threads,
    /// Say that all is mapped that the pager registers.
    Tell,
    /// Wait until the private files are there.
    Files,
    /// Say that all is there that may be made ahead, and wait until the restore begins.
    Start,
    /// Close all of the restorer's own but the socket, drop all rights, say so, and wait to be told to go on. Until
    /// then the kernel makes no huge pages. `a`: whether it may after that.
    Wait,
    /// Install a filter in all threads. `a`: number of instructions. Their offset.
    Filter,
    /// Register for barriers. `a`: command.
    Barrier,
    /// Take a lock of a file. `a`: number. Kind and range as in `flock`, CRIU's flag for whose lock it is.
    Lock,
    /// Close numbers from `a` on. One past the last.
    CloseRange,
    /// Make a POSIX timer with a relative time. `a`: id. Clock, offset of its `sigevent`, offset of its `itimerspec`.
    Timer,
    /// Queue a signal to the process or to its first thread. `a`: its number. Process id, thread id or 0, offset of its
    /// `siginfo`.
    Signal,
}

impl Code {
    /// The operation with this number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}
