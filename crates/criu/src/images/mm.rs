//! `mm-PID.img`: the process's mappings, their bounds and their kinds.

use std::collections::BTreeMap;
use std::ops::Range;

use prost::Message as _;

use super::{ImageError, first_message, framing};
use crate::PageIndex;

const KIND: &str = "mm";
const MM_MAGIC: u32 = 0x5749_2820;

/// The whole message, so that it can be encoded again. Mappings stay the bytes that they were.
#[derive(Clone, PartialEq, prost::Message)]
struct MmEntry {
    #[prost(uint64, required, tag = "1")]
    start_code: u64,
    #[prost(uint64, required, tag = "2")]
    end_code: u64,
    #[prost(uint64, required, tag = "3")]
    start_data: u64,
    #[prost(uint64, required, tag = "4")]
    end_data: u64,
    #[prost(uint64, required, tag = "5")]
    start_stack: u64,
    #[prost(uint64, required, tag = "6")]
    start_brk: u64,
    #[prost(uint64, required, tag = "7")]
    brk: u64,
    #[prost(uint64, required, tag = "8")]
    arg_start: u64,
    #[prost(uint64, required, tag = "9")]
    arg_end: u64,
    #[prost(uint64, required, tag = "10")]
    env_start: u64,
    #[prost(uint64, required, tag = "11")]
    env_end: u64,
    #[prost(uint32, required, tag = "12")]
    exe_file_id: u32,
    #[prost(uint64, repeated, packed = "false", tag = "13")]
    saved_auxv: Vec<u64>,
    #[prost(bytes = "vec", repeated, tag = "14")]
    vmas: Vec<Vec<u8>>,
    #[prost(int32, optional, tag = "15")]
    dumpable: Option<i32>,
    #[prost(bytes = "vec", repeated, tag = "16")]
    aios: Vec<Vec<u8>>,
    #[prost(bool, optional, tag = "17")]
    thp_disabled: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VmaEntry {
    #[prost(uint64, required, tag = "1")]
    pub(super) start: u64,
    #[prost(uint64, required, tag = "2")]
    pub(super) end: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(super) pgoff: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(super) shmid: Option<u64>,
    #[prost(uint32, optional, tag = "5")]
    pub(super) prot: Option<u32>,
    #[prost(uint32, required, tag = "6")]
    pub(super) flags: u32,
    #[prost(uint32, required, tag = "7")]
    pub(super) status: u32,
    #[prost(uint64, optional, tag = "9")]
    pub(super) madv: Option<u64>,
}

/// Fields appended to a mapping's message. If a field occurs twice, the last occurrence counts.
#[derive(Clone, PartialEq, prost::Message)]
struct VmaOverride {
    #[prost(uint64, optional, tag = "1")]
    start: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    end: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pgoff: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    shmid: Option<u64>,
    #[prost(uint32, optional, tag = "6")]
    flags: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    status: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    fdflags: Option<u32>,
}

/// An ordinary mapping.
const STATUS_REGULAR: u32 = 1 << 0;
/// The mapping whose end `brk` moves.
pub(super) const STATUS_HEAP: u32 = 1 << 5;
pub(super) const STATUS_FILE_PRIVATE: u32 = 1 << 6;
const STATUS_ANON_PRIVATE: u32 = 1 << 9;
/// vsyscall, vdso and vvar.
const STATUS_KERNEL: u32 = 1 << 2 | 1 << 3 | 1 << 12;
/// Not a mapping but a range with guard pages (`MADV_GUARD_INSTALL`) inside one. It overlaps the mapping that contains
/// it.
const STATUS_GUARD: u32 = 1 << 16;
const MAP_PRIVATE: u32 = 0x2;
const MAP_ANONYMOUS: u32 = 0x20;
const PROT_EXEC: u32 = 4;
pub(super) const MAP_GROWSDOWN: u32 = 0x100;
const MAP_LOCKED: u32 = 0x2000;
pub(super) const MAP_HUGETLB: u32 = 0x4_0000;
/// Flags that rule out replacing anonymous memory with a private file mapping.
const FLAGS_OF_ANONYMOUS_ONLY: u32 = MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB;
const MADV_WIPEONFORK: u64 = 1 << 18;
/// The kernel rejects this for a file mapping.
const MADV_OF_ANONYMOUS_ONLY: u64 = MADV_WIPEONFORK;

/// A mapping of the process, `start..end` in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vma {
    /// Address of its first byte.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
}

/// An mm image whose mappings can be read and changed.
pub(super) struct MmImage {
    entry: MmEntry,
    vmas: Vec<VmaEntry>,
    guards: Vec<Range<u64>>,
    /// What mappings that were cut up have become, by index.
    pieces: BTreeMap<usize, Vec<Vec<u8>>>,
}

/// A private file mapping: the file's id, and the offset at which the mapping starts in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMapping {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) executable: bool,
}

/// A part of a mapping that is to be mapped from another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemappedPart {
    /// Byte addresses.
    pub(super) range: Range<u64>,
    /// Offset at which it starts in the other file.
    pub(super) offset: u64,
}

impl MmImage {
    pub(super) fn parse(image: &[u8]) -> Result<Self, ImageError> {
        let entries = framing::entries(image, MM_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
        let entry: MmEntry = first_message(&entries, KIND)?;
        let malformed = |cause| ImageError::Message {
            kind: KIND,
            entry: 0,
            cause,
        };
        let decoded = entry.vmas.iter().map(|raw| VmaEntry::decode(raw.as_slice()));
        let vmas: Vec<VmaEntry> = decoded.collect::<Result<_, _>>().map_err(malformed)?;
        let guards = vmas.iter().filter(|v| v.status & STATUS_GUARD != 0);
        let guards = guards.map(|v| v.start..v.end).collect();
        Ok(Self {
            entry,
            vmas,
            guards,
            pieces: BTreeMap::new(),
        })
    }

    /// Whether encoding it again gives the original message. If not, the message has something unknown in it.
    pub(super) fn is_faithful(&self, image: &[u8]) -> bool {
        self.encode() == image
    }

    /// All mappings except guard ranges, as encoded in the image, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, &VmaEntry)> {
        let all = self.vmas.iter().enumerate();
        all.filter(|(_, v)| v.status & STATUS_GUARD == 0)
    }

    /// All mappings except guard ranges, in order.
    pub(super) fn vmas(&self) -> impl Iterator<Item = (usize, Vma)> {
        self.entries().map(|(at, v)| {
            (
                at,
                Vma {
                    start: v.start,
                    end: v.end,
                },
            )
        })
    }

    /// Whether mapping `at` is private anonymous memory that a private file mapping can replace.
    pub(super) fn can_map_a_file(&self, at: usize) -> bool {
        let vma = &self.vmas[at];
        let plain = STATUS_REGULAR | STATUS_ANON_PRIVATE;
        vma.status & !STATUS_HEAP == plain
            && vma.flags & MAP_ANONYMOUS != 0
            && vma.flags & FLAGS_OF_ANONYMOUS_ONLY == 0
            && vma.madv.unwrap_or(0) & MADV_OF_ANONYMOUS_ONLY == 0
            && !self.is_guarded(vma)
    }

    fn is_guarded(&self, vma: &VmaEntry) -> bool {
        self.guards.iter().any(|g| g.start < vma.end && vma.start < g.end)
    }

    /// Whether CRIU can leave the pages of mapping `at` to a pager. This is CRIU's own rule.
    pub(super) fn can_be_lazy(&self, at: usize) -> bool {
        let vma = &self.vmas[at];
        let private = MAP_ANONYMOUS | MAP_PRIVATE;
        vma.flags & private == private && vma.flags & (MAP_LOCKED | MAP_HUGETLB) == 0 && vma.status & STATUS_KERNEL == 0
    }

    /// The pages of all mappings that [can be lazy](Self::can_be_lazy), by address.
    pub(super) fn lazy_pages(&self) -> Vec<Range<PageIndex>> {
        let vmas = self.vmas().filter(|(at, _)| self.can_be_lazy(*at));
        let pages = vmas.map(|(_, vma)| PageIndex::containing(vma.start)..PageIndex::containing(vma.end));
        let mut pages: Vec<_> = pages.collect();
        pages.sort_by_key(|range| range.start);
        pages
    }

    /// Whether mapping `at` is plain private anonymous memory.
    pub(super) fn is_anonymous(&self, at: usize) -> bool {
        let plain = STATUS_REGULAR | STATUS_ANON_PRIVATE;
        self.vmas[at].status & plain == plain
    }

    /// The file mapping at `at`, if it is an ordinary private one.
    pub(super) fn file_mapping(&self, at: usize) -> Option<FileMapping> {
        let vma = &self.vmas[at];
        let ordinary = vma.status == STATUS_REGULAR | STATUS_FILE_PRIVATE
            && vma.flags & (MAP_ANONYMOUS | FLAGS_OF_ANONYMOUS_ONLY) == 0
            && !self.is_guarded(vma);
        ordinary.then_some(FileMapping {
            file: u32::try_from(vma.shmid?).ok()?,
            offset: vma.pgoff.unwrap_or(0),
            executable: vma.prot? & PROT_EXEC != 0,
        })
    }

    /// Turns mapping `at` into a private mapping of file `id` from byte `offset` on.
    pub(super) fn map_file(&mut self, at: usize, id: u32, offset: u64) {
        let vma = &self.vmas[at];
        let other = VmaOverride {
            pgoff: Some(offset),
            shmid: Some(u64::from(id)),
            flags: Some(vma.flags & !MAP_ANONYMOUS),
            status: Some(vma.status & !STATUS_ANON_PRIVATE | STATUS_FILE_PRIVATE),
            fdflags: Some(0),
            ..VmaOverride::default()
        };
        self.entry.vmas[at].extend_from_slice(&other.encode_to_vec());
    }

    /// Cuts up mapping `at`, a private file mapping, so that `parts` are mapped from file `id`. `parts` is sorted by
    /// address and inside the mapping. The rest of the mapping stays as it is.
    pub(super) fn map_parts(&mut self, at: usize, id: u32, parts: &[RemappedPart]) {
        let vma = &self.vmas[at];
        let (raw, offset) = (&self.entry.vmas[at], vma.pgoff.unwrap_or(0));
        let piece = |changed: VmaOverride| [raw.as_slice(), &changed.encode_to_vec()].concat();
        let kept = |range: Range<u64>| {
            piece(VmaOverride {
                start: Some(range.start),
                end: Some(range.end),
                pgoff: Some(offset.wrapping_add(range.start - vma.start)),
                ..VmaOverride::default()
            })
        };
        let mut pieces = Vec::with_capacity(2 * parts.len() + 1);
        let mut done = vma.start;
        for part in parts {
            if done < part.range.start {
                pieces.push(kept(done..part.range.start));
            }
            pieces.push(piece(VmaOverride {
                start: Some(part.range.start),
                end: Some(part.range.end),
                pgoff: Some(part.offset),
                shmid: Some(u64::from(id)),
                fdflags: Some(0),
                ..VmaOverride::default()
            }));
            done = part.range.end;
        }
        if done < vma.end {
            pieces.push(kept(done..vma.end));
        }
        self.pieces.insert(at, pieces);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut entry = self.entry.clone();
        for (at, pieces) in self.pieces.iter().rev() {
            entry.vmas.splice(*at..=*at, pieces.iter().cloned());
        }
        framing::image(MM_MAGIC, std::iter::once(entry.encode_to_vec().as_slice()))
    }
}

/// The mappings in an mm image, by address.
pub fn parse_vmas(image: &[u8]) -> Result<Vec<Vma>, ImageError> {
    let mut vmas: Vec<Vma> = MmImage::parse(image)?.vmas().map(|(_, vma)| vma).collect();
    vmas.sort_by_key(|v| v.start);
    Ok(vmas)
}

/// The byte ranges of a process's arguments and environment. Anyone on the host can make the kernel read them
/// (`/proc/PID/cmdline`).
///
/// # Errors
/// If the image does not parse.
pub fn argument_areas(image: &[u8]) -> Result<[Range<u64>; 2], ImageError> {
    let entry = MmImage::parse(image)?.entry;
    Ok([entry.arg_start..entry.arg_end, entry.env_start..entry.env_end])
}

/// The mappings in an mm image that are empty in a forked child (`MADV_WIPEONFORK`), by address. Libraries keep there
/// what two processes must not share, such as the state of a random generator (BoringSSL, AWS-LC) or a mark that
/// detects a fork. So a copy of a snapshot must find these mappings empty too.
pub fn parse_wiped_on_fork(image: &[u8]) -> Result<Vec<Vma>, ImageError> {
    let image = MmImage::parse(image)?;
    let wiped = image
        .vmas()
        .filter(|(at, _)| image.vmas[*at].madv.unwrap_or(0) & MADV_WIPEONFORK != 0);
    let mut vmas: Vec<Vma> = wiped.map(|(_, vma)| vma).collect();
    vmas.sort_by_key(|v| v.start);
    Ok(vmas)
}

/// An mm image of these mappings.
#[cfg(test)]
pub(super) fn mm_image_of(vmas: &[VmaEntry]) -> Vec<u8> {
    let entry = MmEntry {
        vmas: vmas.iter().map(VmaEntry::encode_to_vec).collect(),
        ..MmEntry::default()
    };
    framing::image(MM_MAGIC, std::iter::once(entry.encode_to_vec().as_slice()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::mm_image;
    use super::*;

    #[test]
    fn only_mappings_marked_so_are_wiped_on_fork() {
        let vma = |start, madv| {
            let (end, flags, status) = (start + 0x1000, 0x22, STATUS_REGULAR | STATUS_ANON_PRIVATE);
            VmaEntry {
                start,
                end,
                flags,
                status,
                madv,
                ..VmaEntry::default()
            }
            .encode_to_vec()
        };
        let other = 1 << 16;
        let entry = MmEntry {
            vmas: vec![
                vma(0x3000, Some(MADV_WIPEONFORK | other)),
                vma(0x1000, None),
                vma(0x2000, Some(other)),
            ],
            ..MmEntry::default()
        };
        let image = framing::image(MM_MAGIC, std::iter::once(entry.encode_to_vec().as_slice()));
        let expected = Vma {
            start: 0x3000,
            end: 0x4000,
        };
        assert_eq!(parse_wiped_on_fork(&image).unwrap(), [expected]);
    }

    #[test]
    fn mappings_come_by_address_and_guard_ranges_inside_them_are_no_mappings() {
        let image = mm_image(&[(0x9000, 0xa000, 1), (0x1000, 0x8000, 1), (0x2000, 0x3000, STATUS_GUARD)]);
        let expected = [(0x1000, 0x8000), (0x9000, 0xa000)].map(|(start, end)| Vma { start, end });
        assert_eq!(parse_vmas(&image).unwrap(), expected);
        assert!(parse_vmas(&image[..image.len() - 1]).is_err());
        assert!(parse_vmas(&image[..8]).is_err());
    }
}
