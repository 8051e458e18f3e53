//! Pages of a stopped instance, served to the target.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use rekindle_pager::PAGE;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;

use super::super::page_numbering::BLOCK;
use super::super::peer::write_frame;
use super::memory::SourcePages;
use super::migration_source::MigrationSource;
use crate::errors::unavailable;

/// Interval at which a sender checks whether its pages are still wanted.
const OVER_LOOK: Duration = Duration::from_secs(1);
/// Bytes of pages sent in one chunk of the body.
const PIECE: usize = 256 * 1024;

impl MigrationSource {
    /// Returns a body with the pages of these numbers that exist.
    pub fn pages(self: &Arc<Self>, wanted: Range<u64>) -> Result<Body, ApiError> {
        let left = self.left.read().clone().ok_or_else(no_pages)?;
        let (pieces, received) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(4);
        let (here, runtime) = (Arc::clone(self), tokio::runtime::Handle::current());
        tokio::task::spawn_blocking(move || {
            here.send(&left, wanted, &pieces, &runtime);
            // Dropped before the room that was lent for them, which the source owns, is taken back.
            drop(left);
            drop(here);
        });
        Ok(Body::from_stream(ReceiverStream::new(received)))
    }

    /// Reads these pages and sends them, as long as anybody wants them.
    fn send(&self, left: &SourcePages, wanted: Range<u64>, pieces: &Sender<std::io::Result<Bytes>>, runtime: &Handle) {
        let mut number = wanted.start;
        let mut piece = Vec::with_capacity(PIECE + 128 * 1024);
        // A target may stop reading without saying so. It blocks this no longer than the migration source is kept.
        let put = |item: std::io::Result<Bytes>| loop {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            match runtime.block_on(tokio::time::timeout(OVER_LOOK, pieces.reserve())) {
                Ok(Ok(room)) => {
                    room.send(item);
                    return true;
                }
                Ok(Err(_)) => return false,
                Err(_) => {}
            }
        };
        loop {
            let block = read_block(left, number, BLOCK.min(wanted.end.saturating_sub(number)), &mut piece);
            let (pages, ended) = match block {
                Ok(pages) => (pages, pages == 0),
                Err(e) => {
                    put(Err(e));
                    return;
                }
            };
            number += pages;
            if piece.len() >= PIECE || ended {
                *self.heard.lock() = Instant::now();
                if !put(Ok(std::mem::take(&mut piece).into())) {
                    return;
                }
            }
            if ended {
                return;
            }
        }
    }

    /// Returns the block that contains a page.
    pub async fn block(self: &Arc<Self>, number: u64) -> Result<Vec<u8>, ApiError> {
        *self.heard.lock() = Instant::now();
        let left = self.left.read().clone().ok_or_else(no_pages)?;
        let read = tokio::task::spawn_blocking(move || {
            let mut frame = Vec::new();
            read_block(&left, number, BLOCK, &mut frame).map(|_| frame)
        });
        let read = read.await.map_err(|e| unavailable("read the instance's memory", &e))?;
        read.map_err(|e| unavailable("read the instance's memory", &e))
    }
}

fn no_pages() -> ApiError {
    ApiError::new(ErrorCode::Conflict, "the instance has not left yet")
}

/// Reads at most `most` pages, up to a block's. Returns their number; 0 after the last page.
fn read_block(left: &SourcePages, number: u64, most: u64, into: &mut Vec<u8>) -> std::io::Result<u64> {
    let mut buffer = [0; (BLOCK * PAGE) as usize];
    let pages = left.read(number, &mut buffer[..(most * PAGE) as usize])?;
    if pages > 0 {
        write_frame(number, &buffer[..(pages * PAGE) as usize], into);
    }
    Ok(pages)
}
