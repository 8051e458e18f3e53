//! The end of a call's response that breaks off after its beginning. Its client would see a stream reset, and make
//! of it what its library makes of that. So it gets trailers with a status, as from a server.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use rekindle_relay::{Reset, TooLate};
use rekindle_wire::{ApiError, ErrorCode};

use super::{Status, set_status};

/// A response's body whose break is a status.
pub(super) struct GrpcStatusBody {
    body: Body,
    is_over: bool,
}

impl GrpcStatusBody {
    pub(super) fn new(body: Body) -> Self {
        Self { body, is_over: false }
    }
}

impl http_body::Body for GrpcStatusBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Err(error)) = frame else {
            return Poll::Ready(frame);
        };
        self.is_over = true;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(&error)))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // A promised length would not be kept by trailers that come before it is reached.
        SizeHint::default()
    }
}

/// The trailers for a response that broke off so.
fn trailers(error: &(dyn Error + 'static)) -> HeaderMap {
    let (status, code, message) = status(error);
    let mut trailers = HeaderMap::new();
    set_status(&mut trailers, status, &ApiError::new(code, message));
    trailers
}

fn status(error: &(dyn Error + 'static)) -> (Status, ErrorCode, &'static str) {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    if causes.any(|cause| cause.is::<TooLate>()) {
        let message = "the call did not end within the function's timeout: raise timeout in fn.toml";
        return (Status::DeadlineExceeded, ErrorCode::FunctionTimeout, message);
    }
    let status = match Reset::of(error) {
        Some(Reset::Cancelled) => Status::Cancelled,
        Some(Reset::Excessive) => Status::ResourceExhausted,
        Some(Reset::Refused | Reset::Broken) | None => Status::Unavailable,
    };
    let message = "the function's response ended early: see its log (`fn logs`)";
    (status, ErrorCode::InvalidResponse, message)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    type BoxError = Box<dyn Error + Send + Sync>;

    /// The status, and the code before its message, with which a body ends that has begun and then fails so.
    async fn ended(error: impl Into<BoxError>) -> (String, String) {
        let frames: [Result<_, BoxError>; 2] = [Ok(Bytes::from("begun")), Err(error.into())];
        let mut body = GrpcStatusBody::new(Body::from_stream(futures::stream::iter(frames).fuse()));
        let begun = body.frame().await.unwrap().unwrap();
        assert_eq!(begun.into_data().unwrap(), "begun");
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert!(http_body::Body::is_end_stream(&body) && body.frame().await.is_none());
        assert!(!trailers.contains_key("content-type"));
        let said = |name: &str| trailers[name].to_str().unwrap().to_owned();
        let message = said("grpc-message");
        (said("grpc-status"), message.split(':').next().unwrap().to_owned())
    }

    #[tokio::test]
    async fn a_call_that_breaks_off_ends_with_a_status_that_says_why() {
        let told = |status: &str, code: &str| (status.to_owned(), code.to_owned());
        assert_eq!(ended(TooLate).await, told("4", "function_timeout"));
        assert_eq!(ended("gone").await, told("14", "invalid_response"));
    }

    #[tokio::test]
    async fn a_call_that_ends_well_is_left_alone() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        let last = std::future::ready(Some(Ok(trailers.clone())));
        let whole = http_body_util::Full::new(Bytes::from("all")).with_trailers(last);
        let whole = GrpcStatusBody::new(Body::new(whole)).collect().await.unwrap();
        assert_eq!(whole.trailers(), Some(&trailers));
        assert_eq!(whole.to_bytes(), "all");
    }
}
