//! Envelope encryption of small secrets at rest. Each record has a data key of its own, which the master key wraps. So
//! the master key can be kept elsewhere, and encrypts nothing but keys.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version: 1 |
//! | 8 | id of the master key: the beginning of its BLAKE3 digest |
//! | 40 | the data key, wrapped with the master key (AES-256 key wrap, RFC 3394) |
//! | 12 | nonce |
//! | n + 16 | the secret, encrypted with the data key (AES-256-GCM, NIST SP 800-38D), and its tag |
//!
//! A record's owner is authenticated with it, so that a record in another's place cannot be opened. Key wrap needs no
//! nonce, and a data key encrypts once. So the master key need not be replaced after any number of records.

mod key_service;

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap as _};

pub use key_service::{KeyService, KeyServiceError, WrappedKey};

const VERSION: u8 = 1;
const ID: usize = 8;
const KEY: usize = 32;
const WRAPPED: usize = KEY + 8;
const TAG: usize = 16;
const ID_CONTEXT: &str = "rekindle 2026 envelope: id of a master key";
const KEY_CONTEXT: &str = "rekindle 2026 envelope: master key";
/// Anything shorter is not a secret.
const TEXT_MIN: usize = 32;

/// The key that wraps the keys of records.
#[derive(Clone)]
pub struct MasterKey {
    bytes: [u8; KEY],
    id: KeyId,
}

/// Identifies a master key in logs and databases. Reveals nothing about the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId([u8; ID]);

/// The text is no master key.
#[derive(Debug, thiserror::Error)]
#[error("a master key is a random text of at least {TEXT_MIN} characters")]
pub struct ParseMasterKeyError;

/// A secret could not be sealed: the system provides no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("no random numbers are to be had for the key of a record")]
pub struct SealError;

/// A record could not be opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is too short, or of another version.
    #[error("it is no sealed record of a version that is known here")]
    Form,
    /// Another master key sealed it.
    #[error("it was sealed with master key {0}, and the one at hand is {1}")]
    OtherKey(KeyId, KeyId),
    /// It was changed, or belongs to something else.
    #[error("it was changed after it was sealed, or belongs to something else")]
    Changed,
}

/// A new key for whatever else is to be encrypted.
///
/// # Errors
/// If the system provides no random numbers.
pub fn random_key() -> Result<[u8; KEY], SealError> {
    let mut key = [0; KEY];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| SealError)?;
    Ok(key)
}

impl MasterKey {
    fn of(bytes: [u8; KEY]) -> Self {
        let digest = blake3::derive_key(ID_CONTEXT, &bytes);
        let mut id = [0; ID];
        id.copy_from_slice(&digest[..ID]);
        Self { bytes, id: KeyId(id) }
    }

    /// The key that a key service has unwrapped; `None` if these are not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::of(bytes.try_into().ok()?))
    }

    /// What a key service wraps. It goes nowhere else.
    pub fn bytes(&self) -> &[u8; KEY] {
        &self.bytes
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Seals `secret` for `owner`, a name that must be the same when it is opened.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn seal(&self, owner: &str, secret: &[u8]) -> Result<Vec<u8>, SealError> {
        let data_key = random_key()?;
        let mut wrapped = [0; WRAPPED];
        self.kek()
            .and_then(|kek| kek.wrap(&data_key, &mut wrapped).map(drop).ok())
            .ok_or(SealError)?;
        let mut text = secret.to_vec();
        let nonce = RandomizedNonceKey::new(&AES_256_GCM, &data_key)
            .and_then(|key| key.seal_in_place_append_tag(Aad::from(owner.as_bytes()), &mut text))
            .map_err(|_| SealError)?;
        let mut record = Vec::with_capacity(1 + ID + WRAPPED + NONCE_LEN + text.len());
        record.push(VERSION);
        record.extend_from_slice(&self.id.0);
        record.extend_from_slice(&wrapped);
        record.extend_from_slice(nonce.as_ref());
        record.extend_from_slice(&text);
        Ok(record)
    }

    /// Opens a record that belongs to `owner`, and returns its secret.
    ///
    /// # Errors
    /// If it was sealed with another key, or for another owner.
    pub fn open(&self, owner: &str, record: &[u8]) -> Result<Vec<u8>, OpenError> {
        let rest = match record.split_first() {
            Some((&VERSION, rest)) => rest,
            _ => return Err(OpenError::Form),
        };
        let (id, rest) = rest.split_first_chunk::<ID>().ok_or(OpenError::Form)?;
        let (wrapped, rest) = rest.split_first_chunk::<WRAPPED>().ok_or(OpenError::Form)?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>().ok_or(OpenError::Form)?;
        if text.len() < TAG {
            return Err(OpenError::Form);
        }
        if *id != self.id.0 {
            return Err(OpenError::OtherKey(KeyId(*id), self.id));
        }
        // Eight bytes longer than the key, as unwrapping requires.
        let mut data_key = [0; WRAPPED];
        let data_key = self
            .kek()
            .and_then(|kek| kek.unwrap(wrapped, &mut data_key).ok())
            .ok_or(OpenError::Changed)?;
        let mut text = text.to_vec();
        let secret = RandomizedNonceKey::new(&AES_256_GCM, data_key)
            .and_then(|key| {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let secret = key.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut text)?;
                Ok(secret.len())
            })
            .map_err(|_| OpenError::Changed)?;
        text.truncate(secret);
        Ok(text)
    }

    fn kek(&self) -> Option<AesKek> {
        AesKek::new(&AES_256, &self.bytes).ok()
    }
}

impl FromStr for MasterKey {
    type Err = ParseMasterKeyError;

    /// Derives the key from a random text of any characters: our files hold 64 hexadecimal digits, a cloud's secrets
    /// something else.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.len() < TEXT_MIN {
            return Err(ParseMasterKeyError);
        }
        Ok(Self::of(blake3::derive_key(KEY_CONTEXT, text.as_bytes())))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays out of logs.
        f.debug_struct("MasterKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGITS: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn key() -> MasterKey {
        DIGITS.parse().unwrap()
    }

    fn anothers() -> MasterKey {
        DIGITS.replace('f', "e").parse().unwrap()
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens_with_its_key_for_its_owner_alone(
            secret in proptest::collection::vec(any::<u8>(), 0..300), owner in "[a-z]{0,20}", other in "[A-Z]{1,20}",
        ) {
            let (own, anothers) = (key(), anothers());
            let record = own.seal(&owner, &secret).unwrap();
            prop_assert_eq!(own.open(&owner, &record), Ok(secret.clone()));
            prop_assert_eq!(own.open(&other, &record), Err(OpenError::Changed));
            prop_assert_eq!(anothers.open(&owner, &record), Err(OpenError::OtherKey(own.id(), anothers.id())));
        }

        #[test]
        fn a_record_with_any_bit_changed_does_not_open(at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let own = key();
            let mut record = own.seal("a", b"Bearer secret").unwrap();
            let at = at.index(record.len());
            record[at] ^= 1 << bit;
            prop_assert!(own.open("a", &record).is_err());
        }

        #[test]
        fn what_is_no_record_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(key().open("a", &bytes).is_err());
        }
    }

    #[test]
    fn no_part_of_a_record_shows_the_secret_and_none_is_the_same_twice() {
        let own = key();
        let secret = b"Bearer 0123456789abcdef";
        let (one, two) = (own.seal("a", secret).unwrap(), own.seal("a", secret).unwrap());
        for record in [&one, &two] {
            assert!(!record.windows(8).any(|part| secret.windows(8).any(|of| of == part)));
        }
        let own_part = 1 + ID;
        assert!(
            one[own_part..]
                .iter()
                .zip(&two[own_part..])
                .filter(|(a, b)| a == b)
                .count()
                < 20
        );
    }

    #[test]
    fn a_key_is_read_from_a_text_that_may_be_one_and_does_not_show() {
        assert_eq!(format!(" {DIGITS}\n").parse::<MasterKey>().unwrap().id(), key().id());
        assert_ne!(anothers().id(), key().id());
        assert!(!format!("{:?}", key()).contains("0011"));
        assert_eq!(MasterKey::from_bytes(key().bytes()).unwrap().id(), key().id());
        assert!(MasterKey::from_bytes(&[0; KEY - 1]).is_none());
        for bad in ["", "\n", "0011", &" ".repeat(64)] {
            assert!(bad.parse::<MasterKey>().is_err(), "{bad}");
        }
    }

    /// A record made with another implementation of the two algorithms (Python's `cryptography`): records of this
    /// version stay readable.
    #[test]
    fn a_record_of_version_1_opens() {
        let own = MasterKey::of([0x11; KEY]);
        let rest = (0..RECORD_1.len() / 2).map(|n| u8::from_str_radix(&RECORD_1[2 * n..2 * n + 2], 16).unwrap());
        let record: Vec<u8> = [VERSION].into_iter().chain(own.id.0).chain(rest).collect();
        assert_eq!(own.open("a-1", &record), Ok(b"Bearer of-old".to_vec()));
    }

    /// The wrapped data key (00, 01, … 1f), the nonce and the encrypted secret.
    const RECORD_1: &str = "046db2ef540d467ac15ec4e3a6416a413c313b1afeced7c69c28a52ac1001da7\
        db492b8cf86563dd6465666768696a6b\
        6c6d6e6f0a7ebf141c9b76f1584f3084bebb245624af36c47065e32dc1006c1bef";
}
