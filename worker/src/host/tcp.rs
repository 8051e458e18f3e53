//! TCP connections whose two ends are both at hand. What was sent and not read is copied at a checkpoint. In a copy,
//! two sockets that are connected to nothing are connected to each other: with `TCP_REPAIR`, the kernel needs neither
//! packets nor the listening socket for that.

use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockaddrStorage, bind, connect, getsockopt, recv, send, setsockopt, sockopt};

/// Maximum number of bytes that are copied from one end.
const UNREAD_MAX: usize = 64 << 10;
/// How long the other ends may take to acknowledge what has arrived. The kernel waits 40 ms for something to say with
/// it.
const ACKNOWLEDGED: Duration = Duration::from_millis(60);
const PAUSE: Duration = Duration::from_millis(2);
/// Sequence numbers of the first bytes that two connected ends send.
const SEQUENCES: [u32; 2] = [1 << 16, 1 << 20];

/// The socket option that says where `TCP_QUEUE_SEQ` belongs. See the kernel's `tcp_repair`.
const RECEIVED: u32 = 1;
const SENT: u32 = 2;
/// Leaves repair without telling the other end.
const OFF_SILENTLY: u32 = u32::MAX;
/// Options that the ends agree on, by their numbers in TCP's header: the loopback's segments, windows in units of 128
/// bytes both ways, selective acknowledgements.
const AGREED: [u32; 6] = [2, 65_495, 3, 7 << 16 | 7, 4, 0];
/// What each end may send before it hears of the other.
const WINDOW: u32 = 65_483;

pub(crate) struct TcpEnd<'a> {
    /// The socket, bound and connected to nothing.
    pub(crate) socket: &'a OwnedFd,
    pub(crate) address: SocketAddr,
    /// The other end's, in the same family of addresses.
    pub(crate) peer: SocketAddr,
    /// What it has received and not read.
    pub(crate) unread: &'a [u8],
}

/// Copies what connections have in them, with one buffer and one time limit for all.
pub(crate) struct Copier {
    buffer: Vec<u8>,
    until: Instant,
}

impl Copier {
    /// From now on, what is on its way may arrive.
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; UNREAD_MAX + 1],
            until: Instant::now() + ACKNOWLEDGED,
        }
    }

    /// Copies what each end of an established connection has received and not read. Nobody may use the sockets
    /// meanwhile. Returns `None` if that is more than 64 KiB or than half of what the socket has room for. It does so
    /// too if something is on its way or urgent, or if an end looks at what it has from an offset (`SO_PEEK_OFF`), as
    /// this would.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub(crate) fn unread(&mut self, ends: [&OwnedFd; 2]) -> io::Result<Option<[Vec<u8>; 2]>> {
        for end in ends {
            if !is_still(end, self.until)? || !peeks_from_the_start(end)? {
                return Ok(None);
            }
        }
        let mut copied = [Vec::new(), Vec::new()];
        for (end, bytes) in std::iter::zip(ends, &mut copied) {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            let length = match recv(end.as_raw_fd(), &mut self.buffer, flags) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => 0,
                Err(e) => return Err(e.into()),
            };
            // What is urgent ends the copy, and a copy is in one piece, which needs more room than many.
            let mut urgent = [PollFd::new(end.as_fd(), PollFlags::POLLPRI)];
            let room = getsockopt(end, sockopt::RcvBuf)? / 2;
            if poll(&mut urgent, PollTimeout::ZERO)? > 0 || length > UNREAD_MAX.min(room) {
                return Ok(None);
            }
            bytes.extend_from_slice(&self.buffer[..length]);
        }
        Ok(Some(copied))
    }
}

/// Connects two sockets to each other, and has each receive what it has not read.
///
/// # Errors
/// If the kernel refuses. The sockets are of no use then.
pub(crate) fn connect_pair(ends: [TcpEnd<'_>; 2]) -> io::Result<()> {
    let [this, that] = &ends;
    let reuse = [
        getsockopt(this.socket, sockopt::ReuseAddr)?,
        getsockopt(that.socket, sockopt::ReuseAddr)?,
    ];
    let [first, second] = SEQUENCES;
    connect_end(this, first, second, that.unread.len())?;
    connect_end(that, second, first, this.unread.len())?;
    for (end, reuse) in std::iter::zip(&ends, reuse) {
        set(end.socket, libc::TCP_REPAIR, &[OFF_SILENTLY])?;
        // Repair has taken it away.
        setsockopt(end.socket, sockopt::ReuseAddr, &reuse)?;
    }
    Ok(())
}

/// Connects an end. Both sequence numbers are of the first bytes that are not read. `sent` counts the bytes that the
/// other end has not read.
fn connect_end(end: &TcpEnd<'_>, sends: u32, receives: u32, sent: usize) -> io::Result<()> {
    // CRIU shuts down what was connected; this opens it again.
    disconnect(end.socket)?;
    set(end.socket, libc::TCP_REPAIR, &[1])?;
    let next = receives + end.unread.len() as u32;
    for (queue, first) in [(SENT, sends + sent as u32), (RECEIVED, receives)] {
        set(end.socket, libc::TCP_REPAIR_QUEUE, &[queue])?;
        set(end.socket, libc::TCP_QUEUE_SEQ, &[first])?;
    }
    bind(end.socket.as_raw_fd(), &SockaddrStorage::from(end.address))?;
    connect(end.socket.as_raw_fd(), &SockaddrStorage::from(end.peer))?;
    set(end.socket, libc::TCP_REPAIR_OPTIONS, &AGREED)?;
    // The queue is still that of what was received. What is sent now is put there.
    if !end.unread.is_empty() && send(end.socket.as_raw_fd(), end.unread, MsgFlags::empty())? != end.unread.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    // The kernel's `tcp_repair_window`: of whom the window is, how large it is and was, ours, since when.
    let window = [next, WINDOW, WINDOW, WINDOW, next];
    set(end.socket, libc::TCP_REPAIR_WINDOW, &window)
}

/// Takes everything that a socket is connected or bound to away.
fn disconnect(socket: &OwnedFd) -> io::Result<()> {
    let unspecified = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as u16,
        sa_data: [0; 14],
    };
    // SAFETY: the address is valid until the call returns, and as long as it is said to be.
    #[expect(unsafe_code, reason = "nix has no address without a family")]
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            &raw const unspecified,
            size_of_val(&unspecified) as u32,
        )
    };
    Ok(Errno::result(result).map(drop)?)
}

/// Sets an option of TCP, whose value is integers.
fn set(socket: &OwnedFd, name: i32, value: &[u32]) -> io::Result<()> {
    let (at, length) = (value.as_ptr().cast(), size_of_val(value) as u32);
    // SAFETY: the value is valid until the call returns, and as long as it is said to be.
    #[expect(unsafe_code, reason = "nix has none of these options")]
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, at, length) };
    Ok(Errno::result(result).map(drop)?)
}

/// Returns whether a connection is open, and all that was sent at this end has arrived. Waits for that while the other
/// end has yet to say so, which it may do late.
fn is_still(socket: &OwnedFd, until: Instant) -> io::Result<bool> {
    const ESTABLISHED: u8 = 1;
    loop {
        let told = info(socket)?;
        if told.tcpi_state != ESTABLISHED || told.tcpi_notsent_bytes > 0 {
            return Ok(false);
        }
        if told.tcpi_unacked == 0 || Instant::now() >= until {
            return Ok(told.tcpi_unacked == 0);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether peeks at a socket begin with what comes first. A kernel without the option for TCP always does so.
fn peeks_from_the_start(socket: &OwnedFd) -> io::Result<bool> {
    let mut offset = -1_i32;
    let mut length = size_of_val(&offset) as u32;
    // SAFETY: both are valid until the call returns, and the length is that of the room.
    #[expect(unsafe_code, reason = "nix does not have this option")]
    let result = unsafe {
        let at = (&raw mut offset).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            at,
            &raw mut length,
        )
    };
    match Errno::result(result) {
        Ok(_) => Ok(offset < 0),
        Err(Errno::EOPNOTSUPP | Errno::ENOPROTOOPT) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

fn info(socket: &OwnedFd) -> io::Result<libc::tcp_info> {
    #[expect(
        unsafe_code,
        reason = "the kernel may know fewer fields, and leaves the others alone"
    )]
    // SAFETY: it is made of integers, for which zero is a value.
    let mut told: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of_val(&told) as u32;
    // SAFETY: both are valid until the call returns, and the length is that of the room.
    #[expect(unsafe_code, reason = "nix does not have this option")]
    let result = unsafe {
        let at = (&raw mut told).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            at,
            &raw mut length,
        )
    };
    Errno::result(result)?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    use super::*;

    fn unconnected(like: SocketAddr) -> OwnedFd {
        let family = if like.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        socket(family, SockType::Stream, SockFlag::empty(), None).unwrap()
    }

    fn connected(listening: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(listening).unwrap();
        let port = listener.local_addr().unwrap().port();
        let this = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (that, _) = listener.accept().unwrap();
        (listener, this, that)
    }

    fn unread(ends: &[OwnedFd; 2]) -> Option<[Vec<u8>; 2]> {
        Copier::new().unread([&ends[0], &ends[1]]).unwrap()
    }

    /// Replaces a connection by one between new sockets.
    fn replaced(this: TcpStream, that: TcpStream) -> [TcpStream; 2] {
        let addresses = [&this, &that].map(|end| (end.local_addr().unwrap(), end.peer_addr().unwrap()));
        // Nothing is left of the old one.
        let ends = [OwnedFd::from(this), OwnedFd::from(that)];
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        ends.iter()
            .for_each(|end| setsockopt(end, sockopt::Linger, &at_once).unwrap());
        let unread = unread(&ends).unwrap();
        drop(ends);
        let sockets = addresses.map(|(own, _)| unconnected(own));
        setsockopt(&sockets[1], sockopt::ReuseAddr, &true).unwrap();
        setsockopt(&sockets[0], sockopt::SndBuf, &4096).unwrap();
        let end = |at: usize| TcpEnd {
            socket: &sockets[at],
            address: addresses[at].0,
            peer: addresses[at].1,
            unread: &unread[at],
        };
        connect_pair([end(0), end(1)]).unwrap();
        assert!(getsockopt(&sockets[1], sockopt::ReuseAddr).unwrap());
        sockets.map(TcpStream::from)
    }

    #[test]
    fn a_connection_goes_on_between_other_sockets_with_what_was_not_read() {
        for listening in ["127.0.0.1:0", "[::]:0"] {
            let (_listener, mut this, mut that) = connected(listening);
            this.write_all(b"asked and half read").unwrap();
            that.read_exact(&mut [0; 10]).unwrap();
            that.write_all(b"answered").unwrap();
            let addresses = (this.local_addr().unwrap(), this.peer_addr().unwrap());
            let [mut this, mut that] = replaced(this, that);
            assert_eq!((this.local_addr().unwrap(), this.peer_addr().unwrap()), addresses);
            let mut read = [0; 9];
            that.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"half read");
            // Far more than a window at once, both ways.
            let much = vec![7; 3 << 20];
            std::thread::scope(|scope| {
                scope.spawn(|| that.write_all(&much).unwrap());
                let mut read = vec![0; 8 + much.len()];
                this.read_exact(&mut read).unwrap();
                assert_eq!(&read[..8], b"answered");
                assert!(read[8..] == much);
            });
            // And once more.
            let [mut this, that] = replaced(this, that);
            drop(that);
            assert_eq!(this.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn what_is_on_its_way_or_too_much_is_not_copied() {
        let (_listener, mut this, that) = connected("127.0.0.1:0");
        setsockopt(&that, sockopt::RcvBuf, &(1 << 20)).unwrap();
        this.write_all(&[1; UNREAD_MAX]).unwrap();
        let ends = [OwnedFd::from(this), OwnedFd::from(that)];
        let [_, copied] = unread(&ends).unwrap();
        assert!(copied.len() == UNREAD_MAX && copied.capacity() < 2 * UNREAD_MAX);
        let mut this = TcpStream::from(ends[0].try_clone().unwrap());
        this.set_nonblocking(true).unwrap();
        this.write_all(&[1]).unwrap();
        assert!(unread(&ends).is_none());
        while this.write(&[1; 4096]).is_ok() {}
        assert!(unread(&ends).is_none());
    }

    #[test]
    fn what_is_urgent_is_not_copied() {
        let (_listener, mut this, that) = connected("127.0.0.1:0");
        this.write_all(b"ab").unwrap();
        send(this.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap();
        this.write_all(b"cd").unwrap();
        assert!(unread(&[this.into(), that.into()]).is_none());
    }

    #[test]
    fn a_closed_connection_is_not_copied() {
        let (_listener, this, that) = connected("127.0.0.1:0");
        that.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(unread(&[this.into(), that.into()]).is_none());
    }

    #[test]
    fn what_is_on_its_way_in_many_connections_is_waited_for_once() {
        let all: Vec<_> = std::iter::repeat_with(|| connected("127.0.0.1:0")).take(20).collect();
        let stuck = all.into_iter().map(|(listener, mut this, that)| {
            setsockopt(&that, sockopt::RcvBuf, &4096).unwrap();
            this.set_nonblocking(true).unwrap();
            while this.write(&[1; 4096]).is_ok() {}
            (listener, [OwnedFd::from(this), OwnedFd::from(that)])
        });
        let stuck: Vec<_> = stuck.collect();
        let began = Instant::now();
        let mut copier = Copier::new();
        for (_, ends) in &stuck {
            assert!(copier.unread([&ends[0], &ends[1]]).unwrap().is_none());
        }
        assert!(began.elapsed() < ACKNOWLEDGED * 10);
    }

    #[test]
    fn what_is_peeked_at_from_an_offset_is_not_copied() {
        let (_listener, mut this, that) = connected("127.0.0.1:0");
        this.write_all(b"0123456789").unwrap();
        let offset = 5_i32;
        // SAFETY: the value is valid until the call returns, and as long as it is said to be.
        #[expect(unsafe_code, reason = "nix does not have this option")]
        let result = unsafe {
            let at = (&raw const offset).cast();
            libc::setsockopt(
                that.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEEK_OFF,
                at,
                size_of_val(&offset) as u32,
            )
        };
        let copied = unread(&[this.into(), that.into()]);
        // A kernel without the option has no offset.
        assert_eq!(copied.is_none(), result == 0);
    }
}
