//! Whom a function's request is for. Pure.
//!
//! | request | goes to |
//! |---|---|
//! | any at `http://NAME.fn.internal/…` | NAME of the caller's namespace; also `ALIAS--NAME`, `VERSION--NAME` |
//! | `POST http://fn.internal/invoke/NAME` | the same, with the body as its event |
//! | `POST http://fn.internal/invoke-async/NAME` | the same, later |
//!
//! A name is one label. So no name stands for a function of another namespace, and nothing else of the platform has
//! one.

use http::header::HOST;
use http::uri::Scheme;
use http::{HeaderValue, Method, Request};
use rekindle_wire::function_call::{CALL_DOMAIN, CallKind};
use rekindle_wire::{ApiError, ErrorCode};

const LABEL_MAX: usize = 63;
const PORT: &str = "80";

/// Whom a request is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The label before the domain.
    pub(super) callee: String,
    pub(super) how: CallKind,
}

impl Target {
    /// The target of a request.
    ///
    /// # Errors
    /// `bad_request` if it names none or two, `not_found` if it names something else than a function.
    pub(super) fn of<B>(request: &Request<B>) -> Result<Self, ApiError> {
        let path = request.uri().path();
        // `OPTIONS *` and `CONNECT host:port` have no path.
        if request.method() == Method::CONNECT || !path.starts_with('/') {
            return Err(bad(
                "functions are no proxies: send requests to http://NAME.fn.internal/, with a path",
            ));
        }
        let host = host(request)?;
        let label = match host.strip_suffix(CALL_DOMAIN) {
            Some("") => return at_domain(request.method(), path),
            Some(rest) => rest.strip_suffix('.'),
            None => None,
        };
        match label.filter(|label| is_label(label)) {
            Some(label) => Ok(Self {
                callee: label.to_owned(),
                how: CallKind::Http,
            }),
            None => Err(ApiError::new(
                ErrorCode::NotFound,
                format!(
                    "{host:?} is no function: those of the same namespace are at NAME.{CALL_DOMAIN}, and those of \
                     others cannot be called so"
                ),
            )),
        }
    }
}

fn at_domain(method: &Method, path: &str) -> Result<Target, ApiError> {
    let kinds = [("/invoke/", CallKind::Event), ("/invoke-async/", CallKind::Later)];
    let mut found = kinds
        .into_iter()
        .filter_map(|(prefix, how)| Some((path.strip_prefix(prefix)?, how)));
    match found.next().filter(|(label, _)| is_label(label)) {
        Some((label, how)) if method == Method::POST => Ok(Target {
            callee: label.to_owned(),
            how,
        }),
        Some(_) => Err(bad(
            "a function is invoked with POST, with its event as JSON in the body",
        )),
        None => Err(ApiError::new(
            ErrorCode::NotFound,
            format!(
                "nothing is at http://{CALL_DOMAIN}{path}: send events to /invoke/NAME or /invoke-async/NAME, and \
                 other requests to http://NAME.{CALL_DOMAIN}"
            ),
        )),
    }
}

/// The one host of a request, in lower case, without its port and without a dot at its end.
fn host<B>(request: &Request<B>) -> Result<String, ApiError> {
    let mut headers = request.headers().get_all(HOST).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else {
        return Err(bad(
            "the request has no Host header, or two: send one, NAME.fn.internal",
        ));
    };
    let header = header.to_str().unwrap_or_default();
    let header = without_port(header).ok_or_else(|| bad("calls of functions go to port 80, by http"))?;
    let Some(target) = request.uri().authority() else {
        return Ok(header);
    };
    let same = without_port(target.as_str()).is_some_and(|target| target == header);
    if !same || request.uri().scheme() != Some(&Scheme::HTTP) {
        return Err(bad(
            "the request names two hosts: its target and its Host header have to be the same one, by http",
        ));
    }
    Ok(header)
}

fn without_port(authority: &str) -> Option<String> {
    let (host, port) = authority.split_once(':').unwrap_or((authority, PORT));
    let host = host.strip_suffix('.').unwrap_or(host);
    (port == PORT).then(|| host.to_ascii_lowercase())
}

fn is_label(label: &str) -> bool {
    (1..=LABEL_MAX).contains(&label.len())
        && label
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn bad(message: &str) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

/// A request's trace context, if it has one.
pub(super) fn traceparent<B>(request: &Request<B>) -> Option<&HeaderValue> {
    request.headers().get(rekindle_wire::headers::TRACEPARENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: &str, target: &str, hosts: &[&str]) -> Result<(String, CallKind), ErrorCode> {
        let mut request = Request::builder().method(method).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let found = Target::of(&request.body(()).unwrap());
        found.map(|t| (t.callee, t.how)).map_err(|e| e.code)
    }

    #[test]
    fn a_name_of_one_label_is_a_function() {
        let is = |name: &str| Ok((name.to_owned(), CallKind::Http));
        for host in ["hello.fn.internal", "Hello.FN.internal:80", "hello.fn.internal."] {
            assert_eq!(target("GET", "/a?b", &[host]), is("hello"), "{host}");
        }
        let absolute = target("GET", "http://hello.fn.internal/a", &["hello.fn.internal:80"]);
        assert_eq!(absolute, is("hello"));
        assert_eq!(target("DELETE", "/", &["3--hello.fn.internal"]), is("3--hello"));
    }

    #[test]
    fn nothing_else_has_a_name() {
        for host in [
            "hello.other.fn.internal",
            "hello.default.fn.internal",
            "hello.fn.internal.example.com",
            "hellofn.internal",
            ".fn.internal",
            "hello..fn.internal",
            "198.18.0.1",
            "localhost",
            "hello.localhost",
            "gateway",
            "hel/lo.fn.internal",
            "hello%2eother.fn.internal",
            "hello_.fn.internal",
            "user@hello.fn.internal",
        ] {
            assert_eq!(target("GET", "/", &[host]), Err(ErrorCode::NotFound), "{host}");
        }
    }

    #[test]
    fn a_request_names_one_host() {
        let bad = Err(ErrorCode::BadRequest);
        let own = "hello.fn.internal";
        for hosts in [
            &[][..],
            &[own, own],
            &["hello.fn.internal:8080"],
            &["hello.fn.internal:443"],
        ] {
            assert_eq!(target("GET", "/", hosts), bad, "{hosts:?}");
        }
        for absolute in [
            "http://other.fn.internal/",
            "https://hello.fn.internal/",
            "http://u:p@hello.fn.internal/",
            "http://hello.fn.internal:81/",
        ] {
            assert_eq!(target("GET", absolute, &[own]), bad, "{absolute}");
        }
        assert_eq!(target("CONNECT", "hello.fn.internal:80", &[own]), bad);
        assert_eq!(target("OPTIONS", "*", &[own]), bad);
    }

    #[test]
    fn of_the_interface_functions_reach_what_invokes() {
        let at = |method: &str, path: &str| target(method, path, &["fn.internal"]);
        assert_eq!(at("POST", "/invoke/hello"), Ok(("hello".to_owned(), CallKind::Event)));
        assert_eq!(
            at("POST", "/invoke-async/hello"),
            Ok(("hello".to_owned(), CallKind::Later))
        );
        assert_eq!(at("GET", "/invoke/hello"), Err(ErrorCode::BadRequest));
        for path in [
            "/v1/functions",
            "/v1/functions/hello/invocations",
            "/metrics",
            "/healthz",
            "/function/hello",
            "/async-results/a-1",
            "/invoke/",
            "/invoke/hello/x",
            "/invoke/hello.other",
            "/invoke/../v1/status",
            "/",
        ] {
            assert_eq!(at("POST", path), Err(ErrorCode::NotFound), "{path}");
        }
    }
}
