//! Hashes the pieces of a dump, compresses those that the store does not have, and packs them into chunks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt};
use rekindle_wire::SnapshotId;

use super::dump_dir::Dump;
use super::split::Cut;
use super::{PublishError, UPLOADS_AT_ONCE, on_blocking_thread};
use crate::codec::{self, Encoded, Encoding};
use crate::collect::{Publication, PublicationError};
use crate::digest::Digest;
use crate::keys;
use crate::pagemap::{ChunkRef, Payload};
use crate::store::Store;

/// A chunk is closed when it has this much: one GET of it is short, and few are needed.
const CHUNK_BYTES: usize = 4 << 20;
/// Names tried for a chunk while collections may be deleting objects of those names.
const NAMES_MAX: usize = 16;
/// Pieces a thread takes at once: 4 MiB.
const BATCH: usize = 64;

/// A piece of one process's lazy memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Which process of the dump, by its place there.
    pub(super) process: usize,
    /// Which pages.
    pub(super) cut: Cut,
}

/// The new regions, now in the store.
pub(super) struct Stored {
    /// Where each lies.
    pub(super) payloads: HashMap<Digest, Payload>,
    /// Their bytes in chunks.
    pub(super) stored_bytes: u64,
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// The digest of each piece; `None` where all bytes are zero.
pub(super) async fn hash_all(dump: &Arc<Dump>, pieces: &Arc<[Piece]>) -> Result<Vec<Option<Digest>>, PublishError> {
    let batches = stream::iter((0..pieces.len()).step_by(BATCH)).map(|from| {
        let (dump, pieces) = (dump.clone(), pieces.clone());
        on_blocking_thread(move || {
            let batch = &pieces[from..pieces.len().min(from + BATCH)];
            let hashes = batch.iter().map(|piece| {
                let bytes = dump.piece_bytes(piece);
                (!codec::is_zero(bytes)).then(|| Digest::of(bytes))
            });
            Ok(hashes.collect::<Vec<_>>())
        })
    });
    let mut batches = batches.buffered(threads());
    let mut all = Vec::with_capacity(pieces.len());
    while let Some(hashes) = batches.next().await {
        all.extend(hashes?);
    }
    Ok(all)
}

/// Compress and store every piece whose digest is not `known`, once each.
pub(super) async fn store_new(
    store: &Store,
    publication: &Publication,
    dump: &Arc<Dump>,
    pieces: &[Piece],
    hashes: &[Option<Digest>],
    known: &HashMap<Digest, Payload>,
    id: &SnapshotId,
) -> Result<Stored, PublishError> {
    let mut seen = HashSet::new();
    let new: Arc<[(Piece, Digest)]> = pieces
        .iter()
        .zip(hashes)
        .filter_map(|(piece, hash)| hash.map(|hash| (*piece, hash)))
        .filter(|(_, hash)| !known.contains_key(hash) && seen.insert(*hash))
        .collect();
    let batches = stream::iter((0..new.len()).step_by(BATCH)).map(|from| {
        let (dump, new) = (dump.clone(), new.clone());
        on_blocking_thread(move || {
            let batch = &new[from..new.len().min(from + BATCH)];
            let encoded = batch.iter().map(|(piece, hash)| encode(dump.piece_bytes(piece), *hash));
            Ok(encoded.collect::<Vec<_>>())
        })
    });
    let mut batches = batches.buffered(threads());
    let failed = |cause| PublishError::Protect { id: id.clone(), cause };
    let mut uploads = FuturesUnordered::new();
    let mut stored = Stored {
        payloads: HashMap::with_capacity(new.len()),
        stored_bytes: 0,
    };
    let mut open = OpenChunk::default();
    while let Some(batch) = batches.next().await {
        for payload in batch? {
            if let Some(full) = open.add(payload) {
                while uploads.len() >= UPLOADS_AT_ONCE {
                    stored.note(uploads.next().await.transpose().map_err(failed)?);
                }
                uploads.push(Box::pin(upload(store, publication, full)));
            }
        }
    }
    if !open.bytes.is_empty() {
        uploads.push(Box::pin(upload(store, publication, open)));
    }
    while let Some(done) = uploads.next().await {
        stored.note(Some(done.map_err(failed)?));
    }
    Ok(stored)
}

impl Stored {
    fn note(&mut self, payloads: Option<Vec<Payload>>) {
        for payload in payloads.into_iter().flatten() {
            self.stored_bytes += u64::from(payload.len);
            self.payloads.insert(payload.hash, payload);
        }
    }
}

/// A region's payload, not in a chunk yet.
struct Packed {
    hash: Digest,
    encoding: Encoding,
    bytes: Vec<u8>,
}

fn encode(plain: &[u8], hash: Digest) -> Packed {
    let (encoding, bytes) = match codec::encode(plain) {
        Encoded::Lz4(block) => (Encoding::Lz4, block),
        // Zero it is not, as it has a digest; raw would be right for it all the same.
        Encoded::Raw | Encoded::Zero => (Encoding::Raw, plain.to_vec()),
    };
    Packed { hash, encoding, bytes }
}

/// A chunk being filled.
#[derive(Default)]
struct OpenChunk {
    bytes: Vec<u8>,
    regions: Vec<(Digest, Encoding, u32, u32)>,
}

impl OpenChunk {
    /// Append a payload. If the chunk was full, it is returned, and the payload is the first of a new one.
    fn add(&mut self, payload: Packed) -> Option<Self> {
        let full = self.bytes.len() + payload.bytes.len() > CHUNK_BYTES;
        let full = full.then(|| std::mem::take(self));
        // A chunk has at most 4 MiB, so all offsets and lengths fit.
        let at = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let (offset, len) = (at(self.bytes.len()), at(payload.bytes.len()));
        self.bytes.extend_from_slice(&payload.bytes);
        self.regions.push((payload.hash, payload.encoding, offset, len));
        full
    }
}

async fn upload(store: &Store, publication: &Publication, chunk: OpenChunk) -> Result<Vec<Payload>, PublicationError> {
    let mut bytes = chunk.bytes;
    let mut id = Digest::of(&bytes);
    let mut names = 1;
    while !publication.protect_one(keys::chunk(&id)).await? {
        if names == NAMES_MAX {
            return Err(PublicationError::NoName);
        }
        // An object of this name may be deleted at any moment. A zero byte at the end, which no region refers to, gives another.
        bytes.push(0);
        id = Digest::of(&bytes);
        names += 1;
    }
    let bytes = Bytes::from(bytes);
    let reference = ChunkRef {
        id,
        len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
    };
    // Over what may be there: the name is the digest of the bytes, so it is the same, or it is corrupt and is mended.
    store.put(&keys::chunk(&reference.id), bytes).await?;
    let payloads = chunk.regions.into_iter().map(|(hash, encoding, offset, len)| Payload {
        hash,
        encoding,
        chunk: reference,
        offset,
        len,
    });
    Ok(payloads.collect())
}
