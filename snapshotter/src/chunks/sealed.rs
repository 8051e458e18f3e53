//! Chunks of encrypted snapshots.
//!
//! Functions choose what is in their memory, so a chunk that is not encrypted may begin as an encrypted one does. It is
//! one if it names a key that is at hand, which no function knows.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join3;
use rekindle_store::Store;

use super::read_error::ReadError;
use crate::digest::Digest;
use crate::keys;
use crate::pagemap::ChunkRef;
use crate::seal::{HEADER, Header, Keyring, OpenSealError, SealingKey, place_of, sealed_len};

/// The plain bytes of a chunk, compared with its name.
pub(super) fn open_chunk(keys: &Keyring, chunk: Digest, stored: Bytes) -> Result<Bytes, ReadError> {
    let header = Header::parse(&stored);
    let key = header.and_then(|header| keys.get(header.key));
    let not_opened = |cause| ReadError::Sealed { chunk, cause };
    let (bytes, found) = match &key {
        Some(key) => {
            let plain = key.open(&keys::chunk(&chunk), &stored).map_err(not_opened)?;
            let found = key.digest(&plain);
            (Bytes::from(plain), found)
        }
        None => (stored.clone(), Digest::of(&stored)),
    };
    match header {
        _ if found == chunk => Ok(bytes),
        Some(header) if key.is_none() => Err(not_opened(OpenSealError::OtherKey(header.key))),
        _ => Err(ReadError::Corrupt {
            chunk,
            found,
            found_bytes: stored.len() as u64,
        }),
    }
}

/// The plain bytes `range` of a chunk in the store, in one round trip. `None` if they cannot be had. They are not
/// checked: that is up to the digests of the regions.
pub(super) async fn get_part(store: &Store, keys: &Keyring, chunk: ChunkRef, range: Range<u64>) -> Option<Bytes> {
    let name = keys::chunk(&chunk.id);
    let plain = store.get_range(&name, range.clone());
    if keys.is_empty() {
        return plain.await.ok();
    }
    // Only its header tells whether the chunk is sealed.
    let head = store.get_range(&name, 0..HEADER as u64);
    let sealed = store.get_range(&name, place_of(&range, u64::from(chunk.len)));
    let (plain, head, sealed) = join3(plain, head, sealed).await;
    let opened_by = |header: Header| Some((header, keys.get(header.key)?));
    let Some((header, key)) = Header::parse(&head.ok()?).and_then(opened_by) else {
        return plain.ok();
    };
    let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
    key.open_range(&name, header, &range, &sealed.ok()?, &mut bytes).ok()?;
    Some(bytes.into())
}

/// Fills `into` from the file of a cached chunk, starting at `offset` of its plain bytes. Returns the key that opened
/// it. The size of the file tells whether it is sealed. Blocks.
pub(super) fn read_sealed(
    keys: &Keyring,
    chunk: ChunkRef,
    (file, len): (&File, u64),
    offset: u64,
    into: &mut [u8],
) -> io::Result<Option<Arc<SealingKey>>> {
    let sealed = |file: &File| -> io::Result<Option<(Header, Arc<SealingKey>)>> {
        if len != sealed_len(u64::from(chunk.len)) {
            return Ok(None);
        }
        let mut head = [0; HEADER];
        file.read_exact_at(&mut head, 0)?;
        Ok(Header::parse(&head).and_then(|header| Some((header, keys.get(header.key)?))))
    };
    let Some((header, key)) = sealed(file)? else {
        return file.read_exact_at(into, offset).map(|()| None);
    };
    let range = offset..offset + into.len() as u64;
    if range.end > header.len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let place = place_of(&range, header.len);
    let mut bytes = vec![0; usize::try_from(place.end - place.start).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, place.start)?;
    let opened = key.open_range(&keys::chunk(&chunk.id), header, &range, &bytes, into);
    opened.map_err(io::Error::other)?;
    Ok(Some(key))
}
