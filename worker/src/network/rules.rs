//! The packet filter of the router and of the host, in `nft`'s own language: everything that decides what a function may reach
//! stands here.
//!
//! TCP is refused by a reset: an ICMP message that comes while connect(2) still holds the socket counts for nothing until the
//! next attempt, a second later.
//!
//! A packet from a sandbox passes three: its own ([`super::inner`]: limits, and the address it has from then on), the router's
//! (which networks), the host's (none of the host's own addresses, whatever they are).

use std::fmt::Write as _;
use std::net::SocketAddr;

use ipnet::IpNet;

use super::plan::{GATEWAY, GATEWAY6, OUTER_NAME, SANDBOX_PREFIX, UPLINK_PREFIX, Uplink};

/// Networks that no function reaches unless the operator allows it: this network, private ones, shared ones of carriers, loopback,
/// link-local (where clouds have their metadata), protocol assignments, benchmarks (our own links), multicast, reserved.
const REFUSED4: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, \
                        192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/3";
/// Of IPv6 only global unicast is reached, but for what wraps IPv4 addresses: Teredo, 6to4.
const GLOBAL6: &str = "2000::/3";
const REFUSED6: &str = "2001::/32, 2002::/16";

/// What the operator adds.
#[derive(Debug, Default)]
pub(super) struct Exceptions<'a> {
    /// Networks that may be reached.
    pub allow: &'a [IpNet],
    /// Networks that may not.
    pub refuse: &'a [IpNet],
    /// Single ports that may not.
    pub control: &'a [SocketAddr],
    /// Whether IPv6 leads anywhere.
    pub ipv6: bool,
}

/// The router's filter.
pub(super) fn router(exceptions: &Exceptions<'_>) -> String {
    let mut outbound = String::new();
    let mut line = |text: String| {
        // Writing to a String does not fail.
        let _ = writeln!(outbound, "        {text}");
    };
    if !exceptions.ipv6 {
        line("meta nfproto ipv6 goto refuse".to_owned());
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
    format!(
        r#"table inet rekindle {{
    chain arrive {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{SANDBOX_PREFIX}*" fib saddr . iif oif missing drop
    }}
    chain here {{
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname "{SANDBOX_PREFIX}*" ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
        iifname "{SANDBOX_PREFIX}*" ip6 daddr {GATEWAY6} meta l4proto {{ tcp, udp }} th dport 53 accept
        iifname "{SANDBOX_PREFIX}*" goto refuse
    }}
    chain through {{
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ct state invalid drop
        iifname "{SANDBOX_PREFIX}*" oifname "{OUTER_NAME}" goto outbound
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

/// The name of the chain that keeps a host from forwarding for others; see [`host`].
pub(super) const GUARD: &str = "guard";

/// The host's filter. With `guard`, the host forwards for nobody but routers of ours: as before, when it forwarded nothing.
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
    format!(
        r#"add table inet {table}
delete table inet {table}
table inet {table} {{
    chain arrive {{
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
        iifname "{name}" tcp flags syn tcp option maxseg size set rt mtu
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

/// Removes the host's filter, whether it is there or not.
pub(super) fn no_host(uplink: &Uplink) -> String {
    let table = &uplink.table;
    format!("add table inet {table}\ndelete table inet {table}\n")
}
