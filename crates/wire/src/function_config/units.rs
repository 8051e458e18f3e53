//! Sizes and durations as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A number of bytes, written as `256MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// Why a size or duration was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseUnitError {
    /// Not a number with a unit of size.
    #[error("\"{0}\" is not a size: write a whole number and KiB, MiB or GiB, for example \"256MiB\"")]
    Size(String),
    /// Not a duration.
    #[error("\"{0}\" is not a duration: write for example \"500ms\", \"30s\" or \"5m\"")]
    Duration(String),
}

const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
];

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseUnitError::Size(text.to_owned());
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|n| (n.trim_end(), *unit)))
            .ok_or_else(refused)?;
        let number: u64 = number.parse().map_err(|_| refused())?;
        number.checked_mul(unit).map(Self).ok_or_else(refused)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, unit) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `1h 30m`.
///
/// # Errors
/// If `text` does not have that format.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    humantime::parse_duration(text).map_err(|_| ParseUnitError::Duration(text.to_owned()))
}
