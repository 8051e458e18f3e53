//! A worker's router: a network namespace between the sandboxes and the host. It ends with the worker, however the
//! worker ended, and all links end with it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use parking_lot::Mutex;

use super::host::{HostError, set};
use super::inner;
use super::links::{self, LinkEnd, whole};
use super::netlink::{Batch, NetlinkError, ask, open};
use super::nft::{self, NftError};
use super::plan::{
    CALLS_PORT, GATEWAY, GATEWAY6, INSIDE, INSIDE_INDEX, INSIDE_MAC, INSIDE_NAME, INSIDE6, OUTER_NAME, ROUTER_MAC,
    Slot, Uplink,
};
use super::rules::{self, Exceptions};
use super::settings::EgressLimits;
use crate::host::sandbox::NetworkNamespace;

/// The loopback's interface number.
const LOOPBACK: u32 = 1;
/// Interface number of the router's interface to the host.
const OUTER_INDEX: u32 = 2;
/// How many addresses are tried that another sandbox still has, and how far they are apart: sandboxes of one burst,
/// which may live long, have addresses in a row.
const TRIES: u32 = 64;
const STEP: u32 = 251;

/// How long the kernel may take to notice that both ends of a link are up, and the pause between checks.
const PASSES_LIMIT: Duration = Duration::from_secs(5);
const PASSES_PAUSE: Duration = Duration::from_millis(1);

/// Settings of a router's namespace, made before it has interfaces. Refusals are not rate-limited, since otherwise a
/// program that asks twice would wait.
const SETTINGS4: [(&str, &str); 7] = [
    ("/proc/sys/net/ipv4/ip_forward", "1"),
    ("/proc/sys/net/ipv4/icmp_ratelimit", "0"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "1"),
    ("/proc/sys/net/ipv4/conf/default/rp_filter", "1"),
    ("/proc/sys/net/ipv4/conf/all/accept_redirects", "0"),
    ("/proc/sys/net/ipv4/conf/all/send_redirects", "0"),
    ("/proc/sys/net/ipv4/conf/default/send_redirects", "0"),
];
/// The same for IPv6, if the kernel has it. The kernel makes no addresses of its own.
const SETTINGS6: [(&str, &str); 4] = [
    ("/proc/sys/net/ipv6/conf/all/forwarding", "1"),
    ("/proc/sys/net/ipv6/icmp/ratelimit", "0"),
    ("/proc/sys/net/ipv6/conf/default/accept_dad", "0"),
    ("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1"),
];
/// Disables router advertisements. Used in each namespace, sandboxes' too.
const QUIET6: [(&str, &str); 1] = [("/proc/sys/net/ipv6/conf/default/accept_ra", "0")];

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The namespace cannot be created or entered.
    #[error("enter a network namespace")]
    Namespace(#[source] io::Error),
    /// The kernel refuses a link, address or route.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A setting is refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The router's rules are refused.
    #[error("make the router's packet filter")]
    Rules(#[source] NftError),
    /// The name server's sockets cannot be opened.
    #[error("listen for questions to the name server")]
    Listen(#[source] io::Error),
    /// The socket for calls of functions cannot be opened.
    #[error("listen for calls of functions")]
    ListenForCalls(#[source] io::Error),
}

/// A sandbox's link to the router. It ends with the sandbox's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxLink {
    /// Number of the router's interface to it.
    index: u32,
    address: Ipv4Addr,
}

impl SandboxLink {
    /// The sandbox's address, as the router sees it. No other sandbox can send with it.
    pub fn address(&self) -> IpAddr {
        self.address.into()
    }
}

pub(super) struct Router {
    namespace: NetworkNamespace,
    kernel: Mutex<Socket>,
    made: AtomicU32,
    ipv6: bool,
    limits: EgressLimits,
}

impl Router {
    /// Creates the router, linked to the host. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Returns an error when the kernel or `nft` refuses a part. Nothing is left then.
    pub(super) fn make(
        uplink: &Uplink,
        exceptions: &Exceptions<'_>,
        limits: EgressLimits,
    ) -> Result<Self, RouterError> {
        let namespace = NetworkNamespace::make().map_err(RouterError::Namespace)?;
        let ipv6 = has_ipv6();
        let kernel = namespace
            .within(|| {
                let six: &[_] = if ipv6 { &SETTINGS6 } else { &[] };
                settle(SETTINGS4.iter().chain(six).chain(quiet(ipv6)))?;
                nft::apply(&rules::router(exceptions)).map_err(RouterError::Rules)?;
                Ok::<_, RouterError>(open(NETLINK_ROUTE)?)
            })
            .map_err(RouterError::Namespace)??;
        let router = Self {
            namespace,
            kernel: Mutex::new(kernel),
            made: AtomicU32::new(0),
            ipv6,
            limits,
        };
        router.link_to_host(uplink)?;
        Ok(router)
    }

    fn link_to_host(&self, uplink: &Uplink) -> Result<(), RouterError> {
        let mut outside = Batch::default();
        let host = LinkEnd {
            name: &uplink.interface,
            index: None,
            mac: ROUTER_MAC,
        };
        let router = LinkEnd {
            name: OUTER_NAME,
            index: Some(OUTER_INDEX),
            mac: INSIDE_MAC,
        };
        links::link(&mut outside, &host, &router, self.namespace.as_fd());
        let kernel = open(NETLINK_ROUTE)?;
        outside.send(&kernel)?;
        let index =
            nix::net::if_::if_nametoindex(uplink.interface.as_str()).map_err(|e| NetlinkError::Talk(e.into()))?;
        let mut outside = Batch::default();
        let mut inside = Batch::default();
        links::up(&mut inside, LOOPBACK);
        links::up(&mut inside, OUTER_INDEX);
        for gateway in self.families(GATEWAY.into(), GATEWAY6.into()) {
            links::address(&mut inside, LOOPBACK, gateway);
        }
        let pairs = self
            .families(uplink.host.into(), uplink.host6.into())
            .zip(self.families(uplink.router.into(), uplink.router6.into()));
        for (host, router) in pairs {
            links::address(&mut outside, index, host);
            links::neighbour(&mut outside, index, router, INSIDE_MAC);
            links::route(&mut outside, alone(router), index, None);
            links::address(&mut inside, OUTER_INDEX, router);
            links::neighbour(&mut inside, OUTER_INDEX, host, ROUTER_MAC);
            links::route(&mut inside, everything(host), OUTER_INDEX, Some(host));
        }
        outside.send(&kernel)?;
        Ok(inside.send(&self.kernel.lock())?)
    }

    fn families(&self, four: IpAddr, six: IpAddr) -> impl Iterator<Item = IpAddr> + use<> {
        [Some(four), self.ipv6.then_some(six)].into_iter().flatten()
    }

    /// Links a sandbox's namespace, which has only a loopback, to the router. Blocks for about a millisecond.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses a part. What was created disappears with the namespace.
    pub(super) fn attach(&self, sandbox: &NetworkNamespace) -> Result<SandboxLink, RouterError> {
        let inside = sandbox
            .within(|| {
                settle(quiet(self.ipv6))?;
                Ok::<_, RouterError>((open(NETLINK_ROUTE)?, open(NETLINK_NETFILTER)?))
            })
            .map_err(RouterError::Namespace)??;
        let slot = self.link(sandbox)?;
        let mut batch = Batch::default();
        if self.ipv6 {
            links::no_own_address(&mut batch, INSIDE_INDEX);
        }
        links::up(&mut batch, INSIDE_INDEX);
        for (address, gateway) in [(INSIDE.into(), GATEWAY.into()), (INSIDE6.into(), GATEWAY6.into())]
            .into_iter()
            .filter(|(a, _): &(IpAddr, IpAddr)| self.ipv6 || a.is_ipv4())
        {
            links::address(&mut batch, INSIDE_INDEX, address);
            links::neighbour(&mut batch, INSIDE_INDEX, gateway, ROUTER_MAC);
            links::route(&mut batch, everything(gateway), INSIDE_INDEX, Some(gateway));
        }
        self.shape(&mut batch, INSIDE_INDEX);
        batch.send(&inside.0)?;
        let mut batch = Batch::default();
        inner::table(&mut batch, &slot, &self.limits);
        batch.send(&inside.1)?;
        self.until_it_passes(slot.index)?;
        Ok(SandboxLink {
            index: slot.index,
            address: slot.address,
        })
    }

    /// Waits until packets reach a sandbox: otherwise the first response would be dropped.
    fn until_it_passes(&self, index: u32) -> Result<(), RouterError> {
        const WHAT: &str = "bring up a sandbox's link in time";
        let until = Instant::now() + PASSES_LIMIT;
        loop {
            let answer = ask(&self.kernel.lock(), WHAT, links::look(index))?;
            if links::passes(&answer) {
                return Ok(());
            }
            if Instant::now() >= until {
                let source = io::ErrorKind::TimedOut.into();
                return Err(NetlinkError::Refused { what: WHAT, source }.into());
            }
            std::thread::sleep(PASSES_PAUSE);
        }
    }

    /// The router's side of [`Self::attach`].
    fn link(&self, sandbox: &NetworkNamespace) -> Result<Slot, RouterError> {
        let mut tried = 0;
        loop {
            let slot = Slot::of(self.made.fetch_add(1, Ordering::Relaxed));
            let near = LinkEnd {
                name: &slot.interface,
                index: Some(slot.index),
                mac: ROUTER_MAC,
            };
            let far = LinkEnd {
                name: INSIDE_NAME,
                index: Some(INSIDE_INDEX),
                mac: INSIDE_MAC,
            };
            let mut batch = Batch::default();
            links::link(&mut batch, &near, &far, sandbox.as_fd());
            for address in self.families(slot.address.into(), slot.address6.into()) {
                links::route(&mut batch, alone(address), slot.index, None);
                links::neighbour(&mut batch, slot.index, address, INSIDE_MAC);
            }
            self.shape(&mut batch, slot.index);
            let kernel = self.kernel.lock();
            match batch.send(&kernel) {
                Ok(()) => return Ok(slot),
                // A sandbox that lives long still has this address.
                Err(e) if e.exists() && tried < TRIES => {
                    tried += 1;
                    self.made.fetch_add(STEP, Ordering::Relaxed);
                    let mut undo = Batch::default();
                    links::remove(&mut undo, slot.index);
                    // If it was the link that existed, it belongs to another sandbox: numbers repeat after 2^30.
                    let _ = undo.send(&kernel);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Removes a sandbox's link. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses; the sandbox must not be used then.
    pub(super) fn detach(&self, link: &SandboxLink) -> Result<(), RouterError> {
        let mut batch = Batch::default();
        links::remove(&mut batch, link.index);
        Ok(batch.send(&self.kernel.lock())?)
    }

    fn shape(&self, batch: &mut Batch, index: u32) {
        if self.limits.mbits > 0 {
            links::shape(batch, index, self.limits.mbits);
        }
    }

    /// Opens the socket at which functions call each other.
    ///
    /// # Errors
    /// Returns an error when it cannot be opened.
    pub(super) fn call_listener(&self) -> Result<TcpListener, RouterError> {
        let bound = self.namespace.within(|| TcpListener::bind((GATEWAY, CALLS_PORT)));
        bound.and_then(|bound| bound).map_err(RouterError::ListenForCalls)
    }

    /// Opens the name server's sockets at the gateway's addresses.
    ///
    /// # Errors
    /// Returns an error when one cannot be opened.
    pub(super) fn name_server(&self) -> Result<(Vec<UdpSocket>, Vec<TcpListener>), RouterError> {
        let addresses: Vec<SocketAddr> = self
            .families(GATEWAY.into(), GATEWAY6.into())
            .map(|a| SocketAddr::new(a, 53))
            .collect();
        let made = self.namespace.within(|| {
            let datagrams = addresses.iter().map(UdpSocket::bind).collect::<io::Result<_>>()?;
            let streams = addresses.iter().map(TcpListener::bind).collect::<io::Result<_>>()?;
            Ok((datagrams, streams))
        });
        made.and_then(|m| m).map_err(RouterError::Listen)
    }
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

fn quiet(ipv6: bool) -> &'static [(&'static str, &'static str)] {
    if ipv6 { &QUIET6 } else { &[] }
}

fn settle<'a>(settings: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> Result<(), HostError> {
    settings.into_iter().try_for_each(|(path, value)| set(path, value))
}

fn alone(address: IpAddr) -> IpNet {
    network(address, whole(address))
}

/// Returns the default network of an address's family.
fn everything(of: IpAddr) -> IpNet {
    let zero = if of.is_ipv4() {
        IpAddr::from([0; 4])
    } else {
        IpAddr::from([0; 16])
    };
    network(zero, 0)
}

fn network(address: IpAddr, prefix: u8) -> IpNet {
    // The prefix is never longer than the address.
    IpNet::new(address, prefix).unwrap_or_else(|_| IpNet::from(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router's namespace with a link, as interface 7, to a sandbox's, and a socket in each.
    fn linked() -> Option<([NetworkNamespace; 2], [Socket; 2])> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: not root");
            return None;
        }
        let router = NetworkNamespace::make().unwrap();
        let sandbox = NetworkNamespace::make().unwrap();
        let kernel = router.within(|| open(NETLINK_ROUTE)).unwrap().unwrap();
        let inside = sandbox.within(|| open(NETLINK_ROUTE)).unwrap().unwrap();
        let (near, far) = (("near", 7), (INSIDE_NAME, INSIDE_INDEX));
        let [near, far] = [near, far].map(|(name, index)| LinkEnd {
            name,
            index: Some(index),
            mac: ROUTER_MAC,
        });
        let mut batch = Batch::default();
        links::link(&mut batch, &near, &far, sandbox.as_fd());
        batch.send(&kernel).unwrap();
        Some(([router, sandbox], [kernel, inside]))
    }

    #[test]
    fn the_kernel_gives_a_sandbox_no_address_of_its_own() {
        let Some(([_, sandbox], [_, inside])) = linked() else {
            return;
        };
        if !has_ipv6() {
            println!("skipped: no IPv6");
            return;
        }
        let mut batch = Batch::default();
        links::no_own_address(&mut batch, INSIDE_INDEX);
        links::up(&mut batch, INSIDE_INDEX);
        links::address(&mut batch, INSIDE_INDEX, INSIDE6.into());
        batch.send(&inside).unwrap();
        let read = || std::fs::read_to_string("/proc/thread-self/net/if_inet6");
        let addresses = sandbox.within(read).unwrap().unwrap();
        let of_the_link = addresses.lines().filter(|line| line.ends_with(INSIDE_NAME));
        assert_eq!(of_the_link.count(), 1, "{addresses}");
        assert!(!addresses.contains("fe80"), "{addresses}");
    }

    #[test]
    fn a_link_passes_once_both_its_ends_are_up() {
        let Some((_namespaces, [kernel, inside])) = linked() else {
            return;
        };
        let passes = || links::passes(&ask(&kernel, "look", links::look(7)).unwrap());
        assert!(!passes(), "the other end is down");
        let mut batch = Batch::default();
        links::up(&mut batch, INSIDE_INDEX);
        batch.send(&inside).unwrap();
        let until = Instant::now() + PASSES_LIMIT;
        while !passes() {
            assert!(Instant::now() < until, "it never does");
        }
        assert!(ask(&kernel, "look", links::look(8)).is_err());
    }
}
