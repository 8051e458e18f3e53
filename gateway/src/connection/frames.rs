//! Follows the input of an HTTP/2 connection frame by frame. A frame that has begun must be complete in time. Frames
//! that cost their sender nothing are limited to a number a second.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rekindle_relay::{FrameEvent, FrameHead, FrameKind, FramePosition, FrameReader, Watcher};
use tokio::time::{Instant, Sleep};

use crate::metrics::Metrics;

/// Maximum number of frames in a second that ask for work and bring nothing: resets, settings, pings, priorities, empty
/// data.
const IDLE_FRAMES: u32 = 500;
/// Longest write that counts as no more than the acknowledgement of a ping.
const ACKNOWLEDGED: usize = 17;

/// Counts what matters for the limits.
#[derive(Debug)]
pub(super) struct Frames {
    reader: FrameReader,
    /// Whether a head has begun whose last frame has not come.
    is_in_head: bool,
    /// Ends received: of the preface, of frames, of heads.
    ends: u64,
    /// Frames that brought nothing.
    idle: u64,
    /// Empty frames of data that requests may still end with: gRPC's clients end each call so.
    last: u64,
    /// Pings. gRPC's clients send one with the data that they take, to see how much may be on its way.
    pings: u64,
}

/// Requests that may be in flight on a connection, more or less.
const LAST_MAX: u64 = 256;

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            reader: FrameReader::of_client(),
            is_in_head: false,
            ends: 0,
            idle: 0,
            last: 0,
            pings: 0,
        }
    }

    /// Consumes input.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(event) = self.reader.next_event(&mut bytes) {
            match event {
                FrameEvent::Head(head) => self.begin(head),
                FrameEvent::Preface | FrameEvent::Payload if !self.is_in_head => self.ends += 1,
                FrameEvent::Preface | FrameEvent::Payload => {}
            }
        }
    }

    fn begin(&mut self, head: FrameHead) {
        match head.kind {
            FrameKind::Headers | FrameKind::Continuation => {
                self.is_in_head = head.leaves_headers_open();
                if head.kind == FrameKind::Headers {
                    self.last = (self.last + 1).min(LAST_MAX);
                }
            }
            // A window comes for each piece of a response that the client takes fast.
            FrameKind::WindowUpdate => {}
            FrameKind::Ping => self.pings += 1,
            FrameKind::Data | FrameKind::Other if head.has_part_of_message() => {}
            FrameKind::Data if self.last > 0 => self.last -= 1,
            FrameKind::Data | FrameKind::Other => self.idle += 1,
        }
    }

    /// Whether something has begun that must be complete soon: anything except data, which has a rate.
    pub(super) fn is_waiting(&self) -> bool {
        match self.reader.position() {
            FramePosition::Between | FramePosition::Payload(FrameKind::Data) => self.is_in_head,
            FramePosition::Preface | FramePosition::Head | FramePosition::Payload(_) => true,
        }
    }
}

/// Watches the frames of a client's stream.
pub(super) struct FrameWatcher {
    frames: Frames,
    limit: Duration,
    metrics: Arc<Metrics>,
    /// When the incomplete frame or head began.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Start of the second in which idle frames are counted, and their number before it.
    second: Instant,
    idle_before: u64,
    /// Whether something was written since the last ping that was more than an acknowledgement.
    has_written: bool,
}

impl FrameWatcher {
    pub(super) fn new(limit: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            frames: Frames::new(),
            limit,
            metrics,
            since: Some(Instant::now()),
            timer: None,
            second: Instant::now(),
            idle_before: 0,
            has_written: false,
        }
    }
}

impl Watcher for FrameWatcher {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let ends = self.frames.ends;
        self.frames.feed(bytes);
        let mut pings = std::mem::take(&mut self.frames.pings);
        if pings > 0 && std::mem::take(&mut self.has_written) {
            pings -= 1;
        }
        self.frames.idle += pings;
        let now = Instant::now();
        if self.frames.ends != ends || !self.frames.is_waiting() {
            self.since = None;
            self.timer = None;
        }
        if self.frames.is_waiting() {
            self.since.get_or_insert(now);
        }
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.idle_before = self.frames.idle;
        }
        // Frames since the second began count too; that may have been before the last read.
        if self.frames.idle - self.idle_before > u64::from(IDLE_FRAMES) {
            self.metrics.refused("idle_frames");
            return Err(io::Error::other("frames that bring nothing came by the hundred"));
        }
        Ok(())
    }

    fn wrote(&mut self, _: &[IoSlice<'_>], length: usize) {
        self.has_written |= length > ACKNOWLEDGED;
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(since) = self.since else {
            return Poll::Pending;
        };
        let until = since + self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().poll(cx).map(|()| {
            self.metrics.refused("slow_head");
            io::Error::new(io::ErrorKind::TimedOut, "a frame or a request's head took too long")
        })
    }
}

#[cfg(test)]
mod tests {
    use rekindle_relay::{PREFACE, WatchedStream};

    use super::*;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const END_HEADERS: u8 = 4;
    const HEAD_BYTES: usize = 9;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.extend(std::iter::repeat_n(7, length.into()));
        bytes
    }

    /// Feeds the bytes one by one. Returns after which of them something is awaited.
    fn waiting(frames: &mut Frames, bytes: &[u8]) -> Vec<bool> {
        bytes
            .iter()
            .map(|byte| {
                frames.feed(&[*byte]);
                frames.is_waiting()
            })
            .collect()
    }

    fn begun() -> Frames {
        let mut frames = Frames::new();
        assert!(frames.is_waiting(), "for the preface");
        frames.feed(PREFACE);
        assert!(!frames.is_waiting());
        frames
    }

    #[test]
    fn what_has_begun_is_waited_for_until_it_is_whole() {
        let mut frames = begun();
        let settings = waiting(&mut frames, &frame(4, 0, 3));
        assert!(settings[..11].iter().all(|w| *w) && !settings[11]);
        assert!(!waiting(&mut frames, &frame(4, 1, 0)).pop().unwrap());
    }

    #[test]
    fn a_head_lasts_until_the_last_of_its_frames() {
        let mut frames = begun();
        for part in [
            frame(HEADERS, 0, 5),
            frame(CONTINUATION, 0, 0),
            frame(CONTINUATION, 0, 2),
        ] {
            let ends = frames.ends;
            assert!(waiting(&mut frames, &part).into_iter().all(|w| w));
            assert_eq!(frames.ends, ends, "a part of a head puts nothing off");
        }
        assert!(
            !waiting(&mut frames, &frame(CONTINUATION, END_HEADERS, 2))
                .pop()
                .unwrap()
        );
        assert!(!waiting(&mut frames, &frame(HEADERS, END_HEADERS, 2)).pop().unwrap());
    }

    #[test]
    fn each_request_may_end_with_an_empty_frame_of_data() {
        let mut frames = begun();
        for _ in 0..1_000 {
            for part in [frame(HEADERS, END_HEADERS, 9), frame(DATA, 0, 9), frame(DATA, 1, 0)] {
                frames.feed(&part);
            }
        }
        assert_eq!(frames.idle, 0);
        frames.feed(&frame(DATA, 0, 0).repeat(3));
        assert_eq!(frames.idle, 3);
    }

    #[test]
    fn data_has_a_rate_and_no_time() {
        let mut frames = begun();
        let data = waiting(&mut frames, &frame(DATA, 0, 4));
        assert!(data[..8].iter().all(|w| *w), "its header is waited for");
        assert!(!data[8..].iter().any(|w| *w));
    }

    #[tokio::test]
    async fn a_ping_for_each_response_is_free_and_others_are_not() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        const PINGS: u64 = 20;
        for (written, counted) in [(40, 0), (ACKNOWLEDGED, PINGS)] {
            let (mut client, server) = tokio::io::duplex(1 << 10);
            let mut server = WatchedStream::new(
                server,
                FrameWatcher::new(Duration::from_secs(60), Arc::new(Metrics::new())),
            );
            let mut taken = [0; 64];
            client.write_all(PREFACE).await.unwrap();
            server.read_exact(&mut taken[..PREFACE.len()]).await.unwrap();
            for _ in 0..PINGS {
                server.write_all(&vec![0; written]).await.unwrap();
                client.read_exact(&mut taken[..written]).await.unwrap();
                client.write_all(&frame(PING, 0, 8)).await.unwrap();
                server.read_exact(&mut taken[..HEAD_BYTES + 8]).await.unwrap();
            }
            assert_eq!(server.watcher().frames.idle, counted, "after writes of {written} bytes");
        }
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let all: Vec<u8> = [
            frame(4, 0, 6),
            frame(HEADERS, 0, 200),
            frame(CONTINUATION, END_HEADERS, 9),
            frame(DATA, 1, 100),
            frame(3, 0, 4),
            frame(6, 0, 8),
            frame(DATA, 0, 0),
            frame(WINDOW_UPDATE, 0, 4),
        ]
        .concat();
        for piece in 1..all.len() {
            let mut frames = begun();
            all.chunks(piece).for_each(|part| frames.feed(part));
            assert!(!frames.is_waiting());
            let counted = (frames.ends, frames.idle, frames.pings);
            assert_eq!(counted, (8, 2, 1), "in pieces of {piece}");
        }
    }
}
