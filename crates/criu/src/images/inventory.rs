//! `inventory.img`: whether and how a directory's pages are compressed, as CRIU 4.3 records it there.
//!
//! It has no common magic number before its own.

use super::{ImageError, first_message, framing, wire};

pub(super) const KIND: &str = "inventory";
pub(super) const INVENTORY_MAGIC: u32 = 0x5831_3116;
const FIELD_VERSION: u64 = 1;
const FIELD_COMPRESS: u64 = 15;
const FIELD_BLOCK_SIZE: u64 = 16;
/// Read and written by every CRIU from 1.x to 4.2.
const VERSION_PLAIN: u32 = 2;
/// Written by CRIU 4.3 where an older one would misread the directory.
const VERSION_COMPRESSED: u32 = 3;

#[derive(Clone, PartialEq, prost::Message)]
struct InventoryEntry {
    #[prost(uint32, required, tag = "1")]
    version: u32,
    #[prost(uint32, optional, tag = "15")]
    compress: Option<u32>,
    #[prost(uint32, optional, tag = "16")]
    block_size: Option<u32>,
}

/// An inventory image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory<'a> {
    /// Whether pages may be stored compressed.
    pub compressed: bool,
    /// Bytes of memory per block, if stated.
    pub block_bytes: Option<u32>,
    version: u32,
    message: &'a [u8],
    rest: Vec<&'a [u8]>,
}

impl<'a> Inventory<'a> {
    /// Parses an inventory.
    pub fn parse(image: &'a [u8]) -> Result<Self, ImageError> {
        let messages =
            framing::bare_entries(image, INVENTORY_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
        let (message, rest) = messages.split_first().ok_or(ImageError::Empty(KIND))?;
        let entry: InventoryEntry = first_message(&messages, KIND)?;
        let mode = entry.compress.unwrap_or(0);
        let known = match entry.version {
            VERSION_PLAIN => mode == 0,
            VERSION_COMPRESSED => mode <= 1,
            _ => false,
        };
        if !known {
            return Err(ImageError::Version {
                version: entry.version,
                compress: mode,
            });
        }
        Ok(Self {
            compressed: mode == 1,
            block_bytes: entry.block_size,
            version: entry.version,
            message,
            rest: rest.to_vec(),
        })
    }

    /// Encodes the image, stating that pages are compressed in blocks of `block_bytes` bytes.
    pub fn encode_compressed(&self, block_bytes: u32) -> Result<Vec<u8>, ImageError> {
        let version = u64::from(VERSION_COMPRESSED);
        let edited = wire::with_varint(self.message, FIELD_VERSION, version)
            .and_then(|m| wire::with_varint(&m, FIELD_COMPRESS, 1))
            .and_then(|m| wire::with_varint(&m, FIELD_BLOCK_SIZE, block_bytes.into()));
        self.encode(edited)
    }

    /// Encodes the image, stating that pages are not compressed. A directory with a parent keeps a version that older
    /// CRIUs reject, because its parent may be compressed.
    pub fn encode_plain(&self, has_parent: bool) -> Result<Vec<u8>, ImageError> {
        let version = if has_parent { self.version } else { VERSION_PLAIN };
        let edited = wire::without(self.message, FIELD_COMPRESS)
            .and_then(|m| wire::without(&m, FIELD_BLOCK_SIZE))
            .and_then(|m| wire::with_varint(&m, FIELD_VERSION, version.into()));
        self.encode(edited)
    }

    fn encode(&self, edited: Result<Vec<u8>, wire::WireError>) -> Result<Vec<u8>, ImageError> {
        let message = edited.map_err(|cause| ImageError::Wire { kind: KIND, cause })?;
        let all = std::iter::once(message.as_slice()).chain(self.rest.iter().copied());
        Ok(framing::bare_image(INVENTORY_MAGIC, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(fields: &[(u64, u64)]) -> Vec<u8> {
        let mut message = Vec::new();
        for (field, value) in fields {
            message = wire::with_varint(&message, *field, *value).unwrap();
        }
        framing::bare_image(INVENTORY_MAGIC, std::iter::once(message.as_slice()))
    }

    #[test]
    fn saying_and_unsaying_compression_gives_the_image_back() {
        let plain = image(&[(1, 2), (2, 1), (14, 0)]);
        let packed = Inventory::parse(&plain).unwrap().encode_compressed(65536).unwrap();
        let parsed = Inventory::parse(&packed).unwrap();
        assert_eq!((parsed.compressed, parsed.block_bytes), (true, Some(65536)));
        assert_eq!(parsed.encode_plain(false).unwrap(), plain);
    }

    #[test]
    fn versions_and_modes_that_are_not_known_are_refused() {
        for fields in [&[(1, 4)][..], &[(1, 2), (15, 1)], &[(1, 3), (15, 2)]] {
            assert!(Inventory::parse(&image(fields)).is_err(), "{fields:?}");
        }
    }
}
