//! Sockets of IP, and pairs.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_restore_program::{CLOSED as NO_NUMBER, Code};
use rekindle_verify::Verified;
use rekindle_verify::messages::{Descriptor, InetSocket, Owner, SocketOptions, UnixSocket};

use crate::builder::Builder;
use crate::flags::{ACCESS, NONBLOCK, is_owned_by_nobody, made_with};

const LISTENING: u32 = 10;
/// The kernel's state of a socket that is connected to nothing.
const CLOSED: u32 = 7;
const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const TTL: u32 = 64;

/// Levels of options.
mod level {
    pub(super) const SOCKET: u64 = 1;
    pub(super) const TCP: u64 = 6;
    pub(super) const IPV6: u64 = 41;
}

/// Makes a socket of IP, or returns what it is. One of a TCP connection is connected to nothing: those in `connected`
/// are connected once they are made. Others are shut down: their connection is closed in copies, as by CRIU.
pub(crate) fn inet(
    b: &mut Builder,
    number: u32,
    close: u32,
    socket: &InetSocket,
    connected: &BTreeSet<u32>,
) -> Result<(), &'static str> {
    let is_of_connection = u64::from(socket.proto) == level::TCP && socket.dst_port != 0;
    if !is_of_connection {
        if !matches!(socket.state, LISTENING | CLOSED) || socket.dst_port != 0 {
            return Err("a connected socket");
        }
        if socket.shutdown.unwrap_or(0) != 0 {
            return Err("a socket that was shut down");
        }
    }
    plain(socket.flags, &socket.fown)?;
    if let Some(ip) = &socket.ip_opts {
        let is_plain = ip.freebind != Some(true) && ip.pktinfo != Some(true) && ip.tos.unwrap_or(0) == 0;
        if !is_plain || ip.ttl.unwrap_or(TTL) != TTL {
            return Err("a socket with unusual options of IP");
        }
    }
    let kind = socket.kind | made_with(socket.flags, close);
    b.op(
        Code::Socket,
        number,
        [socket.family.into(), kind.into(), socket.proto.into()],
    );
    options(b, number, &socket.opts)?;
    if let Some(tcp) = &socket.tcp_opts {
        let flags = [(1, tcp.nodelay), (3, tcp.cork)];
        let flags = flags.map(|(name, on)| (name, on.filter(|on| *on).map(u32::from)));
        let keep = [(4, tcp.keepidle), (5, tcp.keepintvl), (6, tcp.keepcnt)];
        for (name, value) in flags.into_iter().chain(keep) {
            if let Some(value) = value {
                b.op(Code::SocketOption, number, [level::TCP, name, value.into()]);
            }
        }
    }
    if socket.v6only == Some(true) {
        b.op(Code::SocketOption, number, [level::IPV6, 26, 1]);
    }
    if is_of_connection {
        if !connected.contains(&socket.id) {
            b.op(Code::Shutdown, number, []);
        }
        return Ok(());
    }
    if socket.src_port != 0 {
        let words: Vec<u8> = socket.src_addr.iter().flat_map(|word| word.to_le_bytes()).collect();
        let family = (socket.family as u16).to_le_bytes();
        let port = (socket.src_port as u16).to_be_bytes();
        let address = match socket.family {
            INET => [family.as_slice(), &port, &words, &[0; 8]].concat(),
            INET6 => [family.as_slice(), &port, &[0; 4], &words, &[0; 4]].concat(),
            _ => return Err("a socket of an unknown family"),
        };
        let at = b.data(&address);
        b.op(Code::Bind, number, [at, address.len() as u64]);
    }
    if socket.state == LISTENING {
        b.op(Code::Listen, number, [socket.backlog.into()]);
    }
    Ok(())
}

/// Makes a unix socket with a name that is connected to nothing, or returns what it is.
fn named(b: &mut Builder, descriptor: &Descriptor, socket: &UnixSocket) -> Result<(), &'static str> {
    const DATAGRAM: u32 = 2;
    let listens = socket.state == LISTENING;
    // Others that have connected to a datagram socket leave it in the state of a connected one.
    if !(listens || socket.state == CLOSED || socket.kind == DATAGRAM) || socket.shutdown.unwrap_or(0) != 0 {
        return Err("a connected unix socket with a name, or one that was shut down");
    }
    if !listens && socket.backlog != 0 {
        return Err("a unix socket with packets");
    }
    if socket.deleted == Some(true) || !matches!(socket.name[0], 0 | b'/') {
        return Err("a unix socket whose name was removed, or is relative");
    }
    plain(socket.flags, &socket.fown)?;
    let kind = socket.kind | made_with(socket.flags, descriptor.flags & 1);
    b.op(Code::Socket, descriptor.fd, [UNIX.into(), kind.into(), 0]);
    options(b, descriptor.fd, &socket.opts)?;
    if let Some(permissions) = &socket.file_perms {
        // The mask is the process's own again later.
        b.op(Code::Umask, !permissions.mode & 0o777, []);
    }
    let address = [&(UNIX as u16).to_le_bytes(), socket.name.as_slice()].concat();
    let at = b.data(&address);
    b.op(Code::Bind, descriptor.fd, [at, address.len() as u64]);
    if listens {
        b.op(Code::Listen, descriptor.fd, [socket.backlog.into()]);
    }
    Ok(())
}

/// Makes a unix socket with a name, or a pair of them, or returns what the socket is. `of` has the descriptor that each
/// file is made as. Returns that of the other; `None` if there is none: everybody has closed it, as a JVM has one end
/// of a pair.
pub(crate) fn unix<'a>(
    b: &mut Builder,
    images: &Verified,
    descriptor: &Descriptor,
    socket: &UnixSocket,
    of: &'a BTreeMap<u32, Descriptor>,
) -> Result<Option<&'a Descriptor>, &'static str> {
    if is_left_alone(socket) {
        let flags = u64::from(made_with(socket.flags, descriptor.flags));
        let args = [NO_NUMBER.into(), UNIX.into(), socket.kind.into(), flags, 0];
        b.op(Code::SocketPair, descriptor.fd, args);
        options(b, descriptor.fd, &socket.opts)?;
        return Ok(None);
    }
    if !socket.name.is_empty() && socket.peer == 0 {
        return named(b, descriptor, socket).map(|()| None);
    }
    let files = images.files.values();
    let peer = files
        .filter_map(|file| file.usk.as_deref())
        .find(|other| other.ino == socket.peer);
    let peer = peer.filter(|other| other.peer == socket.ino && other.id != socket.id);
    let Some(peer) = peer else {
        return Err("a unix socket that is not one of a pair");
    };
    for end in [socket, peer] {
        if !end.name.is_empty() || end.kind != socket.kind {
            return Err("a unix socket with a name");
        }
        if end.backlog != 0 || end.shutdown.unwrap_or(0) != 0 {
            return Err("a unix socket with packets, or shut down");
        }
        plain(end.flags, &end.fown)?;
    }
    let other = of.get(&peer.id).ok_or("a unix socket whose peer has no number")?;
    let flags = |end: &UnixSocket, of: &Descriptor| u64::from(made_with(end.flags, of.flags));
    let args = [
        other.fd.into(),
        UNIX.into(),
        socket.kind.into(),
        flags(socket, descriptor),
        flags(peer, other),
    ];
    b.op(Code::SocketPair, descriptor.fd, args);
    options(b, descriptor.fd, &socket.opts)?;
    options(b, other.fd, &peer.opts)?;
    Ok(Some(other))
}

fn plain(flags: u32, owner: &Owner) -> Result<(), &'static str> {
    let is_plain = flags & !(ACCESS | NONBLOCK) == 0 && is_owned_by_nobody(owner);
    is_plain.then_some(()).ok_or("a socket with unusual flags")
}

/// Whether it is one end of a pair whose other end is closed.
fn is_left_alone(socket: &UnixSocket) -> bool {
    const ESTABLISHED: u32 = 1;
    const CONNECTED_KINDS: [u32; 2] = [1, 5];
    const BOTH_WAYS: u32 = 3;
    (socket.peer, socket.state, socket.backlog) == (0, ESTABLISHED, 0)
        && CONNECTED_KINDS.contains(&socket.kind)
        && socket.shutdown == Some(BOTH_WAYS)
        && socket.name.is_empty()
        && plain(socket.flags, &socket.fown).is_ok()
}

/// The options that all kinds of sockets have.
fn options(b: &mut Builder, number: u32, options: &SocketOptions) -> Result<(), &'static str> {
    let times = [
        options.so_snd_tmo_sec,
        options.so_snd_tmo_usec,
        options.so_rcv_tmo_sec,
        options.so_rcv_tmo_usec,
    ];
    if times != [0; 4] {
        return Err("a socket with a time limit");
    }
    // The kernel chooses the sizes of buffers that nobody has set.
    if options.so_buf_lock != Some(0) {
        return Err("a socket whose buffers have a size of their own");
    }
    if options.so_linger.is_some() || !options.so_filter.is_empty() {
        return Err("a socket that lingers, or with a filter");
    }
    let is_on = |on: Option<bool>| on.filter(|on| *on).map(u32::from);
    for (name, value) in [
        (2, is_on(options.reuseaddr)),
        (5, is_on(options.so_dontroute)),
        (6, is_on(options.so_broadcast)),
        (9, is_on(options.so_keepalive)),
        (10, options.so_oobinline.filter(|on| *on != 0)),
        (11, is_on(options.so_no_check)),
        (12, options.so_priority.filter(|priority| *priority != 0)),
        (15, is_on(options.so_reuseport)),
        (16, is_on(options.so_passcred)),
        (18, options.so_rcvlowat.filter(|bytes| *bytes != 1)),
    ] {
        if let Some(value) = value {
            b.op(Code::SocketOption, number, [level::SOCKET, name, value.into()]);
        }
    }
    Ok(())
}
