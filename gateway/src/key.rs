//! The admin key. Only its hash is kept, and the check takes the same time wherever a wrong key differs.

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;
use rekindle_wire::headers::bearer;
use rekindle_wire::{ApiError, ErrorCode};

/// BLAKE3 hash of an admin key.
#[derive(Clone, Copy)]
pub struct KeyHash(blake3::Hash);

/// A key hash is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("an admin key's hash is 64 hexadecimal digits: make the key anew, or give the output of `b3sum` over it")]
pub struct ParseKeyHashError;

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: &str) -> Self {
        Self(blake3::hash(key.as_bytes()))
    }

    /// Whether `key` is the one that was hashed. Comparing [`blake3::Hash`]es takes constant time.
    fn fits(&self, key: &[u8]) -> bool {
        self.0 == blake3::hash(key)
    }

    /// Whether the headers carry the key.
    pub(crate) fn is_sent(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|key| self.fits(key))
    }

    /// Refuses a request that does not carry the key.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let message = match bearer(headers) {
            Some(key) if self.fits(key) => return Ok(()),
            Some(_) => "the admin key is wrong: see where `fn up` keeps it (`fn status`), or set FN_KEY",
            None => "this needs the admin key: send \"Authorization: Bearer KEY\", or use `fn`, which does",
        };
        Err(ApiError::new(ErrorCode::Unauthorized, message))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl FromStr for KeyHash {
    type Err = ParseKeyHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        blake3::Hash::from_hex(text.trim())
            .map(Self)
            .map_err(|_| ParseKeyHashError)
    }
}
