//! Answers requests: with the API once this scheduler leads, before that with the notice that it stands by.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use parking_lot::RwLock;
use rekindle_wire::headers::STANDBY;
use rekindle_wire::{ApiError, ErrorCode};
use tower::ServiceExt as _;

/// Chooses between the API and the standby notice.
#[derive(Debug)]
pub(crate) struct StandbyGate {
    /// Routes answered in either case.
    joining: Router,
    api: RwLock<Option<Router>>,
    leader: RwLock<Option<String>>,
}

impl StandbyGate {
    /// The front of a scheduler that does not lead yet.
    pub(crate) fn new(joining: Router) -> Self {
        Self {
            joining,
            api: RwLock::default(),
            leader: RwLock::default(),
        }
    }

    /// Serves requests from now on.
    pub(crate) fn lead(&self, api: Router) {
        *self.api.write() = Some(api);
    }

    /// Serves no more: another may lead.
    pub(crate) fn resign(&self) {
        *self.api.write() = None;
    }

    /// Records the address of the scheduler that leads.
    pub(crate) fn stand_by(&self, leader: &str) {
        *self.leader.write() = Some(leader.to_owned());
    }

    fn refuse(&self, path: &str) -> Response {
        if path == "/healthz" {
            return "stands by".into_response();
        }
        let leader = self.leader.read().clone();
        let leads = leader.map_or_else(|| "nobody leads yet".to_owned(), |address| format!("{address} leads"));
        let error = ApiError::new(ErrorCode::Unavailable, format!("this scheduler stands by: {leads}"));
        let mut answer = error.into_response();
        answer
            .headers_mut()
            .insert(STANDBY, http::HeaderValue::from_static("1"));
        answer
    }
}

pub(crate) fn router(front: Arc<StandbyGate>) -> Router {
    Router::new().fallback(answer).with_state(front)
}

async fn answer(State(front): State<Arc<StandbyGate>>, request: Request) -> Response {
    let api = front.api.read().clone();
    match api {
        Some(api) => api.oneshot(request).await.into_response(),
        None if request.uri().path() == "/join" => front.joining.clone().oneshot(request).await.into_response(),
        None => front.refuse(request.uri().path()),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn a_scheduler_answers_while_it_leads_and_neither_before_nor_after() {
        let front = Arc::new(StandbyGate::new(Router::new()));
        let stands_by = async || {
            let answer = router(Arc::clone(&front)).oneshot(Request::new(Body::empty())).await;
            answer.unwrap().headers().contains_key(STANDBY)
        };
        assert!(stands_by().await);
        front.lead(Router::new().fallback(async || "leads"));
        assert!(!stands_by().await);
        front.resign();
        assert!(stands_by().await);
    }
}
