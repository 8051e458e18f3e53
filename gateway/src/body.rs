//! A request's body on its way in: how fast it must come, how much of it may be in memory, and whether it may be sent
//! again.
//!
//! ```text
//! first part ──whole──> Kept                  (may be sent again)
//!     │ ──64 KiB are there──> Streamed        (passed through as it comes)
//!     │ ──of no known length, and pauses──> Streamed, while few others are     (its client may wait)
//!     │ ──too slow: 408, too large: 413, no memory: 503
//! ```
//!
//! The first part is received before a place or a slot is taken, so that a slow client holds neither. A client that
//! pauses may be waiting for what the function makes of the first part.

mod paced;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::{Budget, Exhausted, ReservedMemory};
use crate::clients::{CALLS_MAX, ClientPermit, EARLY_MAX};
use crate::headers;
use crate::metrics::Metrics;
use crate::pace::MinRate;

use paced::{Paced, TooSlow};

/// How much of a body is received before a slot is taken. A body that is no larger can be sent again.
const KEPT_MAX: usize = 64 << 10;
/// Pause after which a body without a length counts as one half of a conversation.
const PAUSE: Duration = Duration::from_millis(100);
/// The same for a call of gRPC, whose client may wait for the function before it sends anything. A body of one message
/// comes along with the head.
const CALL_PAUSE: Duration = Duration::from_millis(1);
/// Limit for the first part, however it comes.
const FIRST_LIMIT: Duration = Duration::from_secs(75);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How bodies are received.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) rate: MinRate,
    pub(crate) memory: Budget,
    /// Places for bodies that are passed through before their first part is complete. There are fewer than places in
    /// all, so that clients that send one byte and no more cannot take the rest.
    pub(crate) early: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Why no more of a body's first part is awaited.
enum FirstPartEnd {
    Whole,
    /// The first part is as large as it must be.
    Enough,
    /// The body pauses, and has one of the places for such bodies.
    Paused(EarlyPermit),
}

/// A place for a body that is passed through before its first part is complete: among all, and among its client's.
type EarlyPermit = (OwnedSemaphorePermit, Option<ClientPermit>);

/// Who sends a body, and how.
#[derive(Default)]
pub(crate) struct Sender {
    /// What its client holds of its limits.
    pub(crate) client: Option<Arc<ClientPermit>>,
    /// Bytes that it may send before they are read, where that is not limited otherwise.
    pub(crate) window: u32,
    /// Whether it is a call of gRPC, whose messages come when they come. Its body is passed on at once, and has no
    /// minimum rate but a place among those that pause.
    pub(crate) is_call: bool,
}

/// Bytes of a body, and the memory reserved for them.
#[derive(Default)]
pub(crate) struct ReceivedBytes {
    pub(crate) bytes: Bytes,
    trailers: Option<HeaderMap>,
    _room: Option<ReservedMemory>,
}

/// A request's body, for one or more attempts.
pub(crate) enum Upload {
    /// Received completely.
    Kept(ReceivedBytes),
    /// Passed through as it comes; usable for another attempt as long as nothing was read from it.
    Streamed(Arc<Stream>),
}

/// A body that is passed through.
pub(crate) struct Stream {
    /// What was received before.
    first: Mutex<Option<ReceivedBytes>>,
    body: Mutex<Paced>,
    left: Mutex<u64>,
    touched: AtomicBool,
    too_large: AtomicBool,
    too_slow: AtomicBool,
    /// It ended early: the client left, was too slow, or sent too much.
    broke_off: AtomicBool,
    hint: SizeHint,
    intake: Intake,
    client: Option<Arc<ClientPermit>>,
    early: Mutex<Option<EarlyPermit>>,
    _unread: ReservedMemory,
}

impl Intake {
    /// Receives a request's body: all of it, or enough that the rest can be passed through.
    ///
    /// # Errors
    /// - `too_large` if it is over `max`
    /// - `request_timeout` if it comes too slowly
    /// - `bad_request` if it breaks off
    /// - `unavailable` if there is no memory for it
    pub(crate) async fn receive(
        &self,
        headers: &HeaderMap,
        body: Body,
        max: u64,
        sender: &Sender,
    ) -> Result<Upload, ApiError> {
        let hint = http_body::Body::size_hint(&body);
        let length = headers
            .get(http::header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .or(hint.exact());
        if length.is_some_and(|length| length > max) {
            return Err(too_large(max));
        }
        if length == Some(0) {
            return Ok(Upload::Kept(ReceivedBytes::default()));
        }
        let mut unread = self.memory.room(sender.client.as_ref());
        let sent_ahead = length.unwrap_or(u64::MAX).min(sender.window.into());
        unread
            .grow_to(usize::try_from(sent_ahead).unwrap_or(usize::MAX))
            .map_err(|why| self.no_memory(why))?;
        let mut body = Paced::new(body, self.rate);
        let early = length.is_none().then_some(sender);
        let (first, ending) = self.first(&mut body, KEPT_MAX, sender.client.as_ref(), early).await?;
        body.is_call = sender.is_call;
        let left = max
            .checked_sub(first.bytes.len() as u64)
            .ok_or_else(|| too_large(max))?;
        let early = match ending {
            FirstPartEnd::Whole => return Ok(Upload::Kept(first)),
            FirstPartEnd::Enough if sender.is_call => Some(self.call_place(sender)?),
            FirstPartEnd::Enough => None,
            FirstPartEnd::Paused(place) => Some(place),
        };
        Ok(Upload::Streamed(Arc::new(Stream {
            first: Mutex::new(Some(first)),
            body: Mutex::new(body),
            left: Mutex::new(left),
            touched: AtomicBool::new(false),
            too_large: AtomicBool::new(false),
            too_slow: AtomicBool::new(false),
            broke_off: AtomicBool::new(false),
            hint,
            intake: self.clone(),
            client: sender.client.clone(),
            early: Mutex::new(early),
            _unread: unread,
        })))
    }

    /// Receives a body that must be complete; `None` if it is over `max`.
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub(crate) async fn whole(
        &self,
        body: Body,
        max: usize,
        client: Option<&Arc<ClientPermit>>,
    ) -> Result<Option<ReceivedBytes>, ApiError> {
        let mut body = Paced::new(body, self.rate);
        let (received, _) = self.first(&mut body, max + 1, client, None).await?;
        Ok((received.bytes.len() <= max).then_some(received))
    }

    /// Receives the beginning of the body, until there are `enough` bytes of it. If its sender may have it passed on
    /// `early`, also until nothing comes for a while.
    async fn first(
        &self,
        body: &mut Paced,
        enough: usize,
        client: Option<&Arc<ClientPermit>>,
        early: Option<&Sender>,
    ) -> Result<(ReceivedBytes, FirstPartEnd), ApiError> {
        match tokio::time::timeout(FIRST_LIMIT, self.gather(body, enough, client, early)).await {
            Ok(gathered) => gathered,
            Err(_) => Err(self.refused("slow_body", too_slow())),
        }
    }

    async fn gather(
        &self,
        body: &mut Paced,
        enough: usize,
        client: Option<&Arc<ClientPermit>>,
        mut early: Option<&Sender>,
    ) -> Result<(ReceivedBytes, FirstPartEnd), ApiError> {
        let mut room = self.memory.room(client);
        let (mut only, mut all, mut trailers) = (Bytes::new(), BytesMut::new(), None);
        let ending = loop {
            if http_body::Body::is_end_stream(body) {
                break FirstPartEnd::Whole;
            }
            let length = only.len().max(all.len());
            if length >= enough {
                break FirstPartEnd::Enough;
            }
            let frame = match early.filter(|sender| length > 0 || sender.is_call) {
                None => body.frame().await,
                Some(sender) => match tokio::time::timeout(sender.pause(), body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) if sender.is_call => break FirstPartEnd::Paused(self.call_place(sender)?),
                    Err(_) => {
                        early = None;
                        match self.early_place(sender.client.as_ref(), EARLY_MAX) {
                            Some(place) => break FirstPartEnd::Paused(place),
                            None => continue,
                        }
                    }
                },
            };
            let data = match frame {
                None => break FirstPartEnd::Whole,
                Some(Ok(frame)) => match stripped(frame).into_data() {
                    Ok(data) => data,
                    Err(frame) => {
                        trailers = frame.into_trailers().ok();
                        continue;
                    }
                },
                Some(Err(error)) if error.is::<TooSlow>() => return Err(self.refused("slow_body", too_slow())),
                Some(Err(_)) => return Err(broke_off()),
            };
            // The usual body comes in one piece and is not copied. Many small pieces would keep more memory alive than
            // their size.
            let grown = if only.is_empty() && all.is_empty() {
                let grown = room.grow_to(data.len());
                only = data;
                grown
            } else {
                let length = only.len() + all.len() + data.len();
                let capacity = length.next_power_of_two();
                let grown = room.grow_to(capacity);
                if grown.is_ok() {
                    all.reserve(capacity - all.len());
                    all.extend_from_slice(&std::mem::take(&mut only));
                    all.extend_from_slice(&data);
                }
                grown
            };
            grown.map_err(|why| self.no_memory(why))?;
        };
        let bytes = if all.is_empty() { only } else { all.freeze() };
        let received = ReceivedBytes {
            bytes,
            trailers,
            _room: Some(room),
        };
        Ok((received, ending))
    }

    /// A place for the body of a call. Without one it could not be answered before it is over.
    fn call_place(&self, sender: &Sender) -> Result<EarlyPermit, ApiError> {
        let place = self.early_place(sender.client.as_ref(), CALLS_MAX);
        place.ok_or_else(|| self.refused("open_calls", too_many_calls()))
    }

    fn early_place(&self, client: Option<&Arc<ClientPermit>>, max: u32) -> Option<EarlyPermit> {
        let of_client = match client {
            Some(client) => Some(client.early(max)?),
            None => None,
        };
        let place = self.early.clone().try_acquire_owned().ok()?;
        Some((place, of_client))
    }

    fn no_memory(&self, why: Exhausted) -> ApiError {
        let (reason, code, message) = match why {
            Exhausted::All => (
                "body_memory",
                ErrorCode::Unavailable,
                "the gateway holds as many requests' bodies as it may: try again, or raise --body-memory",
            ),
            Exhausted::Client => (
                "client_body_memory",
                ErrorCode::TooManyRequests,
                "the gateway holds as much of one client's bodies as it may, a quarter of --body-memory: send fewer at \
                 once, or send them faster",
            ),
        };
        self.refused(reason, ApiError::new(code, message))
    }

    fn refused(&self, reason: &'static str, error: ApiError) -> ApiError {
        self.metrics.refused(reason);
        error
    }
}

impl Sender {
    fn pause(&self) -> Duration {
        if self.is_call { CALL_PAUSE } else { PAUSE }
    }
}

impl Upload {
    pub(crate) fn attempt(&self) -> Body {
        match self {
            Self::Kept(ReceivedBytes { bytes, trailers, .. }) => match trailers.clone() {
                None => Body::from(bytes.clone()),
                Some(trailers) => {
                    let trailers = std::future::ready(Some(Ok(trailers)));
                    Body::new(Full::new(bytes.clone()).with_trailers(trailers))
                }
            },
            Self::Streamed(stream) => Body::new(Attempt(stream.clone())),
        }
    }

    /// Whether its length is unknown before its end.
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

    /// Whether it broke off while it was passed through. Then the missing response is only the client's fault.
    pub(crate) fn broke_off(&self) -> bool {
        matches!(self, Self::Streamed(stream) if stream.broke_off.load(Ordering::Acquire))
    }

    /// The error if it proved to be over `max`, or too slow, while it was passed through.
    pub(crate) fn check(&self, max: u64) -> Result<(), ApiError> {
        match self {
            Self::Streamed(stream) if stream.too_large.load(Ordering::Acquire) => Err(too_large(max)),
            Self::Streamed(stream) if stream.too_slow.load(Ordering::Acquire) => Err(too_slow()),
            _ => Ok(()),
        }
    }
}

fn too_large(max: u64) -> ApiError {
    ApiError::new(
        ErrorCode::TooLarge,
        format!(
            "the request's body is over the gateway's limit of {} (--max-body), as the function has it in memory as a \
             whole: send less, or pass a reference to the data",
            ByteSize(max)
        ),
    )
}

fn too_slow() -> ApiError {
    ApiError::new(
        ErrorCode::RequestTimeout,
        "the request's body came too slowly: send it again, over a better connection",
    )
}

fn broke_off() -> ApiError {
    ApiError::new(
        ErrorCode::BadRequest,
        "the request's body did not arrive whole: send it again",
    )
}

fn too_many_calls() -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        "the gateway, or this client, has as many calls open as it takes: end some, or try again",
    )
}

impl Stream {
    /// Returns the frame if everything so far is within the limit.
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

    /// Whether it may go on. One that comes slowly holds its function's place for long, so it needs one of the places
    /// of bodies that pause.
    fn may_go_on(&self) -> bool {
        if !self.body.lock().is_slow() {
            return true;
        }
        let mut early = self.early.lock();
        if early.is_none() {
            *early = self.intake.early_place(self.client.as_ref(), EARLY_MAX);
        }
        early.is_some()
    }
}

/// A frame; of trailers without what a client may not say in headers either.
fn stripped(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::strip_request(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

struct Attempt(Arc<Stream>);

impl http_body::Body for Attempt {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let stream = &self.0;
        stream.touched.store(true, Ordering::Release);
        let first = stream.first.lock().take();
        if let Some(first) = first.filter(|first| !first.bytes.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first.bytes))));
        }
        let polled = Pin::new(&mut *stream.body.lock()).poll_frame(cx);
        let polled = polled.map(|frame| frame.map(|frame| stream.count(stripped(frame?))));
        let polled = match polled {
            Poll::Ready(Some(Ok(_))) if !stream.may_go_on() => Poll::Ready(Some(Err(TooSlow.into()))),
            polled => polled,
        };
        if let Poll::Ready(Some(Err(error))) = &polled {
            if error.is::<TooSlow>() {
                stream.intake.metrics.refused("slow_body");
                stream.too_slow.store(true, Ordering::Release);
            }
            stream.broke_off.store(true, Ordering::Release);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        self.0.hint
    }
}
