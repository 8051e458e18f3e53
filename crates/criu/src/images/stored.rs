//! `pagemap-*.img` in every form that CRIU writes: pages in a parent directory (`PE_PARENT`), and from CRIU 4.3 on
//! pages stored as LZ4 blocks. [`super::PagemapImage`] is the plain form, which the rest of the code uses.
//! ```text
//! pages-N.img of a compressed run:  [to a multiple of 4096, if PE_PAYLOAD_ALIGNED] block block … block
//! a block of B bytes of memory:     no bytes: all zero · B bytes: uncompressed · fewer: one LZ4 block
//! ```
//! Source: the messages and the checks of CRIU 4.3's `crit`.

use prost::Message as _;

use super::pagemap::{FIELD_ADDRESS, FIELD_PAGES, KIND, PAGEMAP_MAGIC, PE_PARENT, PE_PRESENT, RawEntry, parse_with};
use super::{ImageError, framing, wire};
use crate::PAGE_BYTES;

/// The run's bytes start at a multiple of the page size.
pub const PE_PAYLOAD_ALIGNED: u32 = 1 << 3;

/// Maximum bytes of memory in a block.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;

const FIELD_COMPAT_PAGES: u64 = 2;
const FIELD_IN_PARENT: u64 = 3;
const FIELD_FLAGS: u64 = 4;
const FIELD_BLOCKS: u64 = 6;

#[derive(Clone, PartialEq, prost::Message)]
struct BlocksMessage {
    #[prost(uint32, repeated, packed = "true", tag = "1")]
    block_sizes: Vec<u32>,
    #[prost(uint64, required, tag = "2")]
    total_payload_size: u64,
    #[prost(uint32, required, tag = "3")]
    pages_per_block: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BlocksOnly {
    #[prost(message, optional, tag = "6")]
    blocks: Option<BlocksMessage>,
}

/// How a run's pages are divided into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// Size of each block in the pages image.
    pub sizes: Vec<u32>,
    /// Pages per block. The last block may have fewer.
    pub pages_per_block: u32,
}

/// A run of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    /// Address of its first page. For shared memory, its offset in the object.
    pub address: u64,
    /// Number of pages.
    pub pages: u64,
    /// `PE_*`.
    pub flags: u32,
    /// Its blocks. `None` if its pages are stored one after the other.
    pub blocks: Option<Blocks>,
    message: Vec<u8>,
}

/// A pagemap image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPagemap {
    /// N of the `pages-N.img` that holds the pages.
    pub pages_id: u32,
    /// Runs, by address.
    pub runs: Vec<StoredRun>,
    head: Vec<u8>,
}

impl StoredRun {
    /// Whether its pages are in the accompanying pages image.
    pub fn is_present(&self) -> bool {
        self.flags & PE_PRESENT != 0
    }

    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.address + self.pages * PAGE_BYTES as u64
    }

    /// Its bytes in the pages image, without padding.
    pub fn payload_bytes(&self) -> u64 {
        match &self.blocks {
            _ if !self.is_present() => 0,
            Some(blocks) => blocks.sizes.iter().map(|s| u64::from(*s)).sum(),
            None => self.pages * PAGE_BYTES as u64,
        }
    }

    /// The same run with other flags and blocks.
    pub fn stored_as(&self, flags: u32, blocks: Option<Blocks>) -> Result<Self, ImageError> {
        let mut message = edited(wire::without(&self.message, FIELD_BLOCKS))?;
        if flags != self.flags {
            message = edited(wire::with_varint(&message, FIELD_FLAGS, flags.into()))?;
        }
        if let Some(blocks) = &blocks {
            let blocks = BlocksMessage {
                block_sizes: blocks.sizes.clone(),
                total_payload_size: blocks.sizes.iter().map(|s| u64::from(*s)).sum(),
                pages_per_block: blocks.pages_per_block,
            };
            message = edited(wire::with_bytes(&message, FIELD_BLOCKS, &blocks.encode_to_vec()))?;
        }
        Ok(Self {
            flags,
            blocks,
            message,
            ..*self
        })
    }

    /// The run, shortened or extended, with its pages uncompressed in the pages image.
    pub fn present_as(&self, address: u64, pages: u64, flags: u32) -> Result<Self, ImageError> {
        let mut message = edited(wire::without(&self.message, FIELD_IN_PARENT))?;
        for (field, value) in [
            (FIELD_ADDRESS, address),
            (FIELD_COMPAT_PAGES, 0),
            (FIELD_FLAGS, flags.into()),
            (FIELD_PAGES, pages),
        ] {
            message = edited(wire::with_varint(&message, field, value))?;
        }
        Ok(Self {
            address,
            pages,
            flags,
            blocks: None,
            message: edited(wire::without(&message, FIELD_BLOCKS))?,
        })
    }
}

fn edited(result: Result<Vec<u8>, wire::WireError>) -> Result<Vec<u8>, ImageError> {
    result.map_err(|cause| ImageError::Wire { kind: KIND, cause })
}

impl StoredPagemap {
    /// Parses a pagemap image. Every count is checked. Memory use is proportional to `image`.
    pub fn parse(image: &[u8]) -> Result<Self, ImageError> {
        let (pages_id, head, runs) = parse_with(image, stored)?;
        Ok(Self { pages_id, runs, head })
    }

    /// The image with other runs.
    pub fn with_runs(&self, runs: Vec<StoredRun>) -> Self {
        Self {
            pages_id: self.pages_id,
            runs,
            head: self.head.clone(),
        }
    }

    /// Encodes the image. If nothing was changed, this is what it was parsed from.
    pub fn encode(&self) -> Vec<u8> {
        let runs = self.runs.iter().map(|r| r.message.as_slice());
        framing::image(PAGEMAP_MAGIC, std::iter::once(self.head.as_slice()).chain(runs))
    }

    /// The offset of each run in the pages image, and the image's size.
    pub fn layout(&self) -> (Vec<u64>, u64) {
        let mut end = 0_u64;
        let mut offsets = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            if run.flags & PE_PAYLOAD_ALIGNED != 0 {
                end = end.next_multiple_of(PAGE_BYTES as u64);
            }
            offsets.push(end);
            // Runs do not overlap, so their total is at most the address space.
            end += run.payload_bytes();
        }
        (offsets, end)
    }

    /// Whether any run needs pages of a parent.
    pub fn needs_parent(&self) -> bool {
        self.runs.iter().any(|r| r.flags & PE_PARENT != 0)
    }

    /// Whether any run is stored in a form that only CRIU 4.3 uses.
    pub fn is_compressed(&self) -> bool {
        let of_4_3 = |run: &StoredRun| run.blocks.is_some() || run.flags & PE_PAYLOAD_ALIGNED != 0;
        self.runs.iter().any(of_4_3)
    }
}

fn stored(entry: RawEntry<'_>) -> Result<StoredRun, ImageError> {
    let RawEntry {
        address, pages, flags, ..
    } = entry;
    let message = BlocksOnly::decode(entry.message).map_err(|cause| ImageError::Message {
        kind: KIND,
        entry: entry.number,
        cause,
    })?;
    let contradicts =
        flags & PE_PRESENT != 0 && flags & PE_PARENT != 0 || flags & PE_PRESENT == 0 && flags & PE_PAYLOAD_ALIGNED != 0;
    let blocks = match message.blocks {
        Some(blocks) if flags & PE_PRESENT != 0 => {
            Some(checked_blocks(blocks, pages).ok_or(ImageError::Blocks { address })?)
        }
        Some(_) => return Err(ImageError::Blocks { address }),
        None => None,
    };
    if contradicts {
        return Err(ImageError::Flags { address, flags });
    }
    Ok(StoredRun {
        address,
        pages,
        flags,
        blocks,
        message: entry.message.to_vec(),
    })
}

/// `None` if the counts and sizes contradict each other.
fn checked_blocks(message: BlocksMessage, pages: u64) -> Option<Blocks> {
    let per_block = u64::from(message.pages_per_block);
    let page = PAGE_BYTES as u64;
    if per_block == 0 || per_block * page > BLOCK_BYTES_MAX as u64 {
        return None;
    }
    if message.block_sizes.len() as u64 != pages.div_ceil(per_block) {
        return None;
    }
    let mut total = 0;
    for (block, size) in (0..).zip(&message.block_sizes) {
        let in_block: u64 = per_block.min(pages - block * per_block);
        if u64::from(*size) > in_block * page {
            return None;
        }
        total += u64::from(*size);
    }
    (total == message.total_payload_size).then_some(Blocks {
        sizes: message.block_sizes,
        pages_per_block: message.pages_per_block,
    })
}
