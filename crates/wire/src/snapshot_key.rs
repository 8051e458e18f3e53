//! The key that a namespace's snapshots are encrypted with. Workers get it with their orders, and keep it in memory.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Size of a key in bytes.
pub const SNAPSHOT_KEY: usize = 32;

/// A namespace's key. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct SnapshotKey([u8; SNAPSHOT_KEY]);

/// The bytes are no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a snapshot key has {SNAPSHOT_KEY} bytes, and this has {0}")]
pub struct SnapshotKeyError(usize);

impl SnapshotKey {
    /// The key that these bytes are.
    ///
    /// # Errors
    /// If there are not as many as a key has.
    pub fn new(bytes: &[u8]) -> Result<Self, SnapshotKeyError> {
        bytes.try_into().map(Self).map_err(|_| SnapshotKeyError(bytes.len()))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; SNAPSHOT_KEY] {
        &self.0
    }
}

impl fmt::Debug for SnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// As base64.
impl Serialize for SnapshotKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for SnapshotKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Self::new(&bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_travels_as_text_and_is_not_shown() {
        let key = SnapshotKey::new(&[7; SNAPSHOT_KEY]).unwrap();
        assert_eq!(format!("{key:?}"), "…");
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<SnapshotKey>(&json).unwrap(), key);
        assert_eq!(SnapshotKey::new(&[7; 31]), Err(SnapshotKeyError(31)));
    }
}
