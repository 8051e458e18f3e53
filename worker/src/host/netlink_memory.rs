//! Memory of netlink messages that wait to be read. The kernel charges it to no control group, so a function with many
//! sockets could hold gigabytes of the host's. What the kernel reports here is what a socket's messages take.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use nix::unistd::Pid;

/// What one sandbox may hold, in bytes. An answer that lists a hundred interfaces takes 0.2 MiB.
pub const LIMIT: u64 = 16 << 20;

/// Interval between looks. In this time one processor fills some 30 MiB.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looking takes at most this part of a processor.
const PART: u32 = 20;

/// Calls `look` again and again, on a thread of its own, until it returns `None`.
pub fn watch(look: impl Fn(&NetlinkMemory) -> Option<()> + Send + 'static) {
    let watching = NetlinkMemory::open(Path::new("/proc")).and_then(|memory| {
        let thread = thread::Builder::new().name("netlink-memory".to_owned());
        thread.spawn(move || {
            let mut began = Instant::now();
            while look(&memory).is_some() {
                thread::sleep(LOOK_EVERY.max(began.elapsed() * PART));
                began = Instant::now();
            }
        })
    });
    if let Err(error) = watching {
        tracing::warn!(%error, "what functions hold in netlink sockets is not limited");
    }
}

/// The memory of sandboxes' netlink sockets, as the kernel reports it.
#[derive(Debug)]
pub struct NetlinkMemory {
    proc: PathBuf,
    /// Maximum that one socket holds.
    socket_bytes: u64,
}

impl NetlinkMemory {
    /// Reads how much one socket holds at most, from `proc` (`/proc`).
    ///
    /// # Errors
    /// Returns an error when the kernel does not tell.
    pub fn open(proc: &Path) -> io::Result<Self> {
        let largest: u64 = read_number(&proc.join("sys/net/core/rmem_max"))?;
        Ok(Self {
            proc: proc.to_owned(),
            // The kernel doubles what a program asks for, as room for its own structures.
            socket_bytes: largest.saturating_mul(2).max(1),
        })
    }

    /// Returns how many bytes the network namespace of `pid` holds, if it is more than [`LIMIT`]. Blocks for 50 µs.
    /// If there are enough sockets to hold as much, it also walks all netlink sockets of the host.
    ///
    /// # Errors
    /// Returns an error when the process is gone.
    pub fn beyond(&self, pid: Pid) -> io::Result<Option<u64>> {
        let net = self.proc.join(pid.to_string()).join("net");
        let enough = LIMIT / self.socket_bytes;
        let all = fs::read_to_string(net.join("sockstat"))?;
        let local = count(&all, "sockets", "used").saturating_sub(of_internet(&all));
        if local <= enough || local - of_internet(&fs::read_to_string(net.join("sockstat6"))?).min(local) <= enough {
            return Ok(None);
        }
        let held = held(&fs::read_to_string(net.join("netlink"))?);
        Ok((held > LIMIT).then_some(held))
    }
}

fn read_number(path: &Path) -> io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

/// Returns the number after `name` in the line `protocol:` of a `sockstat`.
fn count(sockstat: &str, protocol: &str, name: &str) -> u64 {
    let line = sockstat
        .lines()
        .find_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let mut words = line.unwrap_or_default().split_whitespace();
    words.find(|word| *word == name);
    words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the number of TCP and UDP sockets in a `sockstat` or `sockstat6`.
fn of_internet(sockstat: &str) -> u64 {
    let protocols = ["TCP", "UDP", "TCP6", "UDP6"].into_iter();
    protocols.map(|protocol| count(sockstat, protocol, "inuse")).sum()
}

/// Returns the sum of what each socket in a `/proc/net/netlink` holds.
fn held(netlink: &str) -> u64 {
    const RMEM: usize = 4;
    let sockets = netlink.lines().skip(1);
    sockets
        .filter_map(|line| line.split_whitespace().nth(RMEM)?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, OwnedFd};

    use nix::libc::NETLINK_ROUTE;
    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, setsockopt, socket, sockopt,
    };

    use super::*;

    /// Requests a description of the first interface: a header, and one of `struct ifinfomsg`.
    fn request() -> Vec<u8> {
        const RTM_GETLINK: u16 = 18;
        const NLM_F_REQUEST: u16 = 1;
        let header = [
            &32_u32.to_ne_bytes()[..],
            &RTM_GETLINK.to_ne_bytes(),
            &NLM_F_REQUEST.to_ne_bytes(),
            &[0; 8],
        ];
        let link = [&[0; 4][..], &1_u32.to_ne_bytes(), &[0; 8]];
        [header.concat(), link.concat()].concat()
    }

    /// A socket whose answers nobody reads.
    fn unread() -> OwnedFd {
        assert_eq!(NETLINK_ROUTE, SockProtocol::NetlinkRoute as i32);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).unwrap();
        setsockopt(&made, sockopt::RcvBuf, &(1 << 30)).unwrap();
        let requests = request().repeat(64);
        // The kernel says nothing of answers for which there is no room any more. This is enough for 8 MiB.
        for _ in 0..90 {
            let _ = send(made.as_raw_fd(), &requests, MsgFlags::empty());
        }
        made
    }

    #[test]
    fn answers_that_are_not_read_are_counted_and_other_sockets_are_not() {
        let memory = NetlinkMemory::open("/proc".as_ref()).unwrap();
        let enough = usize::try_from(LIMIT / memory.socket_bytes).unwrap();
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let own = nix::unistd::gettid();
            let pairs: Vec<_> = (0..=enough)
                .map(|_| std::os::unix::net::UnixStream::pair().unwrap())
                .collect();
            assert_eq!(memory.beyond(own).unwrap(), None);
            let sockets: Vec<_> = (0..=enough).map(|_| unread()).collect();
            let held = memory.beyond(own).unwrap().unwrap();
            assert!(
                (LIMIT..LIMIT * 2).contains(&held),
                "{held} bytes in {} sockets",
                sockets.len()
            );
            drop((pairs, sockets));
            // The kernel frees a closed one when no processor looks at it any more.
            let until = Instant::now() + Duration::from_secs(10);
            while memory.beyond(own).unwrap().is_some() {
                assert!(Instant::now() < until, "closed sockets are still counted");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        thread.join().unwrap();
    }

    #[test]
    fn sockets_of_the_internet_hold_none() {
        let four = "sockets: used 12\nTCP: inuse 2 orphan 0 tw 7 alloc 4 mem 1\nUDP: inuse 1 mem 0\nUDPLITE: inuse 5\n";
        let six = "TCP6: inuse 3\nUDP6: inuse 4\nUDPLITE6: inuse 0\n";
        assert_eq!(
            (count(four, "sockets", "used"), of_internet(four), of_internet(six)),
            (12, 3, 7)
        );
        assert_eq!(
            (count("", "sockets", "used"), count("TCP: inuse", "TCP", "inuse")),
            (0, 0)
        );
    }

    #[test]
    fn what_sockets_hold_is_the_fifth_column() {
        let netlink = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                       0000000000000000 0   7          00000000 8389120  0        0     2        0        15\n\
                       0000000000000000 0   0          00000000 512      0        0     2        0        5\n";
        assert_eq!(held(netlink), 8_389_632);
    }
}
