//! The sender of a request: the connection's peer, or the client that a trusted proxy speaks for.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The sender's address. On a trusted proxy's connection it is the rightmost address in `X-Forwarded-For` that is not a
/// trusted proxy's. Anything to the left of it could have been written by anybody.
pub(super) fn sender(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let mut sender = peer.to_canonical();
    if !is_trusted(&sender) {
        return sender;
    }
    let lines: Vec<&str> = headers
        .get_all(FORWARDED_FOR)
        .iter()
        .map(|line| line.to_str().unwrap_or_default())
        .collect();
    for word in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
        // A trusted proxy wrote the entry next to it. If that is no address, the proxy itself is the best answer.
        let Some(address) = parsed(word.trim()) else { break };
        sender = address;
        if !is_trusted(&sender) {
            break;
        }
    }
    sender
}

/// Whether a process on this machine sends the request, and for itself: a proxy says for whom it sends one.
pub(crate) fn is_of_this_machine(peer: IpAddr, headers: &HeaderMap) -> bool {
    let is_forwarded = [FORWARDED_FOR, FORWARDED].iter().any(|name| headers.contains_key(name));
    peer.to_canonical().is_loopback() && !is_forwarded
}

/// Parses an address as proxies write it, with or without a port.
fn parsed(word: &str) -> Option<IpAddr> {
    let bare = word.strip_prefix('[').and_then(|w| w.strip_suffix(']')).unwrap_or(word);
    let address = bare
        .parse()
        .ok()
        .or_else(|| word.parse().ok().map(|with_port: SocketAddr| with_port.ip()));
    address.map(|a: IpAddr| a.to_canonical())
}

pub(super) fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(peer: &str, lines: &[&str]) -> String {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        sender(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn whoever_is_not_trusted_is_itself_whatever_it_says() {
        assert_eq!(found("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(found("::ffff:203.0.113.9", &[]), "203.0.113.9");
    }

    #[test]
    fn behind_trusted_proxies_the_rightmost_address_that_is_none_of_theirs_counts() {
        assert_eq!(found("10.0.0.1", &["203.0.113.9"]), "203.0.113.9");
        // It put the first one there itself.
        assert_eq!(
            found("10.0.0.1", &["198.51.100.1, 203.0.113.9, 10.0.0.2"]),
            "203.0.113.9"
        );
        assert_eq!(
            found("10.0.0.1", &["198.51.100.1, 203.0.113.9", "10.0.0.2"]),
            "203.0.113.9"
        );
        assert_eq!(found("fd00::1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(found("10.0.0.1", &["203.0.113.9:80"]), "203.0.113.9");
    }

    #[test]
    fn what_is_no_address_hides_nobody() {
        assert_eq!(found("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(found("10.0.0.1", &["203.0.113.9, unknown"]), "10.0.0.1");
        assert_eq!(found("10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(found("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }
}
