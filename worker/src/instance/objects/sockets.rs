//! Sockets, which are asked themselves: tables in `/proc/PID/net` can be large, and hold the kernel's locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getpeername, getsockname, getsockopt, sockopt,
};
use rekindle_wire::api::{Fate, KernelObject};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::{Process, Verdict};
use crate::host::bound_file::{self, BoundName};

/// What is known of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Unix,
    /// UNIX, bound to this path, which has become of it.
    Bound(String, BoundName),
    Udp(Option<SocketAddr>),
    Listening(Option<SocketAddr>),
    /// TCP with the addresses of both ends, if it is connected.
    Tcp(Option<[SocketAddr; 2]>),
    Netlink,
    Other(Option<AddressFamily>),
}

#[derive(Default)]
pub(super) struct Sockets {
    /// By inode: processes may share them.
    found: BTreeMap<u64, (Process, u32, Kind)>,
}

impl Sockets {
    /// Adds the socket at a descriptor. One that is gone is left out.
    pub(super) fn add(&mut self, process: &Process, number: u32) {
        if let Ok((inode, kind)) = ask(process.host, number) {
            self.found
                .entry(inode)
                .or_insert_with(|| (process.clone(), number, kind));
        }
    }

    /// Returns them, with what becomes of each. Connections of the platform to the function's `port` are left out: they
    /// are closed before a snapshot.
    pub(super) fn objects(self, port: u16) -> Vec<KernelObject> {
        let both = self.found.values().filter_map(|(_, _, kind)| match kind {
            Kind::Tcp(Some([own, other])) => Some((plain(*own), plain(*other))),
            _ => None,
        });
        let connected: BTreeSet<_> = both.collect();
        let is_inside = |own: SocketAddr, other: SocketAddr| connected.contains(&(plain(other), plain(own)));
        let is_platform_s = |kind: &Kind| match kind {
            Kind::Tcp(Some([own, other])) => {
                let is_near = plain(*own).ip().is_loopback() && plain(*other).ip().is_loopback();
                own.port() == port && is_near && !is_inside(*own, *other)
            }
            _ => false,
        };
        let found = self.found.into_values();
        let found = found.filter(|(_, _, kind)| !is_platform_s(kind));
        let objects = found.map(|(process, number, kind)| {
            let verdict = verdict(&kind, is_inside);
            process.object(format!("descriptor {number}"), 1, verdict)
        });
        objects.collect()
    }
}

fn ask(host: i32, number: u32) -> io::Result<(u64, Kind)> {
    let none = || io::Error::from(io::ErrorKind::NotFound);
    let process = Pid::from_raw(host).ok_or_else(none)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let number = i32::try_from(number).map_err(|_| none())?;
    let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
    let kind = bound(host, &socket).unwrap_or_else(|| kind_of(&socket));
    Ok((fstat(&socket)?.st_ino, kind))
}

/// Looks at a UNIX socket that is bound to a file. Of another it returns `None`.
fn bound(host: i32, socket: &OwnedFd) -> Option<Kind> {
    let own = getsockname::<SockaddrStorage>(socket.as_raw_fd()).ok()?;
    let path = own.as_unix_addr()?.path()?;
    let root = bound_file::root_of(host).ok()?;
    let file = bound_file::of(&root, socket, path.as_os_str().as_bytes()).ok()??;
    let name = match file.name {
        // A relative name leads to where the process was then.
        BoundName::Moved(now) if path.is_relative() && Path::new(OsStr::from_bytes(&now)).ends_with(path) => {
            BoundName::Kept
        }
        name => name,
    };
    Some(Kind::Bound(path.display().to_string(), name))
}

fn kind_of(socket: &OwnedFd) -> Kind {
    let own = getsockname::<SockaddrStorage>(socket.as_raw_fd()).ok();
    let family = own.as_ref().and_then(SockaddrLike::family);
    let own = own.as_ref().and_then(address);
    match (family, getsockopt(socket, sockopt::SockType)) {
        (Some(AddressFamily::Unix), _) => Kind::Unix,
        (Some(AddressFamily::Netlink), _) => Kind::Netlink,
        (Some(AddressFamily::Inet | AddressFamily::Inet6), Ok(SockType::Datagram)) => Kind::Udp(own),
        (Some(AddressFamily::Inet | AddressFamily::Inet6), Ok(SockType::Stream)) => {
            if getsockopt(socket, sockopt::AcceptConn).unwrap_or(false) {
                return Kind::Listening(own);
            }
            let other = getpeername::<SockaddrStorage>(socket.as_raw_fd()).ok();
            let other = other.as_ref().and_then(address);
            Kind::Tcp(own.zip(other).map(|(own, other)| [own, other]))
        }
        (family, _) => Kind::Other(family),
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let four = storage.as_sockaddr_in().map(|a| SocketAddr::V4((*a).into()));
    four.or_else(|| storage.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
}

/// A listening socket of IPv6 may accept a connection of IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Says what becomes of a socket. `is_inside` tells whether another process's or this one's is the other end.
fn verdict(kind: &Kind, is_inside: impl Fn(SocketAddr, SocketAddr) -> bool) -> Verdict {
    let at = |address: &Option<SocketAddr>| address.map_or_else(|| "no address".to_owned(), |a| a.to_string());
    match kind {
        Kind::Unix => Verdict::kept("a UNIX socket"),
        Kind::Bound(path, name) => of_bound(path, name),
        Kind::Netlink => Verdict::kept("a netlink socket"),
        Kind::Udp(own) => Verdict::kept(format!("a UDP socket at {}", at(own))),
        Kind::Listening(own) => Verdict::kept(format!("a listening socket at {}", at(own))),
        Kind::Tcp(None) => Verdict::kept("a TCP socket that is not connected"),
        Kind::Tcp(Some([own, other])) if is_inside(*own, *other) => {
            Verdict::kept(format!("the function's connection to itself, {own} to {other}"))
        }
        Kind::Tcp(Some([own, other])) => Verdict::changed(
            format!("a connection from {own} to {other}"),
            "copies find it at its end",
            "connect again when it has ended, or in an after-restore hook",
        ),
        Kind::Other(family) => {
            let family = family.map_or_else(|| "unknown".to_owned(), |family| format!("{family:?}"));
            Verdict::refused(format!("a socket of family {family}"), "close it before the snapshot")
        }
    }
}

/// Says what becomes of a UNIX socket that was bound to `path`.
fn of_bound(path: &str, name: &BoundName) -> Verdict {
    match name {
        BoundName::Kept => Verdict::kept(format!("a UNIX socket at {path}")),
        BoundName::Removed => Verdict::kept(format!("a UNIX socket without a name, once {path}")),
        BoundName::Moved(now) => Verdict::of(
            Fate::Kept,
            format!("a UNIX socket at {}, once {path}", String::from_utf8_lossy(now)),
            "copies are bound to where it is",
            None,
        ),
        BoundName::Stranded => Verdict::refused(
            format!("a UNIX socket without a name or directory, once {path}"),
            "keep the directory that it was bound in",
        ),
        BoundName::Linked(links) => Verdict::refused(
            format!("a UNIX socket with {links} names, bound to {path}"),
            "remove the other names: a copy would have one",
        ),
        BoundName::Unknown => Verdict::refused(
            format!("a UNIX socket that has another name by a hard link, once {path}"),
            "rename it instead of giving it a link and removing its name",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn this() -> Process {
        Process {
            pid: 1,
            host: std::process::id().cast_signed(),
            program: "test".to_owned(),
        }
    }

    #[test]
    fn a_connection_is_kept_only_if_both_ends_are_at_hand() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let number = |socket: &dyn std::os::fd::AsRawFd| socket.as_raw_fd().cast_unsigned();
        let seen = |ends: &[u32], port: u16| {
            let mut sockets = Sockets::default();
            for end in ends {
                sockets.add(&this(), *end);
            }
            let objects = sockets.objects(port);
            objects.iter().map(|object| object.fate).collect::<Vec<_>>()
        };
        let fates = |ends: &[u32]| seen(ends, 1);
        assert_eq!(fates(&[number(&near), number(&far)]), [Fate::Kept, Fate::Kept]);
        assert_eq!(fates(&[number(&near), number(&near)]), [Fate::Changed]);
        assert_eq!(fates(&[number(&listener)]), [Fate::Kept]);
        // The platform's connection to the function, and the function's own.
        let port = listener.local_addr().unwrap().port();
        assert_eq!(seen(&[number(&far)], port), []);
        assert_eq!(seen(&[number(&near)], port), [Fate::Changed]);
        assert_eq!(seen(&[number(&near), number(&far)], port), [Fate::Kept, Fate::Kept]);
    }

    #[test]
    fn each_kind_of_socket_is_told() {
        let of = |socket: OwnedFd| verdict(&kind_of(&socket), |_, _| false).what;
        assert!(of(UdpSocket::bind("127.0.0.1:0").unwrap().into()).starts_with("a UDP socket at 127.0.0.1:"));
        assert_eq!(of(UnixStream::pair().unwrap().0.into()), "a UNIX socket");
        let other = verdict(&Kind::Other(Some(AddressFamily::Vsock)), |_, _| false);
        assert_eq!(other.fate, Fate::Refused);
    }

    #[test]
    fn a_unix_socket_is_told_by_the_name_that_it_has_now() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| directory.path().join(name));
        let socket = OwnedFd::from(UnixListener::bind(&first).unwrap());
        let host = std::process::id().cast_signed();
        if bound(host, &socket).is_none() {
            return crate::testing::skipped("the kernel does not tell the files of sockets");
        }
        let told = || {
            let told = verdict(&bound(host, &socket).unwrap(), |_, _| false);
            (told.fate, told.what)
        };
        let (at, once) = (second.display(), first.display());
        assert_eq!(told(), (Fate::Kept, format!("a UNIX socket at {once}")));
        std::fs::rename(&first, &second).unwrap();
        assert_eq!(told(), (Fate::Kept, format!("a UNIX socket at {at}, once {once}")));
        std::fs::hard_link(&second, &first).unwrap();
        assert_eq!(told().0, Fate::Refused);
        std::fs::remove_file(&second).unwrap();
        std::fs::remove_file(&first).unwrap();
        assert_eq!(
            told(),
            (Fate::Kept, format!("a UNIX socket without a name, once {once}"))
        );
        let pair = OwnedFd::from(UnixStream::pair().unwrap().0);
        assert_eq!(bound(host, &pair), None);
    }
}
