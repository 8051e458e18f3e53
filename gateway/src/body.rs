//! A request's body on its way through, with its size limit and the question whether it may be sent again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rekindle_wire::manifest::ByteSize;
use rekindle_wire::{ApiError, ErrorCode};

/// Bodies up to this size are received before a slot is taken: a slow client then holds none, and they can be sent again.
const KEPT_MAX: u64 = 64 << 10;
/// How long a client may take over such a small body.
const KEPT_LIMIT: Duration = Duration::from_secs(30);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body, for one or more attempts.
pub(crate) enum Upload {
    /// Received whole.
    Kept(Bytes),
    /// Passed through as it comes; good for another attempt as long as nothing was taken from it.
    Streamed(Arc<Stream>),
}

/// A body that is passed through.
pub(crate) struct Stream {
    body: Mutex<Body>,
    left: Mutex<u64>,
    touched: AtomicBool,
    too_large: AtomicBool,
    /// It ended before its end: the client went, or sent too much.
    broke_off: AtomicBool,
    hint: SizeHint,
}

impl Upload {
    /// Takes a request's body in, whole when it is known to be small.
    ///
    /// # Errors
    /// `too_large` when its length is known and over `max`; `bad_request` when a small one does not arrive.
    pub(crate) async fn receive(headers: &HeaderMap, body: Body, max: u64) -> Result<Self, ApiError> {
        let hint = http_body::Body::size_hint(&body);
        let length = headers
            .get(http::header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .or(hint.exact());
        match length {
            Some(length) if length > max => Err(too_large(max)),
            Some(0) => Ok(Self::Kept(Bytes::new())),
            Some(length) if length <= KEPT_MAX => match tokio::time::timeout(KEPT_LIMIT, body.collect()).await {
                Ok(Ok(whole)) => Ok(Self::Kept(whole.to_bytes())),
                _ => Err(ApiError::new(
                    ErrorCode::BadRequest,
                    "the request's body did not arrive whole: send it again",
                )),
            },
            _ => Ok(Self::Streamed(Arc::new(Stream {
                body: Mutex::new(body),
                left: Mutex::new(max),
                touched: AtomicBool::new(false),
                too_large: AtomicBool::new(false),
                broke_off: AtomicBool::new(false),
                hint,
            }))),
        }
    }

    /// The body for one attempt.
    pub(crate) fn attempt(&self) -> Body {
        match self {
            Self::Kept(bytes) => Body::from(bytes.clone()),
            Self::Streamed(stream) => Body::new(Attempt(stream.clone())),
        }
    }

    /// Whether nobody knows its length before its end.
    pub(crate) fn is_of_unknown_length(&self) -> bool {
        matches!(self, Self::Streamed(stream) if stream.hint.exact().is_none())
    }

    /// Whether another attempt would send the same bytes.
    pub(crate) fn can_be_sent_again(&self) -> bool {
        match self {
            Self::Kept(_) => true,
            Self::Streamed(stream) => !stream.touched.load(Ordering::Acquire),
        }
    }

    /// Whether it broke off on its way through: then it is the client's fault that there is no answer, and nobody else's.
    pub(crate) fn broke_off(&self) -> bool {
        matches!(self, Self::Streamed(stream) if stream.broke_off.load(Ordering::Acquire))
    }

    /// The error if it proved to be over `max` while it was passed through.
    pub(crate) fn check_size(&self, max: u64) -> Result<(), ApiError> {
        match self {
            Self::Streamed(stream) if stream.too_large.load(Ordering::Acquire) => Err(too_large(max)),
            _ => Ok(()),
        }
    }
}

fn too_large(max: u64) -> ApiError {
    ApiError::new(
        ErrorCode::TooLarge,
        format!(
            "the request's body is over the gateway's limit of {}: send less, or pass a reference to the data",
            ByteSize(max)
        ),
    )
}

impl Stream {
    /// The frame, if all that came so far is within the limit.
    fn count(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BoxError> {
        let mut left = self.left.lock();
        match left.checked_sub(frame.data_ref().map_or(0, |data| data.len() as u64)) {
            Some(rest) => *left = rest,
            None => {
                self.too_large.store(true, Ordering::Release);
                return Err("the body is over the gateway's limit".into());
            }
        }
        Ok(frame)
    }
}

struct Attempt(Arc<Stream>);

impl http_body::Body for Attempt {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let stream = &self.0;
        stream.touched.store(true, Ordering::Release);
        let polled = Pin::new(&mut *stream.body.lock()).poll_frame(cx);
        let polled = polled.map(|frame| frame.map(|frame| stream.count(frame?)));
        if matches!(polled, Poll::Ready(Some(Err(_)))) {
            stream.broke_off.store(true, Ordering::Release);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        self.0.hint
    }
}
