//! An object's body as a blocking reader, so that it can be unpacked as it arrives.

use std::io::{self, Read};

use aws_sdk_s3::primitives::ByteStream;
use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use crate::store::{Store, StoreError};

/// Pieces buffered between network and reader, each at most some 64 KiB.
const PIECES: usize = 32;

/// The reading end, for use on a blocking thread.
pub(super) struct BodyReader {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
    /// Set if the body was complete rather than interrupted.
    whole: bool,
    expected: u64,
    received: u64,
}

/// A reader of `body`, which has `bytes` bytes, and the future that feeds it and must run concurrently. The future ends
/// when the body is complete, breaks off or takes too long, or when the reader was dropped.
pub(super) fn bridge<'a>(
    store: &'a Store,
    key: &'a str,
    mut body: ByteStream,
    bytes: u64,
) -> (impl Future<Output = Result<(), StoreError>> + use<'a>, BodyReader) {
    let (sender, pieces) = mpsc::channel(PIECES);
    let pump = store.bounded_transfer(key, bytes, async move {
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|e| store.body_failed(key, e))?;
            if sender.send(piece).await.is_err() {
                // The reader has stopped and reports the reason itself.
                return Ok(());
            }
        }
        Ok(())
    });
    let reader = BodyReader {
        pieces,
        current: Bytes::new(),
        whole: false,
        expected: bytes,
        received: 0,
    };
    (pump, reader)
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.whole {
            match self.pieces.blocking_recv() {
                Some(piece) => {
                    self.received += piece.len() as u64;
                    self.current = piece;
                }
                None if self.received == self.expected => self.whole = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the download broke off")),
            }
        }
        let n = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..n]);
        Ok(n)
    }
}
