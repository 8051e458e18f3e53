//! A namespace's key, as it seals and opens objects. Pure, but for the salt.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rekindle_wire::SnapshotKey;

use super::form::{BLOCK, HEADER, Header, TAG, blocks, place_of, plain_of, sealed_len};
use super::key_id::{ID, KeyId};
use crate::digest::Digest;

const ID_CONTEXT: &str = "rekindle 2026 snapshots: id of a namespace's key";
const OBJECT_CONTEXT: &str = "rekindle 2026 snapshots: keys of objects";
const NAME_CONTEXT: &str = "rekindle 2026 snapshots: names of chunks";

/// The key of a namespace's snapshots.
pub struct SealingKey {
    id: KeyId,
    /// Keys of objects are derived from it.
    objects: [u8; 32],
    /// Chunks are named with it.
    names: [u8; 32],
}

/// An object could not be sealed: the system provides no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("no random numbers are to be had for the encryption of an object")]
pub struct SealError;

/// An object could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenSealError {
    /// Another key sealed it.
    #[error("it is encrypted with snapshot key {0}, which is not at hand: the order must carry its namespace's key")]
    OtherKey(KeyId),
    /// It was changed, or is another object.
    #[error("it was changed after it was encrypted with snapshot key {0}, or is another object")]
    Changed(KeyId),
}

pub(super) struct Cipher<'a> {
    key: LessSafeKey,
    name: &'a str,
    header: Header,
}

impl SealingKey {
    /// The key that was ordered.
    pub fn new(key: &SnapshotKey) -> Self {
        let derived = |context| blake3::derive_key(context, key.bytes());
        let mut id = [0; ID];
        id.copy_from_slice(&derived(ID_CONTEXT)[..ID]);
        Self {
            id: KeyId(id),
            objects: derived(OBJECT_CONTEXT),
            names: derived(NAME_CONTEXT),
        }
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The name of a chunk with these plain bytes.
    pub(crate) fn digest(&self, bytes: &[u8]) -> Digest {
        Digest(*blake3::keyed_hash(&self.names, bytes).as_bytes())
    }

    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let cipher = self.new_cipher(name, plain.len() as u64)?;
        let size = usize::try_from(sealed_len(plain.len() as u64)).unwrap_or_default();
        let mut sealed = Vec::with_capacity(size);
        sealed.extend_from_slice(&cipher.header.bytes());
        for (number, block) in (0..).zip(plain.chunks(BLOCK)) {
            cipher.seal(number, block, &mut sealed)?;
        }
        Ok(sealed)
    }

    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenSealError> {
        let changed = OpenSealError::Changed(self.id);
        let header = self.header(sealed)?;
        if sealed_len(header.len) != sealed.len() as u64 {
            return Err(changed);
        }
        // Shorter than what is at hand, so it fits.
        let mut plain = vec![0; usize::try_from(header.len).map_err(|_| changed)?];
        self.open_range(name, header, &(0..header.len), &sealed[HEADER..], &mut plain)?;
        Ok(plain)
    }

    /// Opens the bytes `range` of the object `name` into `plain`, which has their length. `sealed` is what is at
    /// [`place_of`] the range.
    pub(crate) fn open_range(
        &self,
        name: &str,
        header: Header,
        range: &Range<u64>,
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), OpenSealError> {
        let changed = || OpenSealError::Changed(self.id);
        let place = place_of(range, header.len);
        if range.end > header.len || place.end - place.start != sealed.len() as u64 {
            return Err(changed());
        }
        let cipher = self.cipher(name, header).ok_or_else(changed)?;
        let mut scratch = Vec::new();
        let mut left = plain;
        for (number, block) in blocks(range).zip(sealed.chunks(BLOCK + TAG)) {
            let of = plain_of(&(number..number + 1), header.len);
            let wanted = range.start.max(of.start)..range.end.min(of.end);
            // Within one block.
            let len = usize::try_from(wanted.end - wanted.start).map_err(|_| changed())?;
            let (into, rest) = std::mem::take(&mut left)
                .split_at_mut_checked(len)
                .ok_or_else(changed)?;
            left = rest;
            if wanted == of {
                cipher.open(number, block, into).ok_or_else(changed)?;
                continue;
            }
            scratch.resize(block.len().saturating_sub(TAG), 0);
            cipher.open(number, block, &mut scratch).ok_or_else(changed)?;
            let from = usize::try_from(wanted.start - of.start).map_err(|_| changed())?;
            into.copy_from_slice(scratch.get(from..from + len).ok_or_else(changed)?);
        }
        left.is_empty().then_some(()).ok_or_else(changed)
    }

    /// The header of an object that this key sealed.
    pub(super) fn header(&self, sealed: &[u8]) -> Result<Header, OpenSealError> {
        match Header::parse(sealed) {
            Some(header) if header.key == self.id => Ok(header),
            Some(header) => Err(OpenSealError::OtherKey(header.key)),
            None => Err(OpenSealError::Changed(self.id)),
        }
    }

    /// The cipher of an object that is to be sealed.
    pub(super) fn new_cipher<'a>(&self, name: &'a str, len: u64) -> Result<Cipher<'a>, SealError> {
        let mut header = Header {
            key: self.id,
            salt: Default::default(),
            len,
        };
        aws_lc_rs::rand::fill(&mut header.salt).map_err(|_| SealError)?;
        self.cipher(name, header).ok_or(SealError)
    }

    /// The cipher of the object `name` with this header. The library takes every key of this length.
    pub(super) fn cipher<'a>(&self, name: &'a str, header: Header) -> Option<Cipher<'a>> {
        let mut hasher = blake3::Hasher::new_keyed(&self.objects);
        let key = hasher.update(&header.bytes()).update(name.as_bytes()).finalize();
        Some(Cipher {
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_bytes()).ok()?),
            name,
            header,
        })
    }
}

impl Cipher<'_> {
    pub(super) fn header(&self) -> [u8; HEADER] {
        self.header.bytes()
    }

    /// Appends the block of this number, encrypted, to `sealed`.
    pub(super) fn seal(&self, number: u64, block: &[u8], sealed: &mut Vec<u8>) -> Result<(), SealError> {
        let from = sealed.len();
        sealed.extend_from_slice(block);
        let encrypted = self
            .key
            .seal_in_place_separate_tag(nonce(number), Aad::from(self.name), &mut sealed[from..]);
        sealed.extend_from_slice(encrypted.map_err(|_| SealError)?.as_ref());
        Ok(())
    }

    /// Decrypts the block of this number into `plain`. `None` if it is another block.
    pub(super) fn open(&self, number: u64, block: &[u8], plain: &mut [u8]) -> Option<()> {
        let (encrypted, tag) = block.split_at_checked(block.len().checked_sub(TAG)?)?;
        if encrypted.len() != plain.len() {
            return None;
        }
        let aad = Aad::from(self.name);
        self.key
            .open_separate_gather(nonce(number), aad, encrypted, tag, plain)
            .ok()
    }
}

/// Each object has a key of its own, so its blocks' numbers are nonces.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
