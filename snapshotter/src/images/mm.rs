//! `mm-PID.img`: of it, where the process's mappings begin and end.

use prost::Message as _;

use super::{ImageError, framing};

const MM_MAGIC: u32 = 0x5749_2820;

#[derive(Clone, PartialEq, prost::Message)]
struct MmEntry {
    #[prost(message, repeated, tag = "14")]
    vmas: Vec<VmaEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct VmaEntry {
    #[prost(uint64, required, tag = "1")]
    start: u64,
    #[prost(uint64, required, tag = "2")]
    end: u64,
}

/// A mapping of the process, `start..end` in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vma {
    /// Address of its first byte.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
}

/// The mappings in an mm image, by address.
pub fn parse_vmas(image: &[u8]) -> Result<Vec<Vma>, ImageError> {
    let entries = framing::entries(image, MM_MAGIC).map_err(|cause| ImageError::Framing { kind: "mm", cause })?;
    let first = entries.first().ok_or(ImageError::Empty("mm"))?;
    let mm = MmEntry::decode(*first).map_err(|cause| ImageError::Message {
        kind: "mm",
        entry: 0,
        cause,
    })?;
    let mut vmas: Vec<Vma> = mm
        .vmas
        .iter()
        .map(|v| Vma {
            start: v.start,
            end: v.end,
        })
        .collect();
    vmas.sort_by_key(|v| v.start);
    Ok(vmas)
}
