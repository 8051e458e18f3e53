//! Limits the frames of HTTP/2 that a destination sends for nothing: pings, settings, windows. Each costs it a few
//! bytes, and takes a processor here though no request is in flight. Frames are counted as they are read and written.

use std::io::{self, IoSlice};
use std::time::Instant;

use crate::frames::{FrameEvent, FrameReader};
use crate::watched::Watcher;

/// Number of frames that may come for nothing at once at first, and in each second after that.
const FREE: u64 = 1_000;
/// Number of them that a frame of a request permits: windows for its stream and the connection, a ping, a reset.
const EARNED: u64 = 4;
/// Maximum that is saved up.
const SAVED_MAX: u64 = 20_000;

/// Consumes bytes. Returns how many frames begin in them that have a part of a message, and how many others.
fn count(frames: &mut FrameReader, mut bytes: &[u8]) -> (u64, u64) {
    let (mut parts, mut others) = (0, 0);
    while let Some(event) = frames.next_event(&mut bytes) {
        match event {
            FrameEvent::Head(head) if head.has_part_of_message() => parts += 1,
            FrameEvent::Head(_) => others += 1,
            FrameEvent::Preface | FrameEvent::Payload => {}
        }
    }
    (parts, others)
}

/// What a destination may still send for nothing. Watches the client's stream to it.
pub(crate) struct FrameBudget {
    read: FrameReader,
    written: FrameReader,
    /// Number of frames that may come for nothing.
    left: u64,
    /// When that was last added to.
    at: Instant,
}

impl FrameBudget {
    pub(crate) fn new() -> Self {
        Self {
            read: FrameReader::of_server(),
            written: FrameReader::of_client(),
            left: FREE,
            at: Instant::now(),
        }
    }
}

impl Watcher for FrameBudget {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (_, others) = count(&mut self.read, bytes);
        if others == 0 {
            return Ok(());
        }
        let seconds = self.at.elapsed().as_secs();
        if seconds > 0 {
            self.at = Instant::now();
            self.left = self.left.saturating_add(seconds.saturating_mul(FREE)).min(SAVED_MAX);
        }
        match self.left.checked_sub(others) {
            Some(left) => self.left = left,
            None => {
                return Err(io::Error::other(
                    "it sent frames that bring nothing by the thousand (pings, settings, windows)",
                ));
            }
        }
        Ok(())
    }

    fn wrote(&mut self, parts: &[IoSlice<'_>], length: usize) {
        let mut left = length;
        for part in parts {
            let (taken, _) = part.split_at(part.len().min(left));
            left -= taken.len();
            let (earning, _) = count(&mut self.written, taken);
            self.left = self.left.saturating_add(earning * EARNED).min(SAVED_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::frames::PREFACE;
    use crate::watched::WatchedStream;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const CONTINUATION: u8 = 9;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        bytes.extend(std::iter::repeat_n(7, length.into()));
        bytes
    }

    #[test]
    fn frames_count_by_whether_they_have_a_part_of_a_message() {
        let all = [
            frame(4, 6),
            frame(HEADERS, 200),
            frame(CONTINUATION, 0),
            frame(DATA, 100),
            frame(DATA, 0),
            frame(PING, 8),
            frame(8, 4),
        ]
        .concat();
        assert_eq!(count(&mut FrameReader::of_server(), &all), (3, 4));
    }

    #[tokio::test]
    async fn what_comes_for_nothing_is_limited_and_requests_permit_more_of_it() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = WatchedStream::new(near, FrameBudget::new());
        let mut pings = async |near: &mut WatchedStream<_, FrameBudget>, count: usize| {
            let bytes = frame(PING, 8).repeat(count);
            far.write_all(&bytes).await.unwrap();
            near.read_exact(&mut vec![0; bytes.len()]).await
        };
        pings(&mut near, 1_000).await.unwrap();
        near.watcher.at = near.watcher.at.checked_sub(Duration::from_secs(2)).unwrap();
        pings(&mut near, 2_000).await.unwrap();
        near.write_all(PREFACE).await.unwrap();
        near.write_all(&frame(DATA, 1).repeat(100)).await.unwrap();
        near.write_all(&frame(PING, 8).repeat(100)).await.unwrap();
        pings(&mut near, 400).await.unwrap();
        let refused = pings(&mut near, 1).await.unwrap_err();
        assert!(refused.to_string().contains("bring nothing"), "{refused}");
    }
}
