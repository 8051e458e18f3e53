//! Options for the network of functions, shared by `fn up` and `fn worker`.

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use rekindle_worker::host::network::{Egress, EgressLimits};

/// Whether functions reach any network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Functions that ask for it do.
    #[default]
    On,
    /// None does, whatever its fn.toml says.
    Off,
}

/// What functions with `network = "egress"` reach.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct EgressArgs {
    /// Whether functions reach anything but themselves.
    #[arg(long, value_enum, default_value_t, env = "FN_EGRESS")]
    pub(crate) egress: Switch,
    /// A private network that functions may reach, for example 10.1.0.0/16; may be repeated. The host itself is never
    /// reached.
    #[arg(long, value_name = "CIDR", env = "FN_EGRESS_ALLOW", value_delimiter = ',', value_parser = network)]
    pub(crate) egress_allow: Vec<IpNet>,
    /// A public network that functions may not reach; may be repeated.
    #[arg(long, value_name = "CIDR", env = "FN_EGRESS_REFUSE", value_delimiter = ',', value_parser = network)]
    pub(crate) egress_refuse: Vec<IpNet>,
    /// Forward IPv6 for functions too, on a host that does not forward it yet. Such a host then ignores router
    /// advertisements unless accept_ra is 2.
    #[arg(long, env = "FN_EGRESS_IPV6")]
    pub(crate) egress_ipv6: bool,
    /// Maximum connections of an instance to the outside.
    #[arg(long, value_name = "N", env = "FN_EGRESS_CONNECTIONS", default_value_t = EgressLimits::default().connections)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) egress_connections: u32,
    /// Maximum connections that an instance may make within a second.
    #[arg(long, value_name = "N", env = "FN_EGRESS_NEW_CONNECTIONS")]
    #[arg(default_value_t = EgressLimits::default().new_connections)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) egress_new_connections: u32,
    /// Millions of bits a second of an instance in each direction; 0 for no limit.
    #[arg(long, value_name = "N", env = "FN_EGRESS_MBITS", default_value_t = EgressLimits::default().mbits)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=30_000))]
    pub(crate) egress_mbits: u32,
}

impl EgressArgs {
    /// The worker's setting; `control` lists the cluster's own parts, `host:port`.
    pub(crate) fn egress(&self, control: Vec<String>) -> Egress {
        Egress {
            enabled: self.egress == Switch::On,
            allow: self.egress_allow.clone(),
            refuse: self.egress_refuse.clone(),
            control,
            ipv6: self.egress_ipv6,
            limits: EgressLimits {
                new_connections: self.egress_new_connections,
                connections: self.egress_connections,
                mbits: self.egress_mbits,
            },
        }
    }
}

/// Parses a network, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| "is no network: write an address and its prefix, for example 10.1.0.0/16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_with_a_prefix_or_are_one_address() {
        assert_eq!(network("10.1.2.0/24").unwrap().to_string(), "10.1.2.0/24");
        assert_eq!(network("2001:db8::1").unwrap().to_string(), "2001:db8::1/128");
        assert!(network("10.1").unwrap_err().contains("10.1.0.0/16"));
    }
}
