//! The hosts that a gateway answers at: the host that a request names, and its owner.
//!
//! | host | owner |
//! |---|---|
//! | `NAME.DOMAIN` | the function in the default namespace |
//! | `NAME.NAMESPACE.DOMAIN` | the function in that namespace |
//! | either with `VERSION--NAME`, where the version begins with a digit | that version of it |
//! | either with `ALIAS--NAME` | what the alias names, unless there is a function `ALIAS--NAME` from before |
//! | the API's host, if it has one of its own | the platform |
//! | any other: `DOMAIN` itself, addresses, names of no domain | shared: the platform and, by path, all functions |
//!
//! Pure. Names are compared in lower case, without their port and without one dot at their end.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::header::HOST;
use http::uri::Scheme;
use http::{Request, Version};
use rekindle_wire::{ApiError, ErrorCode};

/// The domain that is always served: browsers and resolvers take it for this machine.
const LOCAL: &str = "localhost";
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A host's name: labels of letters, digits, hyphens and underscores, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(String);

/// The text is not a host's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a host: write it without port and scheme, such as functions.example.com")]
pub struct ParseDomainNameError(String);

impl DomainName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainName {
    type Err = ParseDomainNameError;

    fn from_str(text: &str) -> Result<Self, ParseDomainNameError> {
        let refused = || ParseDomainNameError(text.to_owned());
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_suffix('.').unwrap_or(&lower);
        let is_label = |label: &str| {
            (1..=LABEL_MAX).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        // A number at the end makes it an address, in one of the many ways to write one.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
        if name.len() > NAME_MAX || is_number || !name.split('.').all(is_label) {
            return Err(refused());
        }
        Ok(Self(name.to_owned()))
    }
}

/// The host that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Name(DomainName),
    Address(IpAddr),
}

impl Host {
    /// Whether it stands for the requesting machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name.as_str() == LOCAL || name.as_str().ends_with(".localhost"),
            Self::Address(address) => address.to_canonical().is_loopback(),
        }
    }

    /// Its name, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name.as_str()),
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V6(v6)) => write!(f, "[{v6}]"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Parses `host[:port]`.
fn authority(text: &str) -> Result<(Host, Option<u16>), ApiError> {
    let refused = || {
        ApiError::new(
            ErrorCode::BadRequest,
            format!("{text:?} is no host: a name or an address is expected, with or without a port"),
        )
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or_else(refused)?;
            let address: Ipv6Addr = address.parse().map_err(|_| refused())?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or_else(refused)?),
            };
            (Host::Address(address.into()), port)
        }
        None => {
            let (name, port) = text.split_once(':').map_or((text, None), |(n, p)| (n, Some(p)));
            let host = match name.parse::<Ipv4Addr>() {
                Ok(address) => Host::Address(address.into()),
                Err(_) => Host::Name(name.parse().map_err(|_| refused())?),
            };
            (host, port)
        }
    };
    let port = match port {
        None | Some("") => None,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().map_err(|_| refused())?),
        Some(_) => return Err(refused()),
    };
    Ok((host, port))
}

/// The host of a request, from its target or its `Host` header. `None` if an old client names none.
///
/// # Errors
/// `bad_request` if the text is no host, or the request names two.
pub(crate) fn of<B>(request: &Request<B>) -> Result<Option<Host>, ApiError> {
    let mut headers = request.headers().get_all(HOST).iter();
    let (header, second) = (headers.next(), headers.next());
    let two = || {
        ApiError::new(
            ErrorCode::BadRequest,
            "the request names two hosts: its target and its Host header have to be the same one",
        )
    };
    if second.is_some() {
        return Err(two());
    }
    let said = match header.map(http::HeaderValue::to_str) {
        None => None,
        Some(Ok("")) => None,
        Some(Ok(text)) => Some(authority(text)?),
        Some(Err(_)) => {
            let message = "the Host header is no name: a name with other letters than ASCII's is written as xn--...";
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
    };
    let Some(target) = request.uri().authority() else {
        if said.is_none() && request.version() == Version::HTTP_11 && header.is_none() {
            let message = "the request has no Host header, which HTTP/1.1 wants";
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        return Ok(said.map(|(host, _)| host));
    };
    let (host, port) = authority(target.as_str())?;
    if let Some((other, other_port)) = said {
        let usual = if request.uri().scheme() == Some(&Scheme::HTTPS) {
            443
        } else {
            80
        };
        if other != host || other_port.unwrap_or(usual) != port.unwrap_or(usual) {
            return Err(two());
        }
    }
    Ok(Some(host))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostOwner {
    /// The function with this id, if it exists, or `ID@VERSION`.
    Function(String),
    /// The API, which has a host of its own.
    Api,
    /// Shared by the platform and all functions.
    Shared,
}

/// The owners of hosts.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// Domains below which functions have their hosts, besides `localhost`.
    pub domains: Vec<DomainName>,
    /// The only host of the API, besides loopback. Without one the API is at every host that is no function's.
    pub api: Option<DomainName>,
}

impl Hosts {
    /// The owner of the host.
    ///
    /// # Errors
    /// `not_found` for names that nothing will ever have.
    pub(crate) fn owner_of(&self, host: Option<&Host>) -> Result<HostOwner, ApiError> {
        let Some(Host::Name(name)) = host else {
            return Ok(HostOwner::Shared);
        };
        if self.api.as_ref() == Some(name) {
            return Ok(HostOwner::Api);
        }
        let domains = self.domains.iter().map(DomainName::as_str).chain([LOCAL]);
        // Of nested domains, the innermost.
        let innermost = domains
            .filter_map(|d| below(name.as_str(), d))
            .min_by_key(|rest| rest.len());
        let Some(labels) = innermost.filter(|rest| !rest.is_empty()) else {
            return Ok(HostOwner::Shared);
        };
        let nothing = |message: String| Err(ApiError::new(ErrorCode::NotFound, message));
        let first = labels.split('.').next().unwrap_or_default();
        if labels.split('.').count() > 2 {
            nothing(format!(
                "nothing is at {name}: a function's host is NAME.{0}, or NAME.NAMESPACE.{0}",
                self.shown()
            ))
        } else if labels.split('.').any(|label| label.starts_with("xn--")) {
            nothing(format!(
                "{name} is no function's: names of functions have the letters a to z alone"
            ))
        } else if let Some((version, rest)) = labels.split_once("--")
            && first.starts_with(|c: char| c.is_ascii_digit())
            && first.contains("--")
        {
            Ok(HostOwner::Function(format!("{rest}@{version}")))
        } else {
            Ok(HostOwner::Function(labels.to_owned()))
        }
    }

    /// A domain of functions, for messages.
    pub(crate) fn shown(&self) -> &str {
        self.domains.first().map_or(LOCAL, DomainName::as_str)
    }
}

/// What precedes a domain in a name; empty if the name is the domain itself.
fn below<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    match name.strip_suffix(domain)? {
        "" => Some(""),
        rest => rest.strip_suffix('.'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a host resolves to: a function's name in quotes, or a word.
    fn resolved(text: &str) -> String {
        let hosts = Hosts {
            domains: ["example.org", "fn.example.org"].map(|d| d.parse().unwrap()).into(),
            api: Some("api.example.org".parse().unwrap()),
        };
        let found = authority(text).and_then(|(host, _)| hosts.owner_of(Some(&host)));
        match found {
            Ok(HostOwner::Function(name)) => format!("'{name}'"),
            Ok(owner) => format!("{owner:?}").to_lowercase(),
            Err(error) => error.code.as_str().to_owned(),
        }
    }

    #[test]
    fn a_host_is_whose_the_grammar_says() {
        let table = [
            // Functions.
            ("hello.localhost", "'hello'"),
            ("hello.localhost:8080", "'hello'"),
            ("hello.localhost:", "'hello'"),
            ("HELLO.LocalHost", "'hello'"),
            ("hello.localhost.", "'hello'"),
            ("hello.localhost.:443", "'hello'"),
            ("hello.example.org", "'hello'"),
            ("hello.fn.example.org", "'hello'"),
            ("a--b.localhost", "'a--b'"),
            ("v3--hello.localhost", "'v3--hello'"),
            ("bad_name.localhost", "'bad_name'"),
            ("api.localhost", "'api'"),
            ("hello.team.localhost", "'hello.team'"),
            ("Hello.Team.localhost.:8080", "'hello.team'"),
            ("hello.team.fn.example.org", "'hello.team'"),
            ("hello.3--team.localhost", "'hello.3--team'"),
            // Versions of functions.
            ("3--hello.localhost", "'hello@3'"),
            ("3--hello.example.org:443", "'hello@3'"),
            ("3--hello.team.localhost", "'hello.team@3'"),
            ("3--a--b.localhost", "'a--b@3'"),
            ("3x--hello.localhost", "'hello@3x'"),
            // The platform's.
            ("api.example.org", "api"),
            ("API.example.org.:8443", "api"),
            ("localhost", "shared"),
            ("example.org", "shared"),
            ("fn.example.org", "shared"),
            ("gateway.internal", "shared"),
            ("notexample.org", "shared"),
            ("127.0.0.1:8080", "shared"),
            ("[::1]:8080", "shared"),
            ("[2001:db8::1]", "shared"),
            // Nobody's.
            ("a.b.c.localhost", "not_found"),
            ("xn--hllo-5ja.localhost", "not_found"),
            ("hello.xn--hllo-5ja.localhost", "not_found"),
            ("", "bad_request"),
            (".", "bad_request"),
            ("hello.localhost..", "bad_request"),
            (".localhost", "bad_request"),
            ("hello..localhost", "bad_request"),
            ("-hello.localhost", "bad_request"),
            ("hello-.localhost", "bad_request"),
            ("h\u{e9}llo.localhost", "bad_request"),
            ("hello%2elocalhost", "bad_request"),
            ("hello.localhost/", "bad_request"),
            ("user@hello.localhost", "bad_request"),
            ("hello.localhost:80:80", "bad_request"),
            ("hello.localhost:+80", "bad_request"),
            ("hello.localhost:65536", "bad_request"),
            ("hello.localhost:http", "bad_request"),
            ("hello localhost", "bad_request"),
            // Addresses, as some resolvers would read them.
            ("127.1", "bad_request"),
            ("2130706433", "bad_request"),
            ("0x7f.0x1", "bad_request"),
            ("256.0.0.1", "bad_request"),
            ("[::1", "bad_request"),
            ("[::1]8080", "bad_request"),
            ("[fe80::1%25eth0]", "bad_request"),
            ("[v1.x]", "bad_request"),
            ("::1", "bad_request"),
        ];
        for (host, expected) in table {
            assert_eq!(resolved(host), expected, "{host:?}");
        }
        let long = format!("{}.localhost", "a".repeat(64));
        assert_eq!(resolved(&long), "bad_request");
    }

    fn named(target: &str, hosts: &[&str]) -> Result<Option<String>, ErrorCode> {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(()).unwrap();
        of(&request).map(|h| h.map(|h| h.to_string())).map_err(|e| e.code)
    }

    #[test]
    fn a_request_has_one_host() {
        let is = |host: &str| Ok(Some(host.to_owned()));
        let bad = Err(ErrorCode::BadRequest);
        assert_eq!(named("/", &["A.example"]), is("a.example"));
        assert_eq!(named("/", &["a.example", "a.example"]), bad);
        assert_eq!(named("/", &[]), bad);
        assert_eq!(named("/", &[""]), Ok(None));
        // In absolute form, and as in HTTP/2.
        assert_eq!(named("http://a.example/x", &[]), is("a.example"));
        assert_eq!(named("http://a.example/x", &["A.EXAMPLE:80"]), is("a.example"));
        assert_eq!(named("https://a.example:443/x", &["a.example"]), is("a.example"));
        assert_eq!(named("http://a.example/x", &["b.example"]), bad);
        assert_eq!(named("http://a.example:81/x", &["a.example"]), bad);
        assert_eq!(named("https://a.example/x", &["a.example:80"]), bad);
        assert_eq!(named("http://[::1]:80/", &["[0:0::1]"]), is("[::1]"));
        assert_eq!(named("http://u:p@a.example/", &["a.example"]), bad);
    }

    #[test]
    fn http_1_0_may_name_no_host() {
        let request = Request::get("/").version(Version::HTTP_10).body(()).unwrap();
        assert_eq!(of(&request), Ok(None));
        assert_eq!(Hosts::default().owner_of(None), Ok(HostOwner::Shared));
    }

    #[test]
    fn what_is_loopback_is_known_by_name_and_address() {
        for host in ["localhost", "x.localhost", "127.3.2.1", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(authority(host).unwrap().0.is_loopback(), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "[::]"] {
            assert!(!authority(host).unwrap().0.is_loopback(), "{host}");
        }
    }
}
