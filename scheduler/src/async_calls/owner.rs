//! The owner of an asynchronous invocation: it makes the same idempotency key of two callers two keys. A caller with a
//! key of its own is identified by that key. Any other is identified by knowing the whole request.

use rekindle_wire::asynchronous::NewCall;

/// Headers that each hop or attempt may set anew: connections, tracing, proxies on the way, ids and clocks. They are
/// ignored, so that a client's second attempt counts as the same request.
const OF_AN_ATTEMPT: [&str; 24] = [
    "age",
    "baggage",
    "cf-ray",
    "connection",
    "content-length",
    "correlation-id",
    "date",
    "expect",
    "forwarded",
    "keep-alive",
    "request-id",
    "sentry-trace",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "uber-trace-id",
    "upgrade",
    "via",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-request-id",
];
/// More of these, by the beginning of their names.
const OF_AN_ATTEMPT_TOO: [&str; 5] = ["b3", "x-b3-", "x-datadog-", "x-forwarded-", "x-real-ip"];

pub(super) fn owner(new: &NewCall) -> String {
    match &new.owner {
        Some(key) => format!("key:{key}"),
        None => format!("request:{}", digest(new)),
    }
}

/// Digest of everything that a client says of its call, and would say again.
fn digest(new: &NewCall) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        // With its length, so that no two requests give the same text.
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    let request = &new.request;
    for text in [
        new.function.as_str(),
        &request.method,
        &request.path,
        request.invocation.as_str(),
        new.callback.as_deref().unwrap_or_default(),
    ] {
        part(text.as_bytes());
    }
    let mut headers: Vec<&(String, String)> = request
        .headers
        .0
        .iter()
        .filter(|(name, _)| !is_of_an_attempt(name))
        .collect();
    // Several values of one name keep their order, which may be significant.
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, value) in headers {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    part(&new.body.0);
    hasher.finalize().to_hex().to_string()
}

fn is_of_an_attempt(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OF_AN_ATTEMPT.contains(&name.as_str()) || OF_AN_ATTEMPT_TOO.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use rekindle_wire::asynchronous::{Encoded, Headers, InvocationKind, StoredRequest};

    use super::*;

    fn call(headers: &[(&str, &str)]) -> NewCall {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        NewCall {
            id: None,
            function: "hello".parse().unwrap(),
            request: StoredRequest {
                method: "POST".into(),
                path: "/a?b=1".into(),
                invocation: InvocationKind::Http,
                headers: Headers(headers.collect()),
                request_id: "r-1".into(),
                peer: "127.0.0.1".parse().unwrap(),
            },
            body: Encoded("order".into()),
            idempotency_key: Some("order-1".into()),
            owner: None,
            callback: None,
        }
    }

    #[test]
    fn a_second_attempt_of_the_same_client_is_the_same_owners() {
        let first = call(&[
            ("accept", "*/*"),
            ("cookie", "a=1"),
            ("traceparent", "00-1"),
            ("x-request-id", "1"),
        ]);
        let mut second = call(&[
            ("x-b3-traceid", "7"),
            ("x-forwarded-for", "10.0.0.2"),
            ("date", "today"),
            ("cookie", "a=1"),
            ("accept", "*/*"),
        ]);
        second.request.request_id = "r-2".into();
        second.request.peer = "10.0.0.1".parse().unwrap();
        assert_eq!(owner(&first), owner(&second));
    }

    #[test]
    fn who_does_not_know_all_of_a_request_is_not_its_owner() {
        let first = call(&[("authorization", "Bearer a")]);
        let mut others = vec![call(&[]), call(&[("authorization", "Bearer b")])];
        others.push(call(&[("authorization", "Bearer a"), ("x-own", "")]));
        let mut change = |change: &dyn Fn(&mut NewCall)| {
            let mut other = first.clone();
            change(&mut other);
            others.push(other);
        };
        change(&|c| c.function = "other".parse().unwrap());
        change(&|c| c.request.method = "PUT".into());
        change(&|c| c.request.path = "/a?b=2".into());
        change(&|c| c.request.invocation = InvocationKind::Event);
        change(&|c| c.body = Encoded("orders".into()));
        change(&|c| c.callback = Some("https://example.com/".into()));
        change(&|c| c.owner = Some("admin".into()));
        // The same letters in other places.
        change(&|c| {
            c.request.headers = Headers(vec![("authorizatio".into(), "nBearer a".into())]);
        });
        for other in &others {
            assert_ne!(owner(&first), owner(other), "{other:?}");
        }
    }

    #[test]
    fn a_key_owns_its_calls_whatever_they_ask() {
        let (mut one, mut two) = (call(&[]), call(&[("x-own", "1")]));
        one.owner = Some("admin".into());
        two.owner = Some("admin".into());
        assert_eq!(owner(&one), owner(&two));
    }
}
