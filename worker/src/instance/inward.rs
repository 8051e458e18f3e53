//! A request on its way in: what the function sees of it, and which paths it may not have.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Uri};
use percent_encoding::percent_decode_str;
use rekindle_relay::{shorten_call_timeout, strip_hop_by_hop_but_upgrade, strip_named};
use rekindle_wire::function_config::{Hooks, Protocol};
use rekindle_wire::{ApiError, ErrorCode, headers};
use tokio::time::Instant as Deadline;

use super::client::own_url;
use super::lifecycle::Instance;

/// The timeout of a request that carries no deadline.
const DEFAULT_LIMIT: Duration = Duration::from_secs(900);

/// Whether a function may take this path, with a query, for one of its hooks. Servers decode paths before they compare
/// them and resolve dots. Some ignore case, repeated slashes or parameters, and take `\` for `/`. What begins with two
/// slashes begins with a host for those that read it as an URL.
pub(super) fn is_hook(hooks: &Hooks, path: &str) -> bool {
    let hooks = [&hooks.before_snapshot, &hooks.after_restore];
    let mut hooks = hooks.into_iter().flatten().peekable();
    if hooks.peek().is_none() {
        return false;
    }
    let path = plain(path);
    let after_host = path.strip_prefix("//").map(|rest| resolved(rest.split('/').skip(1)));
    let path = resolved(path.split('/'));
    hooks.any(|hook| {
        let plain = plain(hook);
        let hook = resolved(plain.split('/'));
        hook == path || after_host.as_ref() == Some(&hook)
    })
}

fn plain(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let path = percent_decode_str(path).decode_utf8_lossy().to_lowercase();
    path.replace('\\', "/")
}

/// The parts of a path, without their parameters.
fn resolved<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for part in parts {
        match part.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(found.pop()),
            part => found.push(part),
        }
    }
    found
}

/// The deadline that a request carries.
pub(super) fn deadline(headers: &HeaderMap) -> Deadline {
    let left = headers
        .get(headers::TIME_LEFT_MS)
        .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    Deadline::now() + left.map_or(DEFAULT_LIMIT, Duration::from_millis).min(DEFAULT_LIMIT)
}

/// Until when the caller of a request waits, if that is a function.
fn caller_deadline(headers: &HeaderMap) -> Option<Deadline> {
    let left = headers.get(headers::CALLER_LEFT_MS)?.to_str().ok()?.parse().ok()?;
    Some(Deadline::now() + Duration::from_millis(left).min(DEFAULT_LIMIT))
}

/// Builds the request as the function sees it, after it has waited for its instance.
///
/// # Errors
/// Returns `bad_request` for a path that no request can have.
pub(super) fn inward(
    request: Request<Body>,
    path: &str,
    instance: &Instance,
    waited: Duration,
    deadline: Deadline,
) -> Result<Request<Body>, ApiError> {
    let (mut head, body) = request.into_parts();
    // What came by HTTP/2 has its host there.
    if !head.headers.contains_key(HOST)
        && let Some(authority) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(HOST, host);
    }
    let told = caller_deadline(&head.headers).map_or(deadline, |of_caller| of_caller.min(deadline));
    head.uri = own_url(path)
        .parse::<Uri>()
        .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("path {path:?} cannot be requested: {e}")))?;
    head.version = http::Version::HTTP_11;
    strip_named(&mut head.headers, |name| name.starts_with("x-rekindle-"));
    strip_hop_by_hop_but_upgrade(&mut head.headers);
    shorten_call_timeout(&mut head.headers, waited);
    if instance.spec.config.protocol == Protocol::Http1 {
        head.headers.remove(http::header::TE);
        if http_body::Body::size_hint(&body).exact().is_none() {
            // Set explicitly, because a GET would otherwise lose its body.
            head.headers
                .insert(http::header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    let until = SystemTime::now() + told.saturating_duration_since(Deadline::now());
    let until = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    head.headers.insert(
        headers::DEADLINE_MS,
        HeaderValue::from(u64::try_from(until).unwrap_or(u64::MAX)),
    );
    // An instance id is always a valid header value.
    if let Ok(id) = HeaderValue::from_str(instance.id.as_str()) {
        head.headers.insert(headers::INSTANCE, id);
    }
    Ok(Request::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_known_however_its_path_is_written() {
        let hooks = Hooks {
            before_snapshot: Some("/hooks/before".to_owned()),
            after_restore: Some("/hooks/after-restore".to_owned()),
        };
        for path in [
            "/hooks/before",
            "/hooks/after-restore?x=1",
            "//hooks/./after-restore/",
            "/Hooks/after%2Drestore",
            "/hooks%2fbefore",
            "/x/../hooks/before",
            "/x/%2e%2e/hooks/before",
            "/hooks/x/../before",
            "//evil/hooks/before",
            "/\\evil/hooks/before",
            "/hooks\\before",
            "/hooks;a=1/before;b",
        ] {
            assert!(is_hook(&hooks, path), "{path}");
        }
        for path in [
            "/",
            "/hooks",
            "/hooks/before/more",
            "/other?/hooks/before",
            "/hooks/before/..",
        ] {
            assert!(!is_hook(&hooks, path), "{path}");
        }
        assert!(!is_hook(&Hooks::default(), "/"));
    }
}
