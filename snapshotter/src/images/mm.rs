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
    #[prost(uint32, required, tag = "7")]
    status: u32,
}

/// Not a mapping but a range with guard pages (`MADV_GUARD_INSTALL`) inside one: it overlaps the mapping it is in.
const STATUS_GUARD: u32 = 1 << 16;

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
    let real = mm.vmas.iter().filter(|v| v.status & STATUS_GUARD == 0);
    let mut vmas: Vec<Vma> = real
        .map(|v| Vma {
            start: v.start,
            end: v.end,
        })
        .collect();
    vmas.sort_by_key(|v| v.start);
    Ok(vmas)
}

#[cfg(test)]
mod tests {
    use super::super::testing::mm_image;
    use super::*;

    #[test]
    fn mappings_come_by_address_and_guard_ranges_inside_them_are_no_mappings() {
        let image = mm_image(&[(0x9000, 0xa000, 1), (0x1000, 0x8000, 1), (0x2000, 0x3000, STATUS_GUARD)]);
        let expected = [(0x1000, 0x8000), (0x9000, 0xa000)].map(|(start, end)| Vma { start, end });
        assert_eq!(parse_vmas(&image).unwrap(), expected);
        assert!(parse_vmas(&image[..image.len() - 1]).is_err());
        assert!(parse_vmas(&image[..8]).is_err());
    }
}
