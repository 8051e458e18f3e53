//! The open files of a process.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use rekindle_verify::Process;
use rekindle_verify::messages::{Descriptor, FileEntry, InetSocket};
use restore_program::Code;

use crate::builder::Builder;
use crate::images::Images;

const ACCESS: u32 = 3;
const CLOEXEC: u32 = 0o2_000_000;
const NONBLOCK: u32 = 0o4_000;
const LISTENING: u32 = 10;
/// The kernel's state of a stream that is connected to nothing.
const CLOSED: u32 = 7;
const INET: u32 = 2;
const INET6: u32 = 10;
const SOCKET: u64 = 1;

/// Which numbers descriptors have.
pub struct Tables {
    /// One past the highest of any process.
    pub end: u32,
    /// Numbers from `end` on of files that processes share until each has its own, by file.
    shared: BTreeMap<u32, Descriptor>,
    /// One past the highest of these.
    pub shared_end: u32,
}

impl Tables {
    pub fn of(images: &Images) -> Self {
        let processes = images.verified.processes.iter();
        let all: Vec<&Descriptor> = processes.clone().flat_map(|p| p.descriptors.values()).collect();
        let end = all.iter().map(|d| d.fd + 1).max().unwrap_or(0).max(3);
        let mut shared = BTreeMap::new();
        if processes.len() > 1 {
            for descriptor in all {
                let fd = end + shared.len() as u32;
                shared.entry(descriptor.id).or_insert(Descriptor {
                    fd,
                    flags: 0,
                    ..descriptor.clone()
                });
            }
        }
        let shared_end = end + shared.len() as u32;
        Self {
            end,
            shared,
            shared_end,
        }
    }
}

/// Makes all files of several processes, in the first, before it has children.
pub fn make_shared(b: &mut Builder, images: &Images, tables: &Tables) -> Result<()> {
    let mut first = BTreeMap::new();
    let of = |wanted: u32| tables.shared.get(&wanted);
    for (id, descriptor) in &tables.shared {
        if first.insert(*id, descriptor.fd).is_none() {
            let file = images.verified.files.get(id).context("a descriptor without a file")?;
            make(b, images, descriptor, file, &mut first, &of)?;
        }
    }
    Ok(())
}

/// Gives a process its descriptors of what was made before.
pub fn take_shared(b: &mut Builder, images: &Images, process: &Process, tables: &Tables) -> Result<()> {
    for (number, descriptor) in process.descriptors.iter() {
        let made = tables
            .shared
            .get(&descriptor.id)
            .context("a descriptor without a file")?;
        b.op(Code::Copy, *number, [made.fd.into(), u64::from(descriptor.flags & 1)]);
    }
    let has_epoll = process
        .descriptors
        .values()
        .any(|d| images.verified.files.get(&d.id).is_some_and(|f| f.epfd.is_some()));
    ensure!(!has_epoll, "several processes, and an epoll");
    // The shared numbers go with everything of the restorer's, at the end.
    Ok(())
}

/// Makes the descriptors of a single process.
pub fn make_own(b: &mut Builder, images: &Images, process: &Process) -> Result<()> {
    let files = &images.verified.files;
    let entry = |id: u32| files.get(&id).context("a descriptor without a file");
    // By file: the first descriptor of it, which the others are copies of.
    let mut first: BTreeMap<u32, u32> = BTreeMap::new();
    let of = |wanted: u32| process.descriptors.values().find(|d| d.id == wanted);
    for (number, descriptor) in process.descriptors.iter() {
        let close = u64::from(descriptor.flags & 1);
        match first.get(&descriptor.id) {
            // The other end of what was made before.
            Some(original) if original == number => continue,
            Some(original) => {
                b.op(Code::Copy, *number, [u64::from(*original), close]);
                continue;
            }
            None => {}
        }
        first.insert(descriptor.id, *number);
        let file = entry(descriptor.id)?;
        make(b, images, descriptor, file, &mut first, &of)?;
    }
    for (number, descriptor) in process.descriptors.iter().filter(|(n, d)| first.get(&d.id) == Some(n)) {
        for watch in entry(descriptor.id)?.epfd.iter().flat_map(|poll| &poll.tfd) {
            b.op(
                Code::Watch,
                *number,
                [watch.tfd.into(), watch.events.into(), watch.data],
            );
        }
    }
    Ok(())
}

/// The working directory and the mask for new files.
pub fn directories(b: &mut Builder, images: &Images, process: &Process) -> Result<()> {
    let directories = process.directories.as_ref().context("no directories")?;
    let directory = images
        .verified
        .files
        .get(&directories.cwd_id)
        .and_then(|f| f.reg.as_ref());
    b.path(Code::Directory, 0, &directory.context("no directory")?.name);
    b.op(Code::Umask, directories.umask.unwrap_or(0o22), []);
    Ok(())
}

fn make<'a>(
    b: &mut Builder,
    images: &Images,
    descriptor: &Descriptor,
    file: &FileEntry,
    first: &mut BTreeMap<u32, u32>,
    of: &impl Fn(u32) -> Option<&'a Descriptor>,
) -> Result<()> {
    let (number, close) = (descriptor.fd, descriptor.flags & 1);
    let flags = |status: u32| u64::from(status & NONBLOCK | (close * CLOEXEC));
    if let Some(regular) = &file.reg {
        ensure!(regular.fown.signum == 0, "a file that sends signals");
        b.path(Code::Open, regular.flags & !(0o100 | 0o200 | 0o1000), &regular.name);
        b.op(Code::Keep, number, [regular.pos, close.into()]);
        return Ok(());
    }
    if let Some(pipe) = &file.pipe {
        let others = images.verified.files.values().filter(|f| f.id != file.id);
        let other = others
            .filter(|f| f.pipe.as_ref().is_some_and(|p| p.pipe_id == pipe.pipe_id))
            .find_map(|f| of(f.id));
        let Some(other) = other else {
            let all = images.verified.processes.iter().flat_map(|p| p.descriptors.values());
            let output = all.filter(|d| d.id == file.id).find(|d| matches!(d.fd, 1 | 2));
            let output = output.with_context(|| format!("descriptor {number} is half a pipe"))?;
            b.op(Code::Output, number, [u64::from(output.fd - 1), close.into()]);
            return Ok(());
        };
        first.insert(other.id, other.fd);
        let other_file = images
            .verified
            .files
            .get(&other.id)
            .and_then(|f| f.pipe.as_ref())
            .context("half a pipe")?;
        let this = (number, u64::from(pipe.flags & !ACCESS | (close * CLOEXEC)));
        let that = (
            other.fd,
            u64::from(other_file.flags & !ACCESS | ((other.flags & 1) * CLOEXEC)),
        );
        let (read, write) = if pipe.flags & ACCESS == 0 {
            (this, that)
        } else {
            (that, this)
        };
        b.op(Code::Pipe, read.0, [write.0.into(), read.1, write.1]);
        if let Some(bytes) = images.pipe_data.get(&pipe.pipe_id).filter(|bytes| !bytes.is_empty()) {
            let at = b.data(bytes);
            b.op(Code::Fill, write.0, [at, bytes.len() as u64]);
        }
        return Ok(());
    }
    if let Some(event) = &file.efd {
        b.op(Code::EventFd, number, [event.counter, flags(event.flags)]);
        return Ok(());
    }
    if file.epfd.is_some() {
        b.op(Code::Epoll, number, [u64::from(close * CLOEXEC)]);
        return Ok(());
    }
    if let Some(socket) = &file.isk {
        return inet(b, number, flags(socket.flags), socket);
    }
    if let Some(socket) = &file.usk {
        let peer = images
            .verified
            .files
            .values()
            .find(|f| f.usk.as_ref().is_some_and(|u| u.ino == socket.peer));
        let peer = peer.and_then(|f| Some((of(f.id)?, f.usk.as_ref()?)));
        let (Some((other, entry)), true) = (peer, socket.name.is_empty()) else {
            bail!("descriptor {number} is a unix socket with a name or no peer");
        };
        first.insert(other.id, other.fd);
        ensure!(
            entry.uflags & NONBLOCK == socket.uflags & NONBLOCK,
            "a pair of sockets of which one waits"
        );
        let kind = u64::from(socket.kind | socket.uflags & NONBLOCK);
        let closing = |on: u32| u64::from(on * CLOEXEC);
        b.op(
            Code::SocketPair,
            number,
            [other.fd.into(), 1, kind, closing(close), closing(other.flags & 1)],
        );
        return Ok(());
    }
    bail!("descriptor {number} is of kind {}", file.kind)
}

fn inet(b: &mut Builder, number: u32, flags: u64, socket: &InetSocket) -> Result<()> {
    ensure!(
        matches!(socket.state, LISTENING | CLOSED),
        "descriptor {number} is a connected socket"
    );
    b.op(
        Code::Socket,
        number,
        [
            socket.family.into(),
            u64::from(socket.kind) | flags,
            socket.proto.into(),
        ],
    );
    let options = [
        (SOCKET, 2, socket.opts.reuseaddr.unwrap_or(false)),
        (SOCKET, 15, socket.opts.so_reuseport.unwrap_or(false)),
        (SOCKET, 9, socket.opts.so_keepalive.unwrap_or(false)),
        (6, 1, socket.tcp_opts.as_ref().is_some_and(|o| o.nodelay == Some(true))),
        (41, 26, socket.v6only.unwrap_or(false)),
    ];
    for (level, name, on) in options {
        if on {
            b.op(Code::SocketOption, number, [level, name, 1]);
        }
    }
    if socket.src_port != 0 {
        let mut address = vec![];
        address.extend_from_slice(&(socket.family as u16).to_le_bytes());
        address.extend_from_slice(&(socket.src_port as u16).to_be_bytes());
        let words: Vec<u8> = socket.src_addr.iter().flat_map(|word| word.to_le_bytes()).collect();
        match socket.family {
            INET => address.extend_from_slice(&[words.as_slice(), &[0; 8]].concat()),
            INET6 => address.extend_from_slice(&[&[0; 4], words.as_slice(), &[0; 4]].concat()),
            family => bail!("a socket of family {family}"),
        }
        let at = b.data(&address);
        b.op(Code::Bind, number, [at, address.len() as u64]);
    }
    if socket.state == LISTENING {
        b.op(Code::Listen, number, [socket.backlog.into()]);
    }
    Ok(())
}
