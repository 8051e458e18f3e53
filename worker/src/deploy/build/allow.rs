//! The hosts that a build may reach: the public registries of pip and npm, and those that the operator names.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use rekindle_relay::world;

/// The default registries of pip and npm.
const PUBLIC: [&str; 3] = ["pypi.org", "files.pythonhosted.org", "registry.npmjs.org"];
/// Ports of a host that is named without one.
const PORTS: [u16; 2] = [443, 80];

/// The operator's settings for the network of builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildNetwork {
    /// Whether builds may reach the public registries of pip and npm.
    pub public: bool,
    /// Further hosts, wherever they are.
    pub allow: Vec<Host>,
}

impl Default for BuildNetwork {
    fn default() -> Self {
        Self {
            public: true,
            allow: Vec::new(),
        }
    }
}

/// A host by name or address, with or without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    name: String,
    port: Option<u16>,
}

/// The text is not a host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no host: write a name or an address, and a port if need be, for example pypi.example.org or 10.0.0.7:3141")]
pub struct ParseHostError;

impl FromStr for Host {
    type Err = ParseHostError;

    fn from_str(text: &str) -> Result<Self, ParseHostError> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or(ParseHostError)?;
                name.parse::<Ipv6Addr>().map_err(|_| ParseHostError)?;
                (name, port.strip_prefix(':').or(port.is_empty().then_some("")))
            }
            None if text.parse::<Ipv6Addr>().is_ok() => (text, Some("")),
            None => match text.rsplit_once(':') {
                Some((name, port)) => (name, Some(port).filter(|p| !p.is_empty())),
                None => (text, Some("")),
            },
        };
        let port = match port.ok_or(ParseHostError)? {
            "" => None,
            port => Some(port.parse().map_err(|_| ParseHostError)?),
        };
        let name = canonical(name);
        let usable = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if name.is_empty() || name.len() > 253 || !name.chars().all(usable) {
            return Err(ParseHostError);
        }
        Ok(Self { name, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Host {
    /// Returns the hosts of the web addresses in a text, with their ports.
    pub(super) fn named_in(text: &str) -> Vec<Self> {
        let mut found = Vec::new();
        for (scheme, port) in [("https://", 443), ("http://", 80)] {
            for (at, _) in text.match_indices(scheme) {
                let rest = &text[at + scheme.len()..];
                let end = rest.find(|c: char| c.is_whitespace() || "/?#\"'".contains(c));
                let authority = &rest[..end.unwrap_or(rest.len())];
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                if let Ok(mut host) = host.parse::<Self>() {
                    host.port.get_or_insert(port);
                    found.push(host);
                }
            }
        }
        found
    }

    fn is(&self, name: &str, port: u16) -> bool {
        self.name == name && self.port.map_or(PORTS.contains(&port), |own| own == port)
    }
}

/// Returns a name in the form used for comparison: in lower case, without a trailing dot.
pub(super) fn canonical(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// How a host may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostAccess {
    /// Wherever it is: the operator has named it.
    Anywhere,
    /// Only at a public address.
    Public,
    /// Not at all.
    Refused,
}

/// The hosts that one build may reach.
#[derive(Debug, Clone)]
pub(super) struct AllowedHosts {
    public: bool,
    named: Vec<Host>,
}

impl AllowedHosts {
    /// Combines the operator's options with the settings of installers.
    pub(super) fn new(network: &BuildNetwork, configured: &[Host]) -> Self {
        let mut named = network.allow.clone();
        for host in configured {
            if !named.contains(host) {
                named.push(host.clone());
            }
        }
        Self {
            public: network.public,
            named,
        }
    }

    /// Returns how a host with this canonical name may be reached.
    pub(super) fn reach(&self, name: &str, port: u16) -> HostAccess {
        if self.named.iter().any(|host| host.is(name, port)) {
            return HostAccess::Anywhere;
        }
        if self.public && PUBLIC.contains(&name) && PORTS.contains(&port) {
            return HostAccess::Public;
        }
        HostAccess::Refused
    }
}

impl fmt::Display for AllowedHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let public = PUBLIC.iter().filter(|_| self.public).map(ToString::to_string);
        let all: Vec<String> = public.chain(self.named.iter().map(ToString::to_string)).collect();
        f.write_str(if all.is_empty() { "none" } else { "" })?;
        f.write_str(&all.join(", "))
    }
}

/// Returns whether an address is public: functions may reach it too, and it is not one of the host's own.
pub(super) fn is_public(address: IpAddr) -> bool {
    world::is_public(address) && !world::is_own(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_are_names_or_addresses_with_or_without_a_port() {
        for (text, shown) in [
            ("PyPI.example.org", "pypi.example.org"),
            ("pypi.example.org.:8080", "pypi.example.org:8080"),
            ("10.0.0.7:3141", "10.0.0.7:3141"),
            ("[fd00::7]:3141", "[fd00::7]:3141"),
            ("[fd00::7]", "[fd00::7]"),
            ("fd00::7", "[fd00::7]"),
        ] {
            assert_eq!(host(text).to_string(), shown);
        }
        for text in [
            "", ":80", "a b", "a/b", "http://a", "a:99999", "a:", "[fd00::7", "[a]", "a\n", "u@h",
        ] {
            assert_eq!(text.parse::<Host>(), Err(ParseHostError), "{text:?}");
        }
    }

    #[test]
    fn hosts_are_reached_by_name_and_port_alone() {
        let network = BuildNetwork {
            public: true,
            allow: vec![host("a.example.org"), host("10.0.0.7:3141")],
        };
        let allowed = AllowedHosts::new(&network, &[host("b.example.org:8443")]);
        for (name, port, reach) in [
            ("pypi.org", 443, HostAccess::Public),
            ("pypi.org", 22, HostAccess::Refused),
            ("evil-pypi.org", 443, HostAccess::Refused),
            ("pypi.org.example.org", 443, HostAccess::Refused),
            ("a.example.org", 443, HostAccess::Anywhere),
            ("a.example.org", 80, HostAccess::Anywhere),
            ("a.example.org", 22, HostAccess::Refused),
            ("x.a.example.org", 443, HostAccess::Refused),
            ("10.0.0.7", 3141, HostAccess::Anywhere),
            ("10.0.0.7", 443, HostAccess::Refused),
            ("b.example.org", 8443, HostAccess::Anywhere),
            ("b.example.org", 443, HostAccess::Refused),
            ("127.0.0.1", 80, HostAccess::Refused),
        ] {
            assert_eq!(allowed.reach(name, port), reach, "{name}:{port}");
        }
        let none = AllowedHosts::new(
            &BuildNetwork {
                public: false,
                allow: Vec::new(),
            },
            &[],
        );
        assert_eq!(none.reach("pypi.org", 443), HostAccess::Refused);
        assert_eq!(none.to_string(), "none");
    }

    #[test]
    fn private_addresses_and_the_hosts_own_are_not_public() {
        for address in [
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "2002:a00:1::",
            "64:ff9b::a00:1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "203.0.113.7", "2606:4700::1111"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
