//! The packet filters of the router and of the host, in `nft`'s own language. They decide everything about what a
//! function may reach.
//!
//! TCP is refused by a reset. An ICMP message that arrives while connect(2) still holds the socket has no effect until
//! the next attempt, a second later.
//!
//! A packet from a sandbox passes three filters. Its own ([`super::inner`]) sets limits and its address from then on.
//! The router's decides on networks, and the host's refuses all of the host's own addresses, whatever they are.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use rekindle_relay::world::REFUSED4;

use super::plan::{CALLS_PORT, GATEWAY, GATEWAY6, OUTER_NAME, SANDBOX_PREFIX, UPLINK_PREFIX, Uplink};

/// Of IPv6 only global unicast can be reached, except addresses that wrap IPv4: Teredo, 6to4.
const GLOBAL6: &str = "2000::/3";
const REFUSED6: &str = "2001::/32, 2002::/16";

/// Seconds after which an idle TCP connection is forgotten. The kernel's default of five days would keep the
/// connections of instances that are long gone, since a sandbox ends without notice to its peers.
const IDLE_TCP_S: u32 = 1800;
/// Seconds after which a closed TCP connection is forgotten. A sandbox's limit of connections counts open ones, and
/// the host's table is for all: at the kernel's two minutes, twenty sandboxes could fill it.
const CLOSED_TCP_S: u32 = 10;

/// Builds what makes the kernel forget new connections in time: objects of a table, and rules for a chain that new
/// connections pass.
fn forgetting(interface: &str) -> (String, String) {
    let families = [("tcp4", "ip", "ipv4"), ("tcp6", "ip6", "ipv6")];
    let objects = families.map(|(name, l3, _)| {
        format!(
            "    ct timeout {name} {{\n        protocol tcp; l3proto {l3};\n        policy = \
            {{ established : {IDLE_TCP_S}, time_wait : {CLOSED_TCP_S} }}\n    }}\n"
        )
    });
    let rules = families.map(|(name, _, family)| {
        format!(
            "        iifname \"{interface}\" ct state new meta nfproto {family} meta l4proto tcp ct timeout set \
             \"{name}\"\n"
        )
    });
    (objects.concat(), rules.concat())
}

#[derive(Debug, Default)]
pub(super) struct Exceptions<'a> {
    /// Networks that may be reached.
    pub allow: &'a [IpNet],
    /// Networks that may not be reached.
    pub refuse: &'a [IpNet],
    /// Single ports that may not be reached.
    pub control: &'a [SocketAddr],
    /// The host's present addresses. The host refuses all of its addresses at any time, but its errors are
    /// rate-limited. The router's are not.
    pub(super) host: &'a [IpAddr],
    /// Whether IPv6 leads anywhere.
    pub ipv6: bool,
}

pub(super) fn router(exceptions: &Exceptions<'_>) -> String {
    let mut outbound = String::new();
    let mut line = |text: String| {
        // Writing to a String does not fail.
        let _ = writeln!(outbound, "        {text}");
    };
    if !exceptions.ipv6 {
        line("meta nfproto ipv6 goto refuse".to_owned());
    }
    for address in exceptions.host {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        line(format!("{family} daddr {address} goto refuse"));
    }
    for port in exceptions.control {
        let family = if port.is_ipv4() { "ip" } else { "ip6" };
        line(format!(
            "{family} daddr {} meta l4proto {{ tcp, udp }} th dport {} goto refuse",
            port.ip(),
            port.port()
        ));
    }
    for (networks, verdict) in [(exceptions.refuse, "goto refuse"), (exceptions.allow, "accept")] {
        for network in networks {
            let family = if network.addr().is_ipv4() { "ip" } else { "ip6" };
            line(format!("{family} daddr {} {verdict}", network.trunc()));
        }
    }
    let (timeouts, forget) = forgetting(&format!("{SANDBOX_PREFIX}*"));
    format!(
        r#"table inet rekindle {{
{timeouts}    chain arrive {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{SANDBOX_PREFIX}*" fib saddr . iif oif missing drop
    }}
    chain here {{
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname "{SANDBOX_PREFIX}*" ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
        iifname "{SANDBOX_PREFIX}*" ip6 daddr {GATEWAY6} meta l4proto {{ tcp, udp }} th dport 53 accept
        iifname "{SANDBOX_PREFIX}*" ip daddr {GATEWAY} tcp dport {CALLS_PORT} accept
        iifname "{SANDBOX_PREFIX}*" goto refuse
    }}
    chain through {{
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ct state invalid drop
{forget}        iifname "{SANDBOX_PREFIX}*" oifname "{OUTER_NAME}" goto outbound
        iifname "{SANDBOX_PREFIX}*" goto refuse
    }}
    chain outbound {{
{outbound}        ip daddr {{ {REFUSED4} }} goto refuse
        ip6 daddr {{ {REFUSED6} }} goto refuse
        ip6 daddr != {GLOBAL6} goto refuse
        accept
    }}
    chain refuse {{
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }}
    chain leave {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "{OUTER_NAME}" masquerade
    }}
}}
"#
    )
}

/// Name of the chain that keeps a host from forwarding for others; see [`host`].
pub(super) const GUARD: &str = "guard";

/// Builds the host's filter. With `guard`, the host forwards only for routers of workers, since it forwarded nothing
/// before.
pub(super) fn host(uplink: &Uplink, guard: bool) -> String {
    let (name, table) = (&uplink.interface, &uplink.table);
    let guard = if guard {
        format!(
            r#"    chain {GUARD} {{
        type filter hook forward priority filter - 10; policy accept;
        iifname != "{UPLINK_PREFIX}*" oifname != "{UPLINK_PREFIX}*" drop
    }}
"#
        )
    } else {
        String::new()
    };
    let (timeouts, forget) = forgetting(name);
    format!(
        r#"add table inet {table}
delete table inet {table}
table inet {table} {{
{timeouts}    chain arrive {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{name}" ip saddr != {router} drop
        iifname "{name}" ip6 saddr != {router6} drop
        iifname "{name}" fib daddr type {{ local, broadcast, anycast, multicast }} goto refuse
    }}
    chain here {{
        type filter hook input priority filter - 10; policy accept;
        iifname "{name}" goto refuse
    }}
    chain through {{
        type filter hook forward priority filter - 10; policy accept;
        iifname "{name}" oifname "{UPLINK_PREFIX}*" goto refuse
        iifname "{name}" ct status dnat goto refuse
        oifname "{name}" ct state != {{ established, related }} drop
{forget}        iifname "{name}" tcp flags syn tcp option maxseg size set rt mtu
    }}
{guard}    chain refuse {{
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }}
    chain leave {{
        type nat hook postrouting priority srcnat; policy accept;
        iifname "{name}" masquerade
    }}
}}
"#,
        router = uplink.router,
        router6 = uplink.router6,
    )
}

/// Removes the host's filter, whether it exists or not.
pub(super) fn no_host(uplink: &Uplink) -> String {
    let table = &uplink.table;
    format!("add table inet {table}\ndelete table inet {table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_the_cluster_are_refused_before_anything_is_allowed() {
        let allow = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let refuse = ["10.9.0.7/16".parse().unwrap()];
        let control = ["10.1.1.1:8081".parse().unwrap()];
        let host = ["10.2.2.2".parse().unwrap(), "fe80::1".parse().unwrap()];
        let document = router(&Exceptions {
            allow: &allow,
            refuse: &refuse,
            control: &control,
            host: &host,
            ipv6: true,
        });
        let at = |part: &str| document.find(part).unwrap_or_else(|| panic!("{part} in {document}"));
        let allowed = at("ip daddr 10.0.0.0/8 accept");
        for first in [
            "ip daddr 10.2.2.2 goto refuse",
            "ip6 daddr fe80::1 goto refuse",
            "ip daddr 10.1.1.1 meta l4proto { tcp, udp } th dport 8081 goto refuse",
            "ip daddr 10.9.0.0/16 goto refuse",
        ] {
            assert!(at(first) < allowed, "{first}");
        }
        assert!(allowed < at("ip6 daddr fd00::/8 accept") && allowed < at(REFUSED4));
        assert!(!document.contains("nfproto ipv6 goto refuse"));
        assert!(router(&Exceptions::default()).contains("meta nfproto ipv6 goto refuse"));
    }

    #[test]
    fn a_host_that_forwarded_before_is_not_kept_from_it() {
        let uplink = Uplink::of("rekindle");
        assert!(host(&uplink, true).contains("chain guard"));
        assert!(!host(&uplink, false).contains("chain guard"));
    }

    #[test]
    fn closed_connections_are_soon_forgotten_by_router_and_host() {
        for document in [router(&Exceptions::default()), host(&Uplink::of("rekindle"), false)] {
            assert_eq!(document.matches("time_wait : 10").count(), 2, "{document}");
            assert_eq!(document.matches("ct timeout set").count(), 2, "{document}");
        }
    }

    /// Whatever the rules say, the kernel and this version of `nft` accept them, and the messages of a sandbox's
    /// filter.
    #[test]
    fn a_whole_network_can_be_set_up() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root makes networks");
            return;
        }
        super::super::prove().unwrap();
    }
}
