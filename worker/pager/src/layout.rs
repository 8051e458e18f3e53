//! The memory that a pager serves.

use std::ops::Range;
use std::sync::Arc;

use crate::source::PageRef;

/// Consecutive pages of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    /// First page.
    pub first: PageRef,
    /// Number of pages.
    pub pages: u64,
}

impl PageRange {
    /// Returns whether a page is one of these.
    pub fn contains(&self, page: PageRef) -> bool {
        self.first.pid == page.pid && page.page.checked_sub(self.first.page).is_some_and(|at| at < self.pages)
    }
}

/// Memory that CRIU does not register, or registers needlessly.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Private file mappings. The pager registers them itself before the processes run.
    pub mapped: Vec<PageRange>,
    /// Anonymous memory that the pager registers itself, also before they run: under
    /// [`Handover::Fork`](crate::Handover::Fork), CRIU does not.
    pub anonymous: Vec<PageRange>,
    /// Anonymous memory for which the snapshot holds nothing. It is left to the kernel.
    pub empty: Vec<PageRange>,
    /// Those of `mapped` that the process had mapped from a file, by address. Freed pages read as the file again, which
    /// [`PageSource::file_page`](crate::PageSource::file_page) reads.
    pub backed: Vec<PageRange>,
}

impl Layout {
    /// Page numbers in `backed` of one process.
    pub fn backed_of(&self, pid: i32) -> Arc<[Range<u64>]> {
        let of = self.backed.iter().filter(|b| b.first.pid == pid);
        of.map(|b| b.first.page..b.first.page + b.pages).collect()
    }
}
