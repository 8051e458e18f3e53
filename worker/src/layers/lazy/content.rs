//! The bytes of a layer's tar on this host: a sparse file, and which pieces of it are there.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rekindle_snapshotter::Digest;
use rekindle_snapshotter::layer::{FetchLayerError, PIECE, RangedLayer, TOUCHED_MAX};
use rustix::fs::{Mode, OFlags};
use tokio::sync::{Notify, Semaphore};

use super::counts::{FetchReason, LazyCounts};
use super::permits::FetchPermits;

/// Maximum number of pieces fetched with one request.
pub(super) const RUN: usize = 16;
/// Pieces between two others that are fetched with them, since one more request costs more.
const GAP: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceState {
    Absent,
    Coming,
    Present,
}

/// The pieces that reads have touched, in order.
#[derive(Debug, Default)]
struct TouchedPieces {
    order: Vec<u32>,
    known: HashSet<u32>,
}

/// The bytes of a layer's tar.
#[derive(Debug)]
pub(in crate::layers) struct Content {
    layer: Arc<RangedLayer>,
    /// It has no name, so nothing is left of it after the worker's end.
    file: File,
    pieces: Mutex<Vec<PieceState>>,
    changed: Notify,
    touched: Option<Mutex<TouchedPieces>>,
    permits: FetchPermits,
    counts: Arc<LazyCounts>,
    /// When a failed read was last logged.
    pub(super) told: Mutex<Option<Instant>>,
}

/// Pieces that are being fetched. Those that have not come when it is dropped are absent again.
struct FetchClaim<'a> {
    content: &'a Content,
    pieces: Range<usize>,
}

impl Drop for FetchClaim<'_> {
    fn drop(&mut self) {
        for piece in &mut self.content.pieces.lock()[self.pieces.clone()] {
            if *piece == PieceState::Coming {
                *piece = PieceState::Absent;
            }
        }
        self.content.changed.notify_waiters();
    }
}

impl Content {
    /// Creates it with no pieces, on the disk of `dir`. `records` says whether the pieces read are recorded.
    pub(super) fn new(
        layer: Arc<RangedLayer>,
        dir: &Path,
        records: bool,
        fetches: Arc<Semaphore>,
        counts: Arc<LazyCounts>,
    ) -> io::Result<Self> {
        let file = rustix::fs::open(
            dir,
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?;
        let file = File::from(file);
        file.set_len(layer.tar_bytes())?;
        Ok(Self {
            pieces: Mutex::new(vec![PieceState::Absent; layer.pieces()]),
            layer,
            file,
            changed: Notify::new(),
            touched: records.then(Mutex::default),
            permits: FetchPermits::new(fetches),
            counts,
            told: Mutex::new(None),
        })
    }

    pub(super) fn digest(&self) -> Digest {
        self.layer.digest()
    }

    pub(super) fn tar_bytes(&self) -> u64 {
        self.layer.tar_bytes()
    }

    pub(super) fn counts(&self) -> &LazyCounts {
        &self.counts
    }

    /// Puts in pieces that were fetched. Blocks.
    pub(super) fn put(&self, pieces: &[(usize, Vec<u8>)]) -> io::Result<()> {
        for (piece, plain) in pieces {
            self.file.write_all_at(plain, *piece as u64 * PIECE)?;
        }
        let mut states = self.pieces.lock();
        for (piece, _) in pieces {
            states[*piece] = PieceState::Present;
        }
        Ok(())
    }

    /// Returns the pieces with these bytes of the tar.
    pub(super) fn with(bytes: &Range<u64>) -> Range<usize> {
        (bytes.start / PIECE) as usize..bytes.end.div_ceil(PIECE) as usize
    }

    /// Returns whether all of these pieces are there.
    pub(super) fn has(&self, pieces: Range<usize>) -> bool {
        self.pieces.lock()[pieces]
            .iter()
            .all(|piece| *piece == PieceState::Present)
    }

    /// Records that these pieces were read.
    pub(super) fn touch(&self, pieces: Range<usize>) {
        let Some(touched) = &self.touched else { return };
        let mut touched = touched.lock();
        for piece in pieces {
            let piece = piece as u32;
            if touched.order.len() < TOUCHED_MAX && touched.known.insert(piece) {
                touched.order.push(piece);
            }
        }
    }

    /// Returns the pieces that were read, in order, if they are recorded.
    pub(super) fn touched(&self) -> Option<Vec<u32>> {
        self.touched.as_ref().map(|touched| touched.lock().order.clone())
    }

    /// Reads bytes of the tar that are there. Blocks, for as long as a disk does.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Returns the first absent pieces from `from` on, at most [`RUN`].
    pub(super) fn absent(&self, from: usize) -> Option<Range<usize>> {
        let pieces = self.pieces.lock();
        let first = from
            + pieces
                .get(from..)?
                .iter()
                .position(|piece| *piece != PieceState::Present)?;
        Some(first..pieces.len().min(first + RUN))
    }

    /// Returns runs of pieces, as many as fit into one request each, that together have these pieces.
    pub(super) fn runs(&self, pieces: &[u32]) -> Vec<Range<usize>> {
        let last = self.layer.pieces();
        let mut sorted: Vec<usize> = pieces
            .iter()
            .map(|piece| *piece as usize)
            .filter(|p| *p < last)
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for piece in sorted {
            match runs.last_mut() {
                Some(run) if piece <= run.end + GAP && piece < run.start + RUN => run.end = piece + 1,
                _ => runs.push(piece..piece + 1),
            }
        }
        runs
    }

    /// Claims the first absent pieces among these. The flag says whether others are being fetched.
    fn claim(&self, wanted: &Range<usize>) -> (Option<FetchClaim<'_>>, bool) {
        let mut pieces = self.pieces.lock();
        let is_coming = pieces[wanted.clone()].contains(&PieceState::Coming);
        let first = wanted.clone().find(|piece| pieces[*piece] == PieceState::Absent);
        let claim = first.map(|first| {
            let end = (first..wanted.end.min(first + RUN)).take_while(|piece| pieces[*piece] == PieceState::Absent);
            let claimed = first..end.last().map_or(first, |last| last + 1);
            pieces[claimed.clone()].fill(PieceState::Coming);
            FetchClaim {
                content: self,
                pieces: claimed,
            }
        });
        (claim, is_coming)
    }

    /// Fetches what is absent of these pieces, each once for all callers. Has no limit of time of its own.
    ///
    /// # Errors
    /// Returns an error when a piece cannot be fetched or written.
    pub(super) async fn bring(
        self: &Arc<Self>,
        wanted: Range<usize>,
        reason: FetchReason,
    ) -> Result<(), FetchLayerError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.claim(&wanted) {
                (Some(claim), _) => self.fetch(claim, reason).await?,
                (None, true) => changed.await,
                (None, false) => return Ok(()),
            }
        }
    }

    async fn fetch(self: &Arc<Self>, claim: FetchClaim<'_>, reason: FetchReason) -> Result<(), FetchLayerError> {
        let permit = self.permits.take(reason).await;
        let (pieces, bytes) = self.layer.fetch(claim.pieces.clone()).await?;
        drop(permit);
        self.counts.add(reason, bytes);
        let this = Arc::clone(self);
        let put = tokio::task::spawn_blocking(move || this.put(&pieces)).await;
        let put = put.map_err(|_| FetchLayerError::Shutdown(self.digest()))?;
        put.map_err(|cause| FetchLayerError::Place {
            path: "a file without a name".into(),
            cause: Arc::new(cause),
        })
    }

    /// Returns the whole tar, packed anew, for the unpacker. All pieces must be there.
    pub(super) fn packed(self: Arc<Self>) -> io::Result<impl io::Read + Send + 'static> {
        // The fastest level: it is unpacked at once.
        zstd::stream::read::Encoder::new(ContentReader { content: self, at: 0 }, -7)
    }
}

struct ContentReader {
    content: Arc<Content>,
    at: u64,
}

impl io::Read for ContentReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.content.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
