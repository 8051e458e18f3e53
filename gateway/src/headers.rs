//! Which headers pass the gateway, and which it sets.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, DATE, FORWARDED, HOST, SET_COOKIE, STRICT_TRANSPORT_SECURITY,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use rekindle_relay::{HeadLimits, strip_hop_by_hop_but_upgrade, strip_named};
use rekindle_wire::headers::{CLUSTER_TOKEN, INSTANCE, REQUEST_ID, SERVER_TIMING, START, VERSION};
use rekindle_wire::ids::RequestId;
use rekindle_wire::interface::version;
use rekindle_wire::{ApiError, ErrorCode};

const REQUEST_ID_MAX: usize = 128;
const PLATFORM_PREFIX: &str = "x-rekindle-";
/// Prefix of what a function is told. A hook believes it.
const FUNCTION_PREFIX: &str = "x-fn-";
/// Prefixes of headers that the platform sets, or by which it tells functions something.
const TOLD_BY: [&str; 3] = [FUNCTION_PREFIX, PLATFORM_PREFIX, "x-forwarded-"];

/// The protocol that the client speaks to whoever first takes its request.
pub(crate) const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Refuses a request with more header lines or bytes than a function's response may have.
pub(crate) fn check_size(headers: &HeaderMap) -> Result<(), ApiError> {
    let HeadLimits { lines, bytes } = HeadLimits::FUNCTION;
    let has: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    let which = match () {
        () if headers.len() > lines => format!("{} header lines, more than {lines}", headers.len()),
        () if has > bytes => format!("{has} bytes of headers, more than {bytes}"),
        () => return Ok(()),
    };
    let what = format!("the request has {which}: send less of them, of cookies above all, or use the body");
    Err(ApiError::new(ErrorCode::HeadersTooLarge, what))
}

/// Removes headers that belong to one connection, but for a change of its protocol, and those that only the platform
/// may set.
fn strip(headers: &mut HeaderMap) {
    strip_hop_by_hop_but_upgrade(headers);
    strip_named(headers, |name| name.starts_with(PLATFORM_PREFIX));
}

/// Cleans a client's headers on their way in.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    strip(headers);
    strip_named(headers, |name| {
        name.starts_with(FUNCTION_PREFIX) || looks_like_ours(name)
    });
}

/// Removes a change of protocol.
pub(crate) fn strip_upgrade(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(UPGRADE);
}

/// Refuses a request with two `Authorization` headers: one is judged here, and the function would see the other.
pub(crate) fn check_authorization(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get_all(AUTHORIZATION).iter().nth(1) {
        None => Ok(()),
        Some(_) => Err(ApiError::new(
            ErrorCode::BadRequest,
            "the request has two Authorization headers: send one",
        )),
    }
}

/// Whether a function may mistake the header for one of the platform's: CGI, WSGI and their heirs do not distinguish
/// `-`, `_` and `.` in a name.
fn looks_like_ours(name: &str) -> bool {
    if !name.contains(['_', '.']) {
        return false;
    }
    let alike = name.replace(['_', '.'], "-");
    alike == REQUEST_ID || TOLD_BY.iter().any(|prefix| alike.starts_with(prefix))
}

/// Cleans a response's headers on their way out; removes also what the gateway sets itself.
pub(crate) fn strip_answer(headers: &mut HeaderMap) {
    strip(headers);
    for name in [START, INSTANCE, VERSION, REQUEST_ID, SERVER_TIMING] {
        headers.remove(name);
    }
    // Servers update it once a second, and copies of a snapshot begin with the value of that time. The connection to
    // the client adds one of its own.
    headers.remove(DATE);
}

/// A policy for the pages of a function that shares its host with others. They may run scripts, but not with that
/// host's origin, whose other pages a browser would otherwise let them read. It is added to a policy of the function's
/// own: browsers enforce both.
const SANDBOX: HeaderValue =
    HeaderValue::from_static("sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts");

/// What a response says of its whole host, which is not one function's.
const OF_THE_HOST: [HeaderName; 5] = [
    STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
];

/// Isolates a response from those of other functions on the same host. That goes for its pages, what it says of the
/// host, and its cookies, which the browser then sends to this path alone.
pub(crate) fn keep_apart(headers: &mut HeaderMap, path: &str) {
    headers.append(CONTENT_SECURITY_POLICY, SANDBOX);
    for name in OF_THE_HOST {
        headers.remove(name);
    }
    let cookies = headers.get_all(SET_COOKIE).iter();
    let own: Vec<HeaderValue> = cookies.filter_map(|cookie| cookie_below(cookie, path)).collect();
    headers.remove(SET_COOKIE);
    for cookie in own {
        headers.append(SET_COOKIE, cookie);
    }
}

/// Keeps what a response says within its own host: other functions have hosts beside it and below it.
pub(crate) fn keep_to_host(headers: &mut HeaderMap) {
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().filter_map(cookie_of_host).collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        headers.append(SET_COOKIE, cookie);
    }
    if let Some(sent) = headers.get(STRICT_TRANSPORT_SECURITY) {
        let own = sent
            .to_str()
            .ok()
            .and_then(|text| HeaderValue::from_str(&without(text, OTHER_HOSTS)).ok());
        match own {
            Some(own) => drop(headers.insert(STRICT_TRANSPORT_SECURITY, own)),
            None => drop(headers.remove(STRICT_TRANSPORT_SECURITY)),
        }
    }
}

/// What a policy of transport says of other hosts (RFC 6797).
const OTHER_HOSTS: &[&str] = &["includesubdomains", "preload"];

/// A cookie for the host that sets it alone. `None` for one that cannot be read.
fn cookie_of_host(cookie: &HeaderValue) -> Option<HeaderValue> {
    let bytes = cookie.as_bytes();
    // Most cookies say nothing of a domain, and are left as they are.
    if !bytes.windows(6).any(|part| part.eq_ignore_ascii_case(b"domain")) {
        return Some(cookie.clone());
    }
    HeaderValue::from_str(&without(std::str::from_utf8(bytes).ok()?, &["domain"])).ok()
}

/// A header's value without these attributes, whose names are in lower case.
fn without(value: &str, names: &[&str]) -> String {
    let mut parts = value.split(';');
    let first = parts.next().unwrap_or_default();
    let mut kept = first.to_owned();
    for part in parts {
        let name = part.split('=').next().unwrap_or_default().trim();
        if !names.iter().any(|dropped| name.eq_ignore_ascii_case(dropped)) {
            kept.push(';');
            kept.push_str(part);
        }
    }
    kept
}

/// A cookie for this path and what is below it, instead of other paths and hosts. `None` for one that cannot be so
/// (RFC 6265bis, 4.1.3.2: the name says that it is for all paths).
fn cookie_below(cookie: &HeaderValue, path: &str) -> Option<HeaderValue> {
    let text = std::str::from_utf8(cookie.as_bytes()).ok()?;
    let mut parts = text.split(';').map(str::trim);
    let pair = parts.next()?;
    if pair.to_ascii_lowercase().starts_with("__host-") {
        return None;
    }
    let mut own = pair.to_owned();
    let mut below = path.to_owned();
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "domain" => {}
            "path" => {
                let asked = value.trim();
                let is_below = asked
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                below = match (is_below, asked.strip_prefix('/')) {
                    (true, _) => asked.to_owned(),
                    (false, Some("") | None) => path.to_owned(),
                    (false, Some(inner)) => format!("{path}/{inner}"),
                };
            }
            _ => {
                own.push_str("; ");
                own.push_str(part);
            }
        }
    }
    HeaderValue::from_str(&format!("{own}; Path={below}")).ok()
}

/// Says that a host must be contacted only over TLS for `age` (RFC 6797).
pub(crate) fn hsts(age: Duration) -> HeaderValue {
    // Digits and ASCII letters are always a valid header.
    HeaderValue::from_str(&format!("max-age={}", age.as_secs())).unwrap_or(HeaderValue::from_static("max-age=0"))
}

/// Tells the function whom it serves.
pub(crate) fn set_forwarded(headers: &mut HeaderMap, peer: IpAddr) {
    let name = HeaderName::from_static("x-forwarded-for");
    let before: Vec<&str> = headers.get_all(&name).iter().filter_map(|v| v.to_str().ok()).collect();
    let chain = match before.is_empty() {
        true => peer.to_string(),
        false => format!("{}, {peer}", before.join(", ")),
    };
    if let Ok(chain) = HeaderValue::from_str(&chain) {
        headers.insert(name, chain);
    }
    match headers.get(HOST).cloned() {
        Some(host) => {
            headers.entry("x-forwarded-host").or_insert(host);
        }
        // HTTP/1.0 has none, and HTTP/2 may. The function would be told its worker's address.
        None => {
            headers.insert(HOST, HeaderValue::from_static("localhost"));
        }
    }
    // Already set if TLS ends here; a balancer in front may have ended it too.
    headers
        .entry(FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static("http"));
}

/// Tells a function that is called at a path its prefix, below that of a proxy in front. Frameworks put it before
/// links. Returns it.
pub(crate) fn set_prefix(headers: &mut HeaderMap, function: &str) -> String {
    let name = HeaderName::from_static("x-forwarded-prefix");
    let before = headers
        .get(&name)
        .and_then(|prefix| prefix.to_str().ok())
        .unwrap_or_default();
    let before = before.trim_end_matches('/');
    let prefix = format!("{before}/function/{function}");
    if let Ok(prefix) = HeaderValue::from_str(&prefix) {
        headers.insert(name, prefix);
    }
    prefix
}

/// Removes what a client says of whom it speaks for.
pub(crate) fn strip_forwarded(headers: &mut HeaderMap) {
    strip_named(headers, |name| name.starts_with("x-forwarded-") || name == FORWARDED);
}

/// The client's request id if it is usable, otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let sane = |id: &&str| {
        (1..=REQUEST_ID_MAX).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    let sent = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
    sent.filter(sane)
        .map_or_else(|| RequestId::quick().to_string(), str::to_owned)
}

/// Sets a header to a text made here.
pub(crate) fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Sets the cluster's secret, and the versions of the interfaces that this build understands.
pub(crate) fn set_token(headers: &mut HeaderMap, token: &HeaderValue) {
    headers.insert(HeaderName::from_static(CLUSTER_TOKEN), token.clone());
    headers.extend([version::header()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
            .collect()
    }

    #[test]
    fn what_belongs_to_the_connection_or_the_platform_does_not_pass() {
        let mut h = headers(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("x-rekindle-token", "guess"),
            ("x-fn-deadline-ms", "1"),
            ("x-fn-invocation", "event"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut h);
        assert_eq!(h.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn a_cookie_of_a_function_at_a_path_stays_below_that_path() {
        let below = |cookie: &'static str| {
            let mut h = headers(&[
                ("set-cookie", cookie),
                ("clear-site-data", "*"),
                ("alt-svc", "h3=\":1\""),
            ]);
            keep_apart(&mut h, "/function/a");
            assert!(!h.contains_key("clear-site-data") && !h.contains_key("alt-svc"));
            h.get(SET_COOKIE).map(|v| v.to_str().unwrap().to_owned())
        };
        for (sent, kept) in [
            ("id=1", "id=1; Path=/function/a"),
            ("id=1; Path=/; HttpOnly", "id=1; HttpOnly; Path=/function/a"),
            ("id=1; path=/login", "id=1; Path=/function/a/login"),
            ("id=1; Path=/function/a/b", "id=1; Path=/function/a/b"),
            ("id=1; Path=/function/ab", "id=1; Path=/function/a/function/ab"),
            (
                "id=a=b; Domain=.example.org;Max-Age=9",
                "id=a=b; Max-Age=9; Path=/function/a",
            ),
        ] {
            assert_eq!(below(sent).as_deref(), Some(kept));
        }
        assert_eq!(below("__Host-id=1; Path=/; Secure"), None);
    }

    #[test]
    fn a_function_at_its_host_sets_cookies_and_policies_for_no_other() {
        let mut h = headers(&[("strict-transport-security", "max-age=9; includeSubDomains; preload")]);
        for cookie in [
            "id=1; Path=/; HttpOnly",
            "id=2; Domain=.example.org; Path=/",
            "domain=3;DOMAIN=example.org",
        ] {
            h.append(SET_COOKIE, HeaderValue::from_static(cookie));
        }
        keep_to_host(&mut h);
        let cookies: Vec<_> = h.get_all(SET_COOKIE).iter().collect();
        assert_eq!(cookies, ["id=1; Path=/; HttpOnly", "id=2; Path=/", "domain=3"]);
        assert_eq!(h[STRICT_TRANSPORT_SECURITY], "max-age=9");
    }

    #[test]
    fn a_request_has_one_authorization() {
        let mut h = headers(&[("authorization", "Basic dTpw")]);
        assert!(check_authorization(&h).is_ok());
        h.append(AUTHORIZATION, HeaderValue::from_static("Bearer key"));
        assert_eq!(check_authorization(&h).unwrap_err().code, ErrorCode::BadRequest);
    }

    #[test]
    fn a_client_does_not_say_what_the_platform_tells_nor_for_whom_it_speaks() {
        let mut h = headers(&[("x-fn-reseeded", "openssl"), ("x-fn-anything", "1"), ("accept", "*/*")]);
        strip_request(&mut h);
        assert_eq!(h.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        let mut h = headers(&[
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-prefix", "//evil.example"),
            ("forwarded", "for=1.2.3.4"),
            ("accept", "*/*"),
        ]);
        strip_forwarded(&mut h);
        assert_eq!(h.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn when_an_answer_was_given_is_not_the_function_s_to_say() {
        let mut h = headers(&[
            ("date", "Mon, 02 Jan 2006 15:04:05 GMT"),
            ("last-modified", "Mon, 02 Jan 2006 15:04:05 GMT"),
        ]);
        strip_answer(&mut h);
        assert_eq!(h.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["last-modified"]);
    }

    #[test]
    fn what_looks_like_the_platforms_to_a_function_does_not_pass() {
        let mut h = headers(&[
            ("x_fn_instance", "i-1"),
            ("x-fn_async-id", "a-1"),
            ("x_rekindle_token", "guess"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x_request_id", "r-1"),
            ("x.fn.instance", "i-1"),
            ("x_own", "kept"),
            ("x-forwarded-for", "10.0.0.2"),
        ]);
        strip_request(&mut h);
        let mut left: Vec<_> = h.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-forwarded-for", "x_own"]);
    }

    #[test]
    fn a_request_id_is_kept_only_when_it_is_harmless() {
        assert_eq!(request_id(&headers(&[("x-request-id", "order-17.a")])), "order-17.a");
        for bad in ["", "has space", "semi;colon", "\"quoted\""] {
            assert!(
                request_id(&headers(&[("x-request-id", bad)])).starts_with("r-"),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_peer_is_added_to_the_chain_of_proxies() {
        let mut h = headers(&[("host", "a.example"), ("x-forwarded-for", "10.0.0.1")]);
        set_forwarded(&mut h, "127.0.0.1".parse().unwrap());
        assert_eq!(h["x-forwarded-for"], "10.0.0.1, 127.0.0.1");
        assert_eq!(h["x-forwarded-host"], "a.example");
        assert_eq!(h["x-forwarded-proto"], "http");
    }
}
