//! Detects faults that continue where earlier ones ended: a process that reads its memory sequentially, possibly in
//! several threads. For such streams, more and more pages are filled at once, like a file system's read-ahead.

/// Number of streams that are tracked per memory.
const STREAMS: usize = 4;
/// Number of pages filled with one that starts a stream, or belongs to none. See [`Streams::window`].
pub(crate) const LEAST: u64 = 4;
/// Number of pages filled at once in a long stream: 256 KiB.
pub(crate) const MOST: u64 = 64;

#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    /// The stream that a new one replaces.
    oldest: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Page at which it is expected to continue. 0 if none.
    next: u64,
    window: u64,
}

impl Streams {
    /// The number of pages to fill from `page` on, itself included, if a stream continues there: twice as many as
    /// before. `None` if no stream does.
    pub(crate) fn window(&mut self, page: u64) -> Option<u64> {
        let stream = self.streams.iter_mut().find(|s| s.next == page && page != 0)?;
        stream.window = (stream.window * 2).clamp(LEAST, MOST);
        Some(stream.window)
    }

    /// Records that the pages from `page` up to, but not including, `next` were filled. A stream may continue there.
    pub(crate) fn filled(&mut self, page: u64, next: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|s| s.next == page && page != 0) {
            // If fewer pages were available, the window grows from that number.
            stream.window = stream.window.min(next - page);
            stream.next = next;
            return;
        }
        self.streams[self.oldest] = Stream { next, window: LEAST };
        self.oldest = (self.oldest + 1) % STREAMS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches a page that is missing. Returns the number of pages that the fault filled.
    fn touch(streams: &mut Streams, page: u64) -> u64 {
        match streams.window(page) {
            Some(window) => {
                streams.filled(page, page + window);
                window
            }
            None => {
                streams.filled(page, page - page % LEAST + LEAST);
                0
            }
        }
    }

    #[test]
    fn a_stream_is_filled_more_and_more_at_once() {
        let mut streams = Streams::default();
        let windows: Vec<u64> = [101, 104, 112, 128, 160, 224, 288]
            .map(|page| touch(&mut streams, page))
            .to_vec();
        assert_eq!(windows, [0, 8, 16, 32, 64, 64, 64]);
        assert_eq!(touch(&mut streams, 400), 0, "elsewhere");
        assert_eq!(touch(&mut streams, 352), 64, "it goes on");
        assert_eq!(touch(&mut streams, 404), 8, "so does that");
    }

    #[test]
    fn a_stream_grows_from_what_there_was_to_be_had() {
        let mut streams = Streams::default();
        for (page, window, next) in [
            (100, None, 104),
            (104, Some(8), 112),
            (112, Some(16), 113),
            (113, Some(4), 117),
            (117, Some(8), 125),
        ] {
            assert_eq!(streams.window(page), window);
            streams.filled(page, next);
        }
    }

    #[test]
    fn some_streams_at_once_are_told_apart_and_touches_here_and_there_are_none() {
        let mut streams = Streams::default();
        let mut next: Vec<u64> = (1..=STREAMS as u64).map(|n| n * 10_000).collect();
        for round in 0..4 {
            for page in &mut next {
                let window = touch(&mut streams, *page);
                assert_eq!(window, if round == 0 { 0 } else { LEAST << round });
                *page += window.max(LEAST);
            }
        }
        for page in [7, 70_001, 3, 90_000, 5] {
            assert_eq!(touch(&mut streams, page), 0);
        }
        assert_eq!(Streams::default().window(0), None);
    }
}
