//! Our page map: locates each page of a process's private anonymous memory. Pure.
//!
//! A page in no region reads as zero. Regions never overlap. A region with a payload never crosses a multiple of the
//! region size in the address space. So equal memory at equal addresses is cut into equal regions and stored once.

mod encoding;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::codec::{Encoding, PAGE_BYTES, RegionSize};
use crate::digest::Digest;

pub use encoding::ParseError;
pub use rekindle_criu::PageIndex;

/// One past the largest possible page number: 57 bits of address.
pub(crate) const PAGE_INDEX_END: u64 = 1 << 45;

/// Maximum size of a chunk in bytes. Readers load what they need of one at once. A chunk is closed at half of this
/// size, and no region is larger than that half.
pub const CHUNK_BYTES_MAX: u32 = 8 << 20;

/// A chunk: its name in the store and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkRef {
    /// BLAKE3 of the object's bytes.
    pub id: Digest,
    /// Size of the object in bytes.
    pub len: u32,
}

/// Location of a region's payload, and what it must decode to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Payload {
    /// BLAKE3 of the region's decoded bytes.
    pub hash: Digest,
    /// How it is stored.
    pub encoding: Encoding,
    /// The chunk that contains it.
    pub chunk: ChunkRef,
    /// Offset in the chunk, in bytes.
    pub offset: u32,
    /// Length in the chunk, in bytes.
    pub len: u32,
}

/// A region of another snapshot, to which a region is stored as the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Base {
    /// Its first page. It may differ from the region's, but they have a page in common.
    pub first: PageIndex,
    /// Number of pages, as in a [`Region`].
    pub pages: u16,
    /// Location of its own bytes, which are not a difference.
    pub payload: Payload,
}

impl Base {
    /// Turns the contents of `region` into their difference to this base, or back: exclusive or, where both have bytes.
    /// `plain` has the region's bytes, `own` the base's.
    pub fn exclusive_or(&self, region: &Region, plain: &mut [u8], own: &[u8]) {
        let start = region.first.max(self.first);
        let skip = |first: PageIndex| (start.0 - first.0) as usize * PAGE_BYTES;
        let (Some(plain), Some(own)) = (plain.get_mut(skip(region.first)..), own.get(skip(self.first)..)) else {
            return;
        };
        for (byte, own) in plain.iter_mut().zip(own) {
            *byte ^= own;
        }
    }

    /// The base as a region, to be read.
    pub fn region(&self) -> Region {
        Region {
            first: self.first,
            pages: self.pages,
            payload: Some(self.payload),
            base: None,
        }
    }
}

/// A run of consecutive pages, stored as one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First page.
    pub first: PageIndex,
    /// Number of pages: at least 1. At most the region size, or 4 MiB if all are zero.
    pub pages: u16,
    /// Its payload. `None` if all its bytes are zero.
    pub payload: Option<Payload>,
    /// The base, if the payload is a difference (exclusive or, at the same addresses). It is an LZ4 block then.
    pub base: Option<Base>,
}

impl Region {
    /// The chunks needed to read it.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkRef> + use<> {
        let base = self.base.map(|base| base.payload.chunk);
        self.payload.map(|own| own.chunk).into_iter().chain(base)
    }

    /// The payload that others may refer to: its own, or that of its base. Others cannot refer to a difference.
    pub fn plain_payload(&self) -> Option<Payload> {
        self.base.map_or(self.payload, |base| Some(base.payload))
    }

    /// Bytes stored for it, including its base.
    pub fn stored_bytes(&self) -> u64 {
        let bytes = |payload: Option<Payload>| payload.map_or(0, |p| u64::from(p.len));
        bytes(self.payload) + bytes(self.base.map(|base| base.payload))
    }

    /// One past its last page.
    pub fn end(&self) -> PageIndex {
        PageIndex(self.first.0 + u64::from(self.pages))
    }

    /// Whether it contains `page`.
    pub fn contains(&self, page: PageIndex) -> bool {
        self.first <= page && page < self.end()
    }

    /// Size of its decoded bytes.
    pub fn plain_len(&self) -> usize {
        usize::from(self.pages) * PAGE_BYTES
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {:#x}+{} pages", self.first.address(), self.pages)
    }
}

/// Why regions do not form a page map.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum PageMapError {
    /// No pages, too many, or beyond the address space.
    #[error("{0} has a page count or address out of range")]
    Range(Box<Region>),
    /// Has a payload, and is larger than the region size or crosses a multiple of it.
    #[error("{0} reaches over a multiple of {1}")]
    Boundary(Box<Region>, RegionSize),
    /// Starts before the end of the previous region.
    #[error("{0} is out of order or overlaps the region before it")]
    Order(Box<Region>),
    /// Its base is invalid: no pages in common, a difference itself, or out of range.
    #[error("what {0} is stored as the difference to cannot be")]
    Base(Box<Region>),
    /// The payload is outside its chunk, or the payload or the chunk has an impossible length.
    #[error("payload of {0} has an impossible length or lies outside its chunk, of {CHUNK_BYTES_MAX} bytes at most")]
    Payload(Box<Region>),
}

/// The page map of one process: its regions by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageMap {
    size: RegionSize,
    regions: Vec<Region>,
}

impl PageMap {
    /// A page map of `regions`, which are at most `size` and must be sorted by address.
    pub fn new(size: RegionSize, regions: Vec<Region>) -> Result<Self, PageMapError> {
        let mut end = PageIndex(0);
        for region in &regions {
            check(size, region)?;
            if region.first < end {
                return Err(PageMapError::Order(Box::new(*region)));
            }
            end = region.end();
        }
        Ok(Self { size, regions })
    }

    /// The region size.
    pub fn region_size(&self) -> RegionSize {
        self.size
    }

    /// All regions, by address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region that contains `page`. `None` means that the page reads as zero. O(log n), allocates nothing.
    pub fn lookup(&self, page: PageIndex) -> Option<&Region> {
        let after = self.regions.partition_point(|r| r.first <= page);
        let region = self.regions.get(after.checked_sub(1)?)?;
        region.contains(page).then_some(region)
    }

    /// Whether any of the pages `first..end` is in a region that is not all zero.
    pub fn holds_any(&self, first: PageIndex, end: PageIndex) -> bool {
        let at = self.regions.partition_point(|r| r.end() <= first);
        self.regions[at..]
            .iter()
            .take_while(|r| r.first < end)
            .any(|r| r.payload.is_some())
    }

    /// Pages in all regions.
    pub fn page_count(&self) -> u64 {
        self.regions.iter().map(|r| u64::from(r.pages)).sum()
    }
}

fn check(size: RegionSize, region: &Region) -> Result<(), PageMapError> {
    if !(1..=RegionSize::MAX.pages()).contains(&region.pages) || region.first.0 >= PAGE_INDEX_END {
        return Err(PageMapError::Range(Box::new(*region)));
    }
    let Some(payload) = &region.payload else {
        return region
            .base
            .map_or(Ok(()), |_| Err(PageMapError::Base(Box::new(*region))));
    };
    if let Some(base) = &region.base {
        let plain = base.region();
        let in_range = (1..=RegionSize::MAX.pages()).contains(&base.pages) && base.first.0 < PAGE_INDEX_END;
        let meets = || base.first < region.end() && region.first < plain.end();
        if !in_range || !meets() || payload.encoding != Encoding::Lz4 || !fits(&base.payload, plain.plain_len()) {
            return Err(PageMapError::Base(Box::new(*region)));
        }
    }
    let limit = u64::from(size.pages());
    if region.first.0 % limit + u64::from(region.pages) > limit {
        return Err(PageMapError::Boundary(Box::new(*region), size));
    }
    if fits(payload, region.plain_len()) {
        Ok(())
    } else {
        Err(PageMapError::Payload(Box::new(*region)))
    }
}

/// Whether this payload is possible for `plain` decoded bytes.
fn fits(payload: &Payload, plain: usize) -> bool {
    let (plain, len) = (plain as u64, u64::from(payload.len));
    let is_possible = match payload.encoding {
        Encoding::Raw => len == plain,
        Encoding::Lz4 => len > 0 && len * 8 < plain * 7,
    };
    let within = u64::from(payload.offset) + len <= u64::from(payload.chunk.len);
    is_possible && within && payload.chunk.len <= CHUNK_BYTES_MAX
}
