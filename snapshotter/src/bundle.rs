//! The bundle: page maps, CRIU's images and eager pages as sections of one object, so that one GET fetches them. Pure.

use crate::codec;
use crate::digest::Digest;
use crate::manifest::{DECODED_MAX, Section, SectionEncoding};

/// Maximum size of a bundle, which is held in memory. An instance with more eager memory is no candidate for a lazy
/// restore.
pub(crate) const BUNDLE_MAX: u64 = 1 << 30;

/// The bundle would exceed the maximum size, as it is or decoded.
#[derive(Debug, thiserror::Error)]
#[error(
    "images and eager pages need more than {BUNDLE_MAX} bytes, or {DECODED_MAX} decoded: unmap shared or locked memory \
     before the snapshot"
)]
pub struct BundleTooLarge;

/// Why a section cannot be read from a bundle.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// The bundle ends before the section does.
    #[error("section lies outside the bundle")]
    Outside,
    /// The bytes differ from those that were stored.
    #[error("section is corrupt: its digest is {found}, not {expected}")]
    Digest {
        /// Digest of the bytes found.
        found: Digest,
        /// Digest in the manifest.
        expected: Digest,
    },
    /// The bytes do not decode to the section's length.
    #[error("section does not decode")]
    Decode(#[from] codec::DecodeError),
}

#[derive(Default)]
pub(crate) struct BundleBuilder {
    bytes: Vec<u8>,
    decoded: u64,
}

impl BundleBuilder {
    /// Appends a section. Blocks while it compresses.
    pub(crate) fn add(&mut self, plain: &[u8]) -> Result<Section, BundleTooLarge> {
        let (mut encoding, mut block) = (SectionEncoding::Raw, Vec::new());
        if (plain.len() as u64) < BUNDLE_MAX {
            block = lz4_flex::block::compress(plain);
        }
        let stored = if !block.is_empty() && block.len() < plain.len() / 8 * 7 {
            encoding = SectionEncoding::Lz4;
            &block
        } else {
            plain
        };
        let offset = self.bytes.len() as u64;
        let decoded = self.decoded + plain.len() as u64;
        if offset + stored.len() as u64 > BUNDLE_MAX || decoded > DECODED_MAX {
            return Err(BundleTooLarge);
        }
        self.decoded = decoded;
        self.bytes.extend_from_slice(stored);
        Ok(Section {
            offset,
            stored_bytes: stored.len() as u64,
            bytes: plain.len() as u64,
            encoding,
            blake3: Digest::of(stored),
        })
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Decodes and checks a section, given its stored bytes.
pub(crate) fn open_section(section: &Section, stored: &[u8]) -> Result<Vec<u8>, SectionError> {
    if stored.len() as u64 != section.stored_bytes || section.bytes > BUNDLE_MAX {
        return Err(SectionError::Outside);
    }
    let found = Digest::of(stored);
    if found != section.blake3 {
        return Err(SectionError::Digest {
            found,
            expected: section.blake3,
        });
    }
    let encoding = match section.encoding {
        SectionEncoding::Raw => codec::Encoding::Raw,
        SectionEncoding::Lz4 => codec::Encoding::Lz4,
    };
    // At most BUNDLE_MAX, so it fits. The manifest that states the length was checked.
    let mut plain = vec![0; usize::try_from(section.bytes).map_err(|_| SectionError::Outside)?];
    codec::decode_unchecked(encoding, stored, &mut plain)?;
    Ok(plain)
}

/// Decodes and checks a section of `bundle`.
pub(crate) fn read_section(section: &Section, bundle: &[u8]) -> Result<Vec<u8>, SectionError> {
    let slice = || {
        let start = usize::try_from(section.offset).ok()?;
        let end = start.checked_add(usize::try_from(section.stored_bytes).ok()?)?;
        bundle.get(start..end)
    };
    open_section(section, slice().ok_or(SectionError::Outside)?)
}
