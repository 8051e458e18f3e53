//! Which addresses are public, rather than private, special, or this host's own: one rule for functions, builds and
//! callbacks.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::Ipv4Net;

/// Networks that are only reachable if the operator allows it, separated by commas. They are this network, private
/// networks, shared networks of carriers, loopback, link-local (where clouds have their metadata), Azure's own
/// services, protocol assignments, benchmarks, multicast and reserved ones.
pub const REFUSED4: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, \
                            168.63.129.16/32, 192.0.0.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/3";

static NETWORKS: LazyLock<Vec<Ipv4Net>> =
    LazyLock::new(|| REFUSED4.split(", ").filter_map(|net| net.parse().ok()).collect());

/// Whether an address is public. This host's own addresses may be.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !NETWORKS.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => is_public6(v6),
    }
}

/// Global unicast, without Teredo and 6to4, which contain IPv4 addresses.
fn is_public6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0) && first != 0x2002
}

/// Whether this host has the address. If that cannot be determined, it counts as its own.
pub fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_is_read() {
        assert_eq!(NETWORKS.len(), 11);
    }
}
