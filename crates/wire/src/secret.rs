//! Secrets: values that functions get when an instance starts, and that nothing else shows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::ids::{ParseIdError, SECRET_NAME_MAX, text_type};

/// Maximum size of a value in bytes.
pub const SECRET_MAX: usize = 64 << 10;
/// Maximum number of a namespace's secrets.
pub const SECRETS_MAX: usize = 100;
/// Maximum number of a function's secrets.
pub const SECRETS_OF_FUNCTION_MAX: usize = 32;

/// A secret's name, unique in its namespace: `[A-Z_][A-Z0-9_]*`, at most [`SECRET_NAME_MAX`] characters. It is a file's
/// name and an environment variable's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "DB_URL")]
pub struct SecretName(Arc<str>);

text_type!(SecretName);

impl FromStr for SecretName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let good = (1..=SECRET_NAME_MAX).contains(&text.len())
            && !text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(allowed);
        // The platform sets these variables itself.
        match good && text != "PORT" && !text.starts_with("FN_") {
            true => Ok(Self(text.into())),
            false => Err(ParseIdError::Secret(text.to_owned())),
        }
    }
}

/// A secret's value: 1 to [`SECRET_MAX`] bytes, which need not be text. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Arc<[u8]>);

/// The bytes are no secret's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretValueError {
    /// There are none.
    #[error("the value is empty: a secret has at least one byte")]
    Empty,
    /// There are too many.
    #[error("the value has more than {} KiB", SECRET_MAX >> 10)]
    TooLarge,
}

impl SecretValue {
    /// The value that these bytes are.
    ///
    /// # Errors
    /// If there are none, or more than [`SECRET_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, SecretValueError> {
        match bytes.len() {
            0 => Err(SecretValueError::Empty),
            1..=SECRET_MAX => Ok(Self(bytes.into())),
            _ => Err(SecretValueError::TooLarge),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// As base64.
impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Self::new(&bytes).map_err(serde::de::Error::custom)
    }
}

/// A secret for an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Its name.
    pub name: SecretName,
    /// How often it was set.
    pub version: u32,
    /// Its value.
    pub value: SecretValue,
}

/// Tells two states of a function's secrets apart: the sum of their versions, which grows whenever one is set, and
/// their number, which is less once one was removed. It is never 0.
pub fn revision(versions: impl Iterator<Item = u32>) -> u64 {
    1 + versions.map(|version| (1 << 40) + u64::from(version)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_variable_that_the_platform_does_not_set() {
        for name in ["A", "_", "DB_URL", "K8S", &"A".repeat(SECRET_NAME_MAX)] {
            assert_eq!(name.parse::<SecretName>().unwrap().as_str(), name);
        }
        let long = "A".repeat(SECRET_NAME_MAX + 1);
        for name in ["", "1A", "db_url", "A-B", "../A", "A/B", "Ä", "PORT", "FN_KEY", &long] {
            let error = name.parse::<SecretName>().unwrap_err().to_string();
            assert!(error.contains("use 1 to 64"), "{error}");
        }
    }

    #[test]
    fn a_value_is_not_shown_and_has_limits() {
        let value = SecretValue::new(b"hunter2").unwrap();
        assert_eq!(format!("{value:?} {value:#?}"), "… …");
        assert_eq!(value.bytes(), b"hunter2");
        let name = "DB_URL".parse().unwrap();
        let secret = Secret {
            name,
            version: 1,
            value,
        };
        assert!(!format!("{secret:?}").contains("hunter2"));
        let json = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<Secret>(&json).unwrap(), secret);
        assert_eq!(SecretValue::new(b""), Err(SecretValueError::Empty));
        assert!(SecretValue::new(&vec![0; SECRET_MAX]).is_ok());
        assert_eq!(
            SecretValue::new(&vec![0; SECRET_MAX + 1]),
            Err(SecretValueError::TooLarge)
        );
    }
}
