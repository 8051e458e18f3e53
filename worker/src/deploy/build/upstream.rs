//! The host's own proxy, if its operator has set one (`HTTPS_PROXY`, `NO_PROXY`).

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::allow::canonical;

/// Maximum size of the response's head, in bytes.
const HEAD_MAX: usize = 16 << 10;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Upstream {
    host: String,
    port: u16,
    /// Base64 of `user:password`.
    credentials: Option<String>,
    /// Hosts that are reached without it, including all their subdomains.
    not_for: Vec<String>,
}

impl Upstream {
    /// Reads the proxy from the worker's environment.
    pub(super) fn configured() -> Option<Self> {
        let read = |names: [&str; 4]| {
            names
                .iter()
                .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        };
        let proxy = read(["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])?;
        let not_for = read(["NO_PROXY", "no_proxy", "NO_PROXY", "no_proxy"]).unwrap_or_default();
        let parsed = Self::parse(&proxy, &not_for);
        if parsed.is_none() {
            tracing::warn!("HTTPS_PROXY is no http:// address, and not used for builds");
        }
        parsed
    }

    fn parse(proxy: &str, not_for: &str) -> Option<Self> {
        let address = if proxy.contains("://") {
            proxy.to_owned()
        } else {
            format!("http://{proxy}")
        };
        let uri: Uri = address.parse().ok()?;
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let user = uri
            .authority()?
            .as_str()
            .rsplit_once('@')
            .map(|(user, _)| user.to_owned());
        Some(Self {
            host: uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(80),
            credentials: user.map(|user| STANDARD.encode(user)),
            not_for: not_for
                .split(',')
                .map(|name| canonical(name.trim().trim_start_matches("*.").trim_start_matches('.')))
                .filter(|name| !name.is_empty())
                .collect(),
        })
    }

    /// Returns whether this host is reached through it.
    pub(super) fn serves(&self, host: &str) -> bool {
        !self.not_for.iter().any(|name| {
            let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
            name == "*" || name == host || below
        })
    }

    /// Opens a tunnel to the host.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let authority = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n");
        if let Some(credentials) = &self.credentials {
            request.push_str(&format!("proxy-authorization: Basic {credentials}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        // Read byte by byte: what follows the head is the host's.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() > HEAD_MAX {
                return Err(io::Error::other("the host's own proxy answers at too great length"));
            }
            head.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head);
        let line = line.lines().next().unwrap_or_default();
        if line.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            Ok(stream)
        } else {
            Err(io::Error::other(format!("the host's own proxy answers \"{line}\"")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_proxy_is_used_but_for_what_is_excepted() {
        let proxy = Upstream::parse(
            "http://user:pass@proxy.example.org:3128/",
            "localhost, .internal.example.org,10.0.0.7",
        );
        let proxy = proxy.unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example.org", 3128));
        assert_eq!(proxy.credentials.as_deref(), Some("dXNlcjpwYXNz"));
        assert!(proxy.serves("pypi.org"));
        assert!(proxy.serves("notinternal.example.org"));
        for host in [
            "localhost",
            "a.internal.example.org",
            "internal.example.org",
            "10.0.0.7",
        ] {
            assert!(!proxy.serves(host), "{host}");
        }
        assert_eq!(Upstream::parse("socks5://proxy.example.org", ""), None);
    }
}
