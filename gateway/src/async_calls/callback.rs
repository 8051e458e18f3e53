//! Posts a call's result to the address that its client gave. Each post is one attempt; the scheduler decides whether
//! there is another.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rekindle_wire::asynchronous::{CallbackOutcome, ClaimedCallback};
use rekindle_wire::destination::EVENT;
use rekindle_wire::error::chain;
use rekindle_wire::headers::{ASYNC_ID, ASYNC_STATE, FUNCTION_STATUS, REQUEST_ID};

use super::targets::{ForbiddenTarget, Resolver, Targets};
use crate::dispatch::without_output;
use crate::headers;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Limit of the whole attempt, up to the response's headers.
const LIMIT: Duration = Duration::from_secs(15);

type CallbackClient<C> = Client<C, Body>;

/// HTTP clients for the world outside. They follow no redirects, and use no proxy.
#[derive(Clone)]
pub(crate) struct Callbacks {
    http: CallbackClient<HttpConnector<Resolver>>,
    /// `None` on a host without certificate authorities.
    https: Option<CallbackClient<HttpsConnector<HttpConnector<Resolver>>>>,
    targets: Targets,
}

impl Callbacks {
    /// Clients that may post where `targets` permits it.
    pub(crate) fn new(targets: Targets) -> Self {
        let mut connector = HttpConnector::new_with_resolver(Resolver(targets.clone()));
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_timer(TokioTimer::new());
        let https = match hyper_rustls::HttpsConnectorBuilder::new().with_native_roots() {
            Ok(tls) => Some(builder.build(tls.https_only().enable_http1().wrap_connector(connector.clone()))),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "no certificate authorities are known here: callbacks to https addresses will fail"
                );
                None
            }
        };
        Self {
            http: builder.build(connector),
            https,
            targets,
        }
    }

    /// Posts a result once.
    pub(crate) async fn post(&self, callback: ClaimedCallback) -> CallbackOutcome {
        let (id, attempt, is_event) = (callback.result.id.clone(), callback.attempt, callback.event.is_some());
        let ended_unix_ms = callback.ended_unix_ms;
        let posted = tokio::time::timeout(LIMIT, self.attempt(callback)).await;
        let (error, is_final) = match posted {
            Ok(Ok(())) => (None, false),
            Ok(Err((why, is_final))) => (Some(why), is_final),
            Err(_) => (Some(format!("no answer within {}s", LIMIT.as_secs())), false),
        };
        CallbackOutcome {
            id,
            attempt,
            error,
            is_final,
            is_event,
            ended_unix_ms,
        }
    }

    /// Makes the attempt. Returns the error, and whether another attempt would end the same way.
    async fn attempt(&self, callback: ClaimedCallback) -> Result<(), (String, bool)> {
        let uri: Uri = callback.url.parse().map_err(|e| (format!("{e}"), true))?;
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']');
        // A literal address is not resolved, so it is checked here.
        if host.parse::<IpAddr>().is_ok_and(|a| !self.targets.permit(a)) {
            return Err((ForbiddenTarget(host.to_owned()).to_string(), true));
        }
        let is_https = uri.scheme_str() == Some("https");
        let request = build(uri, callback).map_err(|why| (why, true))?;
        let sent = match (is_https, &self.https) {
            (false, _) => self.http.request(request),
            (true, Some(https)) => https.request(request),
            (true, None) => return Err(("this gateway's host knows no certificate authorities".to_owned(), false)),
        };
        match sent.await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            // 410 means: post nothing more.
            Ok(answer) if answer.status() == http::StatusCode::GONE => Err(("it answered 410".to_owned(), true)),
            Ok(answer) => Err((format!("it answered {}", answer.status().as_u16()), false)),
            Err(error) => Err((chain(&error), false)),
        }
    }
}

fn build(uri: Uri, callback: ClaimedCallback) -> Result<Request<Body>, String> {
    let result = callback.result;
    let (status, kind, body) = match (callback.event, result.answer, result.error) {
        // The developer has named the address, so it is told all.
        (Some(event), ..) => (None, Some(HeaderValue::from_static(EVENT)), Body::from(event.0)),
        (None, Some(answer), _) => {
            let kind = answer.headers.map().get(CONTENT_TYPE).cloned();
            (Some(answer.status), kind, Body::from(answer.body.0))
        }
        (None, None, Some(error)) => {
            // Whoever sent the call may have named the address.
            let error = without_output(error, &result.function);
            let text = serde_json::to_vec(&error).map_err(|e| e.to_string())?;
            let json = HeaderValue::from_static("application/json");
            (Some(error.code.status().as_u16()), Some(json), Body::from(text))
        }
        (None, None, None) => return Err("nothing is kept of what came of it".to_owned()),
    };
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let out = request.headers_mut();
    if let Some(kind) = kind {
        out.insert(CONTENT_TYPE, kind);
    }
    out.insert(USER_AGENT, HeaderValue::from_static("rekindle"));
    headers::set(out, ASYNC_ID, result.id.as_str());
    headers::set(out, ASYNC_STATE, result.state.as_str());
    if let Some(status) = status {
        headers::set(out, FUNCTION_STATUS, &status.to_string());
    }
    headers::set(out, REQUEST_ID, &callback.request_id);
    Ok(request)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use rekindle_wire::asynchronous::{CallResult, CallState};
    use rekindle_wire::{ApiError, CallId, ErrorCode};

    use super::*;

    #[tokio::test]
    async fn a_callback_says_nothing_that_the_function_wrote() {
        let error = ApiError::new(ErrorCode::BootFailed, "it wrote: postgres://u:secret@db");
        let callback = ClaimedCallback {
            url: "http://example.com/".to_owned(),
            attempt: 1,
            request_id: "r-1".to_owned(),
            result: CallResult {
                id: CallId::generate(),
                function: "hello".parse().unwrap(),
                state: CallState::Dead,
                attempts: 3,
                answer: None,
                error: Some(error),
            },
            event: None,
            ended_unix_ms: None,
        };
        let request = build(Uri::from_static("http://example.com/"), callback).unwrap();
        assert_eq!(request.headers()[FUNCTION_STATUS], "502");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let told: ApiError = serde_json::from_slice(&body).unwrap();
        assert_eq!(told.code, ErrorCode::BootFailed);
        assert!(!told.message.contains("secret"), "{told}");
    }
}
