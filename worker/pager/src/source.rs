//! The source of pages.

use crate::pin::Pin;

/// A page of a snapshot: the process that it belonged to, and its number in that process's address space (address /
/// 4096).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRef {
    /// Process id at the checkpoint, in its pid namespace.
    pub pid: i32,
    /// Page number (address / 4096).
    pub page: u64,
}

/// A page to fill before the processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AheadPage {
    /// The page.
    pub page: PageRef,
    /// Whether it is about to be written. It then becomes private to the process at once, which avoids a fault that
    /// copies it.
    pub written: bool,
}

/// What a source knows of a page without blocking.
#[derive(Debug, PartialEq, Eq)]
pub enum PageLookup<'a> {
    /// It is all zero, or the snapshot has nothing there.
    Zero,
    /// Its bytes, and those of the following pages as far as they are contiguous. The length is a positive multiple of
    /// 4096.
    Bytes(&'a [u8]),
    /// Like `Bytes`, but they are in the file that the process maps there and only need to be let in.
    Mapped(&'a [u8]),
    /// Not on this host yet: [`PageSource::fetch`] brings it.
    Absent,
    /// Every process that could lack it has it. A fault on it has already been answered, and the thread only needs to
    /// look again.
    Settled,
}

/// Why a page cannot be read. The error is final: the source has retried whatever can be retried.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// What is lost and why, including the cause.
    pub message: String,
}

/// Serves the plain bytes of a snapshot's pages. Shared by all instances of a snapshot.
pub trait PageSource: Send + Sync {
    /// What is held of a page. Never blocks. The result is valid as long as `pin` is held. Afterwards the host may
    /// evict the page.
    fn held<'a>(&'a self, page: PageRef, pin: &'a Pin) -> PageLookup<'a>;

    /// Brings a page, so that [`Self::held`] does not return [`PageLookup::Absent`] any more unless the page is evicted
    /// at once. Blocks, with a limit. Must not be called by a pinned thread. Several threads of an instance may call
    /// it concurrently.
    ///
    /// # Errors
    /// If the page cannot be read.
    fn fetch(&self, page: PageRef) -> Result<(), SourceError>;

    /// The file's contents behind a page that the layout lists as backed. Blocks on file I/O. Rarely called.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn file_page(&self, page: PageRef) -> Result<Box<[u8]>, SourceError> {
        let message = format!("no file stands behind page {:#x} of process {}", page.page, page.pid);
        Err(SourceError { message })
    }
}
