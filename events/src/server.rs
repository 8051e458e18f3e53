//! Health and metrics over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use rekindle_telemetry::metrics::exposition;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How long the gateway may be silent.
const HEARD_WITHIN: Duration = Duration::from_secs(30);

/// What the routes answer from.
#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) metrics: Arc<Metrics>,
    /// When sources were last listed.
    pub(crate) heard: Arc<Mutex<Option<Instant>>>,
}

/// Serves until it is to stop.
pub(crate) async fn serve(listener: TcpListener, told: ServerState, stop: CancellationToken) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(told);
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn ready(State(told): State<ServerState>) -> impl IntoResponse {
    match told.heard.lock().is_some_and(|at| at.elapsed() < HEARD_WITHIN) {
        true => (StatusCode::OK, "ok"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the gateway does not say which sources there are: see the log",
        ),
    }
}

async fn metrics(State(told): State<ServerState>, headers: HeaderMap) -> impl IntoResponse {
    let (kind, text) = exposition(&told.metrics.registry, &headers);
    ([kind], text)
}
