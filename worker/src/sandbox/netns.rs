//! Ways into a sandbox's network: a socket keeps the namespace it was made in, so a thread enters the namespace, makes the
//! socket and returns. No veth, no bridge.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::Pid;
use tokio::net::{TcpSocket, TcpStream};

/// A sandbox's network namespace.
#[derive(Debug)]
pub struct NetworkNamespace {
    inside: File,
    ours: File,
}

impl NetworkNamespace {
    /// That of a process.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            inside: File::open(format!("/proc/{pid}/ns/net"))?,
            ours: File::open("/proc/thread-self/ns/net")?,
        })
    }

    /// A TCP socket in the namespace. Blocks for some microseconds; the calling thread is back in its own namespace after.
    fn socket(&self) -> io::Result<OwnedFd> {
        setns(self.inside.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let made = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        );
        if let Err(e) = setns(self.ours.as_fd(), CloneFlags::CLONE_NEWNET) {
            // A thread that goes on in a function's network would serve others from there.
            tracing::error!(error = %e, "cannot return from a sandbox's network; giving up");
            std::process::abort();
        }
        Ok(made?)
    }
}

/// Connects to a port on the loopback of the namespace.
pub(super) async fn connect(network: Arc<NetworkNamespace>, port: u16) -> io::Result<TcpStream> {
    let fd = tokio::task::spawn_blocking(move || network.socket())
        .await
        .map_err(io::Error::other)??;
    let socket = TcpSocket::from_std_stream(fd.into());
    socket.set_nodelay(true)?;
    socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}
