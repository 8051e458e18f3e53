//! The beginning of a function's answer: what comes along with its head. If the answer is broken by then, the head is
//! not passed on, and the caller gets an error that says what is wrong.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use rekindle_wire::function_config::Protocol;
use rekindle_wire::{ApiError, ErrorCode};

use super::client::FunctionBody;
use super::lifecycle::Instance;

/// How much of an answer is read before its head is passed on, in bytes.
const AHEAD_MAX: u64 = 64 << 10;

/// The body of an answer that has begun. If it breaks off, the function's log says how.
pub(super) struct ResponseBody {
    /// What came along with the head.
    ahead: VecDeque<Frame<Bytes>>,
    rest: FunctionBody,
    /// Whether there is no more than `ahead`.
    is_whole: bool,
    progress: BodyProgress,
    instance: Arc<Instance>,
}

/// How much of an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BodyProgress {
    bytes: u64,
    /// Its content-length.
    of: Option<u64>,
}

/// Reads what has come of an answer along with its head. Answers of HTTP/2 pass as they are: their streams end with
/// codes of their own.
///
/// # Errors
/// Returns `invalid_response` if the answer is broken, or why the instance has ended.
pub(super) async fn begin(
    answer: Response<FunctionBody>,
    instance: &Arc<Instance>,
) -> Result<Response<ResponseBody>, ApiError> {
    let (head, rest) = answer.into_parts();
    let length = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let mut body = ResponseBody {
        ahead: VecDeque::new(),
        rest,
        is_whole: false,
        progress: BodyProgress { bytes: 0, of: length },
        instance: Arc::clone(instance),
    };
    if instance.spec.config.protocol == Protocol::Http1
        && let Err(error) = body.read_ahead()
    {
        return Err(instance.cut_short(&error, body.progress).await);
    }
    Ok(Response::from_parts(head, body))
}

impl ResponseBody {
    fn read_ahead(&mut self) -> Result<(), hyper::Error> {
        // The reader learns of later data when it polls.
        let mut nobody = Context::from_waker(Waker::noop());
        while !self.rest.is_end_stream() && self.progress.bytes < AHEAD_MAX {
            match Pin::new(&mut self.rest).poll_frame(&mut nobody) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => {
                    let frame = frame?;
                    self.progress.add(&frame);
                    self.ahead.push_back(frame);
                }
            }
        }
        self.is_whole = self.progress.bytes < AHEAD_MAX || self.rest.is_end_stream();
        Ok(())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.is_whole {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.rest).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.progress.add(frame),
            Poll::Ready(Some(Err(error))) => self.instance.sink.platform(self.progress.defect(error)),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && (self.is_whole || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.iter().filter_map(Frame::data_ref);
        let ahead: u64 = ahead.map(|data| data.len() as u64).sum();
        if self.is_whole {
            return SizeHint::with_exact(ahead);
        }
        let mut hint = self.rest.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(ahead));
        }
        hint.set_lower(hint.lower().saturating_add(ahead));
        hint
    }
}

impl BodyProgress {
    fn add(&mut self, frame: &Frame<Bytes>) {
        self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }

    /// Says what is wrong with the answer.
    fn defect(self, error: &hyper::Error) -> String {
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let Self { bytes, of } = self;
        match (kind(error), of) {
            (Some(ErrorKind::UnexpectedEof), Some(of)) => format!(
                "an answer ended after {bytes} bytes, and its content-length is {of}: send all of it, or no \
                 content-length"
            ),
            (Some(ErrorKind::UnexpectedEof), None) => {
                format!("an answer ended after {bytes} bytes, before its last chunk: end it with a chunk of length 0")
            }
            (Some(ErrorKind::InvalidInput | ErrorKind::InvalidData), _) => format!(
                "an answer's chunks are broken after {bytes} bytes ({cause}): each begins with its length in hex"
            ),
            _ => format!("a response ended after {bytes} bytes ({cause})"),
        }
    }
}

/// The kind of the I/O error behind a body's error.
fn kind(error: &hyper::Error) -> Option<ErrorKind> {
    let cause = std::error::Error::source(error)?;
    Some(cause.downcast_ref::<std::io::Error>()?.kind())
}

impl Instance {
    /// Returns why an answer that has begun cannot be passed on. If its connection ended, waits briefly for the news
    /// that the process did.
    async fn cut_short(&self, error: &hyper::Error, progress: BodyProgress) -> ApiError {
        let is_malformed = matches!(kind(error), Some(ErrorKind::InvalidInput | ErrorKind::InvalidData));
        if !is_malformed
            && let Some(why) = self.end_soon().await
            && why.code != ErrorCode::InstanceGone
        {
            return why;
        }
        self.invalid_response(progress.defect(error))
    }
}
