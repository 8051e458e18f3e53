//! A process's descriptors: which can be put back, and whether they are as they were.

#![expect(
    unsafe_code,
    reason = "queues are counted, and sockets asked, by requests without wrappers"
)]

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockType, getsockopt, sockopt};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, PROC_SUPER_MAGIC, SYSFS_MAGIC, statfs};
use nix::unistd::{Pid, pipe2, read};

use crate::error::{Unfit, kernel};
use crate::mappings::read_again;

/// Devices without a state.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Filesystems that the kernel makes up.
const OF_THE_KERNEL: [FsType; 4] = [PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC];
/// Descriptors of the kernel's whose `fdinfo` says all.
const ANONYMOUS: [&str; 2] = ["anon_inode:[eventfd]", "anon_inode:[eventpoll]"];
/// The most that may lie in a pipe.
const CONTENTS_MAX: usize = 4096;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;

/// How many bytes went over a connection, as whoever is at its other end has counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// Bytes that it has sent to the process.
    pub sent: u64,
    /// Bytes of the process that it has read.
    pub read: u64,
}

/// The descriptors of a process at a point.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pidfd: OwnedFd,
    all: Vec<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    number: RawFd,
    /// Its `fdinfo`, open: position, flags, inode, and what is its kind's own.
    source: File,
    info: Vec<u8>,
    queue: Queue,
    /// What lies in it. Libraries keep a byte in a pipe as a lock.
    contents: Vec<u8>,
    /// What `poll` says of it, which is more than what lies in it.
    events: PollFlags,
}

/// What may lie in a descriptor unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// Nothing, or what only others read.
    None,
    /// Bytes in a pipe of its own.
    Pipe,
    /// Bytes in a socket of its own.
    Socket,
    /// Bytes of the connection over which requests come.
    Connection,
}

/// The numbers of a process's descriptors, in order.
fn numbers(pid: Pid) -> Result<Vec<RawFd>, Unfit> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).map_err(kernel("list its descriptors"))?;
    let mut numbers = Vec::new();
    for entry in listed {
        let entry = entry.map_err(kernel("list its descriptors"))?;
        numbers.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|number| number.parse::<RawFd>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A descriptor for a process.
fn pidfd(pid: Pid) -> Result<OwnedFd, Unfit> {
    // SAFETY: the call takes two numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) }).map_err(kernel("open the process"))
}

/// A copy of a process's descriptor.
fn copy(pidfd: &OwnedFd, number: RawFd) -> Result<OwnedFd, Unfit> {
    // SAFETY: the call takes three numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) })
        .map_err(kernel("take a descriptor"))
}

fn owned(made: libc::c_long) -> Result<OwnedFd, Errno> {
    let made = RawFd::try_from(Errno::result(made)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call has just made this descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

impl Descriptors {
    /// Looks at the descriptors of a stopped process that serves requests at `port`.
    ///
    /// # Errors
    /// Returns an error when one of them cannot be put back, and `Busy` when the connection is not there yet.
    pub(crate) fn of(pid: Pid, port: u16) -> Result<Self, Unfit> {
        let pidfd = pidfd(pid)?;
        let mut all = Vec::new();
        for number in numbers(pid)? {
            let name = fs::read_link(format!("/proc/{pid}/fd/{number}")).map_err(kernel("look at a descriptor"))?;
            let name = name.to_string_lossy().into_owned();
            let refuse = |why: &str| Err(Unfit::Descriptors(format!("{number}, {name}, {why}")));
            let source = File::open(format!("/proc/{pid}/fdinfo/{number}")).map_err(kernel("look at a descriptor"))?;
            let info = read_again(&source, "look at a descriptor")?;
            let mode = mode(&info);
            let queue = if DEVICES.contains(&name.as_str()) || ANONYMOUS.contains(&name.as_str()) {
                Queue::None
            } else if name.starts_with("pipe:") {
                if mode == libc::O_WRONLY {
                    Queue::None
                } else {
                    Queue::Pipe
                }
            } else if name.starts_with("socket:") {
                match socket(copy(&pidfd, number)?.as_fd(), port)? {
                    Ok(queue) => queue,
                    Err(why) => return refuse(&why),
                }
            } else if mode == libc::O_RDONLY && is_file(pid, number)? {
                Queue::None
            } else {
                return refuse("is of a kind that cannot be put back");
            };
            let (contents, events) = match queue {
                Queue::None => (Vec::new(), PollFlags::empty()),
                Queue::Pipe => {
                    let copy = copy(&pidfd, number)?;
                    (contents(copy.as_fd())?, events(copy.as_fd())?)
                }
                Queue::Socket | Queue::Connection => (Vec::new(), events(copy(&pidfd, number)?.as_fd())?),
            };
            all.push(Descriptor {
                number,
                source,
                info,
                queue,
                contents,
                events,
            });
        }
        match all.iter().filter(|one| one.queue == Queue::Connection).count() {
            1 => Ok(Self { pidfd, all }),
            0 => Err(Unfit::Busy("it has not taken its connection".to_owned())),
            _ => Err(Unfit::Descriptors("it has several connections".to_owned())),
        }
    }

    /// The numbers of them.
    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        self.all.iter().map(|one| one.number).collect()
    }

    /// Whether the process still is the same.
    pub(crate) fn is_alive(&self) -> bool {
        let (no_signal, no_info, no_flags) = (0, std::ptr::null::<libc::siginfo_t>(), 0);
        // SAFETY: the call takes numbers and a null pointer.
        let sent = unsafe {
            let pidfd = self.pidfd.as_raw_fd();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd, no_signal, no_info, no_flags)
        };
        sent == 0
    }

    /// A copy of a descriptor of the process.
    pub(crate) fn copy(&self, number: RawFd) -> Result<OwnedFd, Unfit> {
        copy(&self.pidfd, number)
    }

    /// Checks that they are as they were, that there are no others, and that nothing lies in them, also not at the
    /// other end of the connection.
    pub(crate) fn check(&self, pid: Pid, exchanged: Exchanged) -> Result<(), Unfit> {
        let now = numbers(pid)?;
        if !now.iter().eq(self.all.iter().map(|one| &one.number)) {
            return Err(Unfit::Descriptors(format!("they are {now:?}")));
        }
        for one in &self.all {
            let changed = |why: &str| Unfit::Descriptors(format!("{} {why}", one.number));
            if read_again(&one.source, "look at a descriptor")? != one.info {
                return Err(changed("has changed"));
            }
            if one.queue == Queue::None {
                continue;
            }
            let copy = self.copy(one.number)?;
            if unread(copy.as_fd())? != one.contents.len() {
                return Err(changed("has something unread"));
            }
            if !one.contents.is_empty() && contents(copy.as_fd())? != one.contents {
                return Err(changed("has something else unread"));
            }
            if events(copy.as_fd())? != one.events {
                return Err(changed("is ready for something else"));
            }
            if one.queue == Queue::Connection {
                let info = tcp_info(copy.as_fd())?;
                let sent = info.tcpi_bytes_sent.wrapping_sub(info.tcpi_bytes_retrans);
                if info.tcpi_state != ESTABLISHED || info.tcpi_notsent_bytes > 0 {
                    return Err(changed("is not connected any more, or not done"));
                }
                if sent != exchanged.read || info.tcpi_bytes_received != exchanged.sent {
                    return Err(changed("has something under way"));
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a descriptor is of a file or a directory. Not of one that the kernel makes up: those keep what was
/// read of them last, which nothing shows.
fn is_file(pid: Pid, number: RawFd) -> Result<bool, Unfit> {
    let path = format!("/proc/{pid}/fd/{number}");
    let kind = fs::metadata(&path).map_err(kernel("look at a descriptor"))?;
    let on = statfs(path.as_str()).map_err(kernel("look at a descriptor"))?;
    Ok((kind.is_file() || kind.is_dir()) && !OF_THE_KERNEL.contains(&on.filesystem_type()))
}

/// How a descriptor was opened, by its `fdinfo`: `O_RDONLY` and so on.
fn mode(info: &[u8]) -> i32 {
    let info = String::from_utf8_lossy(info);
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.unwrap_or(libc::O_RDWR) & libc::O_ACCMODE
}

/// What may lie in a socket, or why it cannot be put back.
fn socket(socket: BorrowedFd<'_>, port: u16) -> Result<Result<Queue, String>, Unfit> {
    let asked = kernel::<Errno>;
    let kind = getsockopt(&socket, sockopt::SockType).map_err(asked("ask a socket"))?;
    let listens = getsockopt(&socket, sockopt::AcceptConn).map_err(asked("ask a socket"))?;
    let domain = domain(socket).map_err(asked("ask a socket"))?;
    Ok(match (domain, kind) {
        (AddressFamily::Inet | AddressFamily::Inet6, SockType::Stream) if listens => Ok(Queue::None),
        (AddressFamily::Inet | AddressFamily::Inet6, SockType::Stream) => {
            let local = local_address(socket).map_err(kernel("ask a socket"))?;
            match local.port() == port && tcp_info(socket)?.tcpi_state == ESTABLISHED {
                true => Ok(Queue::Connection),
                false => Err("is a connection of its own".to_owned()),
            }
        }
        // Datagrams may be empty and carry descriptors.
        (AddressFamily::Unix, SockType::Stream) if !listens => Ok(Queue::Socket),
        _ => Err(format!("is a socket that cannot be put back: {domain:?}, {kind:?}")),
    })
}

fn local_address(socket: BorrowedFd<'_>) -> std::io::Result<SocketAddr> {
    std::net::TcpStream::from(socket.try_clone_to_owned()?).local_addr()
}

fn domain(socket: BorrowedFd<'_>) -> Result<AddressFamily, Errno> {
    let domain: i32 = option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    AddressFamily::from_i32(domain).ok_or(Errno::EAFNOSUPPORT)
}

fn tcp_info(socket: BorrowedFd<'_>) -> Result<libc::tcp_info, Unfit> {
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map_err(kernel("ask a connection"))
}

/// An option of a socket, whose type `T` must be plain numbers.
fn option<T>(socket: BorrowedFd<'_>, level: i32, name: i32) -> Result<T, Errno> {
    // SAFETY: `T` is plain numbers, of which the kernel writes at most `length` bytes.
    unsafe {
        let mut value: T = std::mem::zeroed();
        let mut length = size_of::<T>() as libc::socklen_t;
        let got = libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        );
        Errno::result(got).map(|_| value)
    }
}

/// What `poll` says of a pipe or a socket.
fn events(descriptor: BorrowedFd<'_>) -> Result<PollFlags, Unfit> {
    let all = PollFlags::POLLIN | PollFlags::POLLPRI;
    let mut asked = [PollFd::new(descriptor, all)];
    loop {
        match poll(&mut asked, PollTimeout::ZERO) {
            Err(Errno::EINTR) => {}
            Err(e) => return Err(kernel("poll a descriptor")(e)),
            Ok(_) => return Ok(asked[0].revents().unwrap_or(PollFlags::empty())),
        }
    }
}

/// What lies in a pipe, which stays there.
fn contents(pipe: BorrowedFd<'_>) -> Result<Vec<u8>, Unfit> {
    let count = unread(pipe)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > CONTENTS_MAX {
        return Err(Unfit::Descriptors(format!("{count} bytes lie in a pipe")));
    }
    let copied = || -> nix::Result<Vec<u8>> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        let (from, to) = (pipe.as_raw_fd(), writer.as_raw_fd());
        // SAFETY: the call takes numbers.
        let copied = Errno::result(unsafe { libc::tee(from, to, count, libc::SPLICE_F_NONBLOCK) })?;
        let mut bytes = vec![0; copied.unsigned_abs()];
        let read = read(&reader, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    };
    let bytes = copied().map_err(kernel("read what lies in a pipe"))?;
    match bytes.len() == count {
        true => Ok(bytes),
        false => Err(Unfit::Descriptors(
            "what lies in a pipe cannot be read at once".to_owned(),
        )),
    }
}

/// How many bytes lie unread in a pipe or a socket.
fn unread(descriptor: BorrowedFd<'_>) -> Result<usize, Unfit> {
    let mut count: i32 = 0;
    // SAFETY: the request writes one number.
    let asked = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    Errno::result(asked).map_err(kernel("count what is unread"))?;
    Ok(count.unsigned_abs() as usize)
}
