//! The page map as bytes. All integers little-endian; the table is in docs/snapshot-format.md.
//!
//! ```text
//! "RKPM" version:u16 region_pages:u16 chunks:u32 regions:u32
//! chunks  × { id[32] len:u32 }
//! regions × { first:u64 pages:u16 kind:u8 0:u8 chunk:u32 offset:u32 len:u32 hash[32] }
//! ```
//!
//! The bytes carry no digest of their own: the manifest has it.

use std::collections::HashMap;

use super::{ChunkRef, PageIndex, PageMap, PageMapError, Payload, Region};
use crate::codec::{Encoding, RegionSize};
use crate::digest::Digest;

const MAGIC: &[u8; 4] = b"RKPM";
const VERSION: u16 = 2;
const HEADER_BYTES: usize = 16;
const CHUNK_BYTES: usize = 36;
const REGION_ENTRY_BYTES: usize = 56;

const KIND_ZERO: u8 = 0;
const KIND_RAW: u8 = 1;
const KIND_LZ4: u8 = 2;

/// Why bytes are not a page map.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    /// Does not begin with the magic.
    #[error("not a page map")]
    Magic,
    /// Another version of the format, or other region sizes.
    #[error(
        "page map has version {version} with regions of {region_pages} pages; this build reads version {VERSION} with a power of two up to 1024"
    )]
    Version {
        /// The version found.
        version: u16,
        /// The region size found, pages.
        region_pages: u16,
    },
    /// The counts in the header and the size do not agree.
    #[error("page map has {found} bytes where its header says {expected}")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// A region's entry has a value no entry has.
    #[error("entry {0} of the page map is malformed")]
    Entry(usize),
    /// The regions contradict each other or their chunks.
    #[error("page map is inconsistent")]
    Regions(#[source] Box<PageMapError>),
}

/// Reads little-endian integers from the front of a slice whose length was checked before.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[b]| b)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn digest(&mut self) -> Option<Digest> {
        self.take().map(Digest)
    }
}

impl PageMap {
    /// The page map as bytes. Chunks are listed in the order of their first use.
    pub fn encode(&self) -> Vec<u8> {
        let mut numbers: HashMap<ChunkRef, u32> = HashMap::new();
        let mut chunks = Vec::new();
        let mut entries = Vec::with_capacity(self.regions.len() * REGION_ENTRY_BYTES);
        for region in &self.regions {
            entries.extend_from_slice(&region.first.0.to_le_bytes());
            entries.extend_from_slice(&region.pages.to_le_bytes());
            let Some(payload) = &region.payload else {
                entries.extend_from_slice(&[0; REGION_ENTRY_BYTES - 10]);
                continue;
            };
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            let number = *numbers.entry(payload.chunk).or_insert_with(|| {
                chunks.extend_from_slice(&payload.chunk.id.0);
                chunks.extend_from_slice(&payload.chunk.len.to_le_bytes());
                next
            });
            let kind = match payload.encoding {
                Encoding::Raw => KIND_RAW,
                Encoding::Lz4 => KIND_LZ4,
            };
            entries.extend_from_slice(&[kind, 0]);
            entries.extend_from_slice(&number.to_le_bytes());
            entries.extend_from_slice(&payload.offset.to_le_bytes());
            entries.extend_from_slice(&payload.len.to_le_bytes());
            entries.extend_from_slice(&payload.hash.0);
        }
        let mut out = Vec::with_capacity(HEADER_BYTES + chunks.len() + entries.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.size.pages().to_le_bytes());
        // 2^32 regions would be 16 TiB of memory; a length that did not fit would not parse, so it cannot mislead.
        out.extend_from_slice(&u32::try_from(numbers.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.regions.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&chunks);
        out.extend_from_slice(&entries);
        out
    }

    /// Read a page map. Every length and order is checked; memory used is proportional to `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut header = Cursor(bytes);
        if header.take::<4>().as_ref() != Some(MAGIC) {
            return Err(ParseError::Magic);
        }
        let short = ParseError::Length {
            found: bytes.len() as u64,
            expected: HEADER_BYTES as u64,
        };
        let (Some(version), Some(region_pages), Some(chunk_count), Some(region_count)) =
            (header.u16(), header.u16(), header.u32(), header.u32())
        else {
            return Err(short);
        };
        let known = RegionSize::from_pages(region_pages).filter(|_| version == VERSION);
        let size = known.ok_or(ParseError::Version { version, region_pages })?;
        let expected = HEADER_BYTES as u64
            + u64::from(chunk_count) * CHUNK_BYTES as u64
            + u64::from(region_count) * REGION_ENTRY_BYTES as u64;
        if expected != bytes.len() as u64 {
            let found = bytes.len() as u64;
            return Err(ParseError::Length { found, expected });
        }
        // The counts fit in `bytes.len()`, as was just checked, so they fit in usize.
        let (chunk_bytes, region_bytes) = header.0.split_at(chunk_count as usize * CHUNK_BYTES);
        let chunks = chunk_bytes
            .chunks_exact(CHUNK_BYTES)
            .enumerate()
            .map(|(at, entry)| parse_chunk(entry).ok_or(ParseError::Entry(at)))
            .collect::<Result<Vec<_>, _>>()?;
        let regions = region_bytes
            .chunks_exact(REGION_ENTRY_BYTES)
            .enumerate()
            .map(|(at, entry)| parse_region(entry, &chunks).ok_or(ParseError::Entry(at)))
            .collect::<Result<Vec<_>, _>>()?;
        Self::new(size, regions).map_err(|cause| ParseError::Regions(Box::new(cause)))
    }
}

fn parse_chunk(entry: &[u8]) -> Option<ChunkRef> {
    let mut entry = Cursor(entry);
    Some(ChunkRef {
        id: entry.digest()?,
        len: entry.u32()?,
    })
}

fn parse_region(entry: &[u8], chunks: &[ChunkRef]) -> Option<Region> {
    let mut entry = Cursor(entry);
    let first = PageIndex(entry.u64()?);
    let pages = entry.u16()?;
    let kind = entry.u8()?;
    if kind == KIND_ZERO {
        let blank = entry.0.iter().all(|b| *b == 0);
        return blank.then_some(Region {
            first,
            pages,
            payload: None,
        });
    }
    let encoding = match (kind, entry.u8()?) {
        (KIND_RAW, 0) => Encoding::Raw,
        (KIND_LZ4, 0) => Encoding::Lz4,
        _ => return None,
    };
    let chunk = *chunks.get(usize::try_from(entry.u32()?).ok()?)?;
    let payload = Payload {
        encoding,
        chunk,
        offset: entry.u32()?,
        len: entry.u32()?,
        hash: entry.digest()?,
    };
    Some(Region {
        first,
        pages,
        payload: Some(payload),
    })
}
