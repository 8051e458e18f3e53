//! A response body in transit, and what is held until the function is done with it.
//!
//! ```text
//! passed on ──last byte──────────────────────────────> Whole
//!     │  │   ──broke──────────────────────────────────> Cut
//!     │  └── deadline: the function owed the next byte ─> Late
//!     │  └── deadline: the reader did not take it ──────> Cut
//!     └── reader gone ──> drained ──last byte─────────> Whole
//!                            └── as above, or too long: Cut
//! ```
//!
//! What broke off is told one step later than what came before it, so that a server writes that first. Its peer sees an
//! answer that is cut short, and not a connection that breaks without one.
//!
//! The deadline has its own timer, because a body whose reader has stopped reading is not polled. A response that is
//! already complete, as most are along with their head, needs no timer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How much of an abandoned response is read, and for how long. Most end soon. After that the function's connection is
/// closed, and its next write fails.
const DRAIN_MAX: usize = 16 << 20;
const DRAIN_FOR: Duration = Duration::from_secs(1);

/// The function did not end its response by its deadline.
#[derive(Debug, thiserror::Error)]
#[error("the answer did not end within the function's timeout")]
pub struct TooLate;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// Its last byte arrived: the function is done.
    Whole,
    /// It was abandoned before its end, though the function was not late. Whether the function is still running is
    /// unknown.
    Cut,
    /// The function did not finish it by its deadline, and may still be running.
    Late,
}

/// What is held while a response is in flight.
pub trait ResponseGuard: Send + 'static {
    /// Called when the response has ended.
    fn ended(self, end: ResponseEnd);
}

/// A body that ends by a deadline, and tells `T` how it ended.
pub struct TrackedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    T: ResponseGuard,
{
    passing: Arc<Mutex<Option<ForwardedBody<B, T>>>>,
    deadline: Instant,
    timer: Option<AbortHandle>,
    /// Data that was available at once, until it is read.
    first: Option<Result<Frame<Bytes>, BoxError>>,
    /// Why it broke off, until that is told.
    broken: Option<BoxError>,
    whole: bool,
}

struct ForwardedBody<B, T> {
    body: B,
    held: T,
    /// Waker of the reader that waits for the next byte. `None` while the next byte waits for the reader.
    owed: Option<Waker>,
}

impl<B, T> TrackedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    T: ResponseGuard,
{
    /// Wraps `body`. Must be called within a tokio runtime.
    pub fn wrap(mut body: B, deadline: Instant, held: T) -> Self {
        let mut answer = Self {
            passing: Arc::default(),
            deadline,
            timer: None,
            first: None,
            broken: None,
            whole: body.is_end_stream(),
        };
        if !answer.whole {
            // The reader learns of later data when it polls.
            let mut nobody = Context::from_waker(Waker::noop());
            match Pin::new(&mut body).poll_frame(&mut nobody) {
                Poll::Pending => {}
                Poll::Ready(None) => answer.whole = true,
                Poll::Ready(Some(Ok(frame))) => {
                    answer.first = Some(Ok(frame));
                    answer.whole = body.is_end_stream();
                }
                Poll::Ready(Some(Err(error))) => {
                    answer.first = Some(Err(error.into()));
                    drop(body);
                    held.ended(ResponseEnd::Cut);
                    return answer;
                }
            }
        }
        if answer.whole {
            held.ended(ResponseEnd::Whole);
            return answer;
        }
        *answer.passing.lock() = Some(ForwardedBody { body, held, owed: None });
        let timed = Arc::clone(&answer.passing);
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            let over = timed.lock().take();
            if let Some(ForwardedBody { body, held, owed }) = over {
                // First the underlying connection, then everything that others may get.
                drop(body);
                held.ended(if owed.is_some() {
                    ResponseEnd::Late
                } else {
                    ResponseEnd::Cut
                });
                owed.into_iter().for_each(Waker::wake);
            }
        });
        answer.timer = Some(timer.abort_handle());
        answer
    }

    /// Has the reader write what it has, and then tells it the error.
    fn break_off(&mut self, error: BoxError, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.broken = Some(error);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn end(&mut self, over: Option<ForwardedBody<B, T>>, end: ResponseEnd) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
        if let Some(ForwardedBody { body, held, .. }) = over {
            drop(body);
            held.ended(end);
        }
    }
}

impl<B, T> Body for TrackedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    T: ResponseGuard,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            Some(Ok(first)) => return Poll::Ready(Some(Ok(first))),
            Some(Err(error)) => return self.break_off(error, cx),
            None => {}
        }
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.whole {
            return Poll::Ready(None);
        }
        let passing = Arc::clone(&self.passing);
        let mut passing = passing.lock();
        let Some(now) = passing.as_mut() else {
            return Poll::Ready(Some(Err(TooLate.into())));
        };
        let polled = Pin::new(&mut now.body).poll_frame(cx);
        now.owed = polled.is_pending().then(|| cx.waker().clone());
        let end = match &polled {
            Poll::Pending => None,
            Poll::Ready(None) => Some(ResponseEnd::Whole),
            Poll::Ready(Some(Ok(_))) => now.body.is_end_stream().then_some(ResponseEnd::Whole),
            Poll::Ready(Some(Err(_))) => Some(ResponseEnd::Cut),
        };
        if let Some(end) = end {
            let over = passing.take();
            drop(passing);
            self.whole = end == ResponseEnd::Whole;
            self.end(over, end);
        }
        match polled {
            Poll::Ready(Some(Err(error))) => self.break_off(error.into(), cx),
            other => other.map(|frame| frame.map(|f| f.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.whole && self.first.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(|f| f.as_ref().ok()?.data_ref());
        let first = first.map_or(0, |data| data.len() as u64);
        if self.whole {
            return SizeHint::with_exact(first);
        }
        let passing = self.passing.lock();
        let mut hint = passing.as_ref().map_or_else(SizeHint::default, |p| p.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint.set_lower(hint.lower().saturating_add(first));
        hint
    }
}

impl<B, T> Drop for TrackedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    T: ResponseGuard,
{
    fn drop(&mut self) {
        let Some(passing) = self.passing.lock().take() else {
            return;
        };
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(drain(passing, self.deadline))),
            // The process is shutting down.
            Err(_) => passing.held.ended(ResponseEnd::Cut),
        }
    }
}

/// Reads an abandoned body, so that the function reaches its end.
async fn drain<B, T>(passing: ForwardedBody<B, T>, deadline: Instant)
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    T: ResponseGuard,
{
    let ForwardedBody { mut body, held, .. } = passing;
    let until = deadline.min(Instant::now() + DRAIN_FOR);
    let mut left = DRAIN_MAX;
    let end = loop {
        match tokio::time::timeout_at(until, body.frame()).await {
            Err(_) if until < deadline => break ResponseEnd::Cut,
            Err(_) => break ResponseEnd::Late,
            Ok(None) => break ResponseEnd::Whole,
            Ok(Some(Err(_))) => break ResponseEnd::Cut,
            Ok(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => break ResponseEnd::Cut,
                }
            }
        }
    };
    drop(body);
    held.ended(end);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::StreamExt as _;
    use http_body_util::StreamBody;
    use tokio::sync::{mpsc, oneshot};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    struct Note(oneshot::Sender<ResponseEnd>);

    impl ResponseGuard for Note {
        fn ended(self, end: ResponseEnd) {
            let _ = self.0.send(end);
        }
    }

    type Source = mpsc::Sender<&'static str>;

    /// A body fed by hand.
    fn answer(
        limit: Duration,
    ) -> (
        Source,
        Pin<Box<impl Body<Data = Bytes, Error = BoxError>>>,
        oneshot::Receiver<ResponseEnd>,
    ) {
        let (source, frames) = mpsc::channel(4);
        let (note, end) = oneshot::channel();
        let frames = ReceiverStream::new(frames).map(|t: &str| Ok::<_, Infallible>(Frame::data(Bytes::from(t))));
        let answer = TrackedBody::wrap(StreamBody::new(frames), Instant::now() + limit, Note(note));
        (source, Box::pin(answer), end)
    }

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    async fn told(end: oneshot::Receiver<ResponseEnd>) -> ResponseEnd {
        tokio::time::timeout(Duration::from_secs(10), end)
            .await
            .unwrap()
            .unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_whole_with_its_last_byte() {
        let (source, mut answer, end) = answer(LONG);
        source.send("all").await.unwrap();
        drop(source);
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "all");
        assert!(answer.frame().await.is_none());
        assert_eq!(told(end).await, ResponseEnd::Whole);
    }

    #[tokio::test]
    async fn an_answer_that_is_here_already_is_whole_before_it_is_read() {
        let (note, end) = oneshot::channel();
        let body = http_body_util::Full::new(Bytes::from("all"));
        let mut answer = TrackedBody::wrap(body, Instant::now() + LONG, Note(note));
        assert_eq!(told(end).await, ResponseEnd::Whole);
        assert!(answer.timer.is_none());
        assert_eq!((answer.is_end_stream(), answer.size_hint().exact()), (false, Some(3)));
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "all");
        assert_eq!((answer.is_end_stream(), answer.size_hint().exact()), (true, Some(0)));
        assert!(answer.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_function_that_stops_in_the_middle_is_late_and_the_reader_told() {
        let (source, mut answer, end) = answer(SOON);
        source.send("begun").await.unwrap();
        assert!(answer.frame().await.unwrap().is_ok());
        assert!(answer.frame().await.unwrap().is_err());
        assert_eq!(told(end).await, ResponseEnd::Late);
        drop(source);
    }

    #[tokio::test]
    async fn what_came_before_a_break_can_be_written_before_the_break_is_told() {
        for before in [1, 0] {
            let (note, end) = oneshot::channel();
            let begun = (0..before).map(|_| Ok(Frame::data(Bytes::from("begun"))));
            let frames: Vec<Result<_, BoxError>> = begun.chain([Err("broken".into())]).collect();
            let body = StreamBody::new(futures::stream::iter(frames));
            let mut answer = TrackedBody::wrap(body, Instant::now() + LONG, Note(note));
            for _ in 0..before {
                assert!(answer.frame().await.unwrap().is_ok());
            }
            assert!(futures::poll!(answer.frame()).is_pending());
            assert_eq!(answer.frame().await.unwrap().unwrap_err().to_string(), "broken");
            assert_eq!(told(end).await, ResponseEnd::Cut);
        }
    }

    #[tokio::test]
    async fn an_answer_nobody_reads_is_given_up_at_its_deadline() {
        let (source, answer, end) = answer(SOON);
        source.send("unread").await.unwrap();
        // It is kept, but not polled.
        assert_eq!(told(end).await, ResponseEnd::Cut);
        assert!(source.send("more").await.is_err(), "what is behind it was not closed");
        drop(answer);
    }

    #[tokio::test]
    async fn an_answer_whose_reader_went_away_is_held_until_the_function_ends_it() {
        let (source, answer, mut end) = answer(LONG);
        source.send("begun").await.unwrap();
        drop(answer);
        assert!(
            tokio::time::timeout(SOON, &mut end).await.is_err(),
            "it was let go of too early"
        );
        source.send("more").await.unwrap();
        drop(source);
        assert_eq!(told(end).await, ResponseEnd::Whole);
    }

    #[tokio::test]
    async fn an_answer_without_end_is_closed_soon_after_its_reader_went_away() {
        let (source, answer, end) = answer(LONG);
        drop(answer);
        assert_eq!(told(end).await, ResponseEnd::Cut);
        assert!(source.send("more").await.is_err(), "the function does not notice");
    }

    #[tokio::test]
    async fn a_function_that_never_ends_is_late_though_its_reader_went_away() {
        let (source, answer, end) = answer(SOON);
        drop(answer);
        assert_eq!(told(end).await, ResponseEnd::Late);
        drop(source);
    }
}
