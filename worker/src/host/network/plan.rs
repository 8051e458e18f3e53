//! Names and addresses. All are from 198.18.0.0/15, which is reserved for benchmarks of networks, so that no real host
//! has one:
//!
//! ```text
//! 198.18.0.1            the gateway, as every function sees it; name server, and where functions call each other
//! 198.18.0.2            the function, as it sees itself: the same in each sandbox, so that a restored one finds what
//!                       it knew
//! 198.18.1.0 …          the sandboxes, as the router sees them: each another
//! 198.19.0.0/16         pairs for the links between hosts and routers: each worker another
//! ```
//!
//! IPv6 has the same plan in fd52:656b:696e::/48.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The function's address inside.
pub(super) const INSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The function's IPv6 address inside.
pub(super) const INSIDE6: Ipv6Addr = Ipv6Addr::new(PREFIX6[0], PREFIX6[1], PREFIX6[2], 0, 0, 0, 0, 2);
/// Its gateway, which is also its name server.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Its IPv6 gateway.
pub(super) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(PREFIX6[0], PREFIX6[1], PREFIX6[2], 0, 0, 0, 0, 1);
/// Port of the gateway at which functions call each other.
pub(super) const CALLS_PORT: u16 = 80;
/// The function's interface inside.
pub(super) const INSIDE_NAME: &str = "eth0";
/// The number of that interface: after the loopback's.
pub(super) const INSIDE_INDEX: u32 = 2;
/// The router's interface to the host.
pub(super) const OUTER_NAME: &str = "out";
/// Prefix of the router's interfaces to sandboxes.
pub(super) const SANDBOX_PREFIX: &str = "s";
/// Prefix of the hosts' interfaces to routers.
pub(super) const UPLINK_PREFIX: &str = "rk";
/// Hardware address of each link's end in a router: neighbours are configured, not looked up.
pub(super) const ROUTER_MAC: [u8; 6] = [0x02, 0x52, 0x4b, 0, 0, 1];
/// Hardware address of its end in the sandbox.
pub(super) const INSIDE_MAC: [u8; 6] = [0x02, 0x52, 0x4b, 0, 0, 2];

const PREFIX6: [u16; 3] = [0xfd52, 0x656b, 0x696e];
/// Maximum number of sandboxes with an address at once. An address is reused after that many others.
const SANDBOXES: u32 = 65_000;
/// Lowest number of a router's interfaces to sandboxes.
const FIRST_INDEX: u32 = 16;

/// A worker's own names and addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uplink {
    /// The host's interface; 10 characters.
    pub interface: String,
    /// The table of packet filter rules on the host.
    pub table: String,
    /// The host's address on the link.
    pub host: Ipv4Addr,
    /// The router's address on the link.
    pub router: Ipv4Addr,
    pub host6: Ipv6Addr,
    pub router6: Ipv6Addr,
}

impl Uplink {
    /// Returns the names and addresses of the worker whose groups are below `group`, which no other worker of the host
    /// shares.
    pub(super) fn of(group: &str) -> Self {
        // FNV-1a.
        let hash = group
            .bytes()
            .fold(0x811C_9DC5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        let pair = (hash ^ (hash >> 16)) & 0x7fff;
        let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 19, 0, 0)) + pair * 2);
        let [_, _, high, low] = host.octets();
        let link = u16::from_be_bytes([high, low]);
        let six = |last| Ipv6Addr::new(PREFIX6[0], PREFIX6[1], PREFIX6[2], 2, 0, 0, link, last);
        Self {
            interface: format!("{UPLINK_PREFIX}{hash:08x}"),
            table: format!("rekindle-{hash:08x}"),
            host,
            router: Ipv4Addr::from(u32::from(host) + 1),
            host6: six(0),
            router6: six(1),
        }
    }
}

/// One sandbox as the router sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    /// The router's interface to it.
    pub interface: String,
    /// That interface's number.
    pub index: u32,
    pub address: Ipv4Addr,
    pub address6: Ipv6Addr,
}

impl Slot {
    /// Returns the slot of the `number`th sandbox.
    pub(super) fn of(number: u32) -> Self {
        let at = number % SANDBOXES;
        let [high, low] = (u16::try_from(at).unwrap_or(u16::MAX)).to_be_bytes();
        Self {
            interface: format!("{SANDBOX_PREFIX}{number}"),
            index: FIRST_INDEX + number % (u32::MAX >> 2),
            address: Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 1, 0)) + at),
            address6: Ipv6Addr::new(
                PREFIX6[0],
                PREFIX6[1],
                PREFIX6[2],
                1,
                0,
                0,
                0,
                u16::from_be_bytes([high, low]),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_one_host_have_links_of_their_own() {
        let (a, b) = (Uplink::of("rekindle"), Uplink::of("rekindle-12345678"));
        assert!(a.interface != b.interface && a.table != b.table && a.host != b.host && a.router != b.router);
        assert_eq!(a.interface.len(), 10);
        assert_eq!(u32::from(a.host) % 2, 0, "a pair of a /31");
        assert_eq!(a.host.octets()[..2], [198, 19]);
    }

    #[test]
    fn sandboxes_have_addresses_of_their_own_that_come_again_late() {
        let all: std::collections::HashSet<_> = (0..SANDBOXES).map(|n| Slot::of(n).address).collect();
        assert_eq!(all.len(), 65_000);
        assert!(all.iter().all(|a| a.octets()[..2] == [198, 18] && a.octets()[2] > 0));
        assert_eq!(Slot::of(SANDBOXES).address, Slot::of(0).address);
        assert_ne!(Slot::of(SANDBOXES).interface, Slot::of(0).interface);
        assert!(Slot::of(u32::MAX).interface.len() <= 15);
    }
}
