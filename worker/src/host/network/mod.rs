//! Network egress of sandboxes. Requests come in through sockets that are opened inside. Outgoing calls of functions
//! take this path:
//!
//! ```text
//!  sandbox                     router (a namespace a worker)          host
//!  +----------------------+    +----------------------------+    +-------------------------------+
//!  | eth0 198.18.0.2      |    | s0  s1  s2 ...             |    | rk1234abcd          eth0      |
//!  | becomes 198.18.1.n,  +----+ which networks; who sends; +----+ none of the host's addresses; +--> world
//!  | limits  (inner)      |    | masquerade  (rules)        |    | masquerade  (rules)           |
//!  +----------------------+    | 198.18.0.1: names, calls   |    +-------------------------------+
//!                              +----------------------------+
//! ```
//!
//! A link is created with each empty sandbox, ahead of any request. It ends with the sandbox. All links end with the
//! router, which ends with the worker's process. Only the host's rules outlive a killed worker, until the next one
//! starts.

mod attributes;
mod dns;
mod host;
mod inner;
mod links;
mod netlink;
mod nft;
mod plan;
mod router;
mod rules;
mod settings;

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

pub use host::HostError;
pub use netlink::NetlinkError;
pub use nft::{NftError, find as find_nft};
pub use router::{RouterError, SandboxLink};
pub use settings::{Egress, EgressLimits};

use crate::host::sandbox::NetworkNamespace;
use plan::Uplink;
use router::Router;
use rules::Exceptions;

/// Returns the file that tells functions which name server to ask.
pub fn resolv_conf() -> String {
    format!("nameserver {}\noptions timeout:3 attempts:2\n", plan::GATEWAY)
}

/// Removes what a killed worker with this control group left on the host. Returns whether there was anything.
pub fn sweep(group: &str) -> bool {
    host::clean(&Uplink::of(group))
}

/// Checks that this machine can set a network up, in namespaces of its own that end with the check.
///
/// # Errors
/// Returns what the machine cannot do.
pub fn prove() -> Result<(), RouterError> {
    let proof = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| RouterError::Namespace(e.into()))?;
        let uplink = Uplink::of("proof");
        let router = Router::make(&uplink, &Exceptions::default(), EgressLimits::default())?;
        let sandbox = NetworkNamespace::make().map_err(RouterError::Namespace)?;
        router.attach(&sandbox)?;
        Ok(host::prepare(&uplink, false)?)
    });
    let panicked = |_| RouterError::Namespace(std::io::Error::other("the thread that tries it panicked"));
    proof.join().map_err(panicked)?
}

/// A worker's network.
pub struct Network {
    router: Arc<Router>,
    uplink: Uplink,
    name_server: JoinHandle<()>,
    call_listener: Mutex<Option<TcpListener>>,
}

impl Network {
    /// Sets the network up for the worker with this control group, which distinguishes it from others on this host.
    ///
    /// # Errors
    /// Returns an error when the host lacks something; the message says what.
    pub async fn start(egress: Egress, group: &str) -> Result<Self, RouterError> {
        let uplink = Uplink::of(group);
        let planned = uplink.clone();
        let made = tokio::task::spawn_blocking(move || {
            host::clean(&planned);
            let ipv6 = egress.ipv6 || host::forwards6();
            let control = addresses(&egress.control);
            let own = own_addresses();
            let exceptions = Exceptions {
                allow: &egress.allow,
                refuse: &egress.refuse,
                control: &control,
                host: &own,
                ipv6,
            };
            let router = Router::make(&planned, &exceptions, egress.limits)?;
            let sockets = (router.name_server()?, router.call_listener()?);
            // This comes last, when nothing else can fail: from here on something outlives this process.
            if let Err(e) = host::prepare(&planned, ipv6) {
                host::clean(&planned);
                return Err(e.into());
            }
            Ok::<_, RouterError>((router, sockets))
        });
        let (router, ((datagrams, streams), calls)) = made
            .await
            .map_err(|e| RouterError::Namespace(std::io::Error::other(e)))??;
        let name_server = dns::serve(datagrams, streams).map_err(RouterError::Listen)?;
        Ok(Self {
            router: Arc::new(router),
            uplink,
            name_server: tokio::spawn(name_server),
            call_listener: Mutex::new(Some(calls)),
        })
    }

    /// Takes the socket at which functions call each other; once.
    pub fn take_call_listener(&self) -> Option<TcpListener> {
        self.call_listener.lock().take()
    }

    /// Links a sandbox that has only a loopback.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses; the sandbox must not be used then.
    pub async fn attach(&self, sandbox: Arc<NetworkNamespace>) -> Result<SandboxLink, RouterError> {
        let router = Arc::clone(&self.router);
        let attached = tokio::task::spawn_blocking(move || router.attach(&sandbox));
        attached
            .await
            .map_err(|e| RouterError::Namespace(std::io::Error::other(e)))?
    }

    /// Removes a sandbox's link.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses; the sandbox must not be used then.
    pub async fn detach(&self, link: SandboxLink) -> Result<(), RouterError> {
        let router = Arc::clone(&self.router);
        let detached = tokio::task::spawn_blocking(move || router.detach(&link));
        detached
            .await
            .map_err(|e| RouterError::Namespace(std::io::Error::other(e)))?
    }

    /// Removes the host's part of the network. Sandboxes must be gone. Blocks for some milliseconds.
    pub fn stop(&self) {
        self.name_server.abort();
        host::clean(&self.uplink);
    }
}

/// Returns the host's present addresses that can be reached from elsewhere.
fn own_addresses() -> Vec<IpAddr> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let address = |a: nix::sys::socket::SockaddrStorage| {
        let four = a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        four.or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let mut own: Vec<IpAddr> = all.filter_map(|i| address(i.address?)).collect();
    own.sort();
    own.dedup();
    own
}

/// Resolves the names of the cluster's parts. A name that cannot be resolved now is most likely private, and refused
/// anyway.
fn addresses(names: &[String]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for name in names {
        match name.to_socket_addrs() {
            Ok(all) => found.extend(all),
            Err(e) => {
                tracing::warn!(
                    name, error = %e,
                    "a part of the cluster is not known by address; functions are not kept from it by name"
                )
            }
        }
    }
    found
}
