//! The protocol between worker and init: one JSON message per packet on a `SOCK_SEQPACKET` socket, with descriptors
//! attached by `SCM_RIGHTS`. The worker makes one request at a time. Init answers each with one [`Reply`] that carries
//! the request's number, so that a late reply is not taken for that of the next request. Other [`Message`]s may come in
//! between.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

use crate::files::Saved;
use crate::locks::Lock;
use crate::secrets::SecretFile;

/// The zygote's descriptor of the control socket at its start: standard input, so that the worker can start it by
/// vfork.
pub const CONTROL_FD: RawFd = 0;
/// Control sockets are moved to numbers from here on, out of the way of descriptors with fixed numbers.
pub const CONTROL_FLOOR: RawFd = 64;
/// Maximum size of a message in bytes.
pub const MESSAGE_MAX: usize = 128 * 1024;
/// Maximum number of descriptors attached to a message.
pub const FDS_MAX: usize = 64;
/// Process id of the function's first process in its pid namespace. It is high, so that a restore finds it and the ids
/// after it free: init, CRIU and their children have low ids.
pub const FUNCTION_PID: i32 = 501;
/// The last process id before those of processes of a restored function. It is above the ids that a checkpoint may
/// have, so that CRIU's own processes do not collide with a later checkpoint.
pub const RESTORED_LAST_PID: i32 = 2000;
/// The first of the descriptors that init keeps for CRIU.
pub const HELD_FD: RawFd = 200;
/// User and group of every function inside its sandbox. On the host, each sandbox has different ids.
pub const FUNCTION_UID: u32 = 1000;
/// Number of ids in a sandbox: from 0 to 65,535 inside.
pub const IDS: u32 = 65_536;
/// Number of the image directory's descriptor in a CRIU that dumps.
pub const DUMP_IMAGES_FD: RawFd = 4;
/// Path of CRIU's kernel probe result.
pub const CRIU_PROBE_CACHE: &str = "/run/criu.kdat";

/// The path by which CRIU opens descriptor `index` of those held by init.
pub fn held_path(index: usize) -> String {
    format!("/proc/1/fd/{}", HELD_FD as usize + index)
}

/// What all sandboxes share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostPaths {
    /// A directory on the host that is empty, or has been used for this before. Sandboxes are laid out there, and each
    /// sees only its own.
    pub stage: PathBuf,
    /// Directory on the host with CRIU and its libraries.
    pub criu: PathBuf,
}

/// Parameters for creating a sandbox, before anything is known of a function.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MakeSandbox {
    /// The `cgroup.procs` files of its control groups.
    pub cgroup_procs: Vec<PathBuf>,
    /// The host's id of the sandbox's root. The [`IDS`] from here on belong to this sandbox alone.
    pub first_id: u32,
}

/// Directories of the host that are mounted in a sandbox, read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// The root filesystem.
    pub rootfs: PathBuf,
    /// The function's files, mounted at `/app`.
    pub app: PathBuf,
}

/// What a sandbox is furnished with, besides its [`Layers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Host name inside.
    pub hostname: String,
    /// Size limit of `/tmp` in bytes.
    pub tmp_bytes: u64,
    /// Size limit of `/dev/shm` in bytes.
    pub shm_bytes: u64,
    /// Maximum bytes of what is written to the root, or `None` if it is read-only.
    pub root_bytes: Option<u64>,
    /// Contents of `/etc/resolv.conf`, if different from the root filesystem's.
    pub resolv_conf: Option<String>,
    /// The machine that the sandbox appears to be.
    pub machine: Machine,
    /// Whether it has a place for secrets.
    pub secrets: bool,
}

/// The size of the machine that a sandbox appears to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Number of processors.
    pub processors: u32,
}

/// A process to start with the function's (few) privileges. Attached: standard output, standard error, and a file to
/// which the process writes `0` to join the function's control group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spawn {
    /// Program and arguments. A program without '/' is looked up in `/usr/local/bin:/usr/bin:/bin`.
    pub argv: Vec<String>,
    /// The program that runs it and waits for its children, if any: a path.
    #[serde(default)]
    pub reaper: Option<String>,
    /// The complete environment, as `KEY=value`.
    pub env: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// Whether its secrets are in the environment too.
    #[serde(default)]
    pub secrets: bool,
    /// Maximum number of open files.
    pub open_files: u64,
    /// Digest of an earlier system call filter for the process. `None` for the current filter.
    #[serde(default)]
    pub filter: Option<String>,
}

/// Clock values for processes, as at a checkpoint: seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: (i64, i64),
    /// `CLOCK_BOOTTIME`.
    pub boottime: (i64, i64),
}

/// A numbered request from the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Number of the request.
    pub number: u64,
    /// The request itself.
    pub request: Request,
}

/// A request of the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// To the zygote, first and once: prepare what all sandboxes share.
    Prepare(HostPaths),
    /// To the zygote, any time later: fork a process, which receives its requests on the attached control socket. The
    /// reply has its id on the host. Its parent is the worker.
    Fork,
    /// To a fork, first: create a sandbox ([`outside`](crate::outside)). Attached: the control socket of its init. The
    /// reply has init's id on the host. Init's parent is the worker.
    Make(MakeSandbox),
    /// To the same fork, once, afterwards: mount these directories. The fork then exits.
    Mount(Layers),
    /// To a fork, first: start a CRIU that dumps ([`dumper`](crate::dumper)). Attached: CRIU's end of the RPC socket,
    /// the image directory, the freezer, and the sandbox's namespaces in the order of
    /// [`dumper::NAMESPACES`](crate::dumper::NAMESPACES). A CRIU that only probes the kernel gets no namespaces.
    Dumper {
        /// The control groups that it runs in.
        cgroup_procs: Vec<PathBuf>,
    },
    /// To the same fork, once the function is frozen: make CRIU enter the sandbox. The kernel lets only the same real
    /// user (or CAP_SYS_RESOURCE) read a process's limits. So CRIU gets the function's user, by its number on the host,
    /// as its real user, but not as its effective user.
    GoInside {
        /// The user.
        real_uid: u32,
    },
    /// To init, first: prepare the network. Needs no knowledge of the function, so it is done ahead of time.
    Begin,
    /// Lay out the files, once, after the reply to [`Self::Mount`] and before anything else.
    Furnish(Setup),
    /// Start the function as process [`FUNCTION_PID`].
    Spawn(Spawn),
    /// Start `criu swrk`, which waits for its order. It may be started before the files are laid out, and sees them
    /// once they are. Attached: its end of the RPC socket, then descriptors for restored processes, which become CRIU's
    /// descriptors 3, 4, …. If it joins, the last one is the file to which it writes `0` to join the function's
    /// control group, so that restored processes are in that group.
    Criu {
        /// Whether it joins that group.
        joins: bool,
    },
    /// Before the files are laid out: start the process that restores without CRIU, which then waits for a restore
    /// program. Attached: its end of the socket to the worker, and the file to which it writes `0` to join the
    /// function's control group. It ends before another process gets its id: by [`Self::Spawn`] or [`Self::Hold`].
    Hollow,
    /// That process is about to get a program with these clocks. From now on it is the function's first process.
    BeginProgram(Clocks),
    /// Before the files are laid out: show CRIU a probe result, as [`Request::WriteProbe`] stores it, until the
    /// [`Request::Ancestor`] for it. Attached: a descriptor to read the result from.
    ShowProbe,
    /// Make the last CRIU started, which waits, create a userfaultfd of its memory and a time namespace for its
    /// children ([`ancestor`](crate::ancestor)). Answered with [`Reply::Ancestor`], with the userfaultfd attached.
    Ancestor,
    /// Make each of these processes, which CRIU has restored and holds before their first instruction, create a
    /// userfaultfd of its memory. Answered with [`Reply::Done`], with the userfaultfds attached in the same order.
    Userfaults(Vec<i32>),
    /// Keep the attached descriptors open as [`HELD_FD`] and following, where CRIU finds them by [`held_path`]. Those
    /// of an earlier request are closed. The next processes get ids above [`RESTORED_LAST_PID`]. The children of the
    /// last CRIU started get these clocks.
    Hold {
        /// Clocks at the checkpoint. `None` for the host's clocks.
        clocks: Option<Clocks>,
        /// Whether the first process that CRIU makes is given those below it whose parent ends, from its birth on
        /// (`birth`).
        adopts: bool,
    },
    /// Make processes that CRIU has restored, and holds before their first instruction, take these locks
    /// ([`locks`](crate::locks)).
    TakeLocks(Vec<Lock>),
    /// The function is about to run: from now on, symbolic links in `/tmp` and `/dev/shm` are followed. Starting the
    /// function has the same effect.
    FollowLinks,
    /// While all processes of the function are frozen: fail if a checkpoint would miss one of them
    /// ([`strays`](crate::strays)) or an IPC object ([`ipc`](crate::ipc)).
    RefuseStrays,
    /// Write an archive of `/tmp` and `/dev/shm` to the attached descriptor, to which nothing else writes meanwhile.
    SaveFiles,
    /// Unpack such an archive from the attached descriptor.
    LoadFiles,
    /// Put these secrets in the place of all others ([`secrets`](crate::secrets)). Attached: their values, one after
    /// the other.
    SetSecrets(Vec<SecretFile>),
    /// Read the result of CRIU's kernel probe.
    ReadProbe,
    /// Store such a result. Attached: a descriptor to read it from.
    WriteProbe,
}

/// The reply to a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A process was started: its id inside the sandbox.
    Started(i32),
    /// Contents of a small file.
    Bytes(Vec<u8>),
    /// The archive is written.
    Saved(Saved),
    /// The private files are in place. Number of files whose inode number has changed.
    Loaded(u64),
    /// CRIU's userfaultfd is attached. Address of a page in CRIU's memory that is reserved for the userfaultfd's owner.
    Ancestor(u64),
    /// The request failed.
    Failed(String),
    /// The request failed, but may succeed in a moment.
    NotNow(String),
    /// A checkpoint would miss a process that has outlived its parent: who.
    Orphan(String),
    /// A checkpoint would miss something else that the function has: what, and what to do.
    Holds(String),
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

/// A message from init.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Message {
    /// The reply to the request with this number.
    Reply(u64, Reply),
    /// The function's first process has ended.
    Ended(ExitCause),
}

/// Why a message was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The other side has closed the socket.
    #[error("the other side closed the control socket")]
    Closed,
    /// The socket failed.
    #[error("control socket")]
    Socket(#[source] io::Error),
    /// The bytes are not a message of this protocol.
    #[error("message on the control socket is not understood")]
    Malformed(#[source] serde_json::Error),
    /// The message is too long.
    #[error("message on the control socket is longer than {MESSAGE_MAX} bytes")]
    Truncated,
}

/// Sends one message with descriptors attached. Blocks unless the socket is non-blocking.
///
/// # Errors
/// If the other side is gone, or the message is too long for a packet.
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

/// A buffer for one message, to be reused for the next.
pub fn room() -> Vec<u8> {
    vec![0; MESSAGE_MAX]
}

/// Receives one message into `room`, and the attached descriptors, which are close-on-exec.
///
/// # Errors
/// See [`ReceiveError`]. `WouldBlock` is returned as [`ReceiveError::Socket`].
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
            // SAFETY: the kernel created these descriptors for this call, and nothing else owns them.
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
