//! Encoding of the working set. All integers are little-endian. The table is in docs/reference/snapshot-format.md.
//! Pure.
//!
//! ```text
//! "RKWS" version:u16 0:u16 pages:u32 blocks:u32 digest[32]    digest: BLAKE3 of the rest, without block bytes
//! snapshot[32]                                                  BLAKE3 of the snapshot's id
//! recording:u32 restores:u32 siblings:u32
//! pages    × { pid:u32 kind:u32 page:u64 }                      kind: 0 zero, 1 stored; + 2 written
//! blocks   × { len:u32 encoding:u32 }                           encoding: 1 raw, 2 LZ4; of 16 stored pages each
//! siblings × node[32]                                           of the regions' hash trees, by process and address
//! block bytes
//! ```
//!
//! The digest detects damage, not forgery, because the object's writer computes it. The contents of the pages are
//! trusted only after a comparison with the regions (`check`).

use bytes::Bytes;
use rekindle_wire::SnapshotId;

use super::{PAGES_MAX, Recording, UncheckedWorkingSet, WorkingSetPack, WorkingSetPage};
use crate::codec::{self, Acceleration, DecodeError, Encoded, Encoding, PAGE_BYTES, RegionSize};
use crate::digest::Digest;
use crate::hash_tree::Node;
use crate::pagemap::{PAGE_INDEX_END, PageIndex, Region};

const MAGIC: &[u8; 4] = b"RKWS";
/// The only version that is read. Earlier ones have no data to compare their pages with the regions.
pub(super) const VERSION: u16 = 4;
const HEADER_BYTES: usize = 48;
/// The snapshot's mark, what the set was recorded from, and the number of siblings.
const FIXED_BYTES: usize = 44;
const NODE_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const BLOCK_BYTES: usize = 8;
const BLOCK_PAGES: usize = 16;
/// Maximum number of siblings of a page: the height of the tree of the largest region.
const SIBLINGS_MAX: usize = RegionSize::MAX.pages().next_power_of_two().trailing_zeros() as usize;
/// Maximum number of bytes of a page: stored as it is, in a block and a region of its own.
const OF_A_PAGE: usize = ENTRY_BYTES + BLOCK_BYTES + PAGE_BYTES + SIBLINGS_MAX * NODE_BYTES;
/// Maximum size of a working set in bytes.
pub(super) const BYTES_MAX: u64 = (HEADER_BYTES + FIXED_BYTES + PAGES_MAX * OF_A_PAGE) as u64;
/// Bits of a page's kind.
const STORED: u32 = 1;
const WRITTEN: u32 = 2;

/// Why bytes are not a working set.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Does not start with the magic number, or is shorter than a header.
    #[error("not a working set")]
    Magic,
    /// Larger than one of [`PAGES_MAX`] pages can be. It is not read.
    #[error("working set has {0} bytes, more than one of {PAGES_MAX} pages can have")]
    TooLarge(u64),
    /// Another version of the format.
    #[error("working set has version {0}; this build reads {VERSION}")]
    Version(u16),
    /// The bytes have changed since they were written.
    #[error("working set is corrupt: its digest is {found}, not {expected}")]
    Digest {
        /// Digest of the bytes found.
        found: Digest,
        /// Digest in the header.
        expected: Digest,
    },
    /// Made for another snapshot.
    #[error("working set is of another snapshot")]
    OtherSnapshot,
    /// Counts and sizes do not match, or a field has a value that we never write.
    #[error("working set is malformed")]
    Malformed,
    /// A block does not decode.
    #[error("block {0} of the working set does not decode")]
    Block(usize, #[source] DecodeError),
    /// Has pages of a process that is not in the snapshot.
    #[error("working set has pages of process {0}, which the snapshot does not have")]
    Process(u32),
    /// A page has contents where the snapshot has none.
    #[error("working set has bytes for {page} of process {pid}, where the snapshot has none")]
    NotZero {
        /// The process.
        pid: u32,
        /// The page.
        page: PageIndex,
    },
    /// Pages differ from the region that they belong to.
    #[error("the working set's pages in {region} of process {pid} are not the snapshot's")]
    Forged {
        /// The process.
        pid: u32,
        /// The region.
        region: Box<Region>,
    },
}

fn snapshot_mark(id: &SnapshotId) -> Digest {
    Digest::of(id.as_str().as_bytes())
}

/// Encodes the working set, with the `siblings` of its pages. It has at most [`PAGES_MAX`] pages, so all counts fit.
pub(crate) fn encode(id: &SnapshotId, pack: &WorkingSetPack, siblings: &[Node]) -> Vec<u8> {
    let WorkingSetPack { recording, pages } = pack;
    let fit = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let mut body = snapshot_mark(id).0.to_vec();
    body.extend_from_slice(&recording.number.to_le_bytes());
    body.extend_from_slice(&recording.restores.to_le_bytes());
    body.extend_from_slice(&fit(siblings.len()));
    for page in pages {
        body.extend_from_slice(&page.pid.to_le_bytes());
        let stored = if page.content.is_some() { STORED } else { 0 };
        let kind = stored | if page.written { WRITTEN } else { 0 };
        body.extend_from_slice(&kind.to_le_bytes());
        body.extend_from_slice(&page.page.0.to_le_bytes());
    }
    let stored: Vec<&Bytes> = pages.iter().filter_map(|p| p.content.as_ref()).collect();
    let mut payload = Vec::new();
    let mut blocks = 0;
    for block in stored.chunks(BLOCK_PAGES) {
        let plain: Vec<u8> = block.iter().flat_map(|page| page.iter()).copied().collect();
        let (encoding, bytes) = match codec::encode(&plain, Acceleration::default()) {
            Encoded::Lz4(bytes) => (2_u32, bytes),
            Encoded::Raw | Encoded::Zero => (1, plain),
        };
        body.extend_from_slice(&fit(bytes.len()));
        body.extend_from_slice(&encoding.to_le_bytes());
        payload.extend_from_slice(&bytes);
        blocks += 1;
    }
    body.extend(siblings.iter().flatten());
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len() + payload.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&fit(pages.len()));
    out.extend_from_slice(&fit(blocks));
    out.extend_from_slice(&Digest::of(&body).0);
    out.extend_from_slice(&body);
    out.extend_from_slice(&payload);
    out
}

/// Takes bytes off the front. `None` if there are too few.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// A count of items of `size` bytes each, all of which must still follow.
    fn count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }
}

/// Parses a working set of `id`. Checks its structure completely, but not the contents of its pages.
pub(crate) fn decode(id: &SnapshotId, packed: &[u8]) -> Result<UncheckedWorkingSet, PackError> {
    let mut rest = Cursor(packed);
    if rest.array::<4>().as_ref() != Some(MAGIC) {
        return Err(PackError::Magic);
    }
    let version = rest.u16().ok_or(PackError::Magic)?;
    if version != VERSION {
        return Err(PackError::Version(version));
    }
    let malformed = || PackError::Malformed;
    if rest.u16() != Some(0) {
        return Err(malformed());
    }
    let (Some(pages), Some(blocks), Some(expected)) = (
        rest.count(ENTRY_BYTES),
        rest.count(BLOCK_BYTES),
        rest.array().map(Digest),
    ) else {
        return Err(malformed());
    };
    let body = rest.0;
    let mark = rest.array().map(Digest).ok_or_else(malformed)?;
    let recording = (|| {
        Some(Recording {
            number: rest.u32()?,
            restores: rest.u32()?,
        })
    })();
    let recording = recording.ok_or_else(malformed)?;
    let siblings = rest.count(NODE_BYTES).ok_or_else(malformed)?;
    // No overflow: each count was checked to fit.
    let tables = pages * ENTRY_BYTES + blocks * BLOCK_BYTES + siblings * NODE_BYTES;
    let payload = rest.0.get(tables..).ok_or_else(malformed)?;
    let found = Digest::of(&body[..body.len() - payload.len()]);
    if found != expected {
        return Err(PackError::Digest { found, expected });
    }
    if mark != snapshot_mark(id) {
        return Err(PackError::OtherSnapshot);
    }
    decode_body(rest, recording, pages, blocks, siblings)
}

fn decode_body(
    mut rest: Cursor<'_>,
    recording: Recording,
    pages: usize,
    blocks: usize,
    siblings: usize,
) -> Result<UncheckedWorkingSet, PackError> {
    let malformed = || PackError::Malformed;
    if pages > PAGES_MAX {
        return Err(malformed());
    }
    let mut entries = Vec::with_capacity(pages);
    for _ in 0..pages {
        let entry = (|| Some((rest.u32()?, rest.u32()?, rest.u64()?)))().ok_or_else(malformed)?;
        if entry.2 >= PAGE_INDEX_END {
            return Err(malformed());
        }
        entries.push(entry);
    }
    let stored = entries.iter().filter(|(_, kind, _)| kind & STORED != 0).count();
    let is_odd = |kind: u32| kind & !(STORED | WRITTEN) != 0;
    if entries.iter().any(|(_, kind, _)| is_odd(*kind)) || stored.div_ceil(BLOCK_PAGES) != blocks {
        return Err(malformed());
    }
    let mut table = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        let len = rest.u32().and_then(|len| usize::try_from(len).ok());
        let encoding = match rest.u32() {
            Some(1) => Encoding::Raw,
            Some(2) => Encoding::Lz4,
            _ => return Err(malformed()),
        };
        table.push((len.ok_or_else(malformed)?, encoding));
    }
    let siblings = (0..siblings).map(|_| rest.array()).collect::<Option<_>>();
    let siblings: Vec<Node> = siblings.ok_or_else(malformed)?;
    let mut contents = Vec::with_capacity(stored);
    for (number, (len, encoding)) in table.into_iter().enumerate() {
        let bytes = rest.bytes(len).ok_or_else(malformed)?;
        let block_pages = BLOCK_PAGES.min(stored - contents.len());
        let mut plain = vec![0; block_pages * PAGE_BYTES];
        codec::decode_unchecked(encoding, bytes, &mut plain).map_err(|cause| PackError::Block(number, cause))?;
        let plain = Bytes::from(plain);
        contents.extend((0..block_pages).map(|n| plain.slice(n * PAGE_BYTES..(n + 1) * PAGE_BYTES)));
    }
    if !rest.0.is_empty() {
        return Err(malformed());
    }
    let mut contents = contents.into_iter();
    let page = |(pid, kind, page): (u32, u32, u64)| WorkingSetPage {
        pid,
        page: PageIndex(page),
        content: if kind & STORED != 0 { contents.next() } else { None },
        written: kind & WRITTEN != 0,
    };
    let pages = entries.into_iter().map(page).collect();
    Ok(UncheckedWorkingSet {
        pack: WorkingSetPack { recording, pages },
        siblings,
    })
}
