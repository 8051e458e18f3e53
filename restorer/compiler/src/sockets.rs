//! Sockets of IP, and the options of all sockets.

use std::collections::BTreeSet;

use rekindle_restore_program::Code;
use rekindle_verify::messages::{InetSocket, Owner, SocketOptions};

use crate::builder::Builder;
use crate::flags::{ACCESS, NONBLOCK, is_owned_by_nobody, made_with};

const ESTABLISHED: u32 = 1;
const DATAGRAM: u32 = 2;
pub(crate) const LISTENING: u32 = 10;
/// The kernel's state of a socket that is connected to nothing.
pub(crate) const CLOSED: u32 = 7;
const INET: u32 = 2;
const INET6: u32 = 10;
const TTL: u32 = 64;
/// Both ways, as the kernel counts them: a socket's reading is 1, its writing is 2.
const BOTH_WAYS: u32 = 3;

/// Levels of options.
mod level {
    pub(super) const IP: u64 = 0;
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
        let is_alone = matches!(socket.state, LISTENING | CLOSED) && socket.dst_port == 0;
        if !is_alone && sends_to(socket).is_none() {
            return Err("a socket in an unusual state");
        }
        if socket.state == LISTENING && socket.shutdown.unwrap_or(0) != 0 {
            return Err("a listening socket that was shut down");
        }
    }
    plain(socket.flags, &socket.fown)?;
    if let Some(ip) = &socket.ip_opts
        && (ip.freebind == Some(true) || ip.pktinfo == Some(true))
    {
        return Err("a socket with unusual options of IP");
    }
    let kind = socket.kind | made_with(socket.flags, close);
    b.op(
        Code::Socket,
        number,
        [socket.family.into(), kind.into(), socket.proto.into()],
    );
    options(b, number, &socket.opts)?;
    if let Some(ip) = &socket.ip_opts {
        let numbers = [
            (1, ip.tos.filter(|tos| *tos != 0)),
            (2, ip.ttl.filter(|ttl| !matches!(*ttl, 0 | TTL))),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                option(b, number, (level::IP, name), value);
            }
        }
    }
    if let Some(tcp) = &socket.tcp_opts {
        let flags = [(1, tcp.nodelay), (3, tcp.cork)];
        let flags = flags.map(|(name, on)| (name, on.filter(|on| *on).map(u32::from)));
        let keep = [(4, tcp.keepidle), (5, tcp.keepintvl), (6, tcp.keepcnt)];
        for (name, value) in flags.into_iter().chain(keep) {
            if let Some(value) = value {
                option(b, number, (level::TCP, name), value);
            }
        }
    }
    if socket.v6only == Some(true) {
        option(b, number, (level::IPV6, 26), 1);
    }
    if is_of_connection {
        if !connected.contains(&socket.id) {
            shut(b, number, BOTH_WAYS);
        }
        return Ok(());
    }
    if socket.src_port != 0 {
        address(
            b,
            Code::Bind,
            number,
            (socket.family, &socket.src_addr, socket.src_port),
        )?;
    }
    if let Some(port) = sends_to(socket) {
        address(b, Code::Connect, number, (socket.family, &socket.dst_addr, port))?;
    }
    if socket.state == LISTENING {
        b.op(Code::Listen, number, [socket.backlog.into()]);
    }
    shut(b, number, socket.shutdown.unwrap_or(0));
    Ok(())
}

/// The port to which a socket of UDP is connected.
fn sends_to(socket: &InetSocket) -> Option<u32> {
    let is_connected = socket.kind == DATAGRAM && socket.state == ESTABLISHED && socket.dst_port != 0;
    is_connected.then_some(socket.dst_port)
}

/// Binds or connects to an address.
fn address(
    b: &mut Builder,
    code: Code,
    number: u32,
    (family, words, port): (u32, &[u32], u32),
) -> Result<(), &'static str> {
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let kind = (family as u16).to_le_bytes();
    let port = (port as u16).to_be_bytes();
    let address = match family {
        INET => [kind.as_slice(), &port, &words, &[0; 8]].concat(),
        INET6 => [kind.as_slice(), &port, &[0; 4], &words, &[0; 4]].concat(),
        _ => return Err("a socket of an unknown family"),
    };
    let at = b.data(&address);
    b.op(code, number, [at, address.len() as u64]);
    Ok(())
}

/// Shuts a socket down in these ways.
pub(crate) fn shut(b: &mut Builder, number: u32, ways: u32) {
    if let Some(how) = ways.checked_sub(1) {
        b.op(Code::Shutdown, number, [how.into()]);
    }
}

/// Sets an option of four bytes.
fn option(b: &mut Builder, number: u32, (level, name): (u64, u64), value: u32) {
    b.op(Code::SocketOption, number, [level, name, 4, value.into()]);
}

pub(crate) fn plain(flags: u32, owner: &Owner) -> Result<(), &'static str> {
    let is_plain = flags & !(ACCESS | NONBLOCK) == 0 && is_owned_by_nobody(owner);
    is_plain.then_some(()).ok_or("a socket with unusual flags")
}

/// The options that all kinds of sockets have.
pub(crate) fn options(b: &mut Builder, number: u32, options: &SocketOptions) -> Result<(), &'static str> {
    if !options.so_filter.is_empty() {
        return Err("a socket with a filter");
    }
    for (name, seconds, microseconds) in [
        (20, options.so_rcv_tmo_sec, options.so_rcv_tmo_usec),
        (21, options.so_snd_tmo_sec, options.so_snd_tmo_usec),
    ] {
        if (seconds, microseconds) != (0, 0) {
            let args = [level::SOCKET, name, 16, seconds, microseconds];
            b.op(Code::SocketOption, number, args);
        }
    }
    // The kernel chooses the sizes of buffers that nobody has set, and doubles those that are asked for.
    let locked = options
        .so_buf_lock
        .ok_or("a socket whose buffers may have a size of their own")?;
    for (name, lock, bytes) in [(7, 1, options.so_sndbuf), (8, 2, options.so_rcvbuf)] {
        if locked & lock != 0 {
            option(b, number, (level::SOCKET, name), bytes / 2);
        }
    }
    if let Some(seconds) = options.so_linger {
        let value = 1 | u64::from(seconds) << 32;
        b.op(Code::SocketOption, number, [level::SOCKET, 13, 8, value]);
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
            option(b, number, (level::SOCKET, name), value);
        }
    }
    Ok(())
}
