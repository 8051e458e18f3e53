//! Stands between gateway and scheduler: counts calls by path, loses some, and keeps its address while the scheduler
//! behind it is restarted.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::net::TcpListener;

#[derive(Default)]
struct Inner {
    target: String,
    calls: HashMap<String, usize>,
    /// How many calls are still to be lost, by path.
    lose: HashMap<String, usize>,
}

#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) address: String,
    inner: Arc<Mutex<Inner>>,
}

impl Relay {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let relay = Self {
            address,
            inner: Arc::default(),
        };
        let router = Router::new()
            .fallback(pass)
            .with_state((relay.clone(), reqwest::Client::new()));
        tokio::spawn(async move { axum::serve(listener, router).await });
        relay
    }

    pub(crate) fn point_to(&self, target: &str) {
        target.clone_into(&mut self.inner.lock().target);
    }

    /// Another to the same scheduler, for a gateway of its own.
    pub(crate) async fn beside(&self) -> Self {
        let other = Self::start().await;
        other.point_to(&self.inner.lock().target);
        other
    }

    /// Loses the next calls to `path`.
    pub(crate) fn lose(&self, path: &str, calls: usize) {
        self.inner.lock().lose.insert(path.to_owned(), calls);
    }

    pub(crate) fn calls(&self, path: &str) -> usize {
        self.inner.lock().calls.get(path).copied().unwrap_or(0)
    }
}

async fn pass(State((relay, client)): State<(Relay, reqwest::Client)>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let target = {
        let mut inner = relay.inner.lock();
        *inner.calls.entry(parts.uri.path().to_owned()).or_default() += 1;
        match inner.lose.get_mut(parts.uri.path()) {
            // Nobody is there.
            Some(left @ 1..) => {
                *left -= 1;
                "127.0.0.1:1".to_owned()
            }
            _ => inner.target.clone(),
        }
    };
    let url = format!("http://{target}{}", parts.uri.path_and_query().unwrap());
    let sent = client
        .request(parts.method, url)
        .headers(parts.headers)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send()
        .await;
    let Ok(answer) = sent else {
        return Response::builder()
            .status(StatusCode::BAD_GATEWAY)
            .body(Body::empty())
            .unwrap();
    };
    let mut response = Response::builder().status(answer.status());
    *response.headers_mut().unwrap() = answer.headers().clone();
    response.headers_mut().unwrap().remove(http::header::TRANSFER_ENCODING);
    response.body(Body::from_stream(answer.bytes_stream())).unwrap()
}
