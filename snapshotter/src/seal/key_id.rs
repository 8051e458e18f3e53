//! Ids of keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(super) const ID: usize = 16;

/// Identifies a key. Reveals nothing about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(pub(super) [u8; ID]);

/// The text is no key's id.
#[derive(Debug, thiserror::Error)]
#[error("a key's id is 32 lower-case hexadecimal digits")]
pub struct ParseKeyIdError;

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KeyId {
    type Err = ParseKeyIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; ID];
        let is_hex = text.len() == 2 * ID && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !is_hex {
            return Err(ParseKeyIdError);
        }
        for (byte, at) in id.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| ParseKeyIdError)?;
        }
        Ok(Self(id))
    }
}

impl TryFrom<String> for KeyId {
    type Error = ParseKeyIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.to_string()
    }
}
