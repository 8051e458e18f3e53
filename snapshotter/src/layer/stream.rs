//! An object's body as a blocking reader, so that it can be unpacked as it arrives.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use rekindle_store::{Store, StoreError};

/// Pieces buffered between network and reader, each at most some 64 KiB.
const PIECES: usize = 32;

/// The reading end, for use on a blocking thread.
pub(super) struct BodyReader {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
    /// Set if the body was complete rather than interrupted.
    whole: bool,
}

/// A reader of an object, and the future that feeds it and must run concurrently. The future ends when the body is
/// complete, breaks off or takes too long, or when the reader was dropped.
pub(super) fn bridge<'a>(
    store: &'a Store,
    key: &'a str,
) -> (impl Future<Output = Result<(), StoreError>> + use<'a>, BodyReader) {
    let (sender, pieces) = mpsc::channel(PIECES);
    let reader = BodyReader {
        pieces,
        current: Bytes::new(),
        whole: false,
    };
    (store.get_pieces(key, sender), reader)
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.whole {
            match self.pieces.blocking_recv() {
                Some(piece) if piece.is_empty() => self.whole = true,
                Some(piece) => self.current = piece,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the download ended early")),
            }
        }
        let n = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..n]);
        Ok(n)
    }
}
