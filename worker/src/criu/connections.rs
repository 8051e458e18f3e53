//! Connections of a function to itself. At a checkpoint, what is in them is copied; in a copy, its sockets are
//! connected again before the first instruction. The worker does both from outside, through descriptors of the
//! processes' sockets.

use std::io;
use std::os::fd::OwnedFd;

use rekindle_verify::Verified;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::host::cgroup::Cgroup;
use crate::host::host_pids::{HostPids, processes_in};
use crate::host::tcp::{Copier, TcpEnd, connect_pair};
use crate::snapshots::connections::{CONNECTIONS_MAX, Connection, ConnectionEnd, ConnectionNote, UNREAD_MAX, find};

/// Why the connections of a copy were not made again.
#[derive(Debug, thiserror::Error)]
#[error("connect descriptor {fd} of process {pid} to the function itself again")]
pub(crate) struct ConnectionError {
    /// The process's id in its pid namespace.
    pid: u32,
    fd: u32,
    #[source]
    source: io::Error,
}

/// Copies what is in the connections of stopped processes. Copies get no connection that something is on its way in, or
/// that holds too much, and no more than a thousand.
pub(super) fn copy(cgroup: &Cgroup, verified: &Verified) -> Vec<ConnectionNote> {
    let found = find(verified);
    if found.is_empty() {
        return Vec::new();
    }
    let hosts = processes_in(cgroup).unwrap_or_default();
    let mut copier = Copier::new();
    let note = |connection: &Connection| {
        let [this, that] = &connection.ends;
        let unread = open(&hosts, this).and_then(|this| copier.unread([&this, &open(&hosts, that)?]));
        let unread = unread.unwrap_or_else(|error| {
            tracing::warn!(pid = this.pid, fd = this.fd, %error, "a connection is closed in copies");
            None
        });
        unread.map(|unread| ConnectionNote {
            sockets: [this.socket, that.socket],
            unread,
        })
    };
    let mut left = UNREAD_MAX;
    let noted = found.iter().filter_map(note);
    noted
        .filter(|note| {
            let fits = left.checked_sub(note.bytes());
            left = fits.unwrap_or(left);
            fits.is_some()
        })
        .take(CONNECTIONS_MAX)
        .collect()
}

/// Makes the connections of a copy, whose processes have not run their first instruction.
///
/// # Errors
/// Names the first that cannot be made. The copy must not run then.
pub(crate) fn connect(connections: &[Connection], hosts: &HostPids) -> Result<(), ConnectionError> {
    for Connection { ends: [this, that] } in connections {
        let made = open(hosts, this).and_then(|socket| {
            let other = open(hosts, that)?;
            connect_pair([end(&socket, this), end(&other, that)])
        });
        made.map_err(|source| ConnectionError {
            pid: this.pid,
            fd: this.fd,
            source,
        })?;
    }
    Ok(())
}

fn end<'a>(socket: &'a OwnedFd, of: &'a ConnectionEnd) -> TcpEnd<'a> {
    TcpEnd {
        socket,
        address: of.address,
        peer: of.peer,
        unread: &of.unread,
    }
}

/// Returns another descriptor of a process's socket.
fn open(hosts: &HostPids, end: &ConnectionEnd) -> io::Result<OwnedFd> {
    let host = hosts.get(&end.pid).and_then(|host| Pid::from_raw(*host));
    let process = pidfd_open(host.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&process, end.fd.cast_signed(), PidfdGetfdFlags::empty())?)
}
