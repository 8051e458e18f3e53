//! TCP connections of a function to itself, over the loopback: both ends are sockets of its processes. Each copy gets
//! them again. CRIU closes all connections in copies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rekindle_verify::Verified;
use rekindle_verify::messages::InetSocket;
use serde::{Deserialize, Serialize};

const STREAM: u32 = 1;
/// The kernel's state of a connection that neither end has closed.
const ESTABLISHED: u32 = 1;
const INET: u32 = 2;

/// Maximum number of bytes in all connections of a function.
pub(crate) const UNREAD_MAX: usize = 1 << 20;
/// Maximum number of a function's connections that copies get.
pub(crate) const CONNECTIONS_MAX: usize = 1_000;

/// What a connection had in it at the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionNote {
    /// Numbers of its sockets in the images.
    pub sockets: [u32; 2],
    /// What each had received and not read.
    pub unread: [Vec<u8>; 2],
}

impl ConnectionNote {
    /// Returns the number of bytes in it.
    pub(crate) fn bytes(&self) -> usize {
        self.unread.iter().map(Vec::len).sum()
    }
}

/// A connection between two sockets of the processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) ends: [ConnectionEnd; 2],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionEnd {
    /// The socket's number in the images.
    pub(crate) socket: u32,
    /// A process that has it open, by its id in its pid namespace.
    pub(crate) pid: u32,
    /// The descriptor there.
    pub(crate) fd: u32,
    pub(crate) address: SocketAddr,
    /// The other end's, in the same family of addresses.
    pub(crate) peer: SocketAddr,
    /// What it has received and not read.
    pub(crate) unread: Vec<u8>,
}

/// Finds the connections in verified images. Nothing of what they contain is known yet.
pub(crate) fn find(images: &Verified) -> Vec<Connection> {
    let mut found = Vec::new();
    // By the addresses of both ends: whoever comes second is the other end.
    let mut open = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for process in &images.processes {
        for (fd, descriptor) in process.descriptors.iter() {
            let socket = images.files.get(&descriptor.id).and_then(|file| file.isk.as_ref());
            let Some((own, other)) = socket.and_then(|socket| addresses(socket)) else {
                continue;
            };
            if !seen.insert(descriptor.id) {
                continue;
            }
            let end = ConnectionEnd {
                socket: descriptor.id,
                pid: process.tree.pid,
                fd: *fd,
                address: own,
                peer: other,
                unread: Vec::new(),
            };
            match open.remove(&(plain(other), plain(own))) {
                Some(first) => found.push(Connection { ends: [first, end] }),
                None => drop(open.insert((plain(own), plain(other)), end)),
            }
        }
    }
    found
}

/// Returns the connections in verified images that copies get, with what `notes` says of them.
pub(crate) fn noted(images: &Verified, notes: &[ConnectionNote]) -> Vec<Connection> {
    let mut found = find(images);
    let notes: BTreeMap<_, _> = notes.iter().map(|note| (note.sockets, note)).collect();
    found.retain_mut(|connection| {
        let sockets = connection.ends.each_ref().map(|end| end.socket);
        let note = notes.get(&sockets);
        for (end, unread) in std::iter::zip(&mut connection.ends, note.into_iter().flat_map(|note| &note.unread)) {
            end.unread.clone_from(unread);
        }
        note.is_some()
    });
    found
}

/// Returns the numbers of the sockets of these connections.
pub(crate) fn sockets(connections: &[Connection]) -> BTreeSet<u32> {
    let ends = connections.iter().flat_map(|connection| &connection.ends);
    ends.map(|end| end.socket).collect()
}

/// Returns the addresses of a socket and of its other end, if it is connected over the loopback.
fn addresses(socket: &InetSocket) -> Option<(SocketAddr, SocketAddr)> {
    let is_open = socket.state == ESTABLISHED && socket.shutdown.unwrap_or(0) == 0;
    if socket.kind != STREAM || !is_open {
        return None;
    }
    let own = address(socket.family, &socket.src_addr, socket.src_port)?;
    let other = address(socket.family, &socket.dst_addr, socket.dst_port)?;
    let is_inside = plain(own).ip().is_loopback() && plain(other).ip().is_loopback();
    is_inside.then_some((own, other))
}

/// `words` are in the order of the network.
fn address(family: u32, words: &[u32], port: u32) -> Option<SocketAddr> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let ip = if family == INET {
        IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
    } else {
        IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
    };
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

/// A listening socket of IPv6 may accept a connection of IPv4. Both ends are then compared as IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(family: u32, own: (&[u32], u32), other: (&[u32], u32)) -> InetSocket {
        InetSocket {
            kind: STREAM,
            state: ESTABLISHED,
            family,
            src_addr: own.0.to_vec(),
            src_port: own.1,
            dst_addr: other.0.to_vec(),
            dst_port: other.1,
            ..InetSocket::default()
        }
    }

    #[test]
    fn a_connection_over_the_loopback_is_known_by_its_addresses() {
        const LOOPBACK: u32 = u32::from_le_bytes([127, 0, 0, 1]);
        let client = socket(INET, (&[LOOPBACK], 40_000), (&[LOOPBACK], 8080));
        let mapped = [0, 0, 0xffff_0000_u32, LOOPBACK];
        let server = socket(10, (&mapped, 8080), (&mapped, 40_000));
        let (own, other) = addresses(&client).unwrap();
        assert_eq!(own.to_string(), "127.0.0.1:40000");
        let (there, back) = addresses(&server).unwrap();
        assert_eq!(there.to_string(), "[::ffff:127.0.0.1]:8080");
        assert_eq!((plain(there), plain(back)), (plain(other), plain(own)));
    }

    #[test]
    fn others_are_not_a_function_s_own() {
        const LOOPBACK: u32 = u32::from_le_bytes([127, 0, 0, 1]);
        let (near, far) = (
            (&[LOOPBACK][..], 40_000),
            (&[u32::from_le_bytes([10, 0, 0, 1])][..], 443),
        );
        assert_eq!(addresses(&socket(INET, near, far)), None);
        let half = InetSocket {
            shutdown: Some(1),
            ..socket(INET, near, near)
        };
        assert_eq!(addresses(&half), None);
        let closing = InetSocket {
            state: 8,
            ..socket(INET, near, near)
        };
        assert_eq!(addresses(&closing), None);
    }
}
