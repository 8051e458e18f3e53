//! The bytes of an object file's footer: block hashes, metadata and trailer (drawn in the crate's top comment). Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::checksums::Checksums;

/// Bytes of body per hash. A ranged read hashes whole blocks, so it is the unit in which snapshots are read.
pub(crate) const BLOCK_LEN: usize = 64 * 1024;
/// Bytes of one block's hash.
pub(crate) const HASH_LEN: usize = 32;
pub(crate) const TRAILER_LEN: usize = 56;

const MAGIC: &[u8; 8] = b"RKS3OBJ1";
/// The part of the trailer that its own hash covers.
const COVERED: usize = TRAILER_LEN - HASH_LEN;
/// S3 allows 2 KiB of user metadata and 1 KiB of key, and 10,000 parts have sizes: far below this.
const LONGEST_META: u32 = 1024 * 1024;

/// What is known of an object besides its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) key: String,
    /// Without quotes.
    pub(crate) etag: String,
    /// Milliseconds since 1970.
    pub(crate) modified_ms: u64,
    /// BLAKE3 of all block hashes, in hexadecimal.
    pub(crate) root: String,
    /// Checksums that the client sent and that matched.
    #[serde(default, skip_serializing_if = "Checksums::is_empty")]
    pub(crate) sums: Checksums,
    /// Headers to return as they came.
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    pub(crate) headers: Headers,
    /// `x-amz-meta-*`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user: BTreeMap<String, String>,
    /// Lengths of the parts of a multipart upload, bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) part_lens: Vec<u64>,
}

/// An object's headers that S3 keeps for its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Headers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache_control: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_disposition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_language: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
}

impl Headers {
    fn is_empty(&self) -> bool {
        *self == Headers::default()
    }
}

/// The trailer's fields, checked against the length of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) body_len: u64,
    pub(crate) meta_len: u32,
    hash: [u8; HASH_LEN],
}

impl Trailer {
    /// Offset of the block hashes.
    pub(crate) fn table_offset(&self) -> u64 {
        self.body_len
    }

    /// Offset of the metadata. Cannot overflow: `decode_trailer` has checked the sum.
    pub(crate) fn meta_offset(&self) -> u64 {
        self.body_len + table_len(self.body_len)
    }
}

/// Number of blocks in a body.
pub(crate) fn block_count(body_len: u64) -> u64 {
    body_len.div_ceil(BLOCK_LEN as u64)
}

fn table_len(body_len: u64) -> u64 {
    block_count(body_len) * HASH_LEN as u64
}

/// The bytes that follow the block hashes.
pub(crate) fn encode_meta_and_trailer(meta: &Meta, body_len: u64) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(meta)?;
    // Metadata has only bounded parts, so its length always fits; `decode_trailer` would refuse more than 1 MiB.
    let meta_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&body_len.to_le_bytes());
    bytes.extend_from_slice(&(BLOCK_LEN as u32).to_le_bytes());
    bytes.extend_from_slice(&meta_len.to_le_bytes());
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    Ok(bytes)
}

/// Decodes a trailer from the last [`TRAILER_LEN`] bytes of a file of `file_len` bytes. The error says what is wrong.
pub(crate) fn decode_trailer(bytes: &[u8; TRAILER_LEN], file_len: u64) -> Result<Trailer, &'static str> {
    if &bytes[..8] != MAGIC {
        return Err("does not end in an object trailer");
    }
    let body_len = u64::from_le_bytes(array(&bytes[8..16]));
    let block_len = u32::from_le_bytes(array(&bytes[16..20]));
    let meta_len = u32::from_le_bytes(array(&bytes[20..24]));
    if block_len as usize != BLOCK_LEN {
        return Err("has a block length that is not ours");
    }
    if meta_len > LONGEST_META {
        return Err("claims impossibly long metadata");
    }
    let expected = body_len
        .checked_add(table_len(body_len))
        .and_then(|n| n.checked_add(u64::from(meta_len) + TRAILER_LEN as u64));
    if expected != Some(file_len) {
        return Err("is not as long as its trailer says");
    }
    Ok(Trailer {
        body_len,
        meta_len,
        hash: array(&bytes[COVERED..]),
    })
}

/// Decodes the metadata; `covered` is the metadata and the trailer up to its hash.
pub(crate) fn decode_meta(covered: &[u8], trailer: &Trailer) -> Result<Meta, &'static str> {
    if blake3::hash(covered).as_bytes() != &trailer.hash {
        return Err("has damaged metadata");
    }
    let json = covered
        .len()
        .checked_sub(COVERED)
        .and_then(|len| covered.get(..len))
        .ok_or("has no metadata")?;
    serde_json::from_slice(json).map_err(|_| "has metadata of an unknown form")
}

/// Bytes of metadata and covered trailer, which [`decode_meta`] takes.
pub(crate) fn covered_len(trailer: &Trailer) -> usize {
    trailer.meta_len as usize + COVERED
}

/// `bytes` as an array; callers pass a slice of exactly `N` bytes.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(meta: &Meta, body_len: u64) -> (Vec<u8>, u64) {
        let end = encode_meta_and_trailer(meta, body_len).unwrap();
        let file_len = body_len + table_len(body_len) + end.len() as u64;
        (end, file_len)
    }

    fn decode(end: &[u8], file_len: u64) -> Result<Meta, &'static str> {
        let at = end.len().checked_sub(TRAILER_LEN).ok_or("short")?;
        let trailer = decode_trailer(&array(&end[at..]), file_len)?;
        let at = (end.len() - HASH_LEN)
            .checked_sub(covered_len(&trailer))
            .ok_or("short")?;
        decode_meta(&end[at..end.len() - HASH_LEN], &trailer)
    }

    #[test]
    fn metadata_comes_back() {
        let mut meta = Meta {
            key: "a/b".into(),
            etag: "x-1".into(),
            modified_ms: 7,
            ..Meta::default()
        };
        meta.user.insert("k".into(), "ü".into());
        meta.headers.content_type = Some("text/plain".into());
        let (end, len) = file(&meta, 3 * BLOCK_LEN as u64 + 1);
        assert_eq!(decode(&end, len), Ok(meta));
    }

    #[test]
    fn a_length_beyond_the_file_is_damage() {
        let (end, len) = file(&Meta::default(), u64::MAX / 4);
        assert!(decode(&end, len - 1).is_err());
        assert!(decode(&end, 100).is_err());
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(key in "[a-z/]{1,20}", at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let (mut end, len) = file(&Meta { key, ..Meta::default() }, 5);
            let at = at.index(end.len());
            end[at] ^= 1 << bit;
            prop_assert!(decode(&end, len).is_err());
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), TRAILER_LEN), len in any::<u64>(), magic in any::<bool>(),
        ) {
            let mut bytes: [u8; TRAILER_LEN] = array(&bytes);
            if magic {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[16..20].copy_from_slice(&(BLOCK_LEN as u32).to_le_bytes());
            }
            let _ = decode_trailer(&bytes, len);
        }
    }
}
