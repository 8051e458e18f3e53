//! Which pieces of a layer a snapshot's first response read: what a host without the layer fetches at once.
//!
//! ```text
//! [MAGIC] [layer's digest, 32 bytes] [piece u32] …      little-endian, in the order in which they were read
//! ```

#[cfg(test)]
mod tests;

use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;

use crate::digest::Digest;
use crate::keys;

const MAGIC: &[u8; 8] = b"RKFILES1";
const HEAD: usize = 40;
/// Maximum number of pieces recorded: 64 MiB of files.
pub const TOUCHED_MAX: usize = 512;
/// Maximum size of a record in bytes.
const RECORD_MAX: u64 = (HEAD + 4 * TOUCHED_MAX) as u64;

/// Stores what was read, in place of an earlier record.
///
/// # Errors
/// Returns the store's error.
pub async fn store_touched(
    store: &Store,
    snapshot: &SnapshotId,
    layer: &Digest,
    pieces: &[u32],
) -> Result<(), StoreError> {
    store.put(&keys::files(snapshot), encode(layer, pieces).into()).await
}

/// Returns what was read, or nothing if that is not recorded of this layer.
///
/// # Errors
/// Returns the store's error.
pub async fn load_touched(store: &Store, snapshot: &SnapshotId, layer: &Digest) -> Result<Vec<u32>, StoreError> {
    match store.get_at_most(&keys::files(snapshot), RECORD_MAX).await {
        Ok(bytes) => Ok(decode(layer, &bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn encode(layer: &Digest, pieces: &[u32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&layer.0);
    bytes.extend(pieces.iter().take(TOUCHED_MAX).flat_map(|piece| piece.to_le_bytes()));
    bytes
}

/// The record only says what to fetch, so one that makes no sense is none.
fn decode(layer: &Digest, bytes: &[u8]) -> Option<Vec<u32>> {
    let (head, pieces) = bytes.split_at_checked(HEAD)?;
    if head[..8] != *MAGIC || head[8..] != layer.0 {
        return None;
    }
    let pieces = pieces.as_chunks::<4>().0.iter().take(TOUCHED_MAX);
    Some(pieces.map(|piece| u32::from_le_bytes(*piece)).collect())
}
