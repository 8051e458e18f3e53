//! `/metrics`, `/v1/metrics` and `/v1/workers/{id}/metrics`: metrics of the scheduler and the workers, for Prometheus.
//! The last two are for a scraper that reaches only a gateway.

use axum::extract::State;
use axum::response::IntoResponse;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use rekindle_wire::error::chain;
use rekindle_wire::interface::Params;
use rekindle_wire::interface::users::ReadWorkerMetrics;
use rekindle_wire::{ApiError, ErrorCode};

use crate::refusal::Refused;
use crate::state::Scheduler;

pub(super) async fn own(State(scheduler): State<Scheduler>, headers: HeaderMap) -> impl IntoResponse {
    let (kind, text) = rekindle_telemetry::metrics::exposition(&scheduler.metrics.registry, &headers);
    ([kind], text)
}

pub(super) async fn of_worker(
    State(scheduler): State<Scheduler>,
    Params(ReadWorkerMetrics { id }): Params<ReadWorkerMetrics>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Refused> {
    let address = scheduler.state().fleet.workers.get(&id).map(|w| w.address.clone());
    let address = address.ok_or_else(|| {
        ApiError::new(
            ErrorCode::NotFound,
            format!("no worker {id} is known: `fn status` lists them"),
        )
    })?;
    let silent = |e: &dyn std::error::Error| {
        let why = chain(e);
        ApiError::new(
            ErrorCode::Unavailable,
            format!("worker {id} does not tell: {why}: try again"),
        )
    };
    let asked = scheduler.workers.metrics(&address, headers.get(ACCEPT)).await;
    let answer = asked.map_err(|e| silent(&e))?;
    let kind = answer.headers().get(CONTENT_TYPE).cloned();
    let text = answer.text().await.map_err(|e| silent(&e))?;
    Ok((
        kind.map(|kind| [(CONTENT_TYPE, kind)])
            .into_iter()
            .flatten()
            .collect::<HeaderMap>(),
        text,
    ))
}
