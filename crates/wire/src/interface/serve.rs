//! The server's side of an interface: parameters and bodies are parsed here, so a handler gets them as they are
//! defined.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Query, RawPathParams, Request, State};
use axum::handler::Handler;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Json, RequestExt as _};
use http::request::Parts;
use http::{StatusCode, Uri};

use super::{Endpoint, Operation, or_none, users};
use crate::error::{ApiError, ErrorCode};

/// The parameters of a request, for handlers that read its body themselves.
#[derive(Debug)]
pub struct Params<E>(pub E);

/// A request with all that its operation defines.
#[derive(Debug)]
pub struct Call<E: Endpoint> {
    /// Its parameters.
    pub at: E,
    /// Its body.
    pub body: E::Body,
    /// Its headers and extensions.
    pub head: Parts,
}

fn bad(why: impl ToString) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, why.to_string())
}

impl<E: Endpoint, S: Send + Sync> FromRequestParts<S> for Params<E> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let in_path = RawPathParams::from_request_parts(parts, state).await;
        let in_path = in_path.map_err(|e| bad(e.body_text()))?;
        let in_path: Vec<(&str, &str)> = in_path.iter().collect();
        let mut all = serde_urlencoded::to_string(in_path).map_err(bad)?;
        users::check_query(parts.uri.query())?;
        if let Some(query) = parts.uri.query() {
            all = all + "&" + query;
        }
        let all = format!("/?{all}").parse::<Uri>().map_err(bad)?;
        let Query(parameters) = Query::try_from_uri(&all).map_err(|e| bad(e.body_text()))?;
        Ok(Self(parameters))
    }
}

impl<E: Endpoint, S: Send + Sync> FromRequest<S> for Call<E> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, ApiError> {
        let Params(at) = request.extract_parts_with_state(state).await?;
        let (head, body) = request.into_parts();
        let limited = Request::from_parts(head.clone(), body);
        let body = Bytes::from_request(limited, state)
            .await
            .map_err(|e| bad(e.body_text()))?;
        let Json(body) = Json::from_bytes(or_none(&body)).map_err(|e| bad(e.body_text()))?;
        Ok(Self { at, body, head })
    }
}

/// A router that knows which operations it serves.
#[derive(Debug)]
pub struct Routes<S> {
    router: Router<S>,
    operations: Vec<Operation>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self {
            router: Router::new(),
            operations: Vec::new(),
        }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Serves an operation with a handler of its own types.
    #[must_use]
    pub fn on<E, H, F>(self, handler: H) -> Self
    where
        E: Endpoint,
        H: Fn(S, Call<E>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<E::Answer, ApiError>> + Send + 'static,
    {
        self.raw::<E, _, _>(async move |State(state): State<S>, call: Call<E>| {
            let answer = handler(state, call).await?;
            Ok::<_, ApiError>(reply::<E>(answer))
        })
    }

    /// Serves an operation whose request or response is no JSON.
    #[must_use]
    pub fn raw<E: Endpoint, H: Handler<T, S>, T: 'static>(self, handler: H) -> Self {
        self.add::<E>(|filter| on(filter, handler.clone()))
    }

    /// Like [`Self::raw`], with a limit of its own for the request's body.
    #[must_use]
    pub fn sized<E: Endpoint, H: Handler<T, S>, T: 'static>(self, limit: DefaultBodyLimit, handler: H) -> Self {
        self.add::<E>(|filter| on(filter, handler.clone()).layer(limit))
    }

    fn add<E: Endpoint>(mut self, handler: impl Fn(MethodFilter) -> MethodRouter<S>) -> Self {
        let operation = E::OPERATION;
        // Every method but CONNECT and extensions has a filter, and no operation has one of those.
        let filter = MethodFilter::try_from(operation.method.clone()).unwrap_or(MethodFilter::TRACE);
        let paths = [
            Some(operation.path.to_owned()),
            operation.former.map(str::to_owned),
            users::in_namespace(operation.path),
        ];
        for path in paths.iter().flatten() {
            self.router = self.router.route(path, handler(filter));
        }
        self.operations.push(operation);
        self
    }

    /// The operations that are served.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The router.
    pub fn into_router(self) -> Router<S> {
        self.router
    }
}

fn reply<E: Endpoint>(answer: E::Answer) -> Response {
    match E::OPERATION.status {
        StatusCode::NO_CONTENT => StatusCode::NO_CONTENT.into_response(),
        status => (status, Json(answer)).into_response(),
    }
}
