//! Turns memory into chunks in the store, in a pipeline that holds little of it at once.
//!
//! ```text
//! batches ─► read, cut, hash ─► does the store have it? ─► which are new ─► compress ─► pack ─► put
//!            READ_AHEAD at once, in order                  in order    one core each  in order  UPLOADS_AT_ONCE
//! ```
//!
//! Every decision that affects the objects is made in address order, so the objects do not depend on the number of
//! threads.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rekindle_store::{Outcome, Store, StoreError};
use rekindle_wire::SnapshotId;

use super::base::BaseMemory;
use super::dump_dir::Dump;
use super::read::{BatchMemory, ComputePermits, HashedRegion, batches, read};
use super::{CaptureOptions, PublishError, UPLOADS_AT_ONCE, on_blocking_thread};
use crate::buffers::{Buffer, Buffers};
use crate::codec::{Compressor, Encoding};
use crate::collect::{Publication, PublicationError};
use crate::digest::Digest;
use crate::keys;
use crate::pagemap::{Base, ChunkRef, PageIndex, Payload};
use crate::region_index::{ChunkPresence, RegionIndex};
use crate::seal::SealingKey;

/// Size at which a chunk is closed. One GET of such a chunk is short, and few are needed. The largest region fills a
/// chunk.
const CHUNK_BYTES: usize = 4 << 20;
/// Maximum number of names tried for a chunk while collections may be deleting objects with those names.
const NAMES_MAX: usize = 16;
/// A difference that LZ4 shrinks to this fraction of its region is accepted without compressing the region on its own.
const SURELY_SMALLER: usize = 16;
/// Batches that are read, and looked up in the store, ahead of those being compressed.
const READ_AHEAD: usize = 6;

/// A dump's memory, now in the store.
#[derive(Debug, Default)]
pub(super) struct StoredMemory {
    /// All pieces, by process and address.
    pub(super) pieces: Vec<HashedRegion>,
    /// Location of each digest's bytes.
    pub(super) payloads: HashMap<Digest, Payload>,
    pub(super) new: Vec<Payload>,
    /// The bases of the new payloads that are differences, each with the page at which its region was.
    pub(super) bases: HashMap<Digest, (PageIndex, Base)>,
    /// Bytes of the new payloads in chunks.
    pub(super) new_bytes: u64,
}

impl StoredMemory {
    /// The base of the bytes with this digest at page `first`, if they are stored as a difference. If the bytes were
    /// found at another address, the base shifts by the same distance.
    pub(super) fn base_of(&self, hash: Digest, first: PageIndex) -> Option<Base> {
        let (lay, base) = self.bases.get(&hash)?;
        let first = PageIndex((base.first.0 + first.0).saturating_sub(lay.0));
        Some(Base { first, ..*base })
    }
}

/// Where memory goes.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) store: &'a Store,
    pub(super) publication: &'a Publication,
    /// What the store has.
    pub(super) index: &'a RegionIndex,
    /// The key that `store` seals with, if it does.
    pub(super) seal: Option<&'a SealingKey>,
}

impl Destination<'_> {
    fn name(&self, bytes: &[u8]) -> Digest {
        self.seal.map_or_else(|| Digest::of(bytes), |key| key.digest(bytes))
    }
}

/// Stores the part of the dump's lazy memory that the store does not have yet.
pub(super) async fn store_memory(
    into: Destination<'_>,
    dump: &Arc<Dump>,
    base: Option<&BaseMemory>,
    options: &CaptureOptions,
    id: &SnapshotId,
) -> Result<StoredMemory, PublishError> {
    let Destination {
        store,
        publication,
        index,
        ..
    } = into;
    let failed = |cause| PublishError::Protect { id: id.clone(), cause };
    let base = usable(base, index).await;
    let (cores, presence) = (&ComputePermits::new(options.threads), &ChunkPresence::default());
    let (size, consume) = (options.codec.region, options.consume);
    let buffers = &Buffers::keeping(2 * (READ_AHEAD + UPLOADS_AT_ONCE));

    let hashed = stream::iter(batches(dump)).map(|batch| async move {
        let (from, cores, buffers) = (dump.clone(), cores.clone(), buffers.clone());
        let memory = on_blocking_thread(move || {
            let read = cores.run(|| read(&from, &batch, &buffers, size, consume));
            read.map_err(|cause| PublishError::dump(&from.path, cause))
        });
        let memory = memory.await?;
        let on = |piece: &HashedRegion| base?.of(dump.processes[piece.process].pid, &piece.region);
        let bases: Vec<Option<Base>> = memory.pieces.iter().map(on).collect();
        let hashes = memory.pieces.iter().filter_map(|piece| piece.hash);
        let theirs = bases.iter().flatten().map(|base| base.payload.hash);
        let known = index
            .confirm(store, publication, presence, hashes.chain(theirs))
            .await
            .map_err(failed)?;
        Ok::<_, PublishError>((memory, bases, known))
    });

    let mut seen = SeenRegions::default();
    let chosen = hashed.buffered(READ_AHEAD).map_ok(|(memory, bases, known)| {
        let new = seen.choose(&memory, &bases, known);
        (memory, new)
    });

    let encoded = chosen
        .map_ok(|(memory, new)| {
            let (cores, blocks, base) = (cores.clone(), buffers.empty(0), base.cloned());
            let compressor = Compressor::new(options.codec.acceleration);
            on_blocking_thread(move || Ok(cores.run(|| encode(memory, &new, base.as_ref(), compressor, blocks))))
        })
        .try_buffered(options.threads.max(1));

    let mut open = OpenChunk::new(buffers);
    let mut differences = HashMap::new();
    let encoded = encoded.inspect_ok(|batch| differences.extend(batch.bases.iter().copied()));
    let chunks = encoded.map_ok(Some).chain(stream::iter([Ok(None)])).map_ok(|batch| {
        let closed = match batch {
            Some(batch) => batch
                .payloads()
                .filter_map(|payload| open.add(&payload, buffers))
                .collect(),
            None => vec![std::mem::replace(&mut open, OpenChunk::new(buffers))],
        };
        stream::iter(closed).map(Ok::<_, PublishError>)
    });
    let uploads = chunks
        .try_flatten()
        .try_filter(|chunk| std::future::ready(!chunk.bytes.is_empty()))
        .map_ok(|chunk| Box::pin(async { upload(into, chunk).await.map_err(failed) }));
    let mut uploads = Box::pin(uploads.try_buffer_unordered(UPLOADS_AT_ONCE));

    let mut new = Vec::new();
    while let Some(payloads) = uploads.try_next().await? {
        new.extend(payloads);
    }
    drop(uploads);
    let SeenRegions {
        pieces, mut payloads, ..
    } = seen;
    payloads.extend(new.iter().map(|payload| (payload.hash, *payload)));
    Ok(StoredMemory {
        new_bytes: new.iter().map(|payload| u64::from(payload.len)).sum(),
        pieces,
        payloads,
        new,
        bases: differences,
    })
}

/// The base memory, if its chunks are on this host and the index knows where they are. Without a base the snapshot is
/// just as good, only larger.
async fn usable<'a>(base: Option<&'a BaseMemory>, index: &RegionIndex) -> Option<&'a BaseMemory> {
    let base = base?;
    if let Err(error) = base.bring().await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(base = %base.id(), error, "what a snapshot began as cannot be read: it is stored whole");
        return None;
    }
    index.learn(base.payloads());
    Some(base)
}

#[derive(Clone, Copy)]
struct NewRegion {
    piece: HashedRegion,
    /// The base that it may be stored as a difference to.
    base: Option<Base>,
}

/// The pieces read so far, in order.
#[derive(Debug, Default)]
struct SeenRegions {
    pieces: Vec<HashedRegion>,
    /// Location of the pieces that the store already had.
    payloads: HashMap<Digest, Payload>,
    /// Digests of the pieces being stored.
    new: HashSet<Digest>,
}

impl SeenRegions {
    /// The pieces of `memory` that must be stored.
    fn choose(
        &mut self,
        memory: &BatchMemory,
        bases: &[Option<Base>],
        known: HashMap<Digest, Payload>,
    ) -> Vec<NewRegion> {
        // Only a base that the store has and keeps.
        let kept = |base: Base| {
            let payload = *known.get(&base.payload.hash)?;
            Some(Base { payload, ..base })
        };
        let bases: Vec<Option<Base>> = bases.iter().map(|base| base.and_then(kept)).collect();
        for (hash, payload) in known {
            if !self.new.contains(&hash) {
                self.payloads.entry(hash).or_insert(payload);
            }
        }
        self.pieces.extend_from_slice(&memory.pieces);
        let mut new = Vec::new();
        for (piece, base) in std::iter::zip(&memory.pieces, bases) {
            if piece
                .hash
                .is_some_and(|hash| !self.payloads.contains_key(&hash) && self.new.insert(hash))
            {
                new.push(NewRegion { piece: *piece, base });
            }
        }
        new
    }
}

/// The payloads of a batch: its LZ4 blocks one after the other, and its memory, which holds the payloads that are
/// stored uncompressed.
struct Encoded {
    blocks: Buffer,
    memory: BatchMemory,
    regions: Vec<(Digest, Encoding, Range<usize>)>,
    /// The bases of the payloads that are differences, each with the page of its region.
    bases: Vec<(Digest, (PageIndex, Base))>,
}

/// A region's payload, not yet in a chunk.
struct PackedRegion<'a> {
    hash: Digest,
    encoding: Encoding,
    bytes: &'a [u8],
}

fn encode(
    memory: BatchMemory,
    new: &[NewRegion],
    base: Option<&BaseMemory>,
    mut compressor: Compressor,
    mut blocks: Buffer,
) -> Encoded {
    let (mut regions, mut bases) = (Vec::with_capacity(new.len()), Vec::new());
    let mut difference = Vec::new();
    for NewRegion { piece, base: on } in new {
        let Some(hash) = piece.hash else { continue };
        let plain = piece.region.of(&memory.bytes);
        if let (Some(memory), Some(on)) = (base, on)
            && let Some(block) = memory.difference(&piece.region, plain, on, &mut compressor, &mut difference)
        {
            let start = blocks.len();
            blocks.extend_from_slice(block);
            let is_small = block.len() * SURELY_SMALLER <= plain.len();
            let len = blocks.len() - start;
            // Reading a difference takes two payloads.
            let mut alone = || compressor.block(plain).map_or(plain.len(), <[u8]>::len);
            if is_small || len * 2 <= alone() {
                regions.push((hash, Encoding::Lz4, start..blocks.len()));
                bases.push((hash, (piece.region.first, *on)));
                continue;
            }
            blocks.truncate(start);
        }
        let payload = match compressor.block(plain) {
            Some(block) => {
                let start = blocks.len();
                blocks.extend_from_slice(block);
                (hash, Encoding::Lz4, start..blocks.len())
            }
            None => (hash, Encoding::Raw, piece.region.at..piece.region.at + plain.len()),
        };
        regions.push(payload);
    }
    Encoded {
        blocks,
        memory,
        regions,
        bases,
    }
}

impl Encoded {
    fn payloads(&self) -> impl Iterator<Item = PackedRegion<'_>> {
        self.regions.iter().map(|(hash, encoding, range)| {
            let from = match encoding {
                Encoding::Lz4 => &self.blocks,
                Encoding::Raw => &self.memory.bytes,
            };
            PackedRegion {
                hash: *hash,
                encoding: *encoding,
                bytes: &from[range.clone()],
            }
        })
    }
}

/// A chunk that is being filled.
struct OpenChunk {
    bytes: Buffer,
    regions: Vec<(Digest, Encoding, u32, u32)>,
}

impl OpenChunk {
    fn new(buffers: &Buffers) -> Self {
        Self {
            bytes: buffers.empty(CHUNK_BYTES),
            regions: Vec::new(),
        }
    }

    /// Appends a payload. If the chunk is full, it is returned and the payload starts a new one.
    fn add(&mut self, payload: &PackedRegion<'_>, buffers: &Buffers) -> Option<Self> {
        let full = self.bytes.len() + payload.bytes.len() > CHUNK_BYTES;
        let full = full.then(|| std::mem::replace(self, Self::new(buffers)));
        // A chunk is at most 4 MiB, so all offsets and lengths fit.
        let at = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let (offset, len) = (at(self.bytes.len()), at(payload.bytes.len()));
        self.bytes.extend_from_slice(payload.bytes);
        self.regions.push((payload.hash, payload.encoding, offset, len));
        full
    }
}

async fn upload(into: Destination<'_>, chunk: OpenChunk) -> Result<Vec<Payload>, PublicationError> {
    let Destination { store, publication, .. } = into;
    let mut bytes = Bytes::from_owner(chunk.bytes);
    let mut id = into.name(&bytes);
    let mut names = 1;
    while !(publication.protect_one(keys::chunk(&id)).await? && put_or_find(store, &id, &bytes).await?) {
        if names == NAMES_MAX {
            return Err(PublicationError::NoName);
        }
        // An object of this name may be deleted at any moment, or does not match its name. Appending a zero byte, which
        // no region refers to, gives the chunk another name.
        bytes = [&bytes[..], &[0]].concat().into();
        id = into.name(&bytes);
        names += 1;
    }
    let reference = ChunkRef {
        id,
        len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
    };
    let payloads = chunk.regions.into_iter().map(|(hash, encoding, offset, len)| Payload {
        hash,
        encoding,
        chunk: reference,
        offset,
        len,
    });
    Ok(payloads.collect())
}

/// Puts a chunk if the store has none of this name. Returns whether the store now has these bytes: an existing object
/// may be foreign and damaged.
async fn put_or_find(store: &Store, id: &Digest, bytes: &Bytes) -> Result<bool, StoreError> {
    let key = keys::chunk(id);
    if store.put_if_absent(&key, bytes.clone()).await? == Outcome::Created {
        return Ok(true);
    }
    // The length first, because the object may be anything.
    let is_there = store.head(&key).await?.len == bytes.len() as u64 && store.get(&key).await? == *bytes;
    if !is_there {
        tracing::warn!(
            key,
            "a chunk in the store is not what its name says: it is stored by another name"
        );
    }
    Ok(is_there)
}
