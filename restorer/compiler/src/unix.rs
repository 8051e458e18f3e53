//! UNIX sockets: pairs, those with names, connections to them, and what was not read.
//!
//! A connection to a listening socket is made through it, so that both ends have their names. That is done once all
//! sockets with names are there. One whose listening socket is closed was made before: see [`closed`]. What a socket
//! has not read is sent to it again, and ways that were shut are shut last.
//!
//! A relative name is bound and connected to in the directory that it begins at. A process gets its working directory
//! after that.

mod closed;

use std::collections::BTreeMap;

use rekindle_restore_program::{CLOSED as NO_NUMBER, Code};
use rekindle_verify::Verified;
use rekindle_verify::messages::{Descriptor, UnixSocket};

use crate::Refusal;
use crate::builder::Builder;
use crate::flags::made_with;
use crate::sockets::{CLOSED, LISTENING, options, plain, shut};

const UNIX: u32 = 1;
const ESTABLISHED: u32 = 1;
const DATAGRAM: u32 = 2;
const BOTH_WAYS: u32 = 3;

/// What a socket is connected to.
enum SocketPeer<'a> {
    /// Nothing. It may have a name, and listen.
    None,
    /// What everybody has closed.
    Closed,
    /// The other end of a pair.
    End(&'a UnixSocket),
    /// A listening socket that has not accepted the connection.
    Listening(&'a UnixSocket),
    /// A datagram socket with a name, which is not connected to this one.
    Name(&'a UnixSocket),
}

/// What is made once all sockets with names are there.
enum DeferredConnection<'a> {
    /// An accepted connection: the listening socket, the end that connected, the other.
    Accepted([&'a UnixSocket; 3]),
    /// A connection that is not accepted: who connects, the listening socket.
    Waiting([&'a UnixSocket; 2]),
    /// Who sends datagrams, to whom.
    Datagrams([&'a UnixSocket; 2]),
}

/// A socket's name, where it begins, and whether it was removed.
type SocketName<'a> = (&'a [u8], Option<&'a [u8]>, bool);

/// The UNIX sockets that one process makes.
pub(crate) struct UnixSockets<'a> {
    images: &'a Verified,
    /// The sockets of all processes.
    by_inode: BTreeMap<u32, &'a UnixSocket>,
    /// Those that are not connected, by name.
    unconnected: BTreeMap<SocketName<'a>, Vec<&'a UnixSocket>>,
    /// How many are bound to a name, removed or not.
    bound: BTreeMap<SocketName<'a>, usize>,
    /// The descriptor that each file is made as.
    of: BTreeMap<u32, Descriptor>,
    /// A number that is free.
    spare: u32,
    /// Those that are made, or will be.
    made: Vec<&'a UnixSocket>,
    later: Vec<DeferredConnection<'a>>,
    /// Accepted ends of connections whose listening socket is closed, by file, with the ends that connected.
    closed: BTreeMap<u32, &'a UnixSocket>,
}

impl<'a> UnixSockets<'a> {
    pub(crate) fn new(images: &'a Verified, of: BTreeMap<u32, Descriptor>, spare: u32) -> Self {
        let mut sockets = Self {
            images,
            by_inode: BTreeMap::new(),
            unconnected: BTreeMap::new(),
            bound: BTreeMap::new(),
            of,
            spare,
            made: Vec::new(),
            later: Vec::new(),
            closed: BTreeMap::new(),
        };
        for socket in sockets.all() {
            sockets.by_inode.entry(socket.ino).or_insert(socket);
            if !is_connected(socket) {
                sockets.unconnected.entry(name_of(socket)).or_default().push(socket);
            }
        }
        sockets.closed = sockets.find_closed();
        for socket in sockets.all() {
            if sockets.is_bound(socket) {
                *sockets.bound.entry(bound_name(socket)).or_default() += 1;
            }
        }
        sockets
    }

    /// Makes a socket, and the other if it is one of a pair, or returns what it is. What is a connection's is made by
    /// [`connect`](Self::connect).
    pub(crate) fn make(
        &mut self,
        b: &mut Builder,
        descriptor: &Descriptor,
        socket: &'a UnixSocket,
    ) -> Result<(), &'static str> {
        if self.made.iter().any(|made| made.id == socket.id) {
            return Ok(());
        }
        self.check(socket)?;
        self.made.push(socket);
        match self.peer(socket)? {
            SocketPeer::None => self.single(b, descriptor, socket),
            SocketPeer::Closed => self.without_peer(b, descriptor, socket),
            SocketPeer::End(peer) => {
                self.check(peer)?;
                self.made.push(peer);
                let ends = [[socket, peer], [peer, socket]];
                let through = |ends: [&'a UnixSocket; 2]| Some((self.listening_at(ends[1])?, ends));
                match ends.into_iter().find_map(through) {
                    Some((listening, [client, end])) => {
                        self.later.push(DeferredConnection::Accepted([listening, client, end]));
                        Ok(())
                    }
                    None => self.pair(b, [socket, peer]),
                }
            }
            SocketPeer::Listening(listening) => {
                self.later.push(DeferredConnection::Waiting([socket, listening]));
                Ok(())
            }
            SocketPeer::Name(to) => {
                self.later.push(DeferredConnection::Datagrams([socket, to]));
                self.single(b, descriptor, socket)
            }
        }
    }

    /// Makes connections, sends what was not read, shuts ways, and takes names away that were removed.
    pub(crate) fn connect(&mut self, b: &mut Builder) -> Result<(), Refusal> {
        for later in &self.later {
            if let DeferredConnection::Accepted([listening, client, end]) = later {
                let number = self.number(listening).map_err(self.refuse(listening))?;
                self.accept(b, number, client, end).map_err(self.refuse(end))?;
            }
        }
        let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
        for later in &self.later {
            if let DeferredConnection::Waiting([client, listening]) = later {
                let waiting = waiting.entry(listening.ino).or_default();
                // One more would wait for room.
                if *waiting > listening.backlog {
                    return Err(self.refuse(client)("a unix socket that no listening one has room for"));
                }
                *waiting += 1;
                let number = self.number(client).map_err(self.refuse(client))?;
                self.begin(b, number, client, listening).map_err(self.refuse(client))?;
            }
        }
        for socket in &self.made {
            self.fill(b, socket).map_err(self.refuse(socket))?;
        }
        for later in &self.later {
            if let DeferredConnection::Datagrams([from, to]) = later {
                let number = self.number(from).map_err(self.refuse(from))?;
                address(b, Code::Connect, number, to);
            }
        }
        for socket in &self.made {
            let is_left = matches!(self.peer(socket), Ok(SocketPeer::Closed));
            if !is_left {
                let number = self.number(socket).map_err(self.refuse(socket))?;
                shut(b, number, socket.shutdown.unwrap_or(0));
            }
        }
        for socket in &self.made {
            if socket.deleted == Some(true) && self.is_bound(socket) {
                b.path(Code::Unlink, 0, &socket.path());
            }
        }
        Ok(())
    }

    fn refuse(&self, socket: &UnixSocket) -> impl Fn(&'static str) -> Refusal + use<> {
        let number = self.of.get(&socket.id).map_or(0, |descriptor| descriptor.fd);
        move |what| Refusal::Descriptor(number, what)
    }

    fn all(&self) -> impl Iterator<Item = &'a UnixSocket> + use<'a> {
        self.images.files.values().filter_map(|file| file.usk.as_deref())
    }

    fn descriptor(&self, socket: &UnixSocket) -> Result<&Descriptor, &'static str> {
        self.of.get(&socket.id).ok_or("a unix socket whose peer has no number")
    }

    fn number(&self, socket: &UnixSocket) -> Result<u32, &'static str> {
        self.descriptor(socket).map(|descriptor| descriptor.fd)
    }

    /// Says what no operation makes.
    fn check(&self, socket: &UnixSocket) -> Result<(), &'static str> {
        plain(socket.flags, &socket.fown)?;
        let listens = socket.state == LISTENING;
        let packets = self.images.queues.get(&socket.id).map_or(&[][..], Vec::as_slice);
        if packets.iter().any(|packet| packet.has_files) {
            return Err("a unix socket with files on their way");
        }
        // Of one that listens, it is how many may wait. Of others, what they have sent and nobody has read.
        if !listens && socket.backlog != 0 && self.images.queues.is_empty() {
            return Err("a unix socket with packets that are not in its images");
        }
        let first = socket.name.first().filter(|first| **first != 0);
        let is_path = first.is_some();
        // A relative one begins at a directory.
        if first.is_some_and(|first| (*first == b'/') == socket.name_dir.is_some()) {
            return Err("a unix socket with a relative name");
        }
        let has_twin = || self.bound.get(&bound_name(socket)).is_some_and(|count| *count > 1);
        if is_path && self.is_bound(socket) && has_twin() {
            return Err("a unix socket with a name that another had before it");
        }
        Ok(())
    }

    fn peer(&self, socket: &UnixSocket) -> Result<SocketPeer<'a>, &'static str> {
        if socket.peer == 0 {
            return match (is_connected(socket), socket.shutdown) {
                (false, _) if socket.state == LISTENING && socket.name.is_empty() => {
                    Err("a listening unix socket without a name")
                }
                // Others that have connected to a datagram socket leave it in the state of a connected one.
                (false, _) => Ok(SocketPeer::None),
                (true, Some(BOTH_WAYS)) => Ok(SocketPeer::Closed),
                (true, _) => Err("a unix socket that is connected to none of its processes"),
            };
        }
        if matches!(socket.state, LISTENING | CLOSED) && socket.kind != DATAGRAM {
            return Err("a unix socket with a peer that it is not connected to");
        }
        let peer = self.by_inode.get(&socket.peer).copied();
        let peer = peer.filter(|peer| peer.id != socket.id && peer.kind == socket.kind);
        let peer = peer.ok_or("a unix socket that is not one of a pair")?;
        if peer.peer == socket.ino {
            return Ok(SocketPeer::End(peer));
        }
        let has_name = !peer.name.is_empty() && peer.deleted != Some(true);
        match (socket.kind, peer.state) {
            (DATAGRAM, _) if has_name => Ok(SocketPeer::Name(peer)),
            (DATAGRAM, _) => Err("a unix socket that sends to one without a name"),
            (_, LISTENING) => Ok(SocketPeer::Listening(peer)),
            _ => Err("a unix socket that is not one of a pair"),
        }
    }

    /// The socket that has accepted a connection with this end. Others made it and have closed it, or their user may
    /// not connect to it: then the connection is made as a pair.
    fn listening_at(&self, end: &UnixSocket) -> Option<&'a UnixSocket> {
        let there = self.unconnected.get(&name_of(end)).filter(|_| !end.name.is_empty())?;
        let is_it = |socket: &&&UnixSocket| socket.state == LISTENING && socket.kind == end.kind;
        let listening = there.iter().find(is_it).copied()?;
        (may_connect(listening) && self.number(listening).is_ok()).then_some(listening)
    }

    /// Whether it is bound to its name. An accepted end has that of the listening socket.
    fn is_bound(&self, socket: &UnixSocket) -> bool {
        let peer = || self.by_inode.get(&socket.peer);
        let is_accepted = |end: &UnixSocket| self.listening_at(end).is_some() || self.closed.contains_key(&end.id);
        let connects = || {
            let to = peer().is_some_and(|peer| peer.state == LISTENING || is_accepted(peer));
            to && !is_accepted(socket)
        };
        !socket.name.is_empty() && (!is_connected(socket) || connects())
    }

    /// Makes a socket that is connected to nothing, or sends to a name.
    fn single(&self, b: &mut Builder, descriptor: &Descriptor, socket: &UnixSocket) -> Result<(), &'static str> {
        self.socket(b, descriptor.fd, descriptor.flags, socket);
        options(b, descriptor.fd, &socket.opts)?;
        if socket.state == LISTENING {
            b.op(Code::Listen, descriptor.fd, [socket.backlog.into()]);
        }
        Ok(())
    }

    /// Makes a socket with its name.
    fn socket(&self, b: &mut Builder, number: u32, flags: u32, socket: &UnixSocket) {
        let kind = socket.kind | made_with(socket.flags, flags);
        b.op(Code::Socket, number, [UNIX.into(), kind.into(), 0]);
        self.bind(b, number, socket);
    }

    fn bind(&self, b: &mut Builder, number: u32, socket: &UnixSocket) {
        if self.is_bound(socket) {
            self.take_name(b, number, socket);
        }
    }

    /// Binds a socket to the name of this one.
    fn take_name(&self, b: &mut Builder, number: u32, socket: &UnixSocket) {
        /// For names that are taken away: the owner connects by them.
        const OWN: u32 = 0o077;
        if let Some(permissions) = &socket.file_perms {
            let mask = match socket.deleted {
                Some(true) => OWN,
                _ => !permissions.mode & 0o777,
            };
            // The mask is the process's own again later.
            b.op(Code::Umask, mask, []);
        }
        address(b, Code::Bind, number, socket);
    }

    /// Makes both ends of a pair.
    fn pair(&self, b: &mut Builder, [this, that]: [&UnixSocket; 2]) -> Result<(), &'static str> {
        let (own, other) = (self.descriptor(this)?, self.descriptor(that)?);
        let flags = |end: &UnixSocket, of: &Descriptor| u64::from(made_with(end.flags, of.flags));
        let args = [
            other.fd.into(),
            UNIX.into(),
            this.kind.into(),
            flags(this, own),
            flags(that, other),
        ];
        b.op(Code::SocketPair, own.fd, args);
        for (end, number) in [(this, own.fd), (that, other.fd)] {
            options(b, number, &end.opts)?;
            self.bind(b, number, end);
        }
        Ok(())
    }

    /// Makes one end of a pair whose other end is closed, with what that has sent.
    fn without_peer(&self, b: &mut Builder, descriptor: &Descriptor, socket: &UnixSocket) -> Result<(), &'static str> {
        let is_empty = !self.images.queues.contains_key(&socket.id);
        let other = if is_empty { NO_NUMBER } else { self.spare };
        let flags = u64::from(made_with(socket.flags, descriptor.flags));
        let args = [other.into(), UNIX.into(), socket.kind.into(), flags, 0];
        b.op(Code::SocketPair, descriptor.fd, args);
        options(b, descriptor.fd, &socket.opts)?;
        if !is_empty {
            self.send(b, other, socket);
            b.op(Code::CloseRange, other, [u64::from(other) + 1]);
        }
        Ok(())
    }

    /// Connects to a listening socket.
    fn begin(
        &self,
        b: &mut Builder,
        number: u32,
        client: &UnixSocket,
        listening: &UnixSocket,
    ) -> Result<(), &'static str> {
        self.socket(b, number, self.descriptor(client)?.flags, client);
        address(b, Code::Connect, number, listening);
        // After it: one that is told of credentials would be given a name by connecting.
        options(b, number, &client.opts)
    }

    /// Makes a connection through the listening socket with this number, which has the name of its accepted end.
    fn accept(
        &self,
        b: &mut Builder,
        listening: u32,
        client: &UnixSocket,
        end: &UnixSocket,
    ) -> Result<(), &'static str> {
        self.begin(b, self.number(client)?, client, end)?;
        let descriptor = self.descriptor(end)?;
        let flags = made_with(end.flags, descriptor.flags);
        b.op(Code::Accept, descriptor.fd, [listening.into(), flags.into()]);
        options(b, descriptor.fd, &end.opts)
    }

    /// Sends what a socket has not read.
    fn fill(&self, b: &mut Builder, socket: &UnixSocket) -> Result<(), &'static str> {
        if !self.images.queues.contains_key(&socket.id) {
            return Ok(());
        }
        match self.peer(socket)? {
            SocketPeer::End(peer) => self.send(b, self.number(peer)?, socket),
            // They are sent already.
            SocketPeer::Closed => {}
            SocketPeer::None | SocketPeer::Name(_) if socket.kind == DATAGRAM && !socket.name.is_empty() => {
                b.op(Code::Socket, self.spare, [UNIX.into(), DATAGRAM.into(), 0]);
                address(b, Code::Connect, self.spare, socket);
                self.send(b, self.spare, socket);
                b.op(Code::CloseRange, self.spare, [u64::from(self.spare) + 1]);
            }
            _ => return Err("a unix socket with packets that nobody can have sent"),
        }
        Ok(())
    }

    fn send(&self, b: &mut Builder, from: u32, to: &UnixSocket) {
        for packet in self.images.queues.get(&to.id).into_iter().flatten() {
            let at = b.data(&packet.bytes);
            b.op(Code::Send, from, [at, packet.bytes.len() as u64]);
        }
    }
}

fn name_of(socket: &UnixSocket) -> SocketName<'_> {
    (&socket.name, socket.name_dir.as_deref(), is_removed(socket))
}

/// Its name, as if it had not been removed.
fn bound_name(socket: &UnixSocket) -> SocketName<'_> {
    (&socket.name, socket.name_dir.as_deref(), false)
}

/// Whether it is an end of a connection.
fn is_connected(socket: &UnixSocket) -> bool {
    socket.kind != DATAGRAM && socket.state == ESTABLISHED
}

fn is_removed(socket: &UnixSocket) -> bool {
    socket.deleted == Some(true)
}

/// Whether its user may connect to a socket with its name.
fn may_connect(socket: &UnixSocket) -> bool {
    const OWNER_WRITES: u32 = 0o200;
    let may = |mode: u32| mode & OWNER_WRITES != 0 || is_removed(socket);
    let permissions = socket.file_perms.as_ref();
    permissions.is_none_or(|permissions| may(permissions.mode))
}

/// Binds or connects to a socket's name.
fn address(b: &mut Builder, code: Code, number: u32, socket: &UnixSocket) {
    if let Some(directory) = &socket.name_dir {
        b.path(Code::Directory, 0, directory);
    }
    let address = [&(UNIX as u16).to_le_bytes(), socket.name.as_slice()].concat();
    let at = b.data(&address);
    b.op(code, number, [at, address.len() as u64]);
}
