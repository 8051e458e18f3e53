//! Hop-by-hop headers (RFC 9110, 7.6.1).

use http::header::{CONNECTION, EXPECT, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http2::{TRAILERS, takes_trailers};

const HOP_BY_HOP: [HeaderName; 6] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT];
const HOP_BY_HOP_TOO: [&str; 4] = [
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
];

/// Removes the hop-by-hop headers, including those listed in `Connection`.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP_TOO {
        headers.remove(name);
    }
}

/// Removes the headers whose names `is_unwanted` says yes to.
pub fn strip_named(headers: &mut HeaderMap, is_unwanted: impl Fn(&str) -> bool) {
    let unwanted: Vec<HeaderName> = headers.keys().filter(|n| is_unwanted(n.as_str())).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// Removes the hop-by-hop headers, but for the protocol that the connection is to change to, and that trailers are
/// taken. HTTP/2 and TLS go, too: what a connection carries after such a change are requests that no relay has seen.
pub fn strip_hop_by_hop_but_upgrade(headers: &mut HeaderMap) {
    let protocol = protocol(headers).cloned();
    let trailers = takes_trailers(headers);
    strip_hop_by_hop(headers);
    if trailers {
        headers.insert(TE, TRAILERS);
    }
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// The protocol that is asked for or agreed on, if it may be passed on.
fn protocol(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut options = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    if !options.any(|option| option.trim().eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let mut asked = headers.get_all(UPGRADE).iter();
    let (protocol, None) = (asked.next()?, asked.next()) else {
        return None;
    };
    let name = protocol.to_str().ok()?.trim().to_ascii_lowercase();
    let is_hidden_http = name == "h2c" || name.starts_with("http/") || name.starts_with("tls/");
    (!name.is_empty() && !name.contains(',') && !is_hidden_http).then_some(protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_of(sent: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, HeaderValue::from_static(value));
        }
        strip_hop_by_hop_but_upgrade(&mut headers);
        let text = |(name, value): (&HeaderName, &HeaderValue)| (name.to_string(), value.to_str().unwrap().to_owned());
        headers.iter().map(text).collect()
    }

    #[test]
    fn a_change_of_protocol_passes_unless_it_hides_requests() {
        let asked = |protocol| {
            [
                ("connection", "keep-alive, Upgrade, x-secret"),
                ("upgrade", protocol),
                ("x-secret", "1"),
            ]
        };
        let passed = |protocol: &str| {
            vec![
                ("connection".to_owned(), "upgrade".to_owned()),
                ("upgrade".to_owned(), protocol.to_owned()),
            ]
        };
        for protocol in ["websocket", "WebSocket", "SPDY/3.1"] {
            assert_eq!(left_of(&asked(protocol)), passed(protocol));
        }
        for protocol in ["h2c", "H2C", "HTTP/2.0", "TLS/1.2", "websocket, h2c", ""] {
            assert_eq!(left_of(&asked(protocol)), [], "{protocol}");
        }
        assert_eq!(left_of(&[("upgrade", "websocket")]), []);
        let twice = [("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")];
        assert_eq!(left_of(&twice), []);
    }

    #[test]
    fn that_trailers_are_taken_is_passed_on_and_other_codings_are_not() {
        for taken in ["trailers", "deflate, Trailers"] {
            assert_eq!(left_of(&[("te", taken)]), [("te".to_owned(), "trailers".to_owned())]);
        }
        assert_eq!(left_of(&[("te", "gzip;q=0.5")]), []);
    }

    #[test]
    fn what_belongs_to_the_connection_does_not_pass() {
        let mut headers: HeaderMap = [
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ]
        .into_iter()
        .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
        .collect();
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
