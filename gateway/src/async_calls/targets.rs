//! Where callbacks may go: the rules are those for functions (docs/security.md). The world, but nothing private, nothing of a cloud's metadata, and
//! nothing of this host; unless the operator allows it. Names are judged by the addresses that are then connected to.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use ipnet::{IpNet, Ipv4Net};
use tower::Service;

/// Of IPv4: this network, private, shared, loopback, link-local (with the clouds' metadata in it), special, multicast, reserved.
static REFUSED4: LazyLock<Vec<Ipv4Net>> = LazyLock::new(|| {
    const ALL: [&str; 10] = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "224.0.0.0/3",
    ];
    ALL.iter().filter_map(|net| net.parse().ok()).collect()
});

/// The rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    allow: Arc<[IpNet]>,
}

impl Targets {
    /// With networks that are allowed although they are private.
    pub(crate) fn allowing(allow: &[IpNet]) -> Self {
        Self { allow: allow.into() }
    }

    /// Whether a callback may be posted to this address.
    pub(crate) fn permit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if self.allow.iter().any(|net| net.contains(&address)) {
            return true;
        }
        is_public(address) && !is_own(address)
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !REFUSED4.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => is_public6(v6),
    }
}

/// Global unicast, without Teredo and 6to4, which have IPv4 addresses in them.
fn is_public6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0) && first != 0x2002
}

/// Whether this host has the address. Where that cannot be told, it counts as its own.
fn is_own(address: IpAddr) -> bool {
    let Ok(mut interfaces) = nix::ifaddrs::getifaddrs() else {
        return true;
    };
    interfaces.any(|interface| {
        let own = interface.address.and_then(|a| {
            let v4 = a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        });
        own == Some(address)
    })
}

/// Finds the addresses of a name, and keeps those that are permitted.
#[derive(Debug, Clone)]
pub(crate) struct Resolver(pub(crate) Targets);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let targets = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let permitted: Vec<SocketAddr> = found.filter(|a| targets.permit(a.ip())).collect();
            if permitted.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    Refused(name.to_string()),
                ));
            }
            Ok(permitted.into_iter())
        })
    }
}

/// Every address of a host is refused.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} has no address that callbacks may go to: it is private or this host's own; --callback-allow opens networks"
)]
pub(crate) struct Refused(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_private_special_or_the_hosts_own_is_refused() {
        let targets = Targets::default();
        for refused in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.31.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2002:7f00:1::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert!(!targets.permit(refused.parse().unwrap()), "{refused}");
        }
        for permitted in ["93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:93.184.216.34"] {
            assert!(targets.permit(permitted.parse().unwrap()), "{permitted}");
        }
        assert_eq!(REFUSED4.len(), 10);
    }

    #[test]
    fn what_is_allowed_is_let_through_and_nothing_beside_it() {
        let targets = Targets::allowing(&["10.1.0.0/16".parse().unwrap()]);
        assert!(targets.permit("10.1.9.9".parse().unwrap()));
        assert!(targets.permit("::ffff:10.1.9.9".parse().unwrap()));
        assert!(!targets.permit("10.2.0.1".parse().unwrap()));
    }

    #[tokio::test]
    async fn a_name_is_judged_by_its_addresses() {
        let mut resolver = Resolver(Targets::default());
        for name in ["localhost", "127.1", "0x7f.0.0.1"] {
            assert!(resolver.call(name.parse().unwrap()).await.is_err(), "{name}");
        }
        let mut resolver = Resolver(Targets::allowing(&["127.0.0.0/8".parse().unwrap()]));
        let found: Vec<_> = resolver.call("localhost".parse().unwrap()).await.unwrap().collect();
        assert!(found.iter().all(|a| a.ip().to_string() == "127.0.0.1"), "{found:?}");
    }
}
