//! What worker and init say to each other: one JSON message a packet on a `SOCK_SEQPACKET` socket, descriptors beside it by
//! `SCM_RIGHTS`. The worker asks one thing at a time and init answers each with one [`Reply`] that bears the question's number,
//! so that one that came too late is not taken for the next one's; other [`Message`]s come in between.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

use crate::files::Saved;
use crate::locks::Lock;

/// The descriptor of the control socket in the zygote when it starts: its standard input, so that the worker can start it by vfork.
pub const CONTROL_FD: RawFd = 0;
/// Control sockets are moved to numbers from here on, out of the way of descriptors with fixed ones.
pub const CONTROL_FLOOR: RawFd = 64;
/// The longest message, bytes.
pub const MESSAGE_MAX: usize = 128 * 1024;
/// Descriptors beside one message at most.
pub const FDS_MAX: usize = 32;
/// Process id of the function's first process, in its pid namespace. High, so that a restore finds it (and the ids after
/// it) free: init, CRIU and their children have the low ones.
pub const FUNCTION_PID: i32 = 501;
/// The last process id before those that processes of a restored function get: above what a checkpoint may hold, so that
/// CRIU's own processes and a later checkpoint do not meet.
pub const RESTORED_LAST_PID: i32 = 2000;
/// The first of the descriptors that init keeps for CRIU.
pub const HELD_FD: RawFd = 200;
/// The function's user and group inside, whatever function it is: the host has other ids for each sandbox.
pub const FUNCTION_UID: u32 = 1000;
/// How many ids a sandbox has: from 0 to 65,535 inside.
pub const IDS: u32 = 65_536;
/// The directory's descriptor in a CRIU that dumps.
pub const DUMP_IMAGES_FD: RawFd = 4;
/// Where CRIU keeps the result of its kernel probe.
pub const CRIU_PROBE_CACHE: &str = "/run/criu.kdat";

/// The path by which CRIU opens descriptor `index` of those that init holds.
pub fn held_path(index: usize) -> String {
    format!("/proc/1/fd/{}", HELD_FD as usize + index)
}

/// What all sandboxes have in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Common {
    /// An empty directory on the host, or one that was this before: sandboxes are laid out there, each seeing its own.
    pub stage: PathBuf,
    /// Directory on the host with CRIU and its libraries.
    pub criu: PathBuf,
}

/// What a sandbox is made with, before anything is known of a function.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Make {
    /// The `cgroup.procs` files of its control groups.
    pub cgroup_procs: Vec<PathBuf>,
    /// The host's id that is root inside; the [`IDS`] from here on belong to this sandbox alone.
    pub first_id: u32,
}

/// Directories of the host that a sandbox gets, read-only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layers {
    /// The root filesystem.
    pub rootfs: PathBuf,
    /// The function's files, to be at `/app`.
    pub app: PathBuf,
}

/// What a sandbox is furnished with, beside its [`Layers`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Host name inside.
    pub hostname: String,
    /// Size limit of `/tmp`, bytes.
    pub tmp_bytes: u64,
    /// Size limit of `/dev/shm`, bytes.
    pub shm_bytes: u64,
    /// What `/etc/resolv.conf` says, if not what the root filesystem has.
    pub resolv_conf: Option<String>,
    /// What the sandbox looks like.
    pub machine: Machine,
}

/// The size of the machine that a sandbox looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Processors.
    pub processors: u32,
}

/// A process to start with the function's (few) rights. Beside it: standard output, standard error, and what it writes `0` into to join
/// the function's control group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spawn {
    /// Program and arguments; a program without '/' is looked up in `/usr/local/bin:/usr/bin:/bin`.
    pub argv: Vec<String>,
    /// `KEY=value`, all of it.
    pub env: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// Open files at most.
    pub open_files: u64,
    /// The digest of an earlier system call filter that it gets; the current one without.
    #[serde(default)]
    pub filter: Option<String>,
}

/// The clocks that processes are to find, as they were at a checkpoint: seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: (i64, i64),
    /// `CLOCK_BOOTTIME`.
    pub boottime: (i64, i64),
}

/// What the worker sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Which of the worker's requests this is.
    pub number: u64,
    /// What is asked.
    pub request: Request,
}

/// A request of the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// To the zygote, once, first: make ready what all sandboxes have in common.
    Prepare(Common),
    /// To the zygote, from then on: fork a process, which is told by the control socket beside it. Answered with its
    /// id on the host; its parent is the worker.
    Fork,
    /// To a fork, first: make a sandbox ([`outside`](crate::outside)). Beside it: the control socket of its init.
    /// Answered with init's id on the host; its parent is the worker.
    Make(Make),
    /// To the same, once, after: mount these directories. It ends then.
    Mount(Layers),
    /// To a fork, first: start a CRIU that dumps ([`dumper`](crate::dumper)). Beside it: its end of the RPC socket,
    /// the image directory, the freezer, and, unless it only looks at the kernel, the sandbox's namespaces in the
    /// order of [`dumper::NAMESPACES`](crate::dumper::NAMESPACES).
    Dumper {
        /// The control groups it runs in.
        cgroup_procs: Vec<PathBuf>,
    },
    /// To the same, when the function stands still: have CRIU go into the sandbox. The kernel lets only their own
    /// real user (or CAP_SYS_RESOURCE) read limits of processes, so it gets the function's, by the host's number, as
    /// its real, not its effective, user.
    GoInside {
        /// The user.
        real_uid: u32,
    },
    /// To init, first: make the network ready. Needs to know nothing of the function, so that it is done ahead of time.
    Begin,
    /// Lay out the files, once, after [`Self::Mount`] was answered and before anything else.
    Furnish(Setup),
    /// Start the function as process [`FUNCTION_PID`].
    Spawn(Spawn),
    /// Start `criu swrk`, which waits for its order; it may be started before the files are laid out, and finds them
    /// laid out then. Beside it: its end of the RPC socket, then descriptors to give to restored processes, which
    /// arrive in CRIU as descriptors 3, 4, …; last, if it joins, what it writes `0` into to join the function's
    /// control group, in which what it restores will be.
    Criu {
        /// Whether it joins that group.
        joins: bool,
    },
    /// Before the files are laid out: until CRIU's [`Request::Ancestor`] is asked for, have it find such a result as [`Request::WriteProbe`] stores. Beside it: a
    /// descriptor to read that from.
    ShowProbe,
    /// Have the CRIU that was started last, and waits, make a userfaultfd of its memory, and a time namespace for its
    /// children ([`ancestor`](crate::ancestor)). Answered with [`Reply::Ancestor`], the userfaultfd beside it.
    Ancestor,
    /// Have each of these processes, which CRIU has restored and holds before their first instruction, make a
    /// userfaultfd of its memory. Answered with [`Reply::Done`], the userfaultfds beside it, in this order.
    Userfaults(Vec<i32>),
    /// Keep the descriptors beside it open as [`HELD_FD`] and following, where CRIU finds them by [`held_path`];
    /// those of an earlier request are closed. The next processes get ids above [`RESTORED_LAST_PID`]; those of the
    /// CRIU that was started last have these clocks.
    Hold {
        /// As they were at the checkpoint; the host's where there are none.
        clocks: Option<Clocks>,
    },
    /// Have processes that CRIU has restored, and holds before their first instruction, take these locks
    /// ([`locks`](crate::locks)).
    TakeLocks(Vec<Lock>),
    /// The function is about to run: from now on symbolic links in `/tmp` and `/dev/shm` are followed. Starting it does the same.
    FollowLinks,
    /// While all processes of the function are frozen: fail if a checkpoint would miss one of them
    /// ([`strays`](crate::strays)) or an IPC object ([`ipc`](crate::ipc)).
    RefuseStrays,
    /// Write an archive of `/tmp` and `/dev/shm` to the descriptor beside it, which nobody writes to meanwhile.
    SaveFiles,
    /// Unpack such an archive from the descriptor beside it.
    LoadFiles,
    /// Read the result of CRIU's kernel probe.
    ReadProbe,
    /// Store such a result. Beside it: a descriptor to read it from.
    WriteProbe,
}

/// The answer to a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A process was started: its id inside the sandbox.
    Started(i32),
    /// Content of a small file.
    Bytes(Vec<u8>),
    /// The archive is written.
    Saved(Saved),
    /// The private files are there; so many have another inode number than they had.
    Loaded(u64),
    /// CRIU's userfaultfd is beside this: the address of a page of its memory that is for nothing else.
    Ancestor(u64),
    /// It did not work.
    Failed(String),
    /// It did not work now, and may in a moment.
    NotNow(String),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => {
                let name = nix::sys::signal::Signal::try_from(*signal).map_or("?", |s| s.as_str());
                write!(f, "was killed by signal {signal} ({name})")
            }
        }
    }
}

/// What init says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Message {
    /// The answer to the request of this number.
    Reply(u64, Reply),
    /// The function's first process ended.
    Ended(ExitCause),
}

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The other side is gone.
    #[error("the other side closed the control socket")]
    Closed,
    /// The socket failed.
    #[error("control socket")]
    Socket(#[source] io::Error),
    /// It is not a message of this protocol.
    #[error("message on the control socket is not understood")]
    Malformed(#[source] serde_json::Error),
    /// It does not fit.
    #[error("message on the control socket is longer than {MESSAGE_MAX} bytes")]
    Truncated,
}

/// Sends one message with descriptors beside it. Blocks unless the socket is non-blocking.
///
/// # Errors
/// When the other side is gone, or the message is too long for a packet.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Room for one message, to be used again for the next.
pub fn room() -> Vec<u8> {
    vec![0; MESSAGE_MAX]
}

/// Receives one message into `room` and the descriptors beside it, which are closed on exec.
///
/// # Errors
/// See [`ReceiveError`]; `WouldBlock` comes as [`ReceiveError::Socket`].
#[expect(
    unsafe_code,
    reason = "takes ownership of descriptors the kernel has just made for this process"
)]
pub fn receive<T: for<'de> Deserialize<'de>>(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
) -> Result<(T, Vec<OwnedFd>), ReceiveError> {
    let mut space = nix::cmsg_space!([RawFd; FDS_MAX]);
    let mut parts = [IoSliceMut::new(room)];
    let received = recvmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .map_err(|e| ReceiveError::Socket(e.into()))?;
    let mut fds = Vec::new();
    for control in received.cmsgs().map_err(|e| ReceiveError::Socket(e.into()))? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel made these descriptors for this call alone; nobody else owns them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let (length, flags) = (received.bytes, received.flags);
    if length == 0 {
        return Err(ReceiveError::Closed);
    }
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(ReceiveError::Truncated);
    }
    let message = serde_json::from_slice(&room[..length]).map_err(ReceiveError::Malformed)?;
    Ok((message, fds))
}
