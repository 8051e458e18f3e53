//! Where callbacks may go; the rules are those for functions (docs/explanation/security.md). The public Internet is
//! allowed, but no private network, no cloud metadata and no address of this host, unless the operator allows it. Names
//! are judged by the addresses that are then connected to.
//!
//! Who may name an address is a separate question: a caller with a key, the function's own fn.toml, and anybody for
//! what the operator allows.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::dns::Name;
use ipnet::IpNet;
use rekindle_relay::world::{is_own, is_public};
use tower::Service;

/// What an operator allows callbacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackAllow {
    /// A network, even if it is private or this host's own; anybody may name it.
    Network(IpNet),
    /// A host, by its name; anybody may name it.
    Host(String),
    /// The whole world; anybody may name it.
    Public,
}

impl FromStr for CallbackAllow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "public" {
            return Ok(Self::Public);
        }
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Network(net));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        // Something like 10.1, or a mistyped address, is no host name.
        let has_letter = text.bytes().any(|b| b.is_ascii_alphabetic());
        match has_letter && text.split('.').all(is_label) {
            true => Ok(Self::Host(text.to_ascii_lowercase())),
            false => Err("is neither a network (10.1.0.0/16), nor a host (hooks.example.com), nor `public`".to_owned()),
        }
    }
}

/// The rules for addresses of callbacks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    networks: Arc<[IpNet]>,
    hosts: Arc<[String]>,
    public: bool,
}

impl Targets {
    /// The rules, with what the operator allows.
    pub(crate) fn allowing(allow: &[CallbackAllow]) -> Self {
        let networks = allow.iter().filter_map(|a| match a {
            CallbackAllow::Network(net) => Some(*net),
            _ => None,
        });
        let hosts = allow.iter().filter_map(|a| match a {
            CallbackAllow::Host(name) => Some(name.clone()),
            _ => None,
        });
        Self {
            networks: networks.collect(),
            hosts: hosts.collect(),
            public: allow.contains(&CallbackAllow::Public),
        }
    }

    /// Whether a callback may be posted to this address.
    pub(crate) fn permit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.is_in_a_network(address) || is_public(address) && !is_own(address)
    }

    fn is_in_a_network(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|net| net.contains(&address))
    }

    /// Whether a caller without a key may name this host for a callback: the operator has allowed it, or all networks
    /// that it is in.
    pub(crate) async fn may_be_named_by_anybody(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if self.public || self.hosts.contains(&host) {
            return true;
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.is_in_a_network(address.to_canonical());
        }
        if self.networks.is_empty() {
            return false;
        }
        let found = tokio::time::timeout(LOOKUP_LIMIT, tokio::net::lookup_host((host.as_str(), 0))).await;
        let Ok(Ok(found)) = found else { return false };
        let found: Vec<SocketAddr> = found.collect();
        !found.is_empty() && found.iter().all(|a| self.is_in_a_network(a.ip().to_canonical()))
    }
}

/// Limit for resolving a callback's host while its client waits.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);

/// Resolves a name, and keeps the permitted addresses.
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
                    ForbiddenTarget(name.to_string()),
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
pub(crate) struct ForbiddenTarget(pub(crate) String);

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
    }

    #[test]
    fn what_is_allowed_is_let_through_and_nothing_beside_it() {
        let targets = Targets::allowing(&[CallbackAllow::Network("10.1.0.0/16".parse().unwrap())]);
        assert!(targets.permit("10.1.9.9".parse().unwrap()));
        assert!(targets.permit("::ffff:10.1.9.9".parse().unwrap()));
        assert!(!targets.permit("10.2.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_allowed_is_a_network_a_host_or_the_world() {
        let read = |text: &str| text.parse::<CallbackAllow>();
        assert_eq!(read("public"), Ok(CallbackAllow::Public));
        assert_eq!(
            read("10.1.0.0/16"),
            Ok(CallbackAllow::Network("10.1.0.0/16".parse().unwrap()))
        );
        assert_eq!(
            read("10.1.0.9"),
            Ok(CallbackAllow::Network("10.1.0.9/32".parse().unwrap()))
        );
        assert_eq!(
            read("Hooks.example.com"),
            Ok(CallbackAllow::Host("hooks.example.com".into()))
        );
        for bad in [
            "",
            "10.1",
            "10.1.0.0/99",
            "a..b",
            "https://example.com",
            "example.com:80",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn without_a_key_only_what_the_operator_allows_may_be_named() {
        let nothing = Targets::default();
        let some = Targets::allowing(&["127.0.0.0/8".parse().unwrap(), "hooks.example.com".parse().unwrap()]);
        let world = Targets::allowing(&[CallbackAllow::Public]);
        for (host, expected) in [
            ("hooks.example.com", [false, true, true]),
            ("HOOKS.example.com", [false, true, true]),
            ("example.com", [false, false, true]),
            ("93.184.216.34", [false, false, true]),
            ("127.0.0.1", [false, true, true]),
            ("[::ffff:127.0.0.1]", [false, true, true]),
            // By its addresses, if these are in an allowed network.
            ("127.1", [false, true, true]),
        ] {
            for (targets, expected) in [&nothing, &some, &world].into_iter().zip(expected) {
                assert_eq!(
                    targets.may_be_named_by_anybody(host).await,
                    expected,
                    "{host} {targets:?}"
                );
            }
        }
        // What may be named is still subject to the same rule for posting.
        assert!(!world.permit("127.0.0.1".parse().unwrap()));
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
