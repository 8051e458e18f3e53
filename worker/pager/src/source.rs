//! Where pages come from.

use crate::pin::Pin;

/// A page of a snapshot: the process it belonged to, and its number in that process's address space (address / 4096).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRef {
    /// Process id at the checkpoint, in its pid namespace.
    pub pid: i32,
    /// Page number.
    pub page: u64,
}

/// A page to fill before the processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AheadPage {
    /// Which.
    pub page: PageRef,
    /// It is about to be written: it becomes the process's own at once, instead of in a fault that copies it.
    pub written: bool,
}

/// What a source can say of a page at once.
#[derive(Debug, PartialEq, Eq)]
pub enum Held<'a> {
    /// It is all zero, or the snapshot has nothing there.
    Zero,
    /// Its bytes, and those of the pages that follow it as far as they lie together: a positive multiple of 4096.
    Bytes(&'a [u8]),
    /// The same, and they are in the file that the process maps there: they need only be let in.
    Mapped(&'a [u8]),
    /// Not here yet: [`PageSource::fetch`] brings it.
    Absent,
    /// Every process that could miss it has it: a fault on it was answered already, and need only look again.
    Settled,
}

/// Why a page cannot be had. Final: the source has retried what can be retried.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// What is lost and why, with its cause.
    pub message: String,
}

/// Serves the plain bytes of a snapshot's pages. Shared by all instances of a snapshot.
pub trait PageSource: Send + Sync {
    /// What is held of a page. Never blocks. What it answers is so for as long as `pin` is held; then the host may take it back.
    fn held<'a>(&'a self, page: PageRef, pin: &'a Pin) -> Held<'a>;

    /// Brings a page, so that [`Self::held`] does not answer [`Held::Absent`] any more, unless it is taken back at once. Blocks,
    /// with a limit, and must not be called by who is pinned; called on several threads of an instance at once.
    ///
    /// # Errors
    /// When the page cannot be had.
    fn fetch(&self, page: PageRef) -> Result<(), SourceError>;

    /// What the file has behind a page that the layout calls backed. Blocks as the file does; asked for seldom.
    ///
    /// # Errors
    /// When the file cannot be had.
    fn file_page(&self, page: PageRef) -> Result<Box<[u8]>, SourceError> {
        let message = format!("no file stands behind page {:#x} of process {}", page.page, page.pid);
        Err(SourceError { message })
    }
}
