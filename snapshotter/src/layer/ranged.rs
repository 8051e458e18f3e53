//! A layer that stays in the store: its index, and pieces of its tar as they are asked for.

use std::ops::Range;
use std::sync::Arc;

use rekindle_store::{Store, StoreError};
use rekindle_wire::internal::LayerRef;

use super::FetchLayerError;
use super::frames::{PIECE, Table, table_bytes};
use super::index::{self, BEHIND_MAX, Entry};
use crate::digest::Digest;
use crate::keys;

/// How much of an object's end is requested at once, besides the table: the index of most images.
const END: u64 = 512 << 10;
/// Maximum number of pieces in the end that are unpacked at once: 16 MiB. Frames of nothing but zeros take some bytes
/// each.
const END_PIECES: usize = 128;
/// Maximum size of a table, of a tar of 56 GiB. A deploy's worker says how large a tar is.
const TABLE_MAX: u64 = 16 << 20;
/// Size of a tar block.
const BLOCK: u64 = 512;

/// A layer in the store, some of whose pieces can be fetched.
#[derive(Debug)]
pub struct RangedLayer {
    store: Store,
    key: String,
    digest: Digest,
    table: Table,
}

/// A layer that was opened, and what came with its index.
#[derive(Debug)]
pub struct OpenedLayer {
    /// The layer.
    pub layer: Arc<RangedLayer>,
    /// Its files.
    pub entries: Vec<Entry>,
    /// Pieces at its end that were fetched for the index.
    pub pieces: Vec<(usize, Vec<u8>)>,
    /// Bytes fetched.
    pub fetched: u64,
}

impl RangedLayer {
    /// Fetches a layer's index. `None` if the layer has none, because it is no image's, is small, or was stored by an
    /// earlier build, or is too large for a table.
    ///
    /// # Errors
    /// Returns an error when the store fails or the layer is corrupt.
    pub async fn open(store: &Store, layer: &LayerRef) -> Result<Option<OpenedLayer>, FetchLayerError> {
        let digest: Digest = layer
            .digest
            .parse()
            .map_err(|e| FetchLayerError::Reference(Arc::new(e)))?;
        let (key, tar_bytes) = (keys::layer(&digest), layer.tar_bytes);
        let failed = |cause: StoreError| FetchLayerError::Store {
            digest,
            cause: Arc::new(cause),
        };
        let object_bytes = store.head(&key).await.map_err(failed)?.len;
        let Some(begins) = end_begins(object_bytes, tar_bytes) else {
            return Ok(None);
        };
        let end = store.get_range(&key, begins..object_bytes).await.map_err(failed)?;
        let corrupt = |why: String| FetchLayerError::Corrupt { digest, why };
        let table = Table::parse(&end, object_bytes, &digest, tar_bytes).map_err(|e| corrupt(e.to_string()))?;
        let Some(table) = table else { return Ok(None) };
        let layer = Arc::new(Self {
            store: store.clone(),
            key,
            digest,
            table,
        });
        // The pieces whose frames are wholly there.
        let count = layer.table.pieces();
        let first = (0..count).rfind(|piece| layer.table.packed(&(*piece..count)).start < begins);
        let first = first.map_or(0, |piece| piece + 1).max(count.saturating_sub(END_PIECES));
        // Lengths that are too short end before it.
        let skipped = layer.table.packed(&(first..count)).start.checked_sub(begins);
        let skipped = skipped.ok_or_else(|| corrupt("its frames are not at its end".to_owned()))?;
        let mut pieces = layer.decode(first..count, &end[skipped as usize..])?;
        let mut fetched = end.len() as u64;
        // The index may begin before them.
        for _ in 0..3 {
            let first = pieces.first().map_or(count, |(piece, _)| *piece);
            let known: Vec<u8> = pieces.iter().flat_map(|(_, plain)| plain).copied().collect();
            let lacking = if known.len() < BEHIND_MAX && first > 0 {
                first - 1
            } else {
                let Some((before_end, length)) = index::locate(&known) else {
                    return Ok(None);
                };
                let begins = tar_bytes.saturating_sub(before_end + BLOCK);
                let lacking = (begins / PIECE) as usize;
                if lacking >= first {
                    let at = (begins - first as u64 * PIECE) as usize;
                    let entries = known.get(at..at + (BLOCK + length) as usize).unwrap_or_default();
                    let entries = index::decode(entries).map_err(|e| corrupt(e.to_string()))?;
                    return Ok(Some(OpenedLayer {
                        layer,
                        entries,
                        pieces,
                        fetched,
                    }));
                }
                lacking
            };
            let (mut before, bytes) = layer.fetch(lacking..first).await?;
            fetched += bytes;
            before.append(&mut pieces);
            pieces = before;
        }
        Err(corrupt("its index is not at its end".to_owned()))
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.table.pieces()
    }

    /// Returns the size of the tar in bytes.
    pub fn tar_bytes(&self) -> u64 {
        self.table.tar_bytes()
    }

    /// Returns the digest of the tar.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Fetches consecutive pieces with one request, and checks them. Returns how many bytes came, too.
    ///
    /// # Errors
    /// Returns an error when the store fails, or the bytes are not the layer's.
    pub async fn fetch(
        self: &Arc<Self>,
        pieces: Range<usize>,
    ) -> Result<(Vec<(usize, Vec<u8>)>, u64), FetchLayerError> {
        let got = self.store.get_range(&self.key, self.table.packed(&pieces)).await;
        let packed = got.map_err(|cause| FetchLayerError::Store {
            digest: self.digest,
            cause: Arc::new(cause),
        })?;
        let (this, bytes) = (Arc::clone(self), packed.len() as u64);
        let decoded = tokio::task::spawn_blocking(move || this.decode(pieces, &packed)).await;
        let decoded = decoded.unwrap_or(Err(FetchLayerError::Shutdown(self.digest)))?;
        Ok((decoded, bytes))
    }

    fn decode(&self, pieces: Range<usize>, packed: &[u8]) -> Result<Vec<(usize, Vec<u8>)>, FetchLayerError> {
        let begins = self.table.packed(&pieces).start;
        let decode = |piece: usize| {
            let at = self.table.packed(&(piece..piece + 1));
            let frame = packed.get((at.start - begins) as usize..(at.end - begins) as usize);
            let plain = self.table.unpack(piece, frame.unwrap_or_default());
            plain.map(|plain| (piece, plain)).map_err(|e| FetchLayerError::Corrupt {
                digest: self.digest,
                why: e.to_string(),
            })
        };
        pieces.map(decode).collect()
    }
}

/// Returns where the part of an object begins that is requested first. `None` if there is no room for a table.
fn end_begins(object_bytes: u64, tar_bytes: u64) -> Option<u64> {
    let table = table_bytes(tar_bytes);
    (table <= object_bytes.min(TABLE_MAX)).then(|| object_bytes.saturating_sub(table + END))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invented_size_of_a_tar_fetches_no_whole_object() {
        let tar_bytes = 1 << 30;
        let table = table_bytes(tar_bytes);
        assert_eq!(end_begins(500 << 20, tar_bytes), Some((500 << 20) - table - END));
        assert_eq!(end_begins(table, tar_bytes), Some(0));
        assert_eq!(end_begins(table - 1, tar_bytes), None);
        assert_eq!(end_begins(2 << 30, u64::MAX), None);
        assert_eq!(end_begins(2 << 30, 60 << 30), None);
    }
}
