//! Encoding of the page map. All integers are little-endian. The table is in docs/reference/snapshot-format.md.
//!
//! ```text
//! "RKPM" version:u16 region_pages:u16 chunks:u32 regions:u32 (bases:u32)
//! chunks  × { id[32] len:u32 }
//! regions × { first:u64 pages:u16 kind:u8 0:u8 chunk:u32 offset:u32 len:u32 hash[32] }
//! (bases  × the same)
//! ```
//!
//! Parts in parentheses are in version 3 only, which is written if a region is stored as the difference to another, its
//! base. There is one base per such region, in the order of these regions.
//!
//! The encoding has no digest of its own: the manifest has it.

use std::collections::HashMap;

use super::{Base, ChunkRef, PageIndex, PageMap, PageMapError, Payload, Region};
use crate::codec::{Encoding, RegionSize};
use crate::digest::Digest;

const MAGIC: &[u8; 4] = b"RKPM";
/// Without regions stored as differences.
const VERSION_PLAIN: u16 = 2;
const VERSION: u16 = 3;
const HEADER_BYTES: usize = 16;
/// Size of the number of bases, which follows the header of version 3.
const BASES_BYTES: usize = 4;
const CHUNK_BYTES: usize = 36;
const REGION_ENTRY_BYTES: usize = 56;

const KIND_ZERO: u8 = 0;
const KIND_RAW: u8 = 1;
const KIND_LZ4: u8 = 2;
/// An LZ4 block of the difference to a base.
const KIND_DIFFERENCE: u8 = 3;

/// Why bytes are not a page map.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    /// Does not start with the magic number.
    #[error("not a page map")]
    Magic,
    /// Another version of the format, or an unsupported region size.
    #[error(
        "page map has version {version} with regions of {region_pages} pages; this build reads versions \
         {VERSION_PLAIN} and {VERSION} with a power of two up to 1024"
    )]
    Version {
        /// The version found.
        version: u16,
        /// The region size found, in pages.
        region_pages: u16,
    },
    /// The header's counts do not match the size.
    #[error("page map has {found} bytes where its header says {expected}")]
    Length {
        /// Actual bytes.
        found: u64,
        /// Expected bytes.
        expected: u64,
    },
    /// A region's entry has an invalid value.
    #[error("entry {0} of the page map is malformed")]
    Entry(usize),
    /// The number of bases differs from the number of regions stored as differences.
    #[error("page map has {found} bases for {expected} regions that are differences")]
    Bases {
        /// Number of bases.
        found: usize,
        /// Number of regions with a base.
        expected: usize,
    },
    /// The regions contradict each other or their chunks.
    #[error("page map is inconsistent")]
    Regions(#[source] Box<PageMapError>),
}

/// Reads little-endian integers from the front of a slice whose length has been checked.
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
    /// Encodes the page map. Chunks are listed in the order of their first use.
    pub fn encode(&self) -> Vec<u8> {
        let mut chunks = Chunks::default();
        let mut entries = Vec::with_capacity(self.regions.len() * REGION_ENTRY_BYTES);
        for region in &self.regions {
            chunks.push(&mut entries, region);
        }
        let bases: Vec<Base> = self.regions.iter().filter_map(|region| region.base).collect();
        for base in &bases {
            chunks.push(&mut entries, &base.region());
        }
        let mut out = Vec::with_capacity(HEADER_BYTES + BASES_BYTES + chunks.bytes.len() + entries.len());
        // 2^32 regions would be 16 TiB of memory. A count that did not fit would not parse, so it cannot mislead.
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(MAGIC);
        let version = if bases.is_empty() { VERSION_PLAIN } else { VERSION };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&self.size.pages().to_le_bytes());
        out.extend_from_slice(&count(chunks.numbers.len()));
        out.extend_from_slice(&count(self.regions.len()));
        if !bases.is_empty() {
            out.extend_from_slice(&count(bases.len()));
        }
        out.extend_from_slice(&chunks.bytes);
        out.extend_from_slice(&entries);
        out
    }

    /// Parses a page map. Every length and order is checked. Memory use is proportional to `bytes`.
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
        let known = RegionSize::from_pages(region_pages).filter(|_| matches!(version, VERSION_PLAIN | VERSION));
        let size = known.ok_or(ParseError::Version { version, region_pages })?;
        let (header_bytes, base_count) = match version {
            VERSION_PLAIN => (HEADER_BYTES, 0),
            _ => (HEADER_BYTES + BASES_BYTES, header.u32().ok_or(short)?),
        };
        let expected = header_bytes as u64
            + u64::from(chunk_count) * CHUNK_BYTES as u64
            + (u64::from(region_count) + u64::from(base_count)) * REGION_ENTRY_BYTES as u64;
        if expected != bytes.len() as u64 {
            let found = bytes.len() as u64;
            return Err(ParseError::Length { found, expected });
        }
        // The counts were just checked against `bytes.len()`, so they fit in usize.
        let (chunk_bytes, region_bytes) = header.0.split_at(chunk_count as usize * CHUNK_BYTES);
        let chunks = chunk_bytes
            .chunks_exact(CHUNK_BYTES)
            .enumerate()
            .map(|(at, entry)| parse_chunk(entry).ok_or(ParseError::Entry(at)))
            .collect::<Result<Vec<_>, _>>()?;
        let (region_bytes, base_bytes) = region_bytes.split_at(region_count as usize * REGION_ENTRY_BYTES);
        let mut regions = Vec::with_capacity(region_count as usize);
        let mut bases = base_bytes.chunks_exact(REGION_ENTRY_BYTES);
        let mut differences = 0;
        for (at, entry) in region_bytes.chunks_exact(REGION_ENTRY_BYTES).enumerate() {
            let malformed = ParseError::Entry(at);
            let (mut region, is_difference) = parse_region(entry, &chunks).ok_or(malformed.clone())?;
            if is_difference {
                differences += 1;
                // Missing bases are reported below.
                region.base = match bases.next() {
                    Some(base) => Some(parse_base(base, &chunks).ok_or(malformed)?),
                    None => None,
                };
            }
            regions.push(region);
        }
        if differences != base_count as usize {
            return Err(ParseError::Bases {
                found: base_count as usize,
                expected: differences,
            });
        }
        Self::new(size, regions).map_err(|cause| ParseError::Regions(Box::new(cause)))
    }
}

/// The chunks of a page map being encoded, in the order of their first use.
#[derive(Default)]
struct Chunks {
    numbers: HashMap<ChunkRef, u32>,
    bytes: Vec<u8>,
}

impl Chunks {
    /// Appends a region's entry.
    fn push(&mut self, entries: &mut Vec<u8>, region: &Region) {
        entries.extend_from_slice(&region.first.0.to_le_bytes());
        entries.extend_from_slice(&region.pages.to_le_bytes());
        let Some(payload) = &region.payload else {
            entries.extend_from_slice(&[0; REGION_ENTRY_BYTES - 10]);
            return;
        };
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(payload.chunk).or_insert_with(|| {
            self.bytes.extend_from_slice(&payload.chunk.id.0);
            self.bytes.extend_from_slice(&payload.chunk.len.to_le_bytes());
            next
        });
        let kind = match (payload.encoding, region.base) {
            (Encoding::Raw, _) => KIND_RAW,
            (Encoding::Lz4, None) => KIND_LZ4,
            (Encoding::Lz4, Some(_)) => KIND_DIFFERENCE,
        };
        entries.extend_from_slice(&[kind, 0]);
        entries.extend_from_slice(&number.to_le_bytes());
        entries.extend_from_slice(&payload.offset.to_le_bytes());
        entries.extend_from_slice(&payload.len.to_le_bytes());
        entries.extend_from_slice(&payload.hash.0);
    }
}

fn parse_chunk(entry: &[u8]) -> Option<ChunkRef> {
    let mut entry = Cursor(entry);
    Some(ChunkRef {
        id: entry.digest()?,
        len: entry.u32()?,
    })
}

/// A region that has a payload and is not a difference itself.
fn parse_base(entry: &[u8], chunks: &[ChunkRef]) -> Option<Base> {
    let (region, is_difference) = parse_region(entry, chunks)?;
    let payload = region.payload.filter(|_| !is_difference)?;
    Some(Base {
        first: region.first,
        pages: region.pages,
        payload,
    })
}

/// Returns the region without its base, and whether it has one.
fn parse_region(entry: &[u8], chunks: &[ChunkRef]) -> Option<(Region, bool)> {
    let mut entry = Cursor(entry);
    let first = PageIndex(entry.u64()?);
    let pages = entry.u16()?;
    let kind = entry.u8()?;
    if kind == KIND_ZERO {
        let blank = entry.0.iter().all(|b| *b == 0);
        let zero = Region {
            first,
            pages,
            payload: None,
            base: None,
        };
        return blank.then_some((zero, false));
    }
    let encoding = match (kind, entry.u8()?) {
        (KIND_RAW, 0) => Encoding::Raw,
        (KIND_LZ4 | KIND_DIFFERENCE, 0) => Encoding::Lz4,
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
    let region = Region {
        first,
        pages,
        payload: Some(payload),
        base: None,
    };
    Some((region, kind == KIND_DIFFERENCE))
}
