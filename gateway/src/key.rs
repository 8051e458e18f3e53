//! The platform's own key, the admin key. Only its hash is kept, and the check takes the same time wherever a wrong key
//! differs.

use std::fmt;
use std::str::FromStr;

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
    pub(crate) fn fits(&self, key: &[u8]) -> bool {
        self.0 == blake3::hash(key)
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
