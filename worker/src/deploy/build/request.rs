//! Requests of a program to a proxy: a tunnel, or one plain request.

use http::Uri;

use super::allow::canonical;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// A name in canonical form, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) mode: RequestMode,
}

/// What is done once there is a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestMode {
    /// Bytes pass both ways.
    Tunnel,
    /// The server gets this head first. Its response ends the connection.
    Forward(String),
}

/// Headers that are for the proxy, not for the server.
const HOP: [&str; 4] = ["connection", "proxy-connection", "proxy-authorization", "keep-alive"];

impl Request {
    /// Parses a head with its empty line. Returns `None` if it is malformed.
    pub(super) fn parse(head: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(head).ok()?;
        let (line, headers) = text.split_once("\r\n")?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        if !words.next()?.starts_with("HTTP/1.") || words.next().is_some() {
            return None;
        }
        let uri: Uri = target.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let host = canonical(host);
        if method == "CONNECT" {
            return Some(Self {
                host,
                port: uri.port_u16()?,
                mode: RequestMode::Tunnel,
            });
        }
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let mut forwarded = format!("{method} {path} HTTP/1.1\r\n");
        for header in headers.split("\r\n").filter(|h| !h.is_empty()) {
            let (name, _) = header.split_once(':')?;
            if !HOP.contains(&name.to_ascii_lowercase().as_str()) {
                forwarded.push_str(header);
                forwarded.push_str("\r\n");
            }
        }
        forwarded.push_str("connection: close\r\n\r\n");
        Some(Self {
            host,
            port: uri.port_u16().unwrap_or(80),
            mode: RequestMode::Forward(forwarded),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_plain_requests_are_understood_and_nothing_else() {
        let tunnel = Request::parse(b"CONNECT PyPI.org.:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n").unwrap();
        assert_eq!(
            (tunnel.host.as_str(), tunnel.port, &tunnel.mode),
            ("pypi.org", 443, &RequestMode::Tunnel)
        );
        let address = Request::parse(b"CONNECT [::1]:22 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 22));
        let plain = b"GET http://u@Example.org/simple/?a=b HTTP/1.1\r\nHost: x\r\nProxy-Connection: \
            keep-alive\r\nAccept: */*\r\n\r\n";
        let plain = Request::parse(plain).unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("example.org", 80));
        let RequestMode::Forward(head) = plain.mode else {
            panic!()
        };
        assert_eq!(
            head,
            "GET /simple/?a=b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nconnection: close\r\n\r\n"
        );
        for head in [
            &b"GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n"[..],
            b"GET https://pypi.org/ HTTP/1.1\r\n\r\n",
            b"CONNECT pypi.org HTTP/1.1\r\n\r\n",
            b"CONNECT pypi.org:443\r\n\r\n",
            b"GET http://a/ HTTP/1.1\r\nno header\r\n\r\n",
            b"\x16\x03\x01\r\n\r\n",
            b"",
        ] {
            assert_eq!(Request::parse(head), None, "{}", String::from_utf8_lossy(head));
        }
    }
}
