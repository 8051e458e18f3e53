//! Pages of an address space.

use std::fmt;

/// Bytes of a page. Snapshots require 4 KiB pages. A manifest with another page size is rejected.
pub const PAGE_BYTES: usize = 4096;

/// A page number in an address space: the address divided by the page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds `address`.
    pub fn containing(address: u64) -> Self {
        Self(address / PAGE_BYTES as u64)
    }

    /// The address of the page's first byte.
    pub fn address(self) -> u64 {
        self.0 * PAGE_BYTES as u64
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.0)
    }
}
