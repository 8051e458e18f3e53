//! Network namespaces. A socket keeps the namespace it was created in, so a thread enters the namespace, creates the
//! socket and returns. Requests enter this way, and so does everything that is set up inside.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::Pid;
use tokio::net::{TcpSocket, TcpStream};

/// Settings that give namespaces created from this one their own connection tables with this many buckets, if the
/// kernel can (6.1, 6.6).
///
/// Without them, namespaces share the host's tables, with a quarter of a million buckets on a common host. Whoever
/// lists the connections of one namespace walks all of them, as CRIU does several times. Each walk takes some
/// milliseconds.
const TABLES: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv4/tcp_child_ehash_entries", "2048"),
    ("/proc/sys/net/ipv4/udp_child_hash_entries", "256"),
];

/// The calling thread's namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace that is not the worker's own.
#[derive(Debug)]
pub struct NetworkNamespace {
    inside: File,
    ours: File,
}

/// Returns to the worker's namespace on drop.
struct ReturnOnDrop<'a>(&'a File);

impl Drop for ReturnOnDrop<'_> {
    fn drop(&mut self) {
        if let Err(e) = setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET) {
            // A thread that continued in a function's network would serve others from there.
            tracing::error!(error = %e, "cannot return from another network; giving up");
            std::process::abort();
        }
    }
}

impl NetworkNamespace {
    /// Returns the namespace of a process.
    ///
    /// # Errors
    /// Returns an error when the process is gone.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            inside: File::open(format!("/proc/{pid}/ns/net"))?,
            ours: File::open(CURRENT)?,
        })
    }

    /// Creates a namespace with a loopback that is down. It ends with this value and the sockets created in it.
    ///
    /// # Errors
    /// Returns an error when the kernel creates none.
    pub fn make() -> io::Result<Self> {
        let ours = File::open(CURRENT)?;
        // The thread ends in the new namespace and never comes back.
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(CURRENT)
        });
        let inside = made
            .join()
            .map_err(|_| io::Error::other("the thread that makes a network namespace panicked"))??;
        Ok(Self { inside, ours })
    }

    /// Runs `act` in the namespace, on the calling thread, which is back in its own namespace afterwards.
    ///
    /// # Errors
    /// Returns an error when the namespace cannot be entered.
    pub fn within<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        setns(self.inside.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let _return = ReturnOnDrop(&self.ours);
        Ok(act())
    }

    /// Creates a TCP socket in the namespace. Blocks for some microseconds.
    fn socket(&self) -> io::Result<OwnedFd> {
        let made = self.within(|| {
            socket(
                AddressFamily::Inet,
                SockType::Stream,
                SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
                None,
            )
        });
        Ok(made??)
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }
}

/// Returns the namespace in which to start processes whose own namespaces are to have small tables. Returns `None` if
/// the kernel does not support them.
pub(super) fn namespace_with_small_tables() -> Option<&'static NetworkNamespace> {
    static NURSERY: OnceLock<Option<NetworkNamespace>> = OnceLock::new();
    let make = || {
        let made = NetworkNamespace::make().and_then(|nursery| {
            let set = nursery.within(|| TABLES.map(|(name, entries)| std::fs::write(name, entries).is_ok()))?;
            Ok(set.contains(&true).then_some(nursery))
        });
        made.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "sandboxes share the host's table of connections");
            None
        })
    };
    NURSERY.get_or_init(make).as_ref()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    #[test]
    fn what_is_made_in_the_nursery_has_a_small_table_of_its_own() {
        if !nix::unistd::geteuid().is_root() || !std::path::Path::new(TABLES[0].0).exists() {
            println!("skipped: needs root and a kernel of 6.1");
            return;
        }
        let entries = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ehash_entries").unwrap();
        // A minus sign marks a namespace that shares the host's table.
        let shared = NetworkNamespace::make().unwrap();
        assert!(
            shared.within(entries).unwrap().starts_with('-'),
            "the host itself sets one"
        );
        let made = namespace_with_small_tables()
            .unwrap()
            .within(NetworkNamespace::make)
            .unwrap()
            .unwrap();
        assert_eq!(made.within(entries).unwrap().trim(), TABLES[0].1);
    }
}
