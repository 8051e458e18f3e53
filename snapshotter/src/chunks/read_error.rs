//! Why reading fails.

use std::sync::Arc;

use rekindle_store::StoreError;

use crate::codec::DecodeError;
use crate::digest::Digest;
use crate::pagemap::PageIndex;
use crate::seal::OpenSealError;

/// Why a region cannot be read. The error is final: every retry that could help has been made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The store does not have the chunk or does not answer.
    #[error("could not fetch chunk {chunk}")]
    Fetch {
        /// The chunk.
        chunk: Digest,
        /// The store's error.
        #[source]
        cause: Arc<StoreError>,
    },
    /// The chunk in the store does not match its digest.
    #[error("chunk {chunk} in the store is corrupt: it has {found_bytes} bytes with the digest {found}")]
    Corrupt {
        /// The chunk.
        chunk: Digest,
        /// Digest of the bytes in the store.
        found: Digest,
        /// Size of the bytes in the store.
        found_bytes: u64,
    },
    /// The chunk is encrypted and cannot be opened.
    #[error("chunk {chunk} cannot be decrypted")]
    Sealed {
        /// The chunk.
        chunk: Digest,
        /// Which key it needs, or that it was changed.
        #[source]
        cause: OpenSealError,
    },
    /// The chunk is intact but does not hold the region.
    #[error("chunk {chunk} does not hold the region at {first} that the page map says it holds")]
    Region {
        /// The chunk.
        chunk: Digest,
        /// The region's first page.
        first: PageIndex,
        /// The decoder's error.
        #[source]
        cause: Arc<DecodeError>,
    },
    /// The process is shutting down.
    #[error("fetching chunk {chunk} was cut off by a shutdown")]
    Shutdown {
        /// The chunk.
        chunk: Digest,
    },
}

impl ReadError {
    /// The chunk that could not be read.
    pub fn chunk(&self) -> Digest {
        match self {
            Self::Fetch { chunk, .. }
            | Self::Corrupt { chunk, .. }
            | Self::Sealed { chunk, .. }
            | Self::Region { chunk, .. }
            | Self::Shutdown { chunk } => *chunk,
        }
    }

    /// Whether the store answered and its data is missing or wrong. Retrying later does not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Sealed { .. } | Self::Region { .. } => true,
            Self::Fetch { cause, .. } => cause.is_not_found(),
            Self::Shutdown { .. } => false,
        }
    }
}
