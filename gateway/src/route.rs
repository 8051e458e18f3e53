//! Which part of the gateway a request is for.
//!
//! | host or path | goes to |
//! |---|---|
//! | `{name}.{domain}[:port]` (`host`), any path | the function |
//! | `/function/{id}`, `/function/{id}/…` | the function |
//! | `/async-function/{id}`, `/async-function/{id}/…` | the function, later |
//! | `POST /v1/functions/{name}/invocations` | the function, by a key; the body is the event; `?async=true`: later |
//! | `POST /v1/namespaces/{namespace}/functions/{name}/invocations` | the same, in any namespace |
//! | `/async-results/{id}` | the result of an asynchronous invocation |
//! | `/v1/openapi.json`, `/v1/auth`, `/healthz`, `/readyz` | the gateway itself |
//! | `/metrics` | the gateway itself, with a reader's key |
//! | the rest of `/v1/` | the scheduler, with a key of the role that the operation needs |
//!
//! An id is `NAME`, or `NAME.NAMESPACE` outside of the default namespace. `ID@8` is a version of the function,
//! `ID@canary` what an alias names; as hosts these are `8--NAME` and `canary--NAME`.
//!
//! If the API has a host of its own, `/v1/` and `/metrics` are there, and on loopback.

use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, Method, Request};
use rekindle_wire::api::StartKind;
use rekindle_wire::headers::{FORCE_START, HOOK_PREFIX};
use rekindle_wire::ids::ParseIdError;
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId, Selector};

use crate::clients::address::is_of_this_machine;
use crate::host::{Host, HostOwner, Hosts};

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To a function, with the path and query below it. A function found by its path shares its host with other
    /// functions.
    Function {
        name: FunctionId,
        selector: Option<Selector>,
        path: String,
        by: RoutedBy,
    },
    /// To a function, as an event; later if `asynchronous`.
    Invocation {
        name: FunctionId,
        asynchronous: bool,
    },
    /// To a function, later.
    Later {
        name: FunctionId,
        path: String,
    },
    /// To the result of an asynchronous invocation.
    Result {
        id: CallId,
    },
    Admin,
    /// To the description of the admin API.
    OpenApi,
    /// To how callers sign in.
    Auth,
    /// To the liveness check.
    Health,
    Ready,
    Metrics,
}

/// How a function was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoutedBy {
    Host,
    /// By a path on a shared host.
    Path,
    ApiPath,
}

/// Finds the route of a request to this host from this sender.
pub(crate) fn route<B>(
    request: &Request<B>,
    host: Option<&Host>,
    peer: IpAddr,
    hosts: &Hosts,
) -> Result<Route, ApiError> {
    let path = request.uri().path();
    let query = request.uri().query();
    let owner = hosts.owner_of(host)?;
    if let HostOwner::Function(name) = owner {
        let (name, selector) = selected(&name)?;
        return Ok(Route::Function {
            name,
            selector,
            path: below(path, query)?,
            by: RoutedBy::Host,
        });
    }
    for (prefix, later) in [("/function/", false), ("/async-function/", true)] {
        let Some(rest) = path.strip_prefix(prefix) else {
            continue;
        };
        let at = rest.find('/').unwrap_or(rest.len());
        let (name, path) = rest.split_at(at);
        let (name, selector) = selected(name)?;
        let path = below(if path.is_empty() { "/" } else { path }, query)?;
        return Ok(match later {
            true if selector.is_some() => {
                let message =
                    "an asynchronous invocation is run by the version that is live then: leave out what follows @";
                return Err(ApiError::new(ErrorCode::BadRequest, message));
            }
            true => Route::Later { name, path },
            false => Route::Function {
                name,
                selector,
                path,
                by: if owner == HostOwner::Api {
                    RoutedBy::ApiPath
                } else {
                    RoutedBy::Path
                },
            },
        });
    }
    if let Some(id) = path.strip_prefix("/async-results/") {
        let id = id
            .parse()
            .map_err(|e| ApiError::new(ErrorCode::NotFound, format!("{e}: use the id that the 202 named")))?;
        return Ok(Route::Result { id });
    }
    let is_api = path == "/metrics" || path.starts_with("/v1/");
    if let (true, HostOwner::Shared, Some(api)) = (is_api, &owner, &hosts.api)
        && !(is_of_this_machine(peer, request.headers()) && host.is_none_or(Host::is_loopback))
    {
        let message =
            format!("the API is not at this host: it is at {api} (--api-host), and on the gateway's own machine");
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    let invocation = path.strip_suffix("/invocations").and_then(|path| {
        let path = path.strip_prefix("/v1/")?;
        let in_namespace = path.strip_prefix("namespaces/").and_then(|path| path.split_once('/'));
        let (namespace, path) = in_namespace.map_or((None, path), |(namespace, path)| (Some(namespace), path));
        Some((namespace, path.strip_prefix("functions/")?))
    });
    match (path, invocation) {
        ("/healthz", _) => Ok(Route::Health),
        ("/readyz", _) => Ok(Route::Ready),
        ("/metrics", _) => Ok(Route::Metrics),
        ("/v1/openapi.json", _) => Ok(Route::OpenApi),
        ("/v1/auth", _) if matches!(*request.method(), Method::GET | Method::HEAD) => Ok(Route::Auth),
        (_, Some((namespace, name))) if request.method() == Method::POST => Ok(Route::Invocation {
            name: FunctionId::new(&namespace.map(named).transpose()?.unwrap_or_default(), &named(name)?),
            asynchronous: query.is_some_and(|q| q.split('&').any(|pair| pair == "async=true")),
        }),
        (_, Some(_)) => Err(ApiError::new(ErrorCode::BadRequest, "an invocation is made with POST")),
        _ if path.starts_with("/v1/") => Ok(Route::Admin),
        _ => Err(nothing(path)),
    }
}

/// Parses `ID` or `ID@SELECTOR`.
fn selected(text: &str) -> Result<(FunctionId, Option<Selector>), ApiError> {
    let Some((name, selector)) = text.split_once('@') else {
        return Ok((named(text)?, None));
    };
    let selector = selector.parse();
    let selector = selector.map_err(|e: ParseIdError| ApiError::new(ErrorCode::NotFound, e.to_string()))?;
    Ok((named(name)?, Some(selector)))
}

/// The path and query that a function is sent.
pub(crate) fn below(path: &str, query: Option<&str>) -> Result<String, ApiError> {
    // `OPTIONS *` and `CONNECT host:port` are HTTP too. Their targets must never become part of an instance's name.
    if !path.starts_with('/') {
        return Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("{path:?} is no path of a function: it starts with /"),
        ));
    }
    // The platform's own calls to a runtime. A runtime may decode the path before it looks, so this does too.
    let hook = HOOK_PREFIX.trim_matches('/').as_bytes();
    if path.split('/').any(|part| decoded(part) == hook) {
        return Err(nothing(path));
    }
    let mut below = path.to_owned();
    if let Some(query) = query {
        below.push('?');
        below.push_str(query);
    }
    Ok(below)
}

fn named<T: FromStr<Err = ParseIdError>>(name: &str) -> Result<T, ApiError> {
    name.parse().map_err(|e| {
        ApiError::new(
            ErrorCode::FunctionNotFound,
            format!("{e}; `fn list` shows what is deployed"),
        )
    })
}

fn nothing(path: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("nothing is at {path}: functions are at /function/NAME, the admin API at /v1/ (see /v1/openapi.json)"),
    )
}

/// The bytes that a path segment stands for; anything that is no escape stands for itself.
fn decoded(segment: &str) -> Vec<u8> {
    let bytes = segment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| segment.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    out
}

/// The start that a client forces, which needs a deployer's key.
pub(crate) fn forced(headers: &HeaderMap) -> Result<Option<StartKind>, ApiError> {
    let Some(value) = headers.get(FORCE_START) else {
        return Ok(None);
    };
    let kind = value
        .to_str()
        .map_err(|e| e.to_string())
        .and_then(str::parse::<StartKind>);
    match kind {
        Ok(kind @ (StartKind::Booted | StartKind::Restored)) => Ok(Some(kind)),
        _ => Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("{FORCE_START} takes booted or restored"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::interface::Operation;
    use rekindle_wire::interface::users::{ADMIN, FUNCTIONS, GATEWAY};

    use super::*;

    use http::header::HOST;

    use crate::host;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));

    fn routed(request: &Request<()>) -> Result<Route, ErrorCode> {
        let host = host::of(request).map_err(|e| e.code)?;
        route(request, host.as_ref(), PEER, &Hosts::default()).map_err(|e| e.code)
    }

    fn at(host: &str, target: &str) -> Result<Route, ErrorCode> {
        routed(&Request::get(target).header(HOST, host).body(()).unwrap())
    }

    fn found(by: RoutedBy, name: &str, path: &str) -> Result<Route, ErrorCode> {
        let (name, selector) = match name.split_once('@') {
            None => (name, None),
            Some((name, selector)) => (name, Some(selector.parse().unwrap())),
        };
        Ok(Route::Function {
            name: name.parse().unwrap(),
            selector,
            path: path.to_owned(),
            by,
        })
    }

    fn to(name: &str, path: &str) -> Result<Route, ErrorCode> {
        found(RoutedBy::Path, name, path)
    }

    #[test]
    fn a_functions_path_is_passed_on_byte_for_byte() {
        assert_eq!(at("x", "/function/hello"), to("hello", "/"));
        assert_eq!(at("x", "/function/hello?a=1"), to("hello", "/?a=1"));
        assert_eq!(
            at("x", "/function/hello/a%2Fb//c/../d?q=%20"),
            to("hello", "/a%2Fb//c/../d?q=%20")
        );
    }

    #[test]
    fn a_function_has_its_own_host() {
        assert_eq!(
            at("hello.localhost:8080", "/v1/functions"),
            found(RoutedBy::Host, "hello", "/v1/functions")
        );
        assert_eq!(at("HELLO.localhost", "/a"), found(RoutedBy::Host, "hello", "/a"));
        assert_eq!(at("localhost:8080", "/v1/functions"), Ok(Route::Admin));
        assert_eq!(at("Bad_name.localhost", "/"), Err(ErrorCode::FunctionNotFound));
    }

    #[test]
    fn a_function_outside_of_the_default_namespace_is_found_by_its_whole_id() {
        assert_eq!(
            at("hello.team.localhost", "/a"),
            found(RoutedBy::Host, "hello.team", "/a")
        );
        assert_eq!(at("x", "/function/hello.team/a?b"), to("hello.team", "/a?b"));
        assert_eq!(at("x", "/function/hello.default"), to("hello", "/"));
        let later = at("x", "/async-function/hello.team");
        let (name, path) = ("hello.team".parse().unwrap(), "/".to_owned());
        assert_eq!(later, Ok(Route::Later { name, path }));
        let event = |path: &str| routed(&Request::post(path).header(HOST, "x").body(()).unwrap());
        let invocation = |id: &str| {
            let (name, asynchronous) = (id.parse().unwrap(), false);
            Ok(Route::Invocation { name, asynchronous })
        };
        let in_namespace = "/v1/namespaces/team/functions/hello/invocations";
        assert_eq!(event(in_namespace), invocation("hello.team"));
        let in_default = "/v1/namespaces/default/functions/hello/invocations";
        assert_eq!(event(in_default), invocation("hello"));
        for path in ["hello.a.b", "hello.a--b", "hello.", "hello.A"] {
            let refused = at("x", &format!("/function/{path}"));
            assert_eq!(refused, Err(ErrorCode::FunctionNotFound), "{path}");
        }
        // The API names the two parts by themselves.
        let dotted = event("/v1/functions/hello.team/invocations");
        assert_eq!(dotted, Err(ErrorCode::FunctionNotFound));
        assert_eq!(at("x", "/v1/namespaces/team/functions/hello"), Ok(Route::Admin));
    }

    #[test]
    fn a_version_and_an_alias_have_addresses_of_their_own() {
        assert_eq!(at("x", "/function/hello@8/a?b"), to("hello@8", "/a?b"));
        assert_eq!(at("x", "/function/hello.team@canary"), to("hello.team@canary", "/"));
        assert_eq!(
            at("8--hello.localhost", "/a@9"),
            found(RoutedBy::Host, "hello@8", "/a@9")
        );
        assert_eq!(
            at("8--hello.team.localhost", "/"),
            found(RoutedBy::Host, "hello.team@8", "/")
        );
        // Whether that is a function from before is known later.
        assert_eq!(at("v8--hello.localhost", "/"), found(RoutedBy::Host, "v8--hello", "/"));
        for bad in [
            "hello@",
            "hello@08",
            "hello@8a",
            "hello@a@b",
            "hello@a--b",
            "hello@Live",
        ] {
            assert_eq!(at("x", &format!("/function/{bad}")), Err(ErrorCode::NotFound), "{bad}");
        }
        assert_eq!(at("08--hello.localhost", "/"), Err(ErrorCode::NotFound));
        assert_eq!(at("x", "/async-function/hello@8"), Err(ErrorCode::BadRequest));
    }

    #[test]
    fn what_is_for_later_has_paths_of_its_own() {
        let later = |name: &str, path: &str| {
            Ok(Route::Later {
                name: name.parse().unwrap(),
                path: path.to_owned(),
            })
        };
        assert_eq!(at("x", "/async-function/hello"), later("hello", "/"));
        assert_eq!(at("x", "/async-function/hello/a%2Fb?q=1"), later("hello", "/a%2Fb?q=1"));
        assert_eq!(at("x", "/async-function/hello/.rekindle/x"), Err(ErrorCode::NotFound));
        assert_eq!(at("x", "/async-results/nonsense"), Err(ErrorCode::NotFound));
        let id: CallId = "a-1".parse().unwrap();
        assert_eq!(at("x", "/async-results/a-1?wait=3"), Ok(Route::Result { id }));
        let event = Request::post("/v1/functions/hello/invocations?async=true")
            .header(HOST, "x")
            .body(())
            .unwrap();
        let name = "hello".parse().unwrap();
        let asynchronous = true;
        assert_eq!(routed(&event), Ok(Route::Invocation { name, asynchronous }));
    }

    #[test]
    fn the_platforms_own_paths_cannot_be_reached_from_outside() {
        for path in [
            "/.rekindle/after-restore",
            "/%2erekindle/x",
            "/%2E%72ekindle",
            "//.rekindle/x",
            "/a/../.rekindle/x",
        ] {
            assert_eq!(
                at("x", &format!("/function/hello{path}")),
                Err(ErrorCode::NotFound),
                "{path}"
            );
            assert_eq!(at("hello.localhost", path), Err(ErrorCode::NotFound), "{path}");
        }
        assert!(at("x", "/function/hello/rekindle/x").is_ok());
    }

    #[test]
    fn what_is_no_path_is_refused() {
        assert_eq!(at("hello.localhost", "*"), Err(ErrorCode::BadRequest));
        let request = Request::connect("hello.localhost:80").body(()).unwrap();
        assert_eq!(routed(&request), Err(ErrorCode::BadRequest));
    }

    #[test]
    fn an_invocation_is_a_post() {
        let request = Request::post("/v1/functions/hello/invocations")
            .header(HOST, "x")
            .body(())
            .unwrap();
        let name = "hello".parse().unwrap();
        let asynchronous = false;
        assert_eq!(routed(&request), Ok(Route::Invocation { name, asynchronous }));
        assert_eq!(at("x", "/v1/functions/hello/invocations"), Err(ErrorCode::BadRequest));
    }

    #[test]
    fn an_api_with_a_host_of_its_own_is_there_and_on_loopback_alone() {
        let hosts = Hosts {
            domains: vec!["example.org".parse().unwrap()],
            api: Some("api.example.net".parse().unwrap()),
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let found = |host: &str, peer: IpAddr, path: &str| {
            let request = Request::get(path).header(HOST, host).body(()).unwrap();
            let host = host::of(&request).unwrap();
            route(&request, host.as_ref(), peer, &hosts).map_err(|e| e.code)
        };
        let forwarded = |host: &str, path: &str| {
            let request = Request::get(path).header(HOST, host);
            let request = request.header("x-forwarded-for", "203.0.113.9").body(()).unwrap();
            let host = host::of(&request).unwrap();
            route(&request, host.as_ref(), loopback, &hosts).map_err(|e| e.code)
        };
        for (path, there) in [
            ("/v1/status", Route::Admin),
            ("/v1/openapi.json", Route::OpenApi),
            ("/metrics", Route::Metrics),
        ] {
            let nowhere = Err(ErrorCode::NotFound);
            assert_eq!(found("api.example.net", PEER, path), Ok(there));
            for local in ["127.0.0.1:8080", "localhost", "[::1]"] {
                assert!(found(local, loopback, path).is_ok(), "{local} {path}");
                assert_eq!(forwarded(local, path), nowhere, "{local} {path}, which a proxy sent");
            }
            for (host, peer) in [
                ("localhost", PEER),
                ("127.0.0.1", PEER),
                ("example.org", PEER),
                ("203.0.113.9", PEER),
                ("other.example", loopback),
            ] {
                assert_eq!(found(host, peer, path), nowhere, "{host} {path}");
            }
        }
        // What callers use is at each host that is no function's.
        assert_eq!(found("example.org", PEER, "/healthz"), Ok(Route::Health));
        let by = |host| match found(host, PEER, "/function/hello") {
            Ok(Route::Function { by, .. }) => by,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (by("example.org"), by("api.example.net")),
            (RoutedBy::Path, RoutedBy::ApiPath)
        );
        let at_function = Ok(Route::Function {
            name: "hello".parse().unwrap(),
            selector: None,
            path: "/v1/status".to_owned(),
            by: RoutedBy::Host,
        });
        assert_eq!(found("hello.example.org", PEER, "/v1/status"), at_function);
    }

    #[test]
    fn what_is_described_is_found_and_answered_by_who_serves_it() {
        let at = |operation: &Operation| {
            let path = [
                ("{name}", "hello"),
                ("{path}", "x"),
                ("{version}", "1"),
                ("{id}", "a-1"),
            ]
            .iter()
            .fold(operation.path.to_owned(), |path, (name, value)| {
                path.replace(name, value)
            });
            let request = Request::builder().method(&operation.method).uri(path).body(()).unwrap();
            route(&request, None, PEER, &Hosts::default())
        };
        for operation in FUNCTIONS.iter().chain(ADMIN) {
            assert_eq!(at(operation), Ok(Route::Admin), "{operation:?}");
        }
        for operation in GATEWAY {
            let found = at(operation);
            assert!(found.is_ok() && found != Ok(Route::Admin), "{operation:?}: {found:?}");
        }
    }
}
